use std::time::Duration;

use serde_json::{Value, json};

use super::{Request, Rig, by, expect, global_limit, merged, statuses, window};

/// E3: a global limit admits what it says, all levels together, and says so on its answers.
pub fn strict_limits_are_decided_in_the_store(rig: &mut dyn Rig) {
    rig.update(&global_limit(
        json!({}),
        json!({"shared": window(7, "1m"), "tenant": window(3, "1m")}),
    ))
    .unwrap();
    let first = rig.send(&by("acme"));
    assert_eq!(first.status, 200);
    assert_eq!(first.header("ratelimit-policy").unwrap(), "\"dns.tenant\";q=3;w=60");
    assert!(first.header("ratelimit").unwrap().starts_with("\"dns.tenant\";r=2;t="));
    expect(rig, &by("acme"), 2, 3);
    // What acme was refused was charged to nobody: four shared units are left.
    expect(rig, &by("globex"), 3, 1);
    expect(rig, &by("initech"), 1, 1);
    let refused = rig.send(&by("initech"));
    assert_eq!(refused.json()["level"], "shared");
    let retry_after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&retry_after), "{retry_after}");
}

/// A request that the store refuses gives back what the node had charged.
pub fn the_node_gives_back_what_the_store_refuses(rig: &mut dyn Rig) {
    let mut plugin = global_limit(json!({}), json!({"tenant": window(2, "1m")}));
    let node = json!({"name": "node", "scope": "node", "shared": window(5, "1m")});
    plugin["limits"].as_array_mut().unwrap().push(node);
    rig.update(&plugin).unwrap();
    expect(rig, &by("acme"), 2, 5);
    expect(rig, &by("globex"), 2, 2);
    expect(rig, &by("initech"), 1, 1);
}

/// E3, RED-4: without the store each limit does what its `on_store_error` says, and when the store
/// is back it is asked again.
pub fn redis_down_follows_on_store_error(rig: &mut dyn Rig) {
    let plugin = |settings| {
        let levels = json!({"shared": window(100, "1m"), "tenant": window(10, "1m")});
        let mut plugin = global_limit(settings, levels);
        plugin["store"]["timeout"] = json!("200ms");
        let node = json!({"name": "node", "scope": "node", "tenant": window(50, "1m")});
        plugin["limits"].as_array_mut().unwrap().push(node);
        plugin
    };
    rig.update(&plugin(json!({"on_store_error": "deny"}))).unwrap();
    expect(rig, &by("healthy"), 10, 1);
    rig.set_store(false);
    for _ in 0..3 {
        let refused = rig.send(&by("acme"));
        assert_eq!(refused.status, 503);
        assert_eq!(refused.json()["code"], "store_unavailable");
        assert_eq!(refused.header("retry-after").unwrap(), "1");
        assert_eq!(refused.header("x-envoy-ratelimited").as_deref(), Some("true"));
    }
    rig.update(&plugin(json!({"on_store_error": "allow"}))).unwrap();
    // The node's own limit holds all the same, and the three refusals were not charged to it.
    expect(rig, &by("acme"), 50, 1);
    rig.update(&plugin(json!({"on_store_error": "local", "local_fraction": 0.4}))).unwrap();
    expect(rig, &by("globex"), 4, 3);
    assert!(rig.metric("store_calls", &[("result", "unreachable")]) > 0);
    rig.set_store(true);
    rig.wait(Duration::from_secs(2));
    expect(rig, &by("globex"), 10, 1);
}

/// A script that the store forgot is sent again, and the request is charged once.
pub fn red_3_a_forgotten_script_is_sent_again(rig: &mut dyn Rig, forget: &mut dyn FnMut()) {
    rig.update(&global_limit(
        json!({"on_store_error": "deny"}),
        json!({"tenant": window(5, "1m")}),
    ))
    .unwrap();
    expect(rig, &by("acme"), 1, 0);
    forget();
    expect(rig, &by("acme"), 1, 0);
    forget();
    expect(rig, &by("acme"), 3, 1);
    assert_eq!(rig.metric("store_calls", &[("result", "no_script")]), 0);
}

