//! What end-to-end tests are made of: real Envoys with the module, an upstream, a raw client.
//!
//! ```ignore
//! let envoy = Envoy::builder(json!({"limits": [{"name": "demo", "tenant": {"requests": 1, "window": "10s"}}]}))
//!     .start();
//! assert_eq!(envoy.send(&Request::get("/").tenant("acme")).status, 200);
//! assert_eq!(envoy.send(&Request::get("/").tenant("acme")).status, 429);
//! ```
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::arithmetic_side_effects,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and they do have a clock and an environment"
)]

/// An HTTP/1.1 client that sends any bytes.
pub mod client;
/// What a pipeline of commands holds.
pub mod commands;
/// An Envoy with the module, killed when it goes out of scope.
pub mod envoy;
/// A store that is sick as a test wants it.
pub mod go_between;
/// An HTTP/2 client that asks for WebSockets.
pub mod h2;
/// What the pages tell their readers to do.
pub mod page;
/// Free ports.
pub mod ports;
/// Processes and their files, which end with the value that owns them.
pub mod process;
/// A Redis of a test's own.
pub mod redis;
/// A Redis Cluster of a test's own.
pub mod redis_cluster;
/// The reference configuration, filled in for a test.
pub mod reference;
/// Numbers from Envoy's admin interface.
pub mod stats;
/// The programs and the module that the tests run.
pub mod tools;
/// The service behind the proxy.
pub mod upstream;
