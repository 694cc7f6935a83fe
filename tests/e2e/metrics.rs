use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::scenarios::window;
use crate::support::client::{Connection, Request};
use crate::support::envoy::Envoy;
use crate::support::process::poll_until;
use crate::support::redis::Redis;

/// How long a machine that is busy with other things may take.
const PATIENCE: Duration = Duration::from_secs(30);

const SECRET: &str = "met-1-secret-";

fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn plugin() -> Value {
    let bound = sha256(&format!("{SECRET}bound"));
    json!({
        "identity": {"bindings": [{"credential_sha256": bound, "tenant": "tenant-0"}]},
        "exempt": [{"path": "/healthz"}],
        "auth_failures": {
            "per_client": {"failures": 5, "window": "1h"},
            "match": {"path": "/login"},
        },
        "limits": [
            {"name": "api", "match": {"path_prefix": "/api"}, "shared": window(300, "1h"),
             "tenant": window(3, "1h"), "in_flight": {"tenant": 1}},
            {"name": "fleet", "match": {"path_prefix": "/api"}, "scope": "global",
             "consistency": "strict", "tenant": window(2, "1h")},
            {"name": "asked", "match": {"path": "/asked"}, "scope": "global",
             "consistency": "strict", "client": window(100, "1h")},
            {"name": "watched", "mode": "shadow", "tenant": window(1, "1h")},
        ],
        "store": {"cluster": "fairshare_redis", "timeout": "10s"},
    })
}

/// Requests of many tenants and keys, some of them without a usable identity. Returns how many.
fn send_mixed(envoy: &Envoy) -> u64 {
    const PATHS: [&str; 5] = ["/api", "/api", "/healthz", "/other", "/api"];
    for (number, path) in (0..2000_u32).zip(PATHS.iter().cycle()) {
        let tenant = format!("tenant-{}", number / 5);
        let mut request = Request::get(path).tenant(&tenant);
        request = request.header("x-api-key", format!("{SECRET}{number}"));
        if number % 7 == 0 {
            request = request.tenant("twice");
        }
        if number % 11 == 0 {
            request = request.header("x-echo-status", "204");
        }
        envoy.send(&request);
    }
    2000
}

/// A client that guesses, and one that names another tenant than its own. Returns how many.
fn send_as_intruders(envoy: &Envoy) -> u64 {
    let guess = Request::get("/login").from([127, 0, 0, 2]).header("x-echo-status", "401");
    let statuses: Vec<u16> = (0..8).map(|_| envoy.send(&guess).status).collect();
    assert_eq!(statuses, [401, 401, 401, 401, 401, 429, 429, 429]);
    let borrowed = Request::get("/other").header("x-api-key", format!("{SECRET}bound"));
    let statuses: Vec<u16> = (1..5)
        .map(|n| envoy.send(&borrowed.clone().tenant(format!("tenant-{n}"))).status)
        .collect();
    assert_eq!(statuses, [403; 4]);
    12
}

/// Clients that leave: before the upstream's answer, and before the store's. Returns how many of each.
fn leave_early(envoy: &Envoy, redis: &Redis) -> [u64; 2] {
    let start = |request: &Request| {
        let mut connection = Connection::open(envoy.port()).expect("a connection");
        connection.send_raw(&request.to_bytes()).expect("a request");
        connection
    };
    let slow = Request::get("/other").header("x-echo-delay-ms", "200");
    (0..20).for_each(|_| drop(start(&slow)));
    let active = || envoy.stat("http.fairshare.downstream_rq_active");
    let are_active = |count| poll_until(PATIENCE, || (active() == count).then_some(()));
    are_active(0).expect("all have left");
    redis.pause();
    let waiting: Vec<Connection> = (0..5).map(|_| start(&Request::get("/asked"))).collect();
    are_active(5).expect("all wait for the store");
    drop(waiting);
    are_active(0).expect("all have left before the store answers");
    redis.resume();
    [20, 5]
}

/// MET-1: every request is counted exactly once, whatever becomes of it, and however many tenants and
/// keys there are, there are no more series than before. Whoever is refused most is told by digest.
#[test]
fn metrics_reconcile_exactly() {
    let redis = Redis::start();
    let envoy = Envoy::builder(plugin()).redis_unix(redis.socket()).start();
    let series = || {
        let text = envoy.prometheus();
        text.lines()
            .filter(|line| line.starts_with("fairshare_") && !line.contains("_seconds"))
            .count()
    };
    assert_eq!(envoy.send(&Request::get("/healthz")).status, 200);
    let before = series();
    let mut sent = 1 + send_mixed(&envoy) + send_as_intruders(&envoy);
    let [left_upstream, left_store] = leave_early(&envoy, &redis);
    sent += left_upstream + left_store;
    let outcome = |outcome| envoy.metric("fairshare_requests", &[("outcome", outcome)]);
    let counted = || ["admitted", "refused", "exempt", "errored"].map(outcome).iter().sum::<u64>();
    let all = poll_until(PATIENCE, || (counted() == sent).then_some(()));
    assert!(all.is_some(), "{} of {sent} requests are counted", counted());
    let refusals = envoy.metric("fairshare_refusals", &[]);
    let refused = outcome("refused") + outcome("errored") - left_store;
    assert_eq!(refusals, refused, "each refusal has one code");
    assert!(outcome("shadow_refused") > 0 && outcome("refused") > 0 && outcome("exempt") > 0);
    for (code, count) in [("auth_throttled", 3), ("tenant_mismatch", 4)] {
        assert_eq!(envoy.metric("fairshare_refusals", &[("code", code)]), count, "{code}");
    }
    assert_eq!(series(), before, "the set of series is fixed");
    let top = envoy.log_line("fairshare: top refused: limit=");
    assert!(top.contains("limit=none level=client subject="), "{top}");
    let everything = [envoy.stats(), envoy.prometheus(), envoy.log()];
    assert!(everything.iter().all(|text| !text.contains(SECRET) && !text.contains("tenant-1")));
}
