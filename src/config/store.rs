//! The section `store`: what stands behind limits of global scope.

use super::error::Fault;
use super::names;
use super::reader::{Node, choose};
use crate::policy::{Secret, StorePolicy, Topology};
use crate::units::Span;

/// A healthy store on the same network answers in a few milliseconds; beyond this a request is
/// better decided by `on_store_error`.
const DEFAULT_TIMEOUT: Span = Span::from_millis(50);

/// The host reads a timeout below this as none at all.
const MIN_TIMEOUT: Span = Span::from_millis(1);
const MAX_TIMEOUT: Span = Span::from_secs(10);

const DEFAULT_KEY_PREFIX: &str = "fairshare";

/// Reads the section.
pub(super) fn read(section: &Node<'_>) -> Option<StorePolicy> {
    let fields = section.object(&[
        "cluster",
        "timeout",
        "key_prefix",
        "username",
        "password",
        "topology",
    ])?;
    let fix = "name the Envoy cluster that leads to the store";
    let cluster = fields.required("cluster", fix).and_then(|node| node.text(names::cluster));
    let timeout = fields.get("timeout").and_then(|node| read_timeout(&node));
    let key_prefix = fields.get("key_prefix").and_then(|node| node.text(names::key_prefix));
    let username = fields.get("username").and_then(|node| node.text(Ok)).unwrap_or_default();
    let password = fields.get("password").map(|node| node.as_secret().text(Ok));
    if !username.is_empty() && password.is_none_or(|password| password == Some("")) {
        let fault = Fault::new("does nothing without a password", "add \"password\", or remove it");
        fields.fail("username", fault);
    }
    let topologies = [("single", Topology::Single), ("cluster", Topology::Cluster)];
    let topology =
        fields.get("topology").and_then(|node| node.text(|text| choose(text, &topologies)));
    Some(StorePolicy {
        cluster: cluster?.to_owned(),
        timeout: timeout.unwrap_or(DEFAULT_TIMEOUT),
        key_prefix: key_prefix.unwrap_or(DEFAULT_KEY_PREFIX).to_owned(),
        username: username.to_owned(),
        password: Secret(password.flatten().unwrap_or_default().to_owned()),
        topology: topology.unwrap_or(Topology::Single),
    })
}

fn read_timeout(node: &Node<'_>) -> Option<Span> {
    let timeout = node.duration("ms")?;
    let whole_millis = Span::from_millis(timeout.as_millis_ceil()) == timeout;
    if !whole_millis || !(MIN_TIMEOUT..=MAX_TIMEOUT).contains(&timeout) {
        let rule = format!("is not a number of milliseconds from {MIN_TIMEOUT} to {MAX_TIMEOUT}");
        node.fail(Fault::new(rule, "write one, as in \"50ms\""));
    }
    Some(timeout)
}
