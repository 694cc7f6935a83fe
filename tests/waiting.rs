//! Requests that wait for the store: what they hold, who is told, and when.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and they do have a clock"
)]

mod fake_host;
mod support;

use fairshare::host::StreamId;
use fairshare::store::{SCRIPT, StoreError};
use fairshare::units::Span;
use fake_host::{Outcome, Process, passed};
use serde_json::{Value, json};
use support::redis::Redis;

/// A strict global limit that has room, and a node limit of five a second.
fn plugin(consistency: &str) -> Value {
    json!({
        "limits": [
            {"name": "fleet", "scope": "global", "consistency": consistency,
             "on_store_error": "deny", "tenant": {"requests": 1000, "window": "1h"}},
            {"name": "node", "tenant": {"requests": 5, "window": "1s"}},
        ],
        "store": {"cluster": "fairshare_redis", "timeout": "50ms"},
    })
}

fn process(consistency: &str) -> Process {
    Process::new(&plugin(consistency).to_string(), 1).expect("a configuration")
}

fn start(process: &mut Process, tenant: &str) -> (StreamId, Outcome) {
    process.start(&[(b":method", b"GET"), (b":path", b"/"), (b"x-tenant-id", tenant.as_bytes())])
}

/// Goal: what waits is charged on the node when it is let through, not when it came, so that the
/// node's window holds for what goes upstream.
#[test]
fn a_node_window_is_not_exceeded_by_requests_that_waited() {
    for consistency in ["strict", "leased"] {
        let redis = Redis::start();
        let mut process = process(consistency);
        let mut upstream = 0;
        for _ in 0..5 {
            let (_, outcome) = start(&mut process, "acme");
            assert_eq!(outcome, Outcome::Waits);
        }
        process.advance(Span::from_millis(40));
        upstream += passed(&process.run(&mut |body| Ok(redis.exchange(body))));
        // A second after they came, and less than one after they were let through.
        process.advance(Span::from_millis(965));
        for _ in 0..5 {
            let (_, outcome) = start(&mut process, "acme");
            upstream += usize::from(matches!(outcome, Outcome::Passed(_)));
        }
        upstream += passed(&process.run(&mut |body| Ok(redis.exchange(body))));
        assert_eq!(upstream, 5, "{consistency}");
    }
}

/// Goal: requests that the store refuses, or that wait for it, take no room from others on the node.
#[test]
fn waiting_and_refused_requests_hold_nothing_on_the_node() {
    let redis = Redis::start();
    let mut plugin = plugin("strict");
    plugin["limits"][0]["tenant"] = json!({"requests": 1, "window": "1h"});
    plugin["limits"][1] = json!({"name": "node", "shared": {"rate": 10, "per": "1m", "burst": 10}});
    let mut process = Process::new(&plugin.to_string(), 1).expect("a configuration");
    for _ in 0..100 {
        start(&mut process, "noisy");
    }
    // While the noisy ones wait, the quiet ones still have the node's room.
    for tenant in ["a", "b", "c", "d", "e", "f", "g", "h", "i"] {
        assert_eq!(start(&mut process, tenant).1, Outcome::Waits);
    }
    let outcomes = process.run(&mut |body| Ok(redis.exchange(body)));
    assert_eq!(passed(&outcomes), 10, "one noisy one and nine quiet ones");
}

/// Goal: many who wait are delivered in portions that the proxy's stack can take.
#[test]
fn many_waiting_requests_are_delivered_in_portions() {
    let redis = Redis::start();
    let mut plugin = plugin("strict");
    plugin["limits"].as_array_mut().unwrap().pop();
    let mut process = Process::new(&plugin.to_string(), 1).expect("a configuration");
    for _ in 0..600 {
        start(&mut process, "acme");
    }
    assert_eq!(passed(&process.run(&mut |body| Ok(redis.exchange(body)))), 600);
}

/// Goal: a store that never says anything delays nobody beyond its timeout.
#[test]
fn a_silent_store_lets_go_at_its_timeout() {
    for consistency in ["strict", "leased"] {
        let mut process = process(consistency);
        let (first, _) = start(&mut process, "acme");
        process.advance(Span::from_millis(30));
        let (second, _) = start(&mut process, "acme");
        assert!(process.wake().1 >= 1, "a call is under way");
        process.advance(Span::from_millis(19));
        process.tick();
        assert!(process.wake().0.is_empty(), "nobody is told too soon");
        process.advance(Span::from_millis(1));
        process.tick();
        let told = process.wake().0;
        assert_eq!(told[0].0, first);
        assert!(told.iter().all(|(_, outcome)| outcome.status() == 503));
        process.advance(Span::from_millis(31));
        process.tick();
        let later = process.wake().0;
        assert!(told.iter().chain(&later).any(|(stream, _)| *stream == second));
    }
}

