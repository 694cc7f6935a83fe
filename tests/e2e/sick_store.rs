//! Stores that are odd, slow or forgetful, behind real Envoys.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::scenarios::{by, global_limit, window};
use crate::support::client::{Connection, Request};
use crate::support::envoy::{Envoy, Update};
use crate::support::go_between::{GoBetween, Manner};
use crate::support::process::poll_until;
use crate::support::redis::{Redis, Value as Reply};

const PATIENCE: Duration = Duration::from_secs(20);

fn calls(envoy: &Envoy, result: &str) -> u64 {
    envoy.metric("fairshare_store_calls", &[("result", result)])
}

/// A budget in the store that lets pass and one that refuses without it, and two a minute on the node
/// for each tenant.
fn both_ways(consistency: &str) -> Value {
    let limit = |name: &str, on_store_error: &str| {
        json!({"name": name, "scope": "global", "consistency": consistency,
            "match": {"path_prefix": format!("/{name}")},
            "on_store_error": on_store_error, "tenant": window(100, "1m")})
    };
    let mut node = json!({"name": "node", "match": {"path_prefix": "/open"}});
    node["tenant"] = window(2, "1m");
    json!({
        "limits": [limit("open", "allow"), limit("closed", "deny"), node],
        "store": {"cluster": "fairshare_redis", "timeout": "2s"},
    })
}

