use serde_json::{Value, json};

use super::{Rig, by, expect, global_limit, merged, node_limit, window};
use crate::support::client::Request;

const OTHER: [u8; 4] = [127, 0, 0, 2];

/// A request that claims to have been forwarded.
fn via(list: &str) -> Request {
    Request::get("/").header("x-forwarded-for", list)
}

fn client_limit(trusted_hops: u64) -> Value {
    merged(
        node_limit(json!({"client": window(2, "1m")})),
        json!({"identity": {"client": {"trusted_hops": trusted_hops}}}),
    )
}

/// CRD-3: without trusted proxies the peer is the client, whatever it claims.
pub fn forged_forwarded_for_does_not_escape(rig: &mut dyn Rig) {
    rig.update(&client_limit(0)).unwrap();
    let mut status = |list: &str| rig.send(&via(list)).status;
    let lists = ["1.1.1.1", "2.2.2.2, 203.0.113.5", "127.0.0.9", "\u{fe}", "", ",,,"];
    assert_eq!(lists.map(&mut status), [200, 200, 429, 429, 429, 429]);
    expect(rig, &via("1.1.1.1").from(OTHER), 2, 1);
}

/// CRD-3: what stands to the left of the trusted proxies' words is nobody's business.
pub fn crd_3_hops_are_counted_from_the_right(rig: &mut dyn Rig) {
    rig.update(&client_limit(1)).unwrap();
    let mut status = |list: &str| rig.send(&via(list)).status;
    let lists = [
        "1.1.1.1, 203.0.113.5",
        "2.2.2.2, 203.0.113.5",
        "3.3.3.3, 203.0.113.5",
        "9.9.9.9, 203.0.113.6",
        "::ffff:203.0.113.6",
        "4.4.4.4, [::ffff:203.0.113.6]:99",
    ];
    assert_eq!(lists.map(&mut status), [200, 200, 429, 200, 200, 429]);
    let two_lines = via("203.0.113.6").header("x-forwarded-for", "203.0.113.7");
    expect(rig, &two_lines, 2, 1);
    // One network is one client of IPv6.
    expect(rig, &via("2001:db8::1"), 1, 0);
    expect(rig, &via("2001:db8::2"), 1, 1);
    expect(rig, &via("2001:db8:0:1::1"), 1, 0);
    // Without a readable address it is the peer, from any of them the same.
    expect(rig, &Request::get("/"), 1, 0);
    expect(rig, &via("203.0.113.5, unknown"), 1, 1);
    expect(rig, &Request::get("/").from(OTHER), 1, 0);
}

/// The client level takes either form, needs no tenant, and falls with fair share.
pub fn the_client_level_holds_for_everyone(rig: &mut dyn Rig) {
    let limits = node_limit(json!({
        "shared": window(9, "1m"),
        "client": {"rate": 1, "per": "1m", "burst": 3},
    }));
    rig.update(&limits).unwrap();
    expect(rig, &by("default"), 1, 0);
    expect(rig, &by("acme").header("x-api-key", "k1"), 1, 0);
    let last = rig.send(&Request::get("/"));
    assert_eq!(last.header("ratelimit-policy").unwrap(), "\"dns.client\";q=3;w=180");
    let refused = rig.send(&by("globex"));
    assert_eq!((refused.status, &refused.json()["level"]), (429, &json!("client")));
    assert_eq!(rig.metric("requests", &[("level", "client"), ("outcome", "refused")]), 1);
    expect(rig, &by("globex").from(OTHER), 3, 1);
    rig.update(&merged(limits, json!({"fair_share": false}))).unwrap();
    expect(rig, &by("globex").from(OTHER), 3, 1);
}

/// A client level may be the fleet's, decided in either way.
pub fn a_client_level_is_counted_in_the_store(rig: &mut dyn Rig) {
    for (prefix, consistency) in [("strict", "strict"), ("leased", "leased")] {
        let settings = json!({"consistency": consistency});
        let mut plugin = global_limit(settings, json!({"client": window(3, "1m")}));
        plugin["store"]["key_prefix"] = json!(prefix);
        plugin["namespace"] = json!(prefix);
        rig.update(&plugin).unwrap();
        expect(rig, &by("acme"), 2, 0);
        expect(rig, &by("globex"), 1, 1);
        expect(rig, &by("globex").from(OTHER), 3, 1);
    }
}
