//! See `fairshare_fuzz::replies`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fairshare_fuzz::replies::run(bytes));
