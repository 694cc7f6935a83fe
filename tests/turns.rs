//! Who of a node's workers asks the store for all of them, on a host that the tests move by hand with a
//! real Redis. The first VM is that of the proxy's main thread: its timer runs, it gets no requests, and
//! its calls of the store fail.
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

use fairshare::store::StoreError;
use fairshare::units::Span;
use fake_host::{Outcome, Process, StoreReply};
use serde_json::{Value, json};
use support::redis::Redis;

const SECOND: u32 = 10;

const RECORD: &str = "{fairshare}:1:epoch";

fn plugin() -> Value {
    json!({
        "limits": [{
            "name": "fleet", "scope": "global", "consistency": "strict",
            "on_store_error": "deny", "tenant": {"requests": 1000, "window": "1m"},
        }],
        "store": {"cluster": "fairshare_redis", "timeout": "50ms"},
    })
}

/// A node of so many workers beside the main thread.
fn node(workers: usize) -> Process {
    let mut process = Process::new(&plugin().to_string(), workers + 1).expect("a configuration");
    process.cut_off(0..1);
    process
}

/// What a store says that is away.
fn away(_: &[u8]) -> StoreReply {
    Err(StoreError::Timeout)
}

/// Tenths of a second pass, with all that workers do by themselves.
fn tenths(process: &mut Process, number: u32, store: &mut dyn FnMut(&[u8]) -> StoreReply) {
    for _ in 0..number {
        process.advance(Span::from_millis(100));
        process.tick();
        process.run(store);
    }
}

/// The statuses that the next request on each worker gets.
fn statuses(
    process: &mut Process,
    workers: usize,
    store: &mut dyn FnMut(&[u8]) -> StoreReply,
) -> Vec<u16> {
    let pairs: [(&[u8], &[u8]); 3] =
        [(b":method", b"GET"), (b":path", b"/"), (b"x-tenant-id", b"acme")];
    let one = |_| {
        let (stream, outcome) = process.start(&pairs);
        let later = process.run(store).into_iter().find(|(waited, _)| *waited == stream);
        process.end(stream);
        match later.map_or(outcome, |(_, later)| later) {
            Outcome::Passed(_) => 200,
            Outcome::Answered(reply) => reply.status,
            Outcome::Waits => panic!("the request has no answer"),
        }
    };
    (0..workers).map(one).collect()
}

/// All workers give the store up.
fn give_up(process: &mut Process, workers: usize) {
    for _ in 0..4 {
        tenths(process, 1, &mut away);
        assert_eq!(statuses(process, workers, &mut away), vec![503; workers]);
    }
    assert!(process.metrics_with(&["store_calls", "given_up"]) > 0);
}

/// A store that is new grants nothing for half a second from its first poll on, which does not wait for
/// the first request.
#[test]
fn the_pause_of_a_new_store_begins_before_the_first_request() {
    for workers in [1, 4] {
        let (redis, mut process) = (Redis::start(), node(workers));
        redis.run(&["DEL", RECORD]);
        tenths(&mut process, 3, &mut |body| Ok(redis.exchange(body)));
        assert!(redis.get(RECORD).is_some(), "{workers} workers: nobody has polled");
    }
}

/// An idle node hears of a loss of state within two seconds, from its start on and while it polls once a
/// second.
#[test]
fn an_idle_node_polls_once_a_second_from_the_start() {
    for workers in [1, 4] {
        let (redis, mut process) = (Redis::start(), node(workers));
        let mut polls = 0;
        let mut store = |body: &[u8]| {
            polls += u32::from(body.windows(RECORD.len()).any(|part| part == RECORD.as_bytes()));
            Ok(redis.exchange(body))
        };
        tenths(&mut process, SECOND / 2, &mut store);
        redis.run(&["FLUSHALL"]);
        tenths(&mut process, 2 * SECOND, &mut store);
        let noticed = process.metrics_with(&["state_losses", "of=store"]);
        assert_eq!(noticed, 1, "{workers} workers");
        tenths(&mut process, 18 * SECOND, &mut store);
        // After the flush, a poll is sent twice, because the script is gone.
        assert!((18..=22).contains(&polls), "{workers} workers: {polls} polls in 20.5 s");
    }
}

