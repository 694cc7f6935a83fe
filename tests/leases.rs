//! What workers lease ahead of need, and what goes back.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and they do have a clock"
)]

mod embedded_redis;
mod fake_host;
mod support;

use std::collections::BTreeMap;

use embedded_redis::EmbeddedRedis;
use fairshare::host::StreamId;
use fairshare::units::Span;
use fake_host::{Outcome, Process, StoreReply, passed};
use serde_json::{Value, json};
use support::redis::Redis;

/// A request of `tenant` comes.
fn start(process: &mut Process, tenant: &str) -> (StreamId, Outcome) {
    process.start(&[(b":method", b"GET"), (b":path", b"/"), (b"x-tenant-id", tenant.as_bytes())])
}

/// Sends requests of as many tenants that nobody has seen, at once. Returns how many pass.
fn from_new_tenants(process: &mut Process, redis: &Redis, group: &str, count: usize) -> usize {
    for number in 0..count {
        start(process, &format!("{group}{number}"));
    }
    // Each of them has waked the worker.
    (0..count).map(|_| passed(&process.run(&mut |body| Ok(redis.exchange(body))))).sum()
}

/// Goal: however many ask for a shared level at once, because each of them also needs a lease of its
/// own, it is asked for ahead of need once; so other nodes find room.
#[test]
fn cold_tenants_leave_room_in_a_shared_level() {
    let redis = Redis::start();
    let plugin = json!({
        "limits": [{"name": "fleet", "scope": "global", "on_store_error": "deny",
                    "shared": {"requests": 6400, "window": "10s"},
                    "tenant": {"requests": 100, "window": "10s"}}],
        "store": {"cluster": "fairshare_redis", "timeout": "50ms"},
    });
    let [mut one, mut other] =
        [(); 2].map(|()| Process::new(&plugin.to_string(), 1).expect("a configuration"));
    assert_eq!(from_new_tenants(&mut one, &redis, "a", 200), 200);
    let shared = redis.get("{fairshare}:1:fleet:s").expect("usage");
    let charged: u64 = shared.split(' ').nth(3).and_then(|units| units.parse().ok()).unwrap();
    // One for each of them, once a 64th ahead, and then, in view of such demand, an eighth.
    assert!((200..=1100).contains(&charged), "{charged} units for 200 requests");
    assert_eq!(from_new_tenants(&mut other, &redis, "b", 200), 200);
}

/// Goal: where a small level's only unit is granted to a request that has gone away, it is there for
/// another one as soon as it is back, not after a whole window.
#[test]
fn a_unit_that_went_back_is_there_for_the_next_request() {
    let redis = Redis::start();
    let plugin = json!({
        "limits": [{"name": "fleet", "scope": "global", "on_store_error": "deny",
                    "shared": {"requests": 1, "window": "1h"}}],
        "store": {"cluster": "fairshare_redis", "timeout": "50ms"},
    });
    let mut process = Process::new(&plugin.to_string(), 1).expect("a configuration");
    let mut store = |body: &[u8]| Ok(redis.exchange(body));
    let (gone, outcome) = start(&mut process, "acme");
    assert_eq!(outcome, Outcome::Waits);
    process.wake();
    process.end(gone);
    process.run(&mut store);
    for _ in 0..25 {
        process.advance(Span::from_millis(100));
        process.tick();
        process.run(&mut store);
    }
    assert_eq!(process.metrics_with(&["fairshare_lease_units", "returned"]), 1);
    start(&mut process, "acme");
    assert_eq!(passed(&process.run(&mut store)), 1);
}

/// Goal: levels whose leases last for different times share their questions, and what is left of them goes
/// back in one message.
#[test]
fn leases_of_all_levels_are_refilled_and_go_back_together() {
    let redis = Redis::start();
    redis.age("fairshare");
    let plugin = json!({
        "limits": [{"name": "fleet", "scope": "global", "on_store_error": "deny",
                    "shared": {"requests": 64_000, "window": "6400ms"},
                    "tenant": {"requests": 32_000, "window": "3200ms"}}],
        "store": {"cluster": "fairshare_redis", "timeout": "50ms"},
    });
    let mut process = Process::new(&plugin.to_string(), 1).expect("a configuration");
    let mut calls: Vec<(bool, usize)> = Vec::new();
    let mut store = |body: &[u8]| {
        let text = String::from_utf8_lossy(body);
        let seen = text.split("EVALSHA").skip(1);
        calls.extend(seen.map(|call| (call.contains("lease"), call.matches(":fleet:").count())));
        Ok(redis.exchange(body))
    };
    for _ in 0..300 {
        start(&mut process, "acme");
        process.run(&mut store);
        process.advance(Span::from_millis(1));
    }
    for _ in 0..20 {
        process.advance(Span::from_millis(100));
        process.tick();
        process.run(&mut store);
    }
    calls.retain(|(_, levels)| *levels > 0);
    assert!(
        calls.iter().filter(|(_, levels)| *levels == 2).count() * 3 > calls.len() * 2,
        "{calls:?}"
    );
    // A little more than once in each life of the shorter one, and once more after the script was loaded.
    let leases = calls.iter().filter(|(is_lease, _)| *is_lease).count();
    assert!((4..=6).contains(&leases) && calls.len() - leases <= 4, "{calls:?}");
}

