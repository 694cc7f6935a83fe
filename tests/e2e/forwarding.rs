use serde_json::json;

use crate::scenarios::{merged, node_limit, window};
use crate::support::client::Request;
use crate::support::envoy::Envoy;

/// The line of the reference configuration that decides what Envoy does with `x-forwarded-for`.
const MODE: &str = "use_remote_address: true";

/// The statuses of requests that claim to have been forwarded by these lists, where each client may
/// send one.
fn statuses(mode: &str, trusted_hops: u64, lists: &[&str]) -> Vec<u16> {
    let plugin = merged(
        node_limit(json!({"client": window(1, "1m")})),
        json!({"identity": {"client": {"trusted_hops": trusted_hops}}}),
    );
    let mode = mode.replace('\n', "\n          ");
    let envoy = Envoy::builder(plugin).replacing(MODE, &mode).start();
    let send = |list: &&str| envoy.send(&Request::get("/").header("x-forwarded-for", list)).status;
    lists.iter().map(send).collect()
}

/// CRD-3: what Envoy calls the peer tells what it did with the list, whichever way it is set up.
#[test]
fn hops_are_counted_in_every_mode_of_envoy() {
    const FORGED: [&str; 3] = ["203.0.113.5", "1.1.1.1, 203.0.113.5", "2.2.2.2, 203.0.113.6"];
    const ONE_THEN_ANOTHER: [u16; 3] = [200, 429, 200];
    let extension = "use_remote_address: false
original_ip_detection_extensions:
- name: envoy.extensions.http.original_ip_detection.xff
  typed_config:
    \"@type\": type.googleapis.com/envoy.extensions.http.original_ip_detection.xff.v3.XffConfig
    xff_num_trusted_hops: 0
    skip_xff_append: false";
    for mode in [
        MODE,
        "use_remote_address: false",
        "use_remote_address: true\nxff_num_trusted_hops: 1",
        extension,
    ] {
        assert_eq!(statuses(mode, 1, &FORGED), ONE_THEN_ANOTHER, "{mode}");
    }
    // Envoy has counted already, and only where it is told so.
    for mode in ["use_remote_address: false", "use_remote_address: true\nxff_num_trusted_hops: 1"] {
        assert_eq!(statuses(mode, 0, &FORGED), ONE_THEN_ANOTHER, "{mode}");
    }
    assert_eq!(statuses(MODE, 0, &FORGED), [200, 429, 429]);
}

/// What Envoy cannot read it does not use; it is read here, and what has no address is the peer.
#[test]
fn lists_that_envoy_cannot_read_are_no_way_out() {
    let mode = "use_remote_address: false";
    let lists = ["1.1.1.1, 203.0.113.5:99", "2.2.2.2, [::ffff:203.0.113.5]:98", "203.0.113.5"];
    assert_eq!(statuses(mode, 1, &lists), [200, 429, 429]);
    assert_eq!(statuses(mode, 1, &["1.1.1.1, unknown", "2.2.2.2, ", "-"]), [200, 429, 429]);
}
