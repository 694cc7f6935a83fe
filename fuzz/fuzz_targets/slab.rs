//! See `fairshare_fuzz::slab`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fairshare_fuzz::slab::run(bytes));