/// Goal: a request near its deadline does not take those that came later with it.
#[test]
fn one_old_request_does_not_fail_a_call() {
    let redis = Redis::start();
    let mut process = process("strict");
    let (old, _) = start(&mut process, "acme");
    process.advance(Span::from_millis(40));
    let (young, _) = start(&mut process, "globex");
    process.wake();
    process.advance(Span::from_millis(20));
    process.tick();
    let told = process.wake().0;
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].0, told[0].1.status()), (old, 503));
    let answered = process.run(&mut |body| Ok(redis.exchange(body)));
    assert_eq!(answered.len(), 1);
    assert_eq!((answered[0].0, answered[0].1.status()), (young, 200));
}

/// Goal: who goes away is not asked for, unless the question is already on its way, and never
/// answered; others who wait for the same lease get it.
#[test]
fn aborted_initiator_does_not_cancel_the_refill() {
    let redis = Redis::start();
    let mut process = process("leased");
    let (initiator, _) = start(&mut process, "acme");
    let (other, _) = start(&mut process, "acme");
    process.end(initiator);
    let answered = process.run(&mut |body| Ok(redis.exchange(body)));
    assert_eq!(answered.len(), 1);
    assert_eq!((answered[0].0, answered[0].1.status()), (other, 200));
    assert_eq!(process.metrics_with(&["outcome=errored"]), 1);
}

#[test]
fn a_strict_request_that_goes_away_is_not_charged() {
    let redis = Redis::start();
    let mut process = process("strict");
    let (gone, _) = start(&mut process, "acme");
    process.end(gone);
    let answered = process.run(&mut |body| Ok(redis.exchange(body)));
    assert!(answered.is_empty());
    assert!(redis.keys().is_empty(), "{:?}", redis.keys());
}

/// Goal: an answer that comes after its request was let through without it takes nothing from the
/// request, whose slot is given back when it ends; and what it granted goes back to the store.
#[test]
fn a_late_answer_neither_leaks_a_slot_nor_keeps_a_unit() {
    let redis = Redis::start();
    let mut plugin = plugin("strict");
    plugin["limits"][0]["on_store_error"] = json!("allow");
    plugin["limits"][1] = json!({"name": "caps", "in_flight": {"tenant": 1}});
    let mut process = Process::new(&plugin.to_string(), 1).expect("a configuration");
    let (early, _) = start(&mut process, "acme");
    process.advance(Span::from_millis(40));
    start(&mut process, "globex");
    process.wake();
    process.advance(Span::from_millis(20));
    process.tick();
    assert_eq!(passed(&process.wake().0), 1, "let through at its deadline");
    process.run(&mut |body| Ok(redis.exchange(body)));
    process.end(early);
    let (_, outcome) = start(&mut process, "acme");
    assert_eq!(outcome, Outcome::Waits);
    let again = process.run(&mut |body| Ok(redis.exchange(body)));
    assert_eq!(passed(&again), 1, "the slot is free again");
    let acme: Vec<String> = redis.keys().into_iter().filter_map(|key| redis.get(&key)).collect();
    let units = |text: &String| text.split(' ').nth(3).map(str::to_owned);
    assert!(acme.iter().all(|text| units(text).as_deref() == Some("1")), "{acme:?}");
}

/// Goal: however many wait, few calls are under way.
#[test]
fn few_calls_are_under_way_at_a_time() {
    let mut process = process("strict");
    for _ in 0..50 {
        start(&mut process, "acme");
        process.wake();
    }
    assert!((1..=8).contains(&process.wake().1));
}

/// Goal: a worker takes on a bounded number of waiting requests, and decides others without the
/// store.
#[test]
fn what_waits_is_bounded() {
    let mut plugin = plugin("strict");
    plugin["limits"].as_array_mut().unwrap().pop();
    let mut process = Process::new(&plugin.to_string(), 1).expect("a configuration");
    let outcomes: Vec<_> = (0..17_000).map(|_| start(&mut process, "acme").1).collect();
    assert!(outcomes.iter().take(16_384).all(|outcome| *outcome == Outcome::Waits));
    assert!(outcomes.iter().skip(16_384).all(|outcome| outcome.status() == 503));
}

