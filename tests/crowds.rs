//! Strict requests that wait in crowds: when they are asked for, and what lets them go. The store answers
//! on a clock of the tests' own.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests fail by panicking"
)]

mod embedded_redis;
mod fake_host;

use std::collections::{BTreeMap, BTreeSet};

use embedded_redis::EmbeddedRedis;
use fairshare::host::StreamId;
use fairshare::store::StoreError;
use fairshare::units::Span;
use fake_host::{Outcome, Process};
use serde_json::{Value, json};

/// The time after which the worker's timer comes again.
const TICK_MS: u64 = 10;

/// A limit that strict or leased requests under `path` are held to, and no other ones.
fn limit(name: &str, path: &str, consistency: &str) -> Value {
    json!({"name": name, "match": {"path_prefix": path}, "scope": "global",
           "consistency": consistency, "on_store_error": "deny",
           "tenant": {"requests": 1000, "window": "1h"}})
}

fn process(limits: &Value) -> Process {
    let plugin = json!({"limits": limits, "store": {"cluster": "redis", "timeout": "50ms"}});
    Process::new(&plugin.to_string(), 1).expect("a configuration")
}

fn start(process: &mut Process, path: &str, tenant: &str) -> (StreamId, Outcome) {
    process.start(&[
        (b":method", b"GET"),
        (b":path", path.as_bytes()),
        (b"x-tenant-id", tenant.as_bytes()),
    ])
}

/// What `stream` was told, if it was.
fn told(outcomes: &[(StreamId, Outcome)], stream: StreamId) -> Option<u16> {
    outcomes.iter().find(|(other, _)| *other == stream).map(|(_, outcome)| outcome.status())
}

/// A millisecond of a node: what is due in it, by a healthy store that answers after `rtt`. Returns what
/// became of those that waited.
fn millisecond(
    process: &mut Process,
    redis: &mut EmbeddedRedis,
    (ms, rtt): (u64, u64),
) -> Vec<(StreamId, Outcome)> {
    redis.set_clock(process.machine().borrow().now_us());
    if ms.is_multiple_of(TICK_MS) {
        process.tick();
    }
    let rtt = Span::from_millis(rtt);
    let settled = process.run_after(rtt, &mut |body| Ok(redis.exchange(body)));
    process.advance(Span::from_millis(1));
    settled
}

/// Goal: questions for leases keep no strict request from the store.
#[test]
fn leased_traffic_does_not_starve_strict_requests() {
    let limits = json!([limit("l", "/leased", "leased"), limit("s", "/strict", "strict")]);
    for (rtt, every_ms) in [(1, 1), (3, 1), (5, 1), (5, 3)] {
        let mut process = process(&limits);
        let mut redis = EmbeddedRedis::aged(process.machine().borrow().now_us());
        let (mut strict, mut statuses) = (BTreeSet::new(), BTreeMap::<u16, u32>::new());
        let mut longest = 0;
        let mut began = BTreeMap::new();
        for ms in 0..2000 {
            if ms % every_ms == 0 {
                start(&mut process, "/leased", &format!("t{ms}"));
            }
            if ms % 10 == 5 {
                let stream = start(&mut process, "/strict", "acme").0;
                strict.insert(stream);
                began.insert(stream, ms);
            }
            for (stream, outcome) in millisecond(&mut process, &mut redis, (ms, rtt)) {
                if let (true, Some(began)) = (strict.remove(&stream), began.get(&stream)) {
                    *statuses.entry(outcome.status()).or_default() += 1;
                    longest = longest.max(ms - began);
                }
            }
        }
        assert_eq!(statuses.keys().collect::<Vec<_>>(), [&200], "{rtt} ms: {statuses:?}");
        assert!(strict.len() <= 1, "{rtt} ms: {} still wait", strict.len());
        // Its turn comes by the next tick, and the store takes its time; the script is loaded once.
        assert!(longest <= TICK_MS + 2 * rtt, "{rtt} ms: one waited for {longest} ms");
    }
}

/// Goal: a limit in shadow mode, whose every request is a question, keeps no strict request from the store.
#[test]
fn a_limit_in_shadow_mode_does_not_starve_a_strict_one() {
    let mut strict = limit("old", "/", "strict");
    strict["tenant"]["requests"] = json!(1_000_000);
    let shadow = json!({"name": "new", "scope": "global", "mode": "shadow",
                        "tenant": {"requests": 50, "window": "1s"}});
    for rtt in [1, 2, 3, 5] {
        let mut process = process(&json!([shadow, strict]));
        let mut redis = EmbeddedRedis::aged(process.machine().borrow().now_us());
        let mut statuses = BTreeMap::<u16, u32>::new();
        for ms in 0..2000 {
            start(&mut process, "/", "acme");
            for (_, outcome) in millisecond(&mut process, &mut redis, (ms, rtt)) {
                *statuses.entry(outcome.status()).or_default() += 1;
            }
        }
        assert_eq!(statuses.keys().collect::<Vec<_>>(), [&200], "{rtt} ms: {statuses:?}");
        assert!(statuses[&200] > 1950, "{rtt} ms: {statuses:?}");
    }
}

