use std::time::Duration;

use serde_json::json;

use super::{Rig, by, expect, merged, node_limit, statuses, window};
use crate::support::client::Request;

/// O3, RSP-1: over a limit the answer is a 429 that says when to come back, and coming back then
/// works.
pub fn over_rate_answers_429_with_retry_after(rig: &mut dyn Rig) {
    rig.update(&node_limit(json!({"tenant": window(3, "2s"), "shared": window(10, "2s")})))
        .unwrap();
    for left in ["2", "1", "0"] {
        let admitted = rig.send(&by("acme"));
        assert_eq!(admitted.status, 200);
        assert_eq!(admitted.header("ratelimit-policy").unwrap(), "\"dns.tenant\";q=3;w=2");
        let field = admitted.header("ratelimit").unwrap();
        assert!(field.starts_with(&format!("\"dns.tenant\";r={left};t=")), "{field}");
    }
    let refused = rig.send(&by("acme"));
    assert_eq!(refused.status, 429);
    let retry_after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=2).contains(&retry_after), "{retry_after}");
    assert_eq!(refused.header("content-type").unwrap(), "application/problem+json");
    assert_eq!(refused.header("x-envoy-ratelimited").unwrap(), "true");
    assert_eq!(refused.header_values("ratelimit").len(), 1);
    let problem = refused.json();
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["code"], "rate_limited");
    assert_eq!(problem["limit"], "dns");
    assert_eq!(problem["level"], "tenant");
    assert_eq!(problem["retry_after"], retry_after);
    assert!(problem["detail"].as_str().unwrap().contains("3 requests in any 2s"));
    rig.wait(Duration::from_secs(retry_after));
    expect(rig, &by("acme"), 1, 0);
}

/// D1, D2: one tenant at its limit takes nothing from the others.
pub fn tenants_do_not_share_buckets(rig: &mut dyn Rig) {
    rig.update(&node_limit(json!({"shared": window(20, "1m"), "tenant": window(5, "1m")})))
        .unwrap();
    expect(rig, &by("acme"), 5, 20);
    expect(rig, &by("globex"), 5, 1);
    expect(rig, &by("initech"), 5, 1);
    expect(rig, &by("umbrella"), 5, 1);
    // All 20 shared units are spent now.
    expect(rig, &by("hooli"), 0, 1);
}

/// TIM-1: what is refused at one level is charged at none.
pub fn refused_request_spends_nothing(rig: &mut dyn Rig) {
    rig.update(&merged(
        node_limit(json!({
            "shared": window(10, "1m"),
            "tenant": window(3, "1m"),
            "credential": {"rate": 2, "per": "1m", "burst": 2},
        })),
        json!({"overrides": {"globex": {"dns": {"tenant": window(10, "1m")}}}}),
    ))
    .unwrap();
    let keyed = |tenant: &str, key: &str| by(tenant).header("x-api-key", key);
    // The credential refuses: neither the tenant's window nor the shared one is spent.
    expect(rig, &keyed("acme", "k1"), 2, 3);
    // The tenant refuses: the shared window keeps 7.
    expect(rig, &keyed("acme", "k2"), 1, 4);
    expect(rig, &by("globex"), 7, 1);
    // The cost does not fit: what is left stays there.
    let costing = |cost| node_limit(json!({"cost": cost, "tenant": window(7, "1m")}));
    rig.update(&costing(3)).unwrap();
    expect(rig, &by("initech"), 2, 0);
    let refused = rig.send(&by("initech")).json();
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains("7 requests in any 1m, and this one counts as 3; retry"), "{detail}");
    rig.update(&costing(1)).unwrap();
    expect(rig, &by("initech"), 1, 1);
}

/// E2, WRK-1: all workers together admit what the limit says, exactly.
pub fn two_workers_share_one_budget(rig: &mut dyn Rig) {
    rig.update(&node_limit(json!({"tenant": window(40, "1m")}))).unwrap();
    let admitted = statuses(rig, &by("acme"), 100).iter().filter(|status| **status == 200).count();
    assert_eq!(admitted, 40);
}