/// Goal: a request that goes on without one group of keys asks for the next one once.
#[test]
fn a_group_that_is_given_up_does_not_double_the_next_question() {
    let redis = Redis::start();
    redis.age("fairshare:b");
    let limit = |name: &str, path: &str, on_store_error: &str| {
        json!({"name": name, "match": {"path_prefix": path}, "scope": "global",
               "on_store_error": on_store_error, "shared": {"requests": 10, "window": "10s"}})
    };
    let plugin = json!({
        "limits": [limit("a", "/x", "allow"), limit("b", "/x/b", "deny")],
        "store": {"cluster": "fairshare_redis", "timeout": "50ms", "topology": "cluster"},
    });
    let mut process = Process::new(&plugin.to_string(), 1).expect("a configuration");
    let is_about = |body: &[u8], what: &[u8]| body.windows(what.len()).any(|part| part == what);
    let mut store = |body: &[u8]| match is_about(body, b"{fairshare:a}") || is_about(body, b"SLOTS")
    {
        true => Err(StoreError::Timeout),
        false => Ok(redis.exchange(body)),
    };
    let mut ask = |process: &mut Process, path: &[u8]| {
        process.start(&[(b":method", b"GET"), (b":path", path)]);
        process.run(&mut store);
        process.advance(Span::from_millis(100));
        process.tick();
        process.run(&mut store);
    };
    for _ in 0..4 {
        ask(&mut process, b"/x/a");
    }
    assert!(process.metrics_with(&["fairshare_store_calls.", ".result=given_up"]) > 0);
    ask(&mut process, b"/x/b");
    assert_eq!(process.metrics_with(&["fairshare_lease_units", "granted"]), 1);
}

/// Goal: whoever waits for the same levels is charged in one question, in the order of coming, and hears
/// what it would have heard alone.
#[test]
fn requests_of_one_kind_are_charged_together() {
    let redis = Redis::start();
    redis.age("fairshare");
    let plugin = json!({
        "limits": [{"name": "fleet", "scope": "global", "consistency": "strict",
                    "on_store_error": "deny", "shared": {"requests": 100, "window": "1h"},
                    "tenant": {"requests": 3, "window": "1h"}}],
        "store": {"cluster": "fairshare_redis", "timeout": "50ms"},
    });
    let mut process = Process::new(&plugin.to_string(), 1).expect("a configuration");
    let acme: Vec<StreamId> = (0..5).map(|_| start(&mut process, "acme").0).collect();
    start(&mut process, "globex");
    let mut questions = 0;
    let outcomes = process.run(&mut |body| {
        questions += body.windows(7).filter(|word| word == b"EVALSHA").count();
        Ok(redis.exchange(body))
    });
    // Once more after the script was loaded.
    assert_eq!((questions, passed(&outcomes)), (2 * 2, 3 + 1));
    let of = |stream: &StreamId| outcomes.iter().find(|(told, _)| told == stream).map(|(_, o)| o);
    for (stream, left) in acme.iter().zip([2, 1, 0]) {
        let Some(Outcome::Passed(Some(fields))) = of(stream) else { panic!("{:?}", of(stream)) };
        assert!(fields.limit.contains(&format!(";r={left};")), "{}", fields.limit);
    }
    assert!(acme.iter().skip(3).all(|stream| of(stream).map(Outcome::status) == Some(429)));
    let shared = redis.get("{fairshare}:1:fleet:s").expect("usage");
    assert_eq!(shared.split(' ').nth(3), Some("4"), "{shared}");
}

/// Goal: requests that can share a question wait for one that is under way, but not for long.
#[test]
fn a_question_under_way_is_waited_for_but_not_for_long() {
    let mut process = process("strict");
    start(&mut process, "acme");
    assert_eq!(process.wake().1, 1);
    start(&mut process, "acme");
    assert_eq!(process.wake().1, 1, "a young call is waited for");
    process.advance(Span::from_millis(2));
    start(&mut process, "acme");
    assert_eq!(process.wake().1, 2, "an old one is not");
}

/// Answers the oldest call, and says how many requests go on.
fn answer(process: &mut Process, redis: &Redis) -> usize {
    process.answer_one(&mut |body| Ok(redis.exchange(body)));
    passed(&process.wake().0)
}

/// Goal: no request is let through with leased units that are over by the time at which a strict limit
/// has answered; it gets others, where there are any.
#[test]
fn units_that_are_over_when_a_strict_answer_comes_let_nobody_through() {
    let redis = Redis::start();
    redis.run(&["SCRIPT", "LOAD", SCRIPT]);
    let limit = |name: &str, consistency: &str, window: &str| {
        json!({"name": name, "scope": "global", "consistency": consistency,
               "on_store_error": "deny", "shared": {"requests": 2, "window": window}})
    };
    let plugin = json!({
        "limits": [limit("short", "leased", "200ms"), limit("long", "strict", "1h")],
        "store": {"cluster": "fairshare_redis", "timeout": "500ms"},
    });
    let mut process = Process::new(&plugin.to_string(), 1).expect("a configuration");
    start(&mut process, "acme");
    assert_eq!(passed(&process.wake().0), 0);
    assert_eq!(answer(&mut process, &redis), 0, "it has its leased unit, and waits for the other");
    process.advance(Span::from_millis(70));
    assert_eq!(answer(&mut process, &redis), 0, "the leased unit is over");
    assert_eq!(answer(&mut process, &redis), 1, "it has got another");
}