/// A shadow limit in the store is counted and never waited for.
pub fn a_global_shadow_limit_is_only_counted(rig: &mut dyn Rig) {
    let plugin = global_limit(json!({"mode": "shadow"}), json!({"tenant": window(1, "1m")}));
    rig.update(&merged(plugin, json!({}))).unwrap();
    assert_eq!(statuses(rig, &by("acme"), 4), [200; 4]);
    rig.wait(Duration::from_secs(1));
    assert_eq!(rig.metric("requests", &[("outcome", "shadow_refused")]), 3);
}

/// E3: a leased limit admits exactly what it says where the limit is small, and tells what is left.
pub fn leased_limits_admit_what_they_say(rig: &mut dyn Rig) {
    let leased = json!({"consistency": "leased"});
    let levels = json!({"shared": window(7, "1m"), "tenant": window(3, "1m")});
    rig.update(&global_limit(leased, levels)).unwrap();
    let first = rig.send(&by("acme"));
    assert_eq!(first.status, 200);
    assert_eq!(first.header("ratelimit-policy").unwrap(), "\"dns.tenant\";q=3;w=60");
    assert!(first.header("ratelimit").unwrap().starts_with("\"dns.tenant\";r=2;t="));
    expect(rig, &by("acme"), 2, 3);
    expect(rig, &by("globex"), 3, 1);
    expect(rig, &by("initech"), 1, 1);
    let refused = rig.send(&by("initech"));
    assert_eq!(refused.json()["level"], "shared");
    let retry_after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=61).contains(&retry_after), "{retry_after}");
}

/// C3: what is refused is remembered, so refused traffic does not reach the store.
pub fn refused_traffic_never_reaches_redis(rig: &mut dyn Rig) {
    let levels = json!({"shared": window(50, "1m"), "tenant": window(4, "1m")});
    rig.update(&global_limit(json!({"consistency": "leased"}), levels)).unwrap();
    expect(rig, &by("acme"), 4, 4);
    let calls = rig.metric("store_calls", &[("result", "ok")]);
    expect(rig, &by("acme"), 0, 100);
    assert!(rig.metric("store_calls", &[("result", "ok")]) <= calls + 2);
}

/// A large leased limit is spent from units that are asked for ahead of need.
pub fn a_large_leased_limit_takes_few_calls(rig: &mut dyn Rig) {
    let levels = json!({"shared": window(20_000, "1m"), "tenant": window(10_000, "1m")});
    rig.update(&global_limit(json!({"consistency": "leased"}), levels)).unwrap();
    expect(rig, &by("acme"), 1000, 0);
    let calls = rig.metric("store_calls", &[("result", "ok")]);
    assert!(calls <= 60, "{calls} calls for 1000 requests");
}

/// RED-6: a store that does not answer is given up after three calls; then nobody waits for it, and
/// soon after it answers again it is asked again.
pub fn breaker_opens_probes_and_closes(rig: &mut dyn Rig) {
    let settings = json!({"consistency": "strict", "on_store_error": "allow"});
    rig.update(&global_limit(settings, json!({"tenant": window(1000, "1m")}))).unwrap();
    expect(rig, &by("acme"), 3, 0);
    rig.set_store(false);
    expect(rig, &by("acme"), 40, 0);
    let asked = rig.metric("store_calls", &[("result", "unreachable")]);
    assert!((3..=12).contains(&asked), "{asked} questions to a dead store");
    assert!(rig.metric("store_calls", &[("result", "given_up")]) >= 20);
    rig.wait(Duration::from_secs(1));
    let probes = rig.metric("store_calls", &[("result", "unreachable")]) - asked;
    assert!(probes <= 8, "{probes} probes in a second");
    rig.set_store(true);
    rig.wait(Duration::from_secs(1));
    let before = rig.metric("store_calls", &[("result", "ok")]);
    expect(rig, &by("acme"), 10, 0);
    assert!(rig.metric("store_calls", &[("result", "ok")]) >= before + 10, "it is asked again");
}