/// Goal: a strict budget holds on several nodes while the store is well, whatever else they ask it.
#[test]
fn a_strict_budget_holds_beside_leased_traffic() {
    let limits = json!([
        {"name": "each", "scope": "global", "tenant": {"requests": 1000, "window": "1h"}},
        {"name": "budget", "scope": "global", "consistency": "strict",
         "shared": {"requests": 100, "window": "1h"}},
    ]);
    let mut nodes: Vec<Process> = (0..3).map(|_| process(&limits)).collect();
    let mut redis = EmbeddedRedis::aged(nodes[0].machine().borrow().now_us());
    let mut admitted = 0;
    for ms in 0..2000 {
        for (number, process) in nodes.iter_mut().enumerate() {
            let (_, outcome) = start(process, "/", &format!("t{number}-{ms}"));
            let settled = millisecond(process, &mut redis, (ms, 2));
            let passed = settled.iter().filter(|(_, outcome)| outcome.status() == 200).count();
            admitted += passed + usize::from(outcome.status() == 200);
        }
    }
    assert_eq!(admitted, 100);
}

/// Goal: one that has waited for leases before, and has little time left, takes none of the time of those
/// that it joins.
#[test]
fn a_late_joiner_does_not_shorten_the_time_of_its_crowd() {
    let mut leased = limit("lease", "/x/both", "leased");
    let mut strict = limit("strict", "/x", "strict");
    for limit in [&mut leased, &mut strict] {
        limit.as_object_mut().unwrap().remove("tenant");
        limit["shared"] = json!({"requests": 1000, "window": "1h"});
    }
    let mut process = process(&json!([leased, strict]));
    let mut redis = EmbeddedRedis::aged(process.machine().borrow().now_us());
    start(&mut process, "/x/warm", "a");
    process.run(&mut |body| Ok(redis.exchange(body)));
    let (old, _) = start(&mut process, "/x/both", "a");
    assert_eq!(process.wake().1, 1, "the question for leases");
    process.advance(Span::from_micros(45_500));
    start(&mut process, "/x/one", "a");
    process.wake();
    process.advance(Span::from_micros(500));
    let (young, _) = start(&mut process, "/x/one", "a");
    assert_eq!(process.wake().1, 2, "it waits for the call before");
    process.advance(Span::from_micros(500));
    // The leases are there, and the old one joins the crowd of the young one.
    process.answer_one(&mut |body| Ok(redis.exchange(body)));
    process.wake();
    process.advance(Span::from_micros(2_700));
    process.tick();
    assert_eq!(told(&process.wake().0, young), None, "it has 47 ms left");
    process.advance(Span::from_micros(800));
    process.tick();
    assert_eq!(told(&process.wake().0, old), Some(503), "its own time is over");
    let outcomes = process.run(&mut |body| Ok(redis.exchange(body)));
    assert_eq!(told(&outcomes, young), Some(200));
}

/// Goal: whoever waits to be asked for when the store is given up is let go at once, and nothing but the
/// probe is sent.
#[test]
fn who_waits_is_let_go_when_the_store_is_given_up() {
    let limits = json!([limit("l", "/leased", "leased"), limit("s", "/strict", "strict")]);
    let mut process = process(&limits);
    let mut redis = EmbeddedRedis::aged(process.machine().borrow().now_us());
    start(&mut process, "/strict", "acme");
    process.run(&mut |body| Ok(redis.exchange(body)));
    let fail = |process: &mut Process| process.answer_one(&mut |_| Err(StoreError::Reset));
    for number in 0..3 {
        start(&mut process, "/leased", &format!("t{number}"));
        process.wake();
    }
    let (leased, _) = start(&mut process, "/leased", "acme");
    process.wake();
    start(&mut process, "/strict", "acme");
    assert_eq!(process.wake().1, 5);
    // The one waits for the other's call, and is not asked for yet.
    let (strict, _) = start(&mut process, "/strict", "acme");
    assert_eq!(process.wake().1, 5);
    fail(&mut process);
    fail(&mut process);
    assert!(process.wake().0.iter().all(|(stream, _)| ![leased, strict].contains(stream)));
    fail(&mut process);
    let (outcomes, calls) = process.wake();
    assert_eq!([leased, strict].map(|stream| told(&outcomes, stream)), [Some(503); 2]);
    assert_eq!(calls, 2, "nothing is sent any more");
    assert_eq!(process.metrics_with(&["store_calls", "result=given_up"]), 1);
    for _ in 0..30 {
        process.advance(Span::from_millis(TICK_MS));
        process.tick();
        start(&mut process, "/strict", "acme");
    }
    let mut questions = 0;
    for _ in 0..process.wake().1 {
        process.answer_one(&mut |body| {
            questions += body.windows(7).filter(|word| word == b"EVALSHA").count();
            Err(StoreError::Timeout)
        });
    }
    assert_eq!(questions, 2 + 1, "one probe; looks at the mode are not counted");
}

