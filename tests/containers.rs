//! The fleet of `envoy/docker-compose.yaml`, each part a host of its own, with its network cut:
//! `./envoy/test.sh compose` and `./envoy/test.sh chaos`.
//!
//! Every scenario prints one row of a table: what was offered and admitted, the worst interval over the
//! limit, refusals of a tenant that stays within its share, errors, the longest request and what it was spent on, and
//! how long recovery took.
#![allow(unreachable_pub, reason = "modules of a test")]
#![allow(
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and they do have a clock and an environment"
)]

/// What goes wrong, and what holds all the same.
#[path = "containers/chaos.rs"]
mod chaos;
/// That the fleet comes up as it is written.
#[path = "containers/compose.rs"]
mod compose;
/// The containers.
#[path = "containers/fleet.rs"]
mod fleet;
/// Clients.
#[path = "containers/load.rs"]
mod load;
/// Whether Envoys had a processor to run on.
#[path = "containers/processor.rs"]
mod processor;
/// What clients saw.
#[path = "containers/seen.rs"]
mod seen;
/// Delays on the way to Redis.
#[path = "containers/slow_link.rs"]
mod slow_link;
mod support;
