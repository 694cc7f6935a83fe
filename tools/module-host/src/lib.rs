//! Runs the built module in a small proxy-wasm host whose every status a test can choose.
//!
//! [`Machine`] is what a test scripts and looks at: the clock, the shared data, what a request
//! carries, which host functions fail. [`Vm`] is one instance of the module in it, and [`Proxy`]
//! calls it in the order in which Envoy does.
#![allow(clippy::missing_panics_doc, reason = "a host for tests may panic")]

/// Configurations under which all parts of the module run.
pub mod documents;
mod functions;
mod machine;
mod proxy;
/// Numbers from a seed.
pub mod random;
mod status;
/// What the store says.
pub mod store;
mod vm;

use std::path::{Path, PathBuf};

pub use machine::{Events, Machine, Script, StoreCall, Streams};
pub use proxy::{Fate, Proxy, ROOT, header_map};
pub use status::Status;
pub use vm::{Program, Trap, Vm};

/// The bytes of the module that the tests run: `FAIRSHARE_WASM`, else what `wasm-build.sh` has left.
#[must_use]
pub fn module() -> Vec<u8> {
    let named = std::env::var_os("FAIRSHARE_WASM").filter(|value| !value.is_empty());
    let path = named.map_or_else(|| repository().join("target/fairshare.wasm"), PathBuf::from);
    std::fs::read(&path).unwrap_or_else(|error| {
        panic!("{}: {error}: run ./wasm-build.sh", path.display());
    })
}

/// The repository's root.
#[must_use]
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
