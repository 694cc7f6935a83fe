//! What is measured, each with the Envoys that it needs.

/// The module against another build of it.
pub(crate) mod builds;
/// Filters that decide in the proxy, against each other.
pub(crate) mod local;
/// nginx and HAProxy, with and without their limiters.
pub(crate) mod neighbours;
/// Filters that ask somebody.
pub(crate) mod remote;
/// A million tenants: memory, and what they cost.
pub(crate) mod scale;
/// The module's size and start.
pub(crate) mod start;
/// Cost against one dimension of the policy or the traffic.
pub(crate) mod sweeps;
/// That no interval holds more than its limit, and how much less.
pub(crate) mod windows;

use std::sync::Arc;

use crate::http::write_request;
use crate::load::Requests;

/// Connections of load for filters that decide by themselves.
pub(crate) const CONNECTIONS: usize = 16;

/// Requests of one tenant with one credential.
pub(crate) fn requests_of(subject: &'static str) -> Requests {
    requests_to("/", subject)
}

pub(crate) fn requests_to(path: &'static str, subject: &'static str) -> Requests {
    Arc::new(move |_, bytes| write_request(bytes, path, subject, ""))
}
