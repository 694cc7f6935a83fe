//! See `fairshare_fuzz::configuration`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fairshare_fuzz::configuration::run(bytes));