/// An idle node that was granted units which still count hears of a loss well within the half second for which
/// the store grants nothing, and tells it of them.
#[test]
fn an_idle_node_that_could_lose_units_reports_them_in_time() {
    for workers in [1, 4] {
        let (redis, mut process) = (Redis::start(), node(workers));
        let mut store = |body: &[u8]| Ok(redis.exchange(body));
        tenths(&mut process, SECOND, &mut store);
        assert_eq!(statuses(&mut process, workers, &mut store), vec![200; workers]);
        let usage = redis.keys().into_iter().find(|key| key.contains(":fleet:t:")).expect("usage");
        tenths(&mut process, 2 * SECOND, &mut store);
        redis.run(&["FLUSHALL"]);
        tenths(&mut process, 4, &mut store);
        assert_eq!(process.metrics_with(&["state_losses", "of=store"]), 1, "{workers} workers");
        assert!(
            redis.get(&usage).is_some(),
            "{workers} workers: what they were granted is forgotten"
        );
    }
}

/// Within a second of the store's recovery every worker asks it again.
#[test]
fn a_vm_that_never_reaches_the_store_keeps_nobody_from_probing() {
    for workers in [1, 2, 4] {
        let (redis, mut process) = (Redis::start(), node(workers));
        let mut store = |body: &[u8]| Ok(redis.exchange(body));
        tenths(&mut process, 10 * SECOND, &mut store);
        assert_eq!(statuses(&mut process, workers, &mut store), vec![200; workers]);
        give_up(&mut process, workers);
        tenths(&mut process, 5 * SECOND, &mut away);
        tenths(&mut process, SECOND, &mut store);
        assert_eq!(statuses(&mut process, workers, &mut store), vec![200; workers], "{workers}");
    }
}

/// The same for a worker that did reach it, and alone does not any more.
#[test]
fn a_worker_that_is_cut_off_alone_keeps_nobody_from_probing() {
    for first_after in 0..=4 {
        let (redis, mut process) = (Redis::start(), node(3));
        let mut store = |body: &[u8]| Ok(redis.exchange(body));
        tenths(&mut process, 10 * SECOND, &mut store);
        assert_eq!(statuses(&mut process, 3, &mut store), [200; 3]);
        give_up(&mut process, 3);
        tenths(&mut process, SECOND + first_after, &mut away);
        process.cut_off(0..2);
        tenths(&mut process, SECOND, &mut store);
        assert_eq!(statuses(&mut process, 2, &mut store), [200; 2], "{first_after}");
    }
}

/// A node that starts while the store is away has no worker that was ever answered, and recovers alike.
#[test]
fn a_node_of_newcomers_gets_its_first_answer() {
    for workers in [1, 4] {
        let (redis, mut process) = (Redis::start(), node(workers));
        give_up(&mut process, workers);
        tenths(&mut process, 5 * SECOND, &mut away);
        let mut store = |body: &[u8]| Ok(redis.exchange(body));
        tenths(&mut process, SECOND, &mut store);
        assert_eq!(statuses(&mut process, workers, &mut store), vec![200; workers], "{workers}");
    }
}

/// On a node that is well, the main thread's VM calls nobody: its calls would look like a store that is
/// away.
#[test]
fn a_vm_that_never_reaches_the_store_does_not_try_while_others_do() {
    let (redis, mut process) = (Redis::start(), node(2));
    let mut store = |body: &[u8]| Ok(redis.exchange(body));
    tenths(&mut process, 30 * SECOND, &mut store);
    assert!(process.metrics_with(&["mode_reads", "ok"]) >= 9);
    assert!(process.metrics_with(&["mode_reads", "failed"]) <= 1, "once at the start");
    assert_eq!(process.metrics_with(&["store_calls", "unreachable"]), 0);
}