/// Goal: of a burst only so many are asked for at once as calls can take. The others stay in their crowds,
/// which may grow, and are asked for in their order, as soon as a call has ended.
#[test]
fn a_burst_waits_in_its_crowds_until_calls_can_take_it() {
    const TENANTS: usize = 5000;
    let mut process = process(&json!([limit("s", "/", "strict")]));
    let mut redis = EmbeddedRedis::aged(process.machine().borrow().now_us());
    start(&mut process, "/", "first");
    process.run(&mut |body| Ok(redis.exchange(body)));
    let tenant = |number: usize| format!("t{number}");
    let burst: Vec<StreamId> =
        (0..TENANTS).map(|number| start(&mut process, "/", &tenant(number)).0).collect();
    let mut calls = process.wake().1;
    assert_eq!(calls, 8);
    let (late, _) = start(&mut process, "/", &tenant(TENANTS - 1));
    // From now on no call is young, so each that ends is followed by another one.
    process.advance(Span::from_millis(2));
    let (mut asked, mut told) = (Vec::new(), Vec::new());
    while calls > 0 {
        process.answer_one(&mut |body| {
            asked.push(body.windows(7).filter(|word| word == b"EVALSHA").count());
            Ok(redis.exchange(body))
        });
        let (outcomes, under_way) = process.wake();
        let left = TENANTS.saturating_sub(asked.iter().sum());
        assert_eq!(under_way, left.div_ceil(256).min(8), "a call that is free is made at once");
        told.extend(outcomes);
        calls = under_way;
    }
    assert_eq!(asked.iter().sum::<usize>(), TENANTS, "one question for each tenant: {asked:?}");
    let order: Vec<StreamId> = told.iter().map(|(stream, _)| *stream).collect();
    assert_eq!(order, [burst, vec![late]].concat());
    assert!(told.iter().all(|(_, outcome)| outcome.status() == 200));
}

/// Goal: with the shortest timeout that there is the store is asked, though the wake-up takes some of it.
#[test]
fn the_shortest_timeout_leaves_time_to_ask() {
    let plugin = json!({"limits": [limit("s", "/", "strict")],
                        "store": {"cluster": "redis", "timeout": "1ms"}});
    let mut process = Process::new(&plugin.to_string(), 1).expect("a configuration");
    let mut redis = EmbeddedRedis::aged(process.machine().borrow().now_us());
    let (stream, _) = start(&mut process, "/", "acme");
    process.advance(Span::from_micros(60));
    assert_eq!(process.wake().1, 1, "the store is asked");
    process.advance(Span::from_micros(400));
    let outcomes = process.run(&mut |body| Ok(redis.exchange(body)));
    assert_eq!(told(&outcomes, stream), Some(200));
}

/// Goal: requests whose time is over before the store could be asked for them are seen in a metric, and
/// take no room from later ones.
#[test]
fn requests_that_time_out_unasked_are_counted_and_leave_room() {
    let mut process = process(&json!([limit("s", "/", "strict")]));
    for _ in 0..8 {
        start(&mut process, "/", "acme");
        process.wake();
        process.advance(Span::from_millis(2));
    }
    assert_eq!(process.wake().1, 8, "no further call may be made");
    let unasked: Vec<StreamId> = (0..16_384).map(|_| start(&mut process, "/", "acme").0).collect();
    assert_eq!(start(&mut process, "/", "acme").1.status(), 503, "no more are taken on");
    process.end(unasked[0]);
    process.advance(Span::from_millis(50));
    process.tick();
    assert_eq!(process.metrics_with(&["store_calls", "result=timeout"]), 16_383);
    assert_eq!(start(&mut process, "/", "acme").1, Outcome::Waits, "there is room again");
}
