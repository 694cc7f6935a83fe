//! The proxy-wasm adapter: the host's callbacks in, the host's functions out. No decisions.
//!
//! [`exports`] has the callbacks, [`vm`] finds whose they are and hands them on, [`host`] is what a
//! worker sees of the host, and [`abi`] the host's functions.

mod abi;
mod clock;
mod counters;
mod exports;
mod host;
mod log;
#[cfg(feature = "test-trap")]
mod trap;
mod vm;
