//! What a worker does where the store has lost one key alone: it sees from an answer that less is held than
//! was granted to it, and tells the store. The store answers on a clock of the tests' own.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests fail by panicking"
)]

mod embedded_redis;
mod fake_host;

use embedded_redis::EmbeddedRedis;
use fairshare::units::Span;
use fake_host::{Process, passed};
use serde_json::json;

const LIMIT: usize = 300;
const WINDOW_MS: usize = 2000;

/// What leaks of a rate in the same time.
const LEAKS: usize = 30;

/// What one worker is granted before its first answer after the loss: an eighth of the limit at most.
const GRANTED_AGAIN: usize = LIMIT / 8;

/// The most that was admitted in any interval of the window's length, to one worker whose clients never let
/// up. The limit's key is evicted as soon as all units of it are spent, and nothing else is.
fn worst_interval(level: &str, consistency: &str, on_state_loss: &str) -> usize {
    let quota = match level {
        "window" => json!({"requests": LIMIT, "window": "2s"}),
        _ => json!({"rate": LEAKS, "per": "2s", "burst": LIMIT}),
    };
    let plugin = json!({
        "limits": [{"name": "fleet", "scope": "global", "consistency": consistency,
                    "on_state_loss": on_state_loss, "on_store_error": "deny", "shared": quota}],
        "store": {"cluster": "redis", "timeout": "50ms"},
    });
    let mut process = Process::new(&plugin.to_string(), 1).expect("a configuration");
    let machine = process.machine();
    let mut redis = EmbeddedRedis::aged(machine.borrow().now_us());
    let mut admitted: Vec<usize> = Vec::new();
    for ms in 0..3 * WINDOW_MS {
        let (_, outcome) = process.start(&[(b":method", b"GET"), (b":path", b"/")]);
        redis.set_clock(machine.borrow().now_us());
        if ms % 10 == 0 {
            process.tick();
        }
        let settled = process.run_after(Span::from_millis(1), &mut |body| Ok(redis.exchange(body)));
        let passed = usize::from(outcome.status() == 200) + passed(&settled);
        let before = admitted.iter().sum::<usize>();
        if before < LIMIT && before + passed >= LIMIT {
            let keys = redis.keyspace().names();
            let key = keys.iter().find(|key| key.ends_with(b":s")).expect("the limit's key");
            redis.evict(key);
        }
        admitted.push(passed);
        process.advance(Span::from_millis(1));
    }
    assert!(process.metrics_with(&["state_losses", "of=key"]) > 0, "nobody has noticed");
    admitted.windows(WINDOW_MS).map(|interval| interval.iter().sum()).max().unwrap()
}

/// Goal: units that one worker was granted are not granted to it again because their key was evicted.
#[test]
fn a_worker_reports_a_key_that_was_lost_alone() {
    for (level, consistency) in
        [("window", "leased"), ("window", "strict"), ("rate", "leased"), ("rate", "strict")]
    {
        for on_state_loss in ["rebuild", "hold"] {
            let worst = worst_interval(level, consistency, on_state_loss);
            println!("{level}, {consistency}, {on_state_loss}: {worst} of {LIMIT}");
            let leaks = if level == "rate" { LEAKS } else { 0 };
            let most = LIMIT + leaks + GRANTED_AGAIN + 1;
            assert!(worst <= most, "{level}, {consistency}, {on_state_loss}: {worst}");
        }
    }
}