/// Replies that are no answers, and what each is counted as.
const ODD: [(&[u8], &str); 12] = [
    (b"-READONLY You can't write against a read only replica.\r\n", "read_only"),
    (b"-NOAUTH Authentication required.\r\n", "no_auth"),
    (b"-WRONGPASS invalid username-password pair or user is disabled.\r\n", "wrong_pass"),
    (b"-LOADING Redis is loading the dataset in memory\r\n", "loading"),
    (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", "out_of_memory"),
    (b"-CLUSTERDOWN The cluster is down\r\n", "cluster_down"),
    (b"-MOVED 1 h:1\r\n", "moved"),
    (b"$-1\r\n", "malformed"),
    (b"*0\r\n", "malformed"),
    (b"$1\r\n7\r\n", "malformed"),
    (b":-1\r\n", "malformed"),
    (b"*5\r\n:1\r\n:1\r\n:4", "truncated"),
];

/// RED-4: replies that are no answers, to a real Envoy: each is counted by its kind and follows
/// `on_store_error`, and by itself all is well again within a second of the store's health, where the machine has time for it.
#[test]
fn red_4_odd_replies_through_a_real_envoy() {
    let mut recoveries = Vec::new();
    for consistency in ["strict", "leased"] {
        let store = GoBetween::start(Redis::start());
        let plugin = both_ways(consistency);
        let envoy = Envoy::builder(plugin).redis_unix(store.socket()).workers(1).start();
        let get =
            |target: &str, tenant: &str| envoy.send(&Request::get(target).tenant(tenant)).status;
        for (number, (reply, kind)) in ODD.into_iter().enumerate() {
            let case = format!("{consistency} {}", reply.escape_ascii());
            let before = calls(&envoy, kind);
            store.set(Manner::Says(reply));
            let tenant = format!("tenant-{number}");
            assert_eq!([(); 3].map(|()| get("/open", &tenant)), [200, 200, 429], "{case}");
            assert_eq!([(); 3].map(|()| get("/closed", &tenant)), [503; 3], "{case}");
            assert!(calls(&envoy, kind) > before, "{case} is not counted as {kind}");
            store.set(Manner::Healthy);
            let later = format!("{tenant}-later");
            let start = Instant::now();
            let well = || (get("/closed", &later) == 200).then_some(());
            poll_until(PATIENCE, well).unwrap_or_else(|| panic!("{case}: still sick"));
            recoveries.push(start.elapsed());
            assert_eq!([(); 10].map(|()| get("/closed", &later)), [200; 10], "{case}");
        }
        assert!(!envoy.log().contains("wasm vm failed"), "{}", envoy.log());
    }
    recoveries.sort_unstable();
    assert!(recoveries[recoveries.len() / 2] <= Duration::from_secs(1), "{recoveries:?}");
}

/// RED-6: a store that takes two seconds for everything delays few requests, is asked seldom, and comes
/// back by itself; and a tenant that the node refuses causes few commands, however hot it is.
#[test]
fn red_6_slow_store_and_hot_tenant() {
    let store = GoBetween::start(Redis::start());
    let settings = json!({"consistency": "strict", "on_store_error": "allow"});
    let mut plugin = global_limit(settings, json!({"tenant": window(100, "1m")}));
    plugin["store"]["timeout"] = json!("50ms");
    let node =
        json!({"name": "node", "match": {"path_prefix": "/hot"}, "tenant": window(10, "1s")});
    plugin["limits"].as_array_mut().expect("limits").push(node);
    let envoy = Envoy::builder(plugin).redis_unix(store.socket()).workers(1).start();
    let mut connection = Connection::open(envoy.port()).expect("a connection");

    store.set(Manner::Late(Duration::from_secs(2)));
    let (start, mut sent) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(5) {
        let asked_at = Instant::now();
        assert_eq!(connection.send(&by("acme")).expect("an answer").status, 200);
        // It is 60 ms at most (`tests/slow_store.rs`), and more only because the machine is busy.
        let waited = asked_at.elapsed();
        assert!(waited < Duration::from_secs(1), "one waited for the store, {waited:?}");
        sent += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
    // Three calls until it is given up, and five probes a second; nobody else waits for anything.
    let (exchanges, _) = store.seen();
    assert!((3..=60).contains(&exchanges), "{exchanges} exchanges in five seconds");
    let unasked = calls(&envoy, "given_up");
    assert!(unasked + 10 >= sent && sent > 50, "only {unasked} of {sent} waited for nothing");

    store.set(Manner::Healthy);
    let asked = || {
        connection.send(&by("later")).expect("an answer");
        (calls(&envoy, "ok") > 0).then_some(())
    };
    poll_until(PATIENCE, asked).expect("it is asked again by itself");

    let (_, before) = store.seen();
    let (start, mut admitted, mut sent) = (Instant::now(), 0, 0);
    while start.elapsed() < Duration::from_secs(3) {
        let hot = by("hot").with_target("/hot");
        admitted += u64::from(connection.send(&hot).expect("an answer").status == 200);
        sent += 1;
    }
    let commands = store.seen().1 - before;
    assert!(admitted <= 40 && sent > 200, "{admitted} of {sent} were admitted");
    assert!(commands <= admitted + 60, "{commands} commands for {admitted} admitted requests");
}

/// RED-1: a key that somebody wrote without expiry refuses for one window at most, and is then like any
/// other.
#[test]
fn red_1_a_seeded_key_heals_within_its_window() {
    let redis = Redis::start();
    for consistency in ["strict", "leased"] {
        let settings = json!({"consistency": consistency, "on_store_error": "deny"});
        let plugin = global_limit(settings, json!({"tenant": window(5, "2s")}));
        let envoy = Envoy::builder(plugin).redis_unix(redis.socket()).workers(1).start();
        assert_eq!(envoy.send(&by("acme")).status, 200);
        let usage = redis.keys().into_iter().find(|key| key.contains(":dns:t:")).expect("a key");
        redis.run(&["FLUSHALL"]);
        drop(envoy);
        redis.run(&["SET", &usage, "5"]);
        assert_eq!(redis.pttl(&usage), -1);
        let plugin = global_limit(
            json!({"consistency": consistency, "on_store_error": "deny"}),
            json!({"tenant": window(5, "2s")}),
        );
        let envoy = Envoy::builder(plugin).redis_unix(redis.socket()).workers(1).start();
        assert_eq!(envoy.send(&by("acme")).status, 429, "{consistency}: it is no grant");
        assert!((1..=4_000).contains(&redis.pttl(&usage)), "{consistency}");
        let admitted = || (envoy.send(&by("acme")).status == 200).then_some(());
        poll_until(PATIENCE, admitted).expect("it heals");
        redis.run(&["FLUSHALL"]);
        redis.age("fairshare");
    }
}

/// The levels of the test below, and for how long a key of each may live at most: the period, its
/// 32nd for leases, and a second.
const LEVELS: [(&str, i64); 3] = [(":s", 5_000), (":t:", 10_000), (":c:", 4_000)];

fn assert_every_key_expires(redis: &Redis, after: &str) {
    // As operators look, too.
    let Reply::List(scanned) = redis.run(&["SCAN", "0", "COUNT", "1000"]) else {
        panic!("SCAN gives a list")
    };
    assert_eq!(scanned[0], Reply::Text("0".to_owned()), "one scan sees all");
    for key in redis.keys() {
        let millis = redis.pttl(&key);
        // It may have expired since its name was read.
        assert!(millis > 0 || millis == -2, "after {after}: {key} never expires");
        let period = LEVELS.iter().find(|(level, _)| key.contains(level) || key.ends_with(level));
        if let (Some((_, period)), true) = (period, key.contains(":limit-")) {
            let most = period + period / 32 + 1_000;
            assert!(millis <= most, "after {after}: {key} lives for {millis} ms, not {most}");
        }
    }
}

/// D7: whatever happened, no key is there that never expires, and none lives longer than its level's
/// period, a 32nd of it, and a second.
#[test]
fn no_key_without_expiry() {
    let levels = json!({"shared": window(400, "5s"), "tenant": window(40, "10s"),
        "credential": {"rate": 10, "per": "1s", "burst": 40}});
    let limit = |consistency: &str| {
        let mut limit = json!({"name": format!("limit-{consistency}"), "scope": "global",
            "consistency": consistency, "on_store_error": "local",
            "match": {"path_prefix": format!("/{consistency}")}});
        limit.as_object_mut().expect("a limit").extend(levels.as_object().expect("levels").clone());
        limit
    };
    let plugin = |mode: &str| {
        json!({"mode": mode, "limits": [limit("leased"), limit("strict")],
            "store": {"cluster": "fairshare_redis", "timeout": "500ms"}})
    };
    let store = GoBetween::start(Redis::start());
    let redis = store.redis();
    let mut envoy = Envoy::builder(plugin("enforce")).redis_unix(store.socket()).start();
    let traffic = |envoy: &Envoy, after: &str| {
        for target in ["/leased", "/strict"] {
            for number in 0..30 {
                let request = Request::get(target).tenant(format!("tenant-{}", number % 3));
                envoy.send(&request.header("x-api-key", format!("key-{}", number % 5)));
            }
        }
        assert_every_key_expires(redis, after);
    };
    traffic(&envoy, "leases and strict decisions");
    assert!(redis.keys().len() > 10, "{:?}", redis.keys());
    store.set(Manner::Says(b"-LOADING Redis is loading the dataset in memory\r\n"));
    traffic(&envoy, "errors of the store");
    store.set(Manner::Healthy);
    std::thread::sleep(Duration::from_secs(1));
    traffic(&envoy, "its recovery");
    redis.run(&["SCRIPT", "FLUSH"]);
    traffic(&envoy, "a lost script");
    redis.run(&["FLUSHALL"]);
    traffic(&envoy, "a flush");
    store.set(Manner::Says(b"*5\r\n:1\r\n:1\r\n"));
    traffic(&envoy, "broken replies");
    store.set(Manner::Healthy);
    for key in redis.keys().iter().filter(|key| key.contains(":limit-")) {
        redis.run(&["PERSIST", key]);
        redis.run(&["SET", key, "5"]);
    }
    for mode in ["shadow", "off", "enforce"] {
        assert_eq!(envoy.update_plugin(plugin(mode)), Update::Accepted);
        std::thread::sleep(Duration::from_secs(1));
        if mode == "enforce" {
            // Whoever is asked for heals; the keys of those who never come again are not ours to find.
            traffic(&envoy, "keys that were written by hand");
        } else {
            for target in ["/leased", "/strict"] {
                for number in 0..15 {
                    let request = Request::get(target).tenant(format!("tenant-{}", number % 3));
                    envoy.send(&request.header("x-api-key", format!("key-{}", number % 5)));
                }
            }
        }
    }
    let gone = || redis.keys().iter().all(|key| !key.contains(":limit-")).then_some(());
    poll_until(PATIENCE, gone).expect("idle keys go by themselves");
}
