//! Bytes from an enemy for everything of fairshare that reads bytes, and what must hold then.
//!
//! Each module is one target: a function from bytes that panics where something does not hold.
//! `cargo test` runs the committed corpora through them, and `./envoy/fuzz.sh` looks for more.
#![allow(clippy::missing_panics_doc, reason = "a target panics where something does not hold")]

pub mod callbacks;
pub mod configuration;
pub mod header_map;
pub mod replies;
pub mod slab;
pub mod usage;

mod bytes;
mod policies;
/// What a store says, as the tests of the built module have it.
#[path = "../../tools/module-host/src/store.rs"]
mod store;

/// A function from bytes that panics where something does not hold.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const TARGETS: [(&str, Target); 6] = [
    ("callbacks", callbacks::run),
    ("configuration", configuration::run),
    ("header_map", header_map::run),
    ("replies", replies::run),
    ("slab", slab::run),
    ("usage", usage::run),
];
