use std::time::Duration;

use serde_json::{Value, json};

use super::{Rig, by, expect, global_limit, merged, node_limit, window};
use crate::support::client::{Request, Response};

/// A plugin JSON with one limit called `dns` that caps requests in flight.
pub fn caps(caps: Value) -> Value {
    node_limit(json!({"in_flight": caps}))
}

/// Waits until the gauge shows that so many requests hold slots.
pub fn wait_for_in_flight(rig: &mut dyn Rig, count: u64) {
    for _ in 0..50 {
        if rig.metric("in_flight", &[]) == count {
            return;
        }
        rig.wait(Duration::from_millis(100));
    }
    panic!("{} requests are in flight, not {count}", rig.metric("in_flight", &[]));
}

/// Holds a request for each of the tenants.
fn hold(rig: &mut dyn Rig, tenants: &[&str]) {
    for tenant in tenants {
        assert!(rig.hold(&by(tenant)).is_none(), "{tenant}");
    }
}

/// The refusal of a request that finds no free slot.
fn refused(rig: &mut dyn Rig, tenant: &str) -> Response {
    let answer = rig.hold(&by(tenant)).unwrap_or_else(|| panic!("{tenant} is in flight"));
    assert_eq!(answer.status, 429);
    assert_eq!(answer.json()["code"], "concurrency_limited");
    answer
}

/// Ends all requests and waits until the proxy knows.
fn end_all(rig: &mut dyn Rig) {
    rig.end_all();
    wait_for_in_flight(rig, 0);
}

/// O4, C2: a full cap refuses, at the level that is full, until a request ends.
pub fn a_full_cap_refuses_until_a_request_ends(rig: &mut dyn Rig) {
    rig.update(&caps(json!({"shared": 3, "tenant": 2}))).unwrap();
    expect(rig, &by("acme"), 5, 0);
    hold(rig, &["acme", "acme"]);
    let answer = refused(rig, "acme");
    assert_eq!(answer.header("retry-after").unwrap(), "1");
    assert_eq!(answer.header("x-envoy-ratelimited").unwrap(), "true");
    let policy = "\"dns.in_flight.tenant\";q=2;qu=\"concurrent-requests\"";
    assert_eq!(answer.header("ratelimit-policy").unwrap(), policy);
    assert_eq!(answer.header("ratelimit").unwrap(), "\"dns.in_flight.tenant\";r=0");
    let problem = answer.json();
    assert_eq!((&problem["limit"], &problem["level"]), (&json!("dns"), &json!("tenant")));
    assert_eq!(problem["violated-policies"], json!(["dns.in_flight.tenant"]));
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("allows this tenant 2 requests at a time"), "{detail}");
    hold(rig, &["globex"]);
    assert_eq!(refused(rig, "initech").json()["level"], "shared");
    wait_for_in_flight(rig, 3);
    assert_eq!(rig.metric("refusals", &[("code", "concurrency_limited")]), 2);
    assert_eq!(rig.metric("requests", &[("level", "tenant"), ("outcome", "refused")]), 1);
    end_all(rig);
    hold(rig, &["acme", "acme", "initech"]);
    end_all(rig);
}

/// CFG-2: a cap that is lowered below what is in flight refuses until use has fallen; requests of
/// the configuration before count once.
pub fn a_lowered_cap_refuses_until_use_has_fallen(rig: &mut dyn Rig) {
    rig.update(&caps(json!({"tenant": 3}))).unwrap();
    hold(rig, &["acme", "acme", "acme"]);
    rig.update(&caps(json!({"tenant": 2}))).unwrap();
    refused(rig, "acme");
    wait_for_in_flight(rig, 3);
    rig.update(&caps(json!({"tenant": 4}))).unwrap();
    hold(rig, &["acme"]);
    refused(rig, "acme");
    end_all(rig);
    hold(rig, &["acme", "acme", "acme", "acme"]);
    refused(rig, "acme");
    end_all(rig);
}

/// A cap of zero refuses everything, and takes nothing.
pub fn a_cap_of_zero_refuses_everything(rig: &mut dyn Rig) {
    rig.update(&caps(json!({"shared": 9, "tenant": 0}))).unwrap();
    for _ in 0..3 {
        let answer = refused(rig, "acme");
        assert!(answer.json()["detail"].as_str().unwrap().contains("nothing"));
    }
    hold(rig, &["default"]);
    wait_for_in_flight(rig, 1);
    end_all(rig);
}