/// Sends a request each `gap` for twelve seconds, to a store that answers at once. Returns the units that
/// were let through, as a part of those that the limit allows.
fn share_of(limit: &Value, gap: Span, units_a_second: u64) -> f64 {
    const SECONDS: u64 = 12;
    let mut limit = limit.clone();
    limit["name"] = json!("fleet");
    limit["scope"] = json!("global");
    limit["on_store_error"] = json!("deny");
    let plugin = json!({"limits": [limit], "store": {"cluster": "redis", "timeout": "50ms"}});
    let mut process = Process::new(&plugin.to_string(), 1).expect("a configuration");
    let machine = process.machine();
    let now = || machine.borrow().now;
    let mut redis = EmbeddedRedis::aged(machine.borrow().now_us());
    let end = now().plus(Span::from_secs(SECONDS));
    let (mut admitted, mut tick_at) = (0, now());
    while now() < end {
        let (stream, outcome) = start(&mut process, "acme");
        admitted += u64::from(matches!(outcome, Outcome::Passed(_)));
        let later = process.run(&mut |body| {
            redis.set_clock(machine.borrow().now_us());
            Ok(redis.exchange(body))
        });
        admitted += u64::try_from(passed(&later)).unwrap();
        process.end(stream);
        if tick_at <= now() {
            process.tick();
            tick_at = now().plus(Span::from_millis(10));
        }
        process.advance(gap);
    }
    let cost = limit.get("cost").map_or(1, |cost| cost.as_u64().expect("a cost"));
    let units = u32::try_from(admitted * cost).unwrap();
    f64::from(units) / f64::from(u32::try_from(units_a_second * SECONDS).unwrap())
}

/// Goal: under demand that never lets up, what a request costs makes little difference.
#[test]
fn a_window_serves_requests_that_cost_much() {
    let costs = [(100, 1), (100, 10), (100, 20), (100, 25), (100, 34), (100, 50), (1000, 250)];
    for (units, cost) in costs {
        let limit = json!({"cost": cost, "shared": {"requests": units, "window": "1s"}});
        let share = share_of(&limit, Span::from_millis(5), units / cost * cost);
        println!("{units} units a second, {cost} a request: {share:.3}");
        assert!(share >= 0.9, "{units} units a second, {cost} a request: {share}");
    }
}

/// Goal: a rate is admitted in full where its burst has room for a life; else as much of it as the terms
/// say, and no more than the limit allows.
#[test]
fn a_rate_with_a_small_burst_is_admitted() {
    let full = [(100, 50), (100, 25), (100, 20), (100, 10), (1000, 100)].map(|case| (case, 1.0));
    let parts = [((100, 5), 5.0 / 7.0), ((1000, 20), 20.0 / 61.0)];
    for ((rate, burst), part) in full.into_iter().chain(parts) {
        let limit = json!({"shared": {"rate": rate, "per": "1s", "burst": burst}});
        let share = share_of(&limit, Span::from_micros(500), rate);
        println!("{rate} a second, burst {burst}: {share:.3} of {part:.3}");
        // One unit at a time waits for the next request as well.
        let least = if part < 1.0 { 0.85 * part } else { 0.99 };
        assert!(share >= least, "{rate} a second, burst {burst}: {share}");
        let most = 1.0 + f64::from(burst) / f64::from(u32::try_from(rate).unwrap() * 12);
        assert!(share <= most, "{rate} a second, burst {burst}: {share}");
    }
}

/// What becomes of a request for `path`.
fn answer_to(
    process: &mut Process,
    path: &str,
    store: &mut dyn FnMut(&[u8]) -> StoreReply,
) -> Outcome {
    let (stream, outcome) = process.start(&[(b":path", path.as_bytes())]);
    let later = process.run(store);
    process.end(stream);
    later.into_iter().find(|(waited, _)| *waited == stream).map_or(outcome, |(_, end)| end)
}

