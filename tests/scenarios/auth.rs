use std::time::Duration;

use serde_json::{Value, json};

use super::{Rig, by, expect, merged, node_limit, statuses, window};
use crate::support::client::Request;

const OTHER: [u8; 4] = [127, 0, 0, 2];

/// A document that throttles after three failures.
fn throttling(window_length: &str, more: Value) -> Value {
    let rule = json!({"per_client": {"failures": 3, "window": window_length}});
    merged(
        node_limit(json!({"tenant": window(20, "1m"), "client": window(50, "1m")})),
        json!({"auth_failures": merged(rule, more)}),
    )
}

/// A request that the upstream answers with this status.
fn answered(status: &str) -> Request {
    by("acme").header("x-echo-status", status)
}

/// O4: whoever fails to authenticate too often is refused until the failures are old enough, whatever
/// it asks for, and nobody else is. What is refused here is charged nowhere.
pub fn auth_failures_throttle_only_that_client(rig: &mut dyn Rig) {
    rig.update(&throttling("2s", json!({}))).unwrap();
    let before = |rig: &mut dyn Rig| {
        let of = |outcome| [("outcome", outcome)];
        [rig.metric("requests", &of("admitted")), rig.metric("requests", &of("refused"))]
    };
    let [admitted, refused] = before(rig);
    // A success in between forgives nothing, and other errors are no failures.
    let answers = ["401", "200", "403", "500", "404", "429"].map(answered);
    assert_eq!(answers.map(|request| rig.send(&request).status), [401, 200, 403, 500, 404, 429]);
    assert_eq!(rig.send(&answered("401")).status, 401);
    let throttled = rig.send(&answered("200"));
    assert_eq!(throttled.status, 429);
    assert_eq!(throttled.header("x-envoy-ratelimited").unwrap(), "true");
    let problem = throttled.json();
    assert_eq!((&problem["code"], &problem["level"]), (&json!("auth_throttled"), &json!("client")));
    assert_eq!(problem["limit"], Value::Null);
    let retry_after: u64 = throttled.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=2).contains(&retry_after), "{retry_after}");
    let grpc = rig.send(&by("acme").header("content-type", "application/grpc"));
    assert!(matches!(
        (grpc.status, grpc.header("grpc-status").as_deref()),
        (200, Some("8")) | (429, None)
    ));
    // Not even the tenant is looked at.
    assert_eq!(rig.send(&by("acme").tenant("acme")).status, 429);
    expect(rig, &answered("200").from(OTHER), 2, 0);
    assert_eq!(before(rig), [admitted + 9, refused + 3]);
    assert_eq!(rig.metric("refusals", &[("code", "auth_throttled")]), 3);
    rig.wait(Duration::from_secs(retry_after));
    // Nine were admitted before, of acme's twenty.
    expect(rig, &by("acme"), 11, 1);
}

/// Our own refusals are no failures, and neither is what the rule is not about.
pub fn only_what_the_rule_means_is_a_failure(rig: &mut dyn Rig) {
    let rule = json!({"statuses": [401, 429], "match": {"path_prefix": "/login"}});
    let mut plugin = throttling("1m", rule);
    plugin["limits"][0]["tenant"] = window(2, "1m");
    rig.update(&plugin).unwrap();
    expect(rig, &by("acme"), 2, 8);
    let at =
        |path: &str, tenant: &str| Request::get(path).tenant(tenant).header("x-echo-status", "401");
    assert_eq!(statuses(rig, &at("/logins", "globex"), 2), [401, 401]);
    assert_eq!(statuses(rig, &at("/login/a", "initech"), 2), [401, 401]);
    assert_eq!(statuses(rig, &at("/login?b", "umbrella"), 2), [401, 429]);
    // Elsewhere the client is not throttled.
    expect(rig, &by("hooli"), 2, 1);
}

/// In shadow mode failures count and refuse nothing; in "off" nothing counts.
pub fn auth_failures_in_shadow_refuse_nothing(rig: &mut dyn Rig) {
    let plugin = throttling("1m", json!({}));
    rig.update(&merged(plugin.clone(), json!({"mode": "off"}))).unwrap();
    assert_eq!(statuses(rig, &answered("401"), 4), [401; 4]);
    rig.update(&merged(plugin.clone(), json!({"mode": "shadow"}))).unwrap();
    assert_eq!(statuses(rig, &answered("401"), 5), [401; 5]);
    let shadow = [("level", "client"), ("limit", "none"), ("outcome", "shadow_refused")];
    assert_eq!(rig.metric("requests", &shadow), 2);
    rig.update(&plugin).unwrap();
    assert_eq!(statuses(rig, &answered("200"), 1), [429]);
    assert_eq!(statuses(rig, &answered("200").from(OTHER), 1), [200]);
}
