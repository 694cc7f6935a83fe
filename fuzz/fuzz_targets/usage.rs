//! See `fairshare_fuzz::usage`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fairshare_fuzz::usage::run(bytes));
