use std::time::Duration;

use serde_json::json;

use crate::scenarios::window;
use crate::support::client::{Connection, Request};
use crate::support::envoy::Envoy;
use crate::support::process::poll_until;
use crate::support::redis::Redis;

/// MET-1: every request is counted exactly once, whatever becomes of it, and however many tenants and
/// keys there are, there are no more series than before.
#[test]
fn metrics_reconcile_exactly() {
    const SECRET: &str = "met-1-secret-";
    let redis = Redis::start();
    let plugin = json!({
        "exempt": [{"path": "/healthz"}],
        "limits": [
            {"name": "api", "match": {"path_prefix": "/api"}, "shared": window(300, "1h"),
             "tenant": window(3, "1h"), "in_flight": {"tenant": 1}},
            {"name": "fleet", "match": {"path_prefix": "/api"}, "scope": "global",
             "consistency": "strict", "tenant": window(2, "1h")},
            {"name": "watched", "mode": "shadow", "tenant": window(1, "1h")},
        ],
        "store": {"cluster": "fairshare_redis", "timeout": "2s"},
    });
    let envoy = Envoy::builder(&plugin).redis_unix(redis.socket()).start();
    let series = || {
        let text = envoy.prometheus();
        text.lines()
            .filter(|line| line.starts_with("fairshare_") && !line.contains("_seconds"))
            .count()
    };
    assert_eq!(envoy.send(&Request::get("/healthz")).status, 200);
    let (before, mut sent) = (series(), 1);
    for number in 0..2000u32 {
        let tenant = format!("tenant-{}", number / 5);
        let path =
            ["/api", "/api", "/healthz", "/other", "/api"][usize::try_from(number % 5).unwrap()];
        let mut request = Request::get(path).tenant(&tenant);
        request = request.header("x-api-key", format!("{SECRET}{number}"));
        if number % 7 == 0 {
            request = request.tenant("twice");
        }
        if number % 11 == 0 {
            request = request.header("x-echo-status", "204");
        }
        envoy.send(&request);
        sent += 1;
    }
    // Clients that leave before the answer count as well.
    for _ in 0..20 {
        let mut connection = Connection::open(envoy.port()).expect("a connection");
        let slow = Request::get("/other").header("x-echo-delay-ms", "200");
        connection.send_raw(&slow.to_bytes()).expect("a request");
        sent += 1;
    }
    let outcome = |outcome| envoy.metric("fairshare_requests", &[("outcome", outcome)]);
    let counted = || ["admitted", "refused", "exempt", "errored"].map(outcome).iter().sum::<u64>();
    let all = poll_until(Duration::from_secs(10), || (counted() == sent).then_some(()));
    assert!(all.is_some(), "{} of {sent} requests are counted", counted());
    let refusals = envoy.metric("fairshare_refusals", &[]);
    assert_eq!(refusals, outcome("refused") + outcome("errored"), "each refusal has one code");
    assert!(outcome("shadow_refused") > 0 && outcome("refused") > 0 && outcome("exempt") > 0);
    assert_eq!(series(), before, "the set of series is fixed");
    let everything = [envoy.stats(), envoy.prometheus(), envoy.log()];
    assert!(everything.iter().all(|text| !text.contains(SECRET) && !text.contains("tenant-1")));
}
