//! See `fairshare_fuzz::header_map`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fairshare_fuzz::header_map::run(bytes));
