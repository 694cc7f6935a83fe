//! Fairshare: shared-plus-per-tenant rate limits for Envoy, as a proxy-wasm filter.
//!
//! The modules, from the bottom up; each uses only those above it in this list:
//!
//! - [`units`]: points and spans of time.
//! - [`map`]: the hash map of everything looked up while requests are served.
//! - [`limiter`]: pure decisions, from usage and time to a verdict.
//! - [`policy`]: the compiled configuration and how a request is matched to it.
//! - [`config`]: from the plugin's JSON to a policy, or to every error in it.
//! - [`store`]: usage that outlives a decision: the node's slab and the protocol of the store.
//! - [`filter`]: a request's life as one state machine over a small [`host`] interface.
//!
//! On top stand two thin shells: the proxy-wasm adapter (built for wasm32 only) and the command
//! line. Nothing below them reads a clock, an environment or a file.

// The adapter's raw host imports are the only unsafe code there can be.
#![cfg_attr(not(target_arch = "wasm32"), forbid(unsafe_code))]
// A test that overflows fails, as it should.
#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

#[cfg(all(feature = "cli", not(target_arch = "wasm32")))]
pub mod cli;
pub mod config;
pub mod filter;
pub mod host;
pub mod limiter;
pub mod map;
pub mod policy;
pub mod store;
pub mod units;
#[cfg(target_arch = "wasm32")]
mod wasm;
