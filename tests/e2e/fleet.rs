use std::time::{Duration, Instant};

use serde_json::json;

use crate::global::{some_round_gets_its_due, worst_window};
use crate::scenarios::{by, global_limit, window};
use crate::support::client::Connection;
use crate::support::envoy::Envoy;
use crate::support::redis::Redis;

/// Time that a client that was refused waits, so that many of them do not take the machine.
const AFTER_A_REFUSAL: Duration = Duration::from_millis(4);

/// Admissions that a number of clients get from one Envoy for `time`: when each was sent and answered.
fn demand(envoy: &Envoy, clients: usize, time: Duration) -> Vec<(Instant, Instant)> {
    let start = Instant::now();
    let client = || {
        let mut connection = Connection::open(envoy.port()).expect("a connection");
        let mut admitted = Vec::new();
        while start.elapsed() < time {
            let sent = Instant::now();
            match connection.send(&by("acme")).expect("an answer").status {
                200 => admitted.push((sent, Instant::now())),
                _ => std::thread::sleep(AFTER_A_REFUSAL),
            }
        }
        admitted
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a client")).collect()
    })
}

/// The promise of leases, both ways: demand that never lets up, and that moves from one Envoy to
/// another, gets nine tenths of the limit in every window after the first, and never more than it.
#[test]
fn leased_admits_at_least_90_percent() {
    const LIMIT: usize = 600;
    const WINDOW: Duration = Duration::from_secs(3);
    some_round_gets_its_due(|| {
        let redis = Redis::start();
        let settings = json!({"consistency": "leased", "on_store_error": "deny"});
        let plugin = global_limit(settings, json!({"tenant": window(600, "3s")}));
        let start = || Envoy::builder(&plugin).redis_unix(redis.socket()).start();
        let envoys = [start(), start()];
        let mut admitted = demand(&envoys[0], 8, WINDOW * 2 + WINDOW / 2);
        admitted.extend(demand(&envoys[1], 8, WINDOW * 2 + WINDOW / 2));
        let began = admitted.iter().map(|(_, got)| *got).min().expect("an admission");
        let worst = worst_window(&admitted, WINDOW);
        assert!(worst <= LIMIT, "{worst} within one window");
        let counts: Vec<usize> = (1..4)
            .map(|number| {
                let (from, to) = (began + WINDOW * number, began + WINDOW * (number + 1));
                admitted.iter().filter(|(_, got)| *got >= from && *got < to).count()
            })
            .collect();
        println!("admitted of {LIMIT} in each window: {counts:?}, worst interval {worst}");
        counts.iter().any(|count| *count * 10 < LIMIT * 9).then(|| format!("{counts:?} of {LIMIT}"))
    });
}

/// E3: many clients at once, of three Envoys, get exactly what a strict limit says, and Redis has
/// counted exactly that.
#[test]
fn strict_is_exact_under_concurrency() {
    const CLIENTS: usize = 64;
    const EACH: usize = 12;
    for level in [window(300, "1h"), json!({"rate": 1, "per": "1d", "burst": 300})] {
        let redis = Redis::start();
        let settings = json!({"consistency": "strict", "on_store_error": "deny"});
        let mut plugin = global_limit(settings, json!({"tenant": level}));
        plugin["store"]["timeout"] = json!("10s");
        let start = || Envoy::builder(&plugin).redis_unix(redis.socket()).start();
        let envoys = [start(), start(), start()];
        let client = |number: usize| {
            let port = envoys[number % envoys.len()].port();
            let mut connection = Connection::open(port).expect("a connection");
            let mut send = || connection.send(&by("acme")).expect("an answer").status;
            (0..EACH).map(|_| send()).collect::<Vec<u16>>()
        };
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let spawn = |number| scope.spawn(move || client(number));
            let threads: Vec<_> = (0..CLIENTS).map(spawn).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("a client")).collect()
        });
        let count = |status| statuses.iter().filter(|other| **other == status).count();
        assert_eq!((count(200), count(429)), (300, CLIENTS * EACH - 300), "{level}");
        let keys: Vec<String> = redis.keys();
        assert_eq!(keys.iter().filter(|key| key.contains(":dns:t:")).count(), 1, "{keys:?}");
    }
}

/// How often the script was called.
fn script_calls(redis: &Redis) -> u64 {
    redis.calls().get("evalsha").copied().unwrap_or(0)
}

/// RED-6, C3: one tenant at thousands of requests a second, nearly all of them refused, makes few
/// calls to Redis, whether its limit is leased or strict.
#[test]
fn red_6_a_hot_tenant_makes_few_calls() {
    const SECONDS: u64 = 5;
    for consistency in ["leased", "strict"] {
        let redis = Redis::start();
        let levels = json!({"tenant": window(100, "1m")});
        let plugin = global_limit(json!({"consistency": consistency}), levels);
        let envoy = Envoy::builder(&plugin).redis_unix(redis.socket()).start();
        // Most of what is there to be had is had first.
        while envoy.send(&by("acme")).status == 200 {}
        let before = script_calls(&redis);
        let start = Instant::now();
        let client = || {
            let mut connection = Connection::open(envoy.port()).expect("a connection");
            let mut sent = 0_u64;
            while start.elapsed() < Duration::from_secs(SECONDS) {
                connection.send(&by("acme")).expect("an answer");
                sent += 1;
            }
            sent
        };
        let sent: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(client)).collect();
            threads.into_iter().map(|thread| thread.join().expect("a client")).sum()
        });
        let calls = script_calls(&redis) - before;
        println!("{consistency}: {sent} requests in {SECONDS} s, {calls} calls of the script");
        assert!(calls <= 10 * SECONDS, "{consistency}: {calls} calls for {sent} requests");
    }
}
