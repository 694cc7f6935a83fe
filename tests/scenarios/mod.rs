//! What the filter does, told once for every host: real Envoys and the host of the tests' own run
//! the same scenarios. A scenario asserts outcomes alone: statuses, headers, bodies.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests fail by panicking"
)]

/// Scenarios about failed authentications.
pub mod auth;
/// Scenarios about where a request comes from.
pub mod client;
/// Scenarios about who a request belongs to.
pub mod identity;
/// Scenarios about requests in flight.
pub mod in_flight;
/// Scenarios about the mode that operators set in the store.
pub mod mode;
/// Scenarios about limits on the node.
pub mod node;
/// Scenarios about limits in the store.
pub mod store;

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::client::{Request, Response};

/// A proxy with the filter in it.
pub trait Rig {
    /// Sends a request and waits for its answer.
    fn send(&mut self, request: &Request) -> Response;

    /// Sends a request that stays in flight. Where it is answered at once instead, says how.
    fn hold(&mut self, request: &Request) -> Option<Response>;

    /// Ends all requests that are held.
    fn end_all(&mut self);

    /// Lets time pass.
    fn wait(&mut self, time: Duration);

    /// Puts another plugin JSON in force; where it is refused, says why.
    fn update(&mut self, plugin: &Value) -> Result<(), String>;

    /// Takes the store away, or gives it back.
    fn set_store(&mut self, reachable: bool);

    /// The sum of the series of `fairshare_<name>` that carry all of these labels, or the one series
    /// that has none.
    fn metric(&mut self, name: &str, labels: &[(&str, &str)]) -> u64;
}

/// A plugin JSON with one node limit called `dns`.
pub fn node_limit(levels: Value) -> Value {
    limit(json!({"scope": "node"}), levels)
}

/// A plugin JSON with one strict global limit called `dns`.
pub fn global_limit(settings: Value, levels: Value) -> Value {
    let mut plugin =
        limit(merged(json!({"scope": "global", "consistency": "strict"}), settings), levels);
    plugin["store"] = json!({"cluster": "fairshare_redis", "timeout": "2s"});
    plugin
}

fn limit(settings: Value, levels: Value) -> Value {
    let limit = merged(merged(json!({"name": "dns"}), settings), levels);
    json!({"limits": [limit]})
}

/// `base` with the fields of `more`.
pub fn merged(mut base: Value, more: Value) -> Value {
    if let (Value::Object(base), Value::Object(more)) = (&mut base, more) {
        base.extend(more);
    }
    base
}

/// A window level.
pub fn window(requests: u64, window: &str) -> Value {
    json!({"requests": requests, "window": window})
}

/// A request of a tenant.
pub fn by(tenant: &str) -> Request {
    Request::get("/").tenant(tenant)
}

/// The statuses of `count` equal requests.
pub fn statuses(rig: &mut dyn Rig, request: &Request, count: usize) -> Vec<u16> {
    (0..count).map(|_| rig.send(request).status).collect()
}

/// Asserts that of `admitted + refused` equal requests the first `admitted` pass and no other.
pub fn expect(rig: &mut dyn Rig, request: &Request, admitted: usize, refused: usize) {
    let expected = [vec![200; admitted], vec![429; refused]].concat();
    assert_eq!(statuses(rig, request, admitted + refused), expected);
}