/// RSP-1: a refusal names the level that has room last, also where the store has refused before the
/// node was asked.
pub fn retry_after_is_the_longest_wait(rig: &mut dyn Rig) {
    for consistency in ["strict", "leased"] {
        let settings = json!({"consistency": consistency});
        let mut plugin = global_limit(settings, json!({"tenant": window(1, "3s")}));
        let limit = json!({"name": "node", "tenant": window(1, "1m")});
        plugin["limits"].as_array_mut().unwrap().push(limit);
        plugin["namespace"] = json!(consistency);
        plugin["store"]["key_prefix"] = json!(consistency);
        rig.update(&plugin).unwrap();
        expect(rig, &by("acme"), 1, 0);
        for _ in 0..6 {
            let refused = rig.send(&by("acme"));
            assert_eq!((refused.status, &refused.json()["limit"]), (429, &json!("node")));
            let retry_after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
            assert!(retry_after > 50, "{consistency}: {retry_after}");
        }
    }
}

/// Limits of the fleet with these levels, decided in each way: their names and documents.
fn of_the_fleet(levels: &Value) -> [Value; 2] {
    ["strict", "leased"].map(|consistency| {
        let settings = json!({"name": format!("dns-{consistency}"), "consistency": consistency});
        global_limit(settings, levels.clone())
    })
}

/// D3: the default tenant, and requests without one, have the shared level of the fleet alone.
pub fn the_default_tenant_has_the_shared_level_of_the_fleet_alone(rig: &mut dyn Rig) {
    for plugin in of_the_fleet(&json!({"shared": window(8, "1m"), "tenant": window(2, "1m")})) {
        rig.update(&plugin).unwrap();
        expect(rig, &by("default"), 3, 0);
        expect(rig, &Request::get("/"), 3, 0);
        expect(rig, &by("acme"), 2, 1);
        expect(rig, &by("default"), 0, 1);
    }
}

/// D4, C1: two limits of the fleet have budgets of their own, and one that is used up takes nothing from
/// the other.
pub fn limits_of_the_fleet_share_no_budget(rig: &mut dyn Rig) {
    for consistency in ["strict", "leased"] {
        let limit = |name: &str, path: &str, requests: u64| {
            json!({
                "name": format!("{name}-{consistency}"), "match": {"path_prefix": path},
                "scope": "global", "consistency": consistency,
                "shared": window(requests + 1, "1m"), "tenant": window(requests, "1m"),
            })
        };
        rig.update(&json!({
            "limits": [limit("dns", "/dns/", 5), limit("rdap", "/rdap/", 3)],
            "store": {"cluster": "fairshare_redis", "timeout": "2s"},
        }))
        .unwrap();
        let to = |path: &str| Request::get(path).tenant("acme");
        expect(rig, &to("/dns/a"), 5, 3);
        expect(rig, &to("/rdap/a"), 3, 1);
        expect(rig, &Request::get("/rdap/a").tenant("globex"), 1, 1);
    }
}

/// D5: without fair share a limit of the fleet has its shared level alone.
pub fn without_fair_share_the_fleet_has_the_shared_level_alone(rig: &mut dyn Rig) {
    for plugin in of_the_fleet(&json!({"shared": window(8, "1m"), "tenant": window(2, "1m")})) {
        rig.update(&plugin).unwrap();
        expect(rig, &by("acme"), 2, 1);
        rig.update(&merged(plugin, json!({"fair_share": false}))).unwrap();
        // The two that acme has spent still count.
        expect(rig, &by("acme"), 6, 1);
    }
}