/// D3: without a tenant, and for the tenant `default`, only the shared window holds.
pub fn default_tenant_skips_tenant_window(rig: &mut dyn Rig) {
    rig.update(&node_limit(json!({"shared": window(8, "1m"), "tenant": window(2, "1m")}))).unwrap();
    expect(rig, &by("default"), 3, 0);
    expect(rig, &Request::get("/"), 3, 0);
    expect(rig, &by("acme"), 2, 1);
    expect(rig, &by("default"), 0, 1);
}

/// D5: without fair share the shared level alone is enforced; switched off, nothing is.
pub fn kill_switch_off_restores_shared_only(rig: &mut dyn Rig) {
    let limits = node_limit(json!({"shared": window(8, "1m"), "tenant": window(2, "1m")}));
    rig.update(&limits).unwrap();
    expect(rig, &by("acme"), 2, 1);
    rig.update(&merged(limits.clone(), json!({"fair_share": false}))).unwrap();
    // The two that acme has spent still count.
    expect(rig, &by("acme"), 6, 2);
    rig.update(&merged(limits, json!({"mode": "off"}))).unwrap();
    expect(rig, &by("acme"), 5, 0);
}

/// E1, CFG-4: a tenant's override replaces its default, up and down, and touches no one else.
pub fn cfg_4_overrides_replace_the_tenant_level(rig: &mut dyn Rig) {
    rig.update(&merged(
        node_limit(json!({"shared": window(1000, "1m"), "tenant": window(1, "1m")})),
        json!({"overrides": {
            "acme": {"dns": {"tenant": window(10, "1m")}},
            "tiny": {"dns": {"tenant": window(0, "1m")}},
        }}),
    ))
    .unwrap();
    expect(rig, &by("acme"), 10, 1);
    expect(rig, &by("someone"), 1, 1);
    expect(rig, &by("tiny"), 0, 1);
}

/// D4, C1: namespaces are independent limits, each with its own windows.
pub fn namespaces_are_independent(rig: &mut dyn Rig) {
    rig.update(&json!({"limits": [
        {"name": "dns", "match": {"path_prefix": "/dns/"},
         "shared": window(20, "1m"), "tenant": window(5, "1m")},
        {"name": "rdap", "match": {"path_prefix": "/rdap"},
         "shared": window(9, "1m"), "tenant": window(3, "1m")},
    ]}))
    .unwrap();
    let to = |path: &str| Request::get(path).tenant("acme");
    expect(rig, &to("/dns/a"), 5, 1);
    expect(rig, &to("/rdap/b?x=1"), 3, 1);
    expect(rig, &to("/rdapx"), 5, 0);
}

/// What one request was told does not shorten what another one is: it would come back too early.
pub fn a_remembered_refusal_hides_no_longer_wait(rig: &mut dyn Rig) {
    rig.update(&json!({"limits": [
        {"name": "dns", "shared": window(6, "1m"), "tenant": window(5, "1m")},
        {"name": "daily", "tenant": window(5, "1d")},
    ]}))
    .unwrap();
    expect(rig, &by("noisy"), 5, 0);
    expect(rig, &by("other"), 1, 0);
    for _ in 0..2 {
        assert_eq!(rig.send(&by("third")).json()["limit"], "dns");
        let refused = rig.send(&by("noisy"));
        assert_eq!(refused.json()["limit"], "daily");
        let retry_after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!(retry_after > 80_000, "{retry_after}");
    }
}

/// O1: GCRA per tenant and per credential.
pub fn gcra_admits_its_burst_at_once(rig: &mut dyn Rig) {
    rig.update(&node_limit(json!({
        "tenant": {"rate": 1, "per": "1m", "burst": 6},
        "credential": {"rate": 1, "per": "1m", "burst": 4},
    })))
    .unwrap();
    expect(rig, &by("acme").header("authorization", "Bearer k1"), 4, 1);
    expect(rig, &by("acme").header("authorization", "bearer  k2"), 2, 1);
}