/// TIM-1: a refused request holds nothing where it was refused for its rate, and spends nothing
/// where it was refused for what is in flight.
pub fn refused_request_holds_nothing(rig: &mut dyn Rig) {
    let levels = json!({"tenant": window(2, "1m"), "in_flight": {"shared": 2}});
    rig.update(&node_limit(levels)).unwrap();
    expect(rig, &by("acme"), 2, 5);
    hold(rig, &["globex", "globex"]);
    for _ in 0..5 {
        refused(rig, "initech");
    }
    end_all(rig);
    expect(rig, &by("initech"), 2, 1);
}

/// D5, CFG-4: an override replaces the tenant's cap, and without fair share the shared one alone
/// holds.
pub fn overrides_and_the_fair_share_switch_hold_for_caps(rig: &mut dyn Rig) {
    let plugin = merged(
        caps(json!({"shared": 4, "tenant": 1})),
        json!({"overrides": {"acme": {"dns": {"in_flight": {"tenant": 2}}}}}),
    );
    rig.update(&plugin).unwrap();
    hold(rig, &["acme", "acme", "globex"]);
    refused(rig, "acme");
    refused(rig, "globex");
    end_all(rig);
    rig.update(&merged(plugin, json!({"fair_share": false}))).unwrap();
    hold(rig, &["globex", "globex", "globex", "globex"]);
    assert_eq!(refused(rig, "acme").json()["level"], "shared");
    end_all(rig);
}

/// A cap in shadow mode counts what it would have refused, and holds slots of its own alone.
pub fn a_shadow_cap_refuses_nothing(rig: &mut dyn Rig) {
    let shadow = json!({"name": "tight", "mode": "shadow", "in_flight": {"tenant": 1}});
    let enforced = json!({"name": "dns", "in_flight": {"tenant": 3}});
    rig.update(&json!({"limits": [shadow, enforced]})).unwrap();
    hold(rig, &["acme", "acme", "acme"]);
    refused(rig, "acme");
    let shadow_refused = [("limit", "tight"), ("outcome", "shadow_refused")];
    assert_eq!(rig.metric("requests", &shadow_refused), 3);
    wait_for_in_flight(rig, 3);
    end_all(rig);
    hold(rig, &["acme"]);
    assert_eq!(rig.metric("requests", &shadow_refused), 3);
    end_all(rig);
}

/// In-flight caps hold on each node, also where the limit's rates are in the store; a request that
/// the store refuses gives its slots back.
pub fn caps_of_a_global_limit_hold_on_the_node(rig: &mut dyn Rig) {
    let levels = json!({"tenant": window(2, "1m"), "in_flight": {"shared": 2}});
    rig.update(&global_limit(json!({}), levels)).unwrap();
    expect(rig, &by("acme"), 2, 3);
    wait_for_in_flight(rig, 0);
    hold(rig, &["globex", "initech"]);
    refused(rig, "hooli");
    end_all(rig);
    expect(rig, &by("hooli"), 2, 1);
}

/// C5: both budgets and the ceiling on requests in flight are seen in metrics, and the configuration sets them.
pub fn c_5_budgets_and_ceiling_are_seen_and_set(rig: &mut dyn Rig) {
    let plugin = |dns: u64, rdap: u64, ceiling: u64| {
        let budget = |name: &str, requests| {
            json!({"name": name, "match": {"path_prefix": format!("/{name}/")},
                "shared": window(requests, "1m")})
        };
        let ceiling = json!({"name": "ceiling", "in_flight": {"shared": ceiling}});
        json!({"limits": [budget("dns", dns), budget("rdap", rdap), ceiling]})
    };
    let to = |path: &str| Request::get(path).tenant("acme");
    rig.update(&plugin(2, 1, 20)).unwrap();
    expect(rig, &to("/dns/a"), 2, 3);
    expect(rig, &to("/rdap/a"), 1, 2);
    rig.wait(Duration::from_millis(500));
    for (limit, admitted, refused) in [("dns", 2, 3), ("rdap", 1, 2)] {
        for (outcome, count) in [("admitted", admitted), ("refused", refused)] {
            let labels = [("limit", limit), ("level", "shared"), ("outcome", outcome)];
            assert_eq!(rig.metric("requests", &labels), count, "{limit} {outcome}");
        }
    }
    rig.update(&plugin(4, 2, 3)).unwrap();
    expect(rig, &to("/dns/a"), 2, 1);
    expect(rig, &to("/rdap/a"), 1, 1);
    hold(rig, &["acme", "globex", "initech"]);
    wait_for_in_flight(rig, 3);
    assert_eq!(refused(rig, "hooli").json()["limit"], "ceiling");
    rig.wait(Duration::from_millis(500));
    let refused = [("limit", "ceiling"), ("level", "shared"), ("outcome", "refused")];
    assert_eq!(rig.metric("requests", &refused), 1);
    assert_eq!(rig.metric("refusals", &[("code", "concurrency_limited")]), 1);
    end_all(rig);
}
