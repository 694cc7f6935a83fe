//! See `fairshare_fuzz::callbacks`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fairshare_fuzz::callbacks::run(bytes));