/// O3: exempt paths are never counted and never refused, and no other spelling is exempt.
pub fn probes_are_exempt(rig: &mut dyn Rig) {
    rig.update(&merged(
        node_limit(json!({"shared": window(2, "1m")})),
        json!({"exempt": [{"path": "/healthz"}]}),
    ))
    .unwrap();
    expect(rig, &Request::get("/healthz"), 5, 0);
    expect(rig, &Request::get("/healthz?verbose=1"), 5, 0);
    expect(rig, &Request::get("/healthzz"), 2, 1);
    expect(rig, &Request::get("/healthz"), 1, 0);
}

/// CFG-2: usage survives a change, and a changed limit applies to it at once.
pub fn a_changed_limit_applies_to_current_usage(rig: &mut dyn Rig) {
    let limit = |requests| node_limit(json!({"tenant": window(requests, "1m")}));
    rig.update(&limit(5)).unwrap();
    expect(rig, &by("acme"), 5, 1);
    rig.update(&limit(8)).unwrap();
    expect(rig, &by("acme"), 3, 1);
    rig.update(&limit(3)).unwrap();
    expect(rig, &by("acme"), 0, 1);
}

/// CFG-1: a bad document says what is wrong and never replaces a good one.
pub fn bad_update_keeps_the_old_config(rig: &mut dyn Rig) {
    rig.update(&node_limit(json!({"tenant": window(2, "1m")}))).unwrap();
    expect(rig, &by("acme"), 2, 1);
    let bad = node_limit(json!({"tenant": {"requests": "ten", "windw": "1s"}}));
    let told = rig.update(&bad).unwrap_err();
    assert!(told.contains("limits[0].tenant.requests"), "{told}");
    assert!(told.contains("windw"), "{told}");
    expect(rig, &by("acme"), 0, 2);
    expect(rig, &by("globex"), 2, 1);
}

/// A limit in shadow mode is only counted; so is every limit where the whole filter is.
pub fn shadow_refuses_nothing(rig: &mut dyn Rig) {
    let enforced = json!({"name": "dns", "tenant": window(4, "1m")});
    let shadow = json!({"name": "tight", "mode": "shadow", "tenant": window(1, "1m")});
    rig.update(&json!({"limits": [shadow, enforced]})).unwrap();
    expect(rig, &by("acme"), 4, 2);
    let labels = [("limit", "tight"), ("outcome", "shadow_refused")];
    assert_eq!(rig.metric("requests", &labels), 5);
    rig.update(&json!({"mode": "shadow", "limits": [{"name": "dns", "tenant": window(4, "1m")}]}))
        .unwrap();
    expect(rig, &by("acme"), 3, 0);
}

/// MET-1: every request is counted exactly once.
pub fn met_1_metrics_add_up(rig: &mut dyn Rig) {
    rig.update(&merged(
        node_limit(json!({"tenant": window(3, "1m"), "match": {"path_prefix": "/a"}})),
        json!({"exempt": [{"path": "/healthz"}]}),
    ))
    .unwrap();
    let before = totals(rig);
    expect(rig, &Request::get("/a").tenant("acme"), 3, 2);
    expect(rig, &Request::get("/healthz"), 2, 0);
    expect(rig, &Request::get("/other"), 4, 0);
    let ambiguous = by("acme").tenant("acme");
    assert_eq!(rig.send(&ambiguous).status, 400);
    let counted: Vec<u64> = totals(rig).iter().zip(before).map(|(now, then)| now - then).collect();
    assert_eq!(counted, [7, 2, 2, 1, 2, 1]);
}

fn totals(rig: &mut dyn Rig) -> [u64; 6] {
    let outcome = |outcome| [("outcome", outcome)];
    [
        rig.metric("requests", &outcome("admitted")),
        rig.metric("requests", &outcome("refused")),
        rig.metric("requests", &outcome("exempt")),
        rig.metric("requests", &outcome("errored")),
        rig.metric("refusals", &[("code", "rate_limited")]),
        rig.metric("refusals", &[("code", "identity_ambiguous")]),
    ]
}