/// RSP-1: where one limit refuses that was asked a moment ago, the longer wait of another is told that would
/// be asked again by now, because units might have gone back to the store.
#[test]
fn rsp_1_an_older_and_longer_refusal_is_told_too() {
    for (long, short) in [("strict", "strict"), ("leased", "leased"), ("strict", "leased")] {
        let limit = |name: &str, consistency: &str, path: &str, window: &str| {
            json!({"name": name, "scope": "global", "consistency": consistency,
                   "match": {"path_prefix": path}, "on_store_error": "deny",
                   "shared": {"requests": 1, "window": window}})
        };
        let plugin = json!({
            "limits": [limit("long", long, "/both", "1m"), limit("short", short, "/", "1500ms")],
            "store": {"cluster": "redis", "timeout": "50ms"},
        });
        let mut process = Process::new(&plugin.to_string(), 1).expect("a configuration");
        let machine = process.machine();
        let mut redis = EmbeddedRedis::aged(machine.borrow().now_us());
        let mut store = |body: &[u8]| {
            redis.set_clock(machine.borrow().now_us());
            Ok(redis.exchange(body))
        };
        let first = answer_to(&mut process, "/both", &mut store);
        assert!(matches!(first, Outcome::Passed(_)), "{long} {short}");
        for _ in 0..19 {
            process.advance(Span::from_millis(100));
            process.tick();
            process.run(&mut store);
        }
        let other = answer_to(&mut process, "/one", &mut store);
        assert!(matches!(other, Outcome::Passed(_)), "{long} {short}");
        let Outcome::Answered(refusal) = answer_to(&mut process, "/both", &mut store) else {
            panic!("{long} {short}: both limits are used up");
        };
        let waits = refusal.headers.iter().find(|(name, _)| *name == "retry-after");
        let waits: u64 = waits.expect("a time").1.parse().unwrap();
        assert!((58..=63).contains(&waits), "{long} {short}: {waits} s");
    }
}

/// Goal: what the node refuses spends nothing of a lease, whatever it costs.
#[test]
fn a_refused_request_that_costs_much_loses_no_units() {
    let plugin = json!({
        "limits": [
            {"name": "fleet", "scope": "global", "cost": 10, "on_store_error": "deny",
             "shared": {"requests": 1000, "window": "10s"}},
            {"name": "node", "tenant": {"requests": 1, "window": "1h"}}],
        "store": {"cluster": "redis", "timeout": "50ms"},
    });
    let mut process = Process::new(&plugin.to_string(), 1).expect("a configuration");
    let machine = process.machine();
    let mut redis = EmbeddedRedis::aged(machine.borrow().now_us());
    start(&mut process, "noisy");
    for millis in 0..9_000u64 {
        start(&mut process, "noisy");
        if millis % 110 == 0 {
            start(&mut process, &format!("t{millis}"));
        }
        if millis % 10 == 0 {
            process.tick();
        }
        process.run(&mut |body| {
            redis.set_clock(machine.borrow().now_us());
            Ok(redis.exchange(body))
        });
        process.advance(Span::from_millis(1));
    }
    let of = |event| process.metrics_with(&["fairshare_lease_units", event]);
    // What others want is theirs: each of their 82 requests.
    assert!(of("spent") >= 800 && of("granted") > of("spent"), "{} units", of("spent"));
    assert_eq!(of("expired"), 0);
}

/// Goal: tenants that are invented, each of them a question of its own, make few calls, none of them waits
/// for long, and in quiet times nobody waits for others at all.
#[test]
fn invented_tenants_make_few_calls() {
    const STEP: Span = Span::from_micros(200);
    const RTT: Span = Span::from_micros(400);
    let plugin = json!({
        "limits": [{"name": "fleet", "scope": "global", "on_store_error": "deny",
                    "tenant": {"requests": 100, "window": "10s"}}],
        "store": {"cluster": "redis", "timeout": "50ms"},
    });
    let mut process = Process::new(&plugin.to_string(), 1).expect("a configuration");
    let machine = process.machine();
    let mut redis = EmbeddedRedis::aged(machine.borrow().now_us());
    let (mut calls, mut questions, mut began) = (0, 0, BTreeMap::new());
    let (mut longest, mut answered) = (Span::ZERO, 0);
    for step in 0..5_000_u64 {
        let now = machine.borrow().now;
        let (stream, _) = start(&mut process, &format!("t{step}"));
        began.insert(stream, now);
        if step.is_multiple_of(50) {
            process.tick();
        }
        redis.set_clock(machine.borrow().now_us());
        let settled = process.run_after(RTT, &mut |body| {
            let text = String::from_utf8_lossy(body);
            let leases = text.matches("\r\nlease\r\n").count();
            calls += usize::from(leases > 0);
            questions += leases;
            Ok(redis.exchange(body))
        });
        for (stream, outcome) in settled {
            assert_eq!(outcome.status(), 200);
            longest = longest.max(now.since(began[&stream]));
            answered += 1;
        }
        process.advance(STEP);
    }
    println!("{calls} calls with {questions} questions, the longest wait was {longest}");
    // 500 in a second, and eight at once; the first ones are sent again with the script.
    assert!(calls <= 511, "{calls} calls for 5000 tenants in a second");
    assert!(answered >= 4_980 && questions >= 4_980, "{answered} answers, {questions} questions");
    assert!(longest <= Span::from_micros(2_800), "one waited for {longest}");
    // Twenty milliseconds later eight come one after the other, and each of them is asked for at once.
    process.advance(Span::from_millis(20));
    process.run(&mut |body| Ok(redis.exchange(body)));
    for number in 1..=8 {
        start(&mut process, &format!("later{number}"));
        assert_eq!(process.wake().1, number);
    }
}
