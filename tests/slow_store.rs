//! RED-6: a store that is slow, and a tenant that is hot, in time that the tests move.
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
use fairshare::store::StoreError;
use fairshare::units::Span;
use fake_host::{Outcome, Process};
use serde_json::json;
use support::commands::commands;

const CONSISTENCIES: [&str; 2] = ["strict", "leased"];

/// The store's timeout, and the time after which the worker's timer comes again.
const TIMEOUT_MS: u64 = 50;
const TICK_MS: u64 = 10;

fn process(limits: &serde_json::Value) -> Process {
    let timeout = format!("{TIMEOUT_MS}ms");
    let plugin = json!({"limits": limits, "store": {"cluster": "redis", "timeout": timeout}});
    Process::new(&plugin.to_string(), 1).expect("a configuration")
}

fn start(process: &mut Process) -> (StreamId, Outcome) {
    process.start(&[(b":path", b"/"), (b"x-tenant-id", b"acme")])
}

fn calls(process: &Process, result: &str) -> u64 {
    process.metrics_with(&["fairshare_store_calls.", &format!(".result={result}")])
}

/// Sends a hundred requests a second for so long, each to be let through. A store that is `healthy` answers
/// after a millisecond; another one says nothing until the host gives up. Returns how long each of those
/// waited that did, in the order in which they came, and how many calls there were.
fn hundred_a_second(
    process: &mut Process,
    redis: &mut EmbeddedRedis,
    healthy: bool,
    seconds: u64,
) -> (BTreeMap<u64, u64>, usize) {
    let (mut began, mut waits, mut exchanges) = (BTreeMap::new(), BTreeMap::new(), 0);
    for ms in 0..seconds * 1000 {
        redis.set_clock(process.machine().borrow().now_us());
        if ms % TICK_MS == 0 {
            process.tick();
        }
        if ms % 10 == 3 {
            match start(process) {
                (stream, Outcome::Waits) => drop(began.insert(stream, ms)),
                (stream, Outcome::Passed(_)) => process.end(stream),
                (_, other) => panic!("{other:?}"),
            }
        }
        let mut answer = |body: &[u8]| {
            exchanges += 1;
            if healthy { Ok(redis.exchange(body)) } else { Err(StoreError::Timeout) }
        };
        let rtt = Span::from_millis(if healthy { 1 } else { TIMEOUT_MS });
        for (stream, outcome) in process.run_after(rtt, &mut answer) {
            assert!(matches!(outcome, Outcome::Passed(_)), "{outcome:?}");
            let start = began.remove(&stream).expect("a request that waits");
            waits.insert(start, ms - start);
            process.end(stream);
        }
        process.advance(Span::from_millis(1));
    }
    assert!(began.is_empty(), "{began:?} still wait");
    (waits, exchanges)
}

/// RED-6: a silent store delays the first requests by its timeout and one period of the timer at most, and
/// nobody else; it is asked few times a second, and within a second of its health for every request again.
#[test]
fn red_6_a_silent_store_delays_the_first_requests_alone() {
    for consistency in CONSISTENCIES {
        let mut process = process(&json!([{
            "name": "fleet", "scope": "global", "consistency": consistency,
            "on_store_error": "allow", "tenant": {"requests": 100_000, "window": "1h"}}]));
        let mut redis = EmbeddedRedis::aged(process.machine().borrow().now_us());
        let (waits, exchanges) = hundred_a_second(&mut process, &mut redis, false, 10);
        let longest = waits.values().max().copied().unwrap_or(0);
        assert!((1..=TIMEOUT_MS + TICK_MS).contains(&longest), "{consistency}: {longest} ms");
        let (last, _) = waits.last_key_value().expect("some waited");
        assert!(*last <= 4 * TIMEOUT_MS, "{consistency}: one came after {last} ms and waited");
        // Three until it is given up, five probes a second, and what asks for the mode.
        assert!((10..=80).contains(&exchanges), "{consistency}: {exchanges} calls in ten seconds");
        assert!(calls(&process, "given_up") >= 950, "{consistency}");

        hundred_a_second(&mut process, &mut redis, true, 1);
        let before = calls(&process, "given_up");
        hundred_a_second(&mut process, &mut redis, true, 1);
        assert_eq!(calls(&process, "given_up"), before, "{consistency}: not well in a second");
        assert!(calls(&process, "ok") > 0, "{consistency}: nobody asks");
    }
}

/// RED-6: of a tenant at 5000 requests a second, the store hears of no more than the node lets through.
#[test]
fn red_6_a_hot_tenant_causes_few_commands() {
    const SECONDS: u64 = 15;
    for consistency in CONSISTENCIES {
        let mut process = process(&json!([
            {"name": "fleet", "scope": "global", "consistency": consistency,
             "on_store_error": "deny", "tenant": {"requests": 100, "window": "1m"}},
            {"name": "node", "tenant": {"requests": 10, "window": "1s"}}]));
        let mut redis = EmbeddedRedis::aged(process.machine().borrow().now_us());
        let (mut admitted, mut asked) = (0_u64, BTreeMap::<u64, u64>::new());
        for number in 0..SECONDS * 5000 {
            redis.set_clock(process.machine().borrow().now_us());
            if number % 50 == 0 {
                process.tick();
            }
            let (stream, outcome) = start(&mut process);
            let later = process.run(&mut |body| {
                let is_decision = |command: &Vec<Vec<u8>>| {
                    command.iter().any(|word| word.windows(9).any(|part| part == b":fleet:t:"))
                };
                let count = commands(body).iter().filter(|command| is_decision(command)).count();
                *asked.entry(number / 5000).or_default() += u64::try_from(count).unwrap();
                Ok(redis.exchange(body))
            });
            let later = later.into_iter().find(|(waited, _)| *waited == stream);
            let outcome = later.map_or(outcome, |(_, later)| later);
            admitted += u64::from(matches!(outcome, Outcome::Passed(_)));
            process.end(stream);
            process.advance(Span::from_micros(200));
        }
        assert!((90..=100).contains(&admitted), "{consistency}: {admitted} of 100 were admitted");
        let most = asked.values().max().copied().unwrap_or(0);
        assert!(most <= 12, "{consistency}: {most} commands in a second");
        assert!(asked.values().sum::<u64>() <= 10 * SECONDS, "{consistency}: {asked:?}");
    }
}
