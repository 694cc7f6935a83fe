//! The script and the pipeline against a real Redis.
//!
//! Most tests replace what reads Redis's clock in the script by a time of their own ([`Timed`]), so
//! that they walk over windows without waiting for them. What concerns expiry, and errors, runs the
//! script as it is.
#![allow(dead_code, unreachable_pub, reason = "this binary uses its own part of the support")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and they do have a clock and an environment"
)]

/// Changes of limits, forms and clocks on usage that is already there.
#[path = "redis/changes.rs"]
mod changes;
/// What a decision charges, and what it leaves alone.
#[path = "redis/deciding.rs"]
mod deciding;
/// What is noticed of a loss of state.
#[path = "redis/epochs.rs"]
mod epochs;
/// That no key stays behind, and none leaves too early.
#[path = "redis/expiry.rs"]
mod expiry;
/// Errors as Redis really words them.
#[path = "redis/failures.rs"]
mod failures;
/// Random arrivals, against a log of every admission and against the node's limiter.
#[path = "redis/oracle.rs"]
mod oracle;
/// What the pages tell their readers to do.
#[path = "support/page.rs"]
mod page;
/// The server and its client, and what they are made of.
#[path = "support/process.rs"]
mod process;
#[path = "support/redis.rs"]
mod redis;
#[path = "support/tools.rs"]
mod tools;

use fairshare::limiter::{GcraQuota, Quota, Verdict, WindowQuota};
use fairshare::policy::{Level, Secret, StorePolicy, Topology};
use fairshare::store::epoch::State;
use fairshare::store::{
    Answer, DECISIONS_MAX, Decision, Operation, SCRIPT, SCRIPT_SHA1, ScriptCall, StoreCharge,
    StoreError, decode, encode, key, pipeline_len, record_key,
};
use fairshare::units::Span;
use redis::{Redis, Value, command};

/// A moment that the tests start from, in microseconds of Unix time.
const START_US: u64 = 1_700_000_000_000_000;

const SECOND_US: u64 = 1_000_000;

/// What keys of [`Timed`] live beyond their use.
const TIMED_SLACK_MS: i64 = 600_000;

/// A server, and the script in it with its clock in the test's hands.
struct Timed {
    redis: Redis,
    script: String,
    script_sha1: String,
}

impl Timed {
    /// With a store that has been in use for long.
    fn start() -> Self {
        Self::with(aged())
    }

    /// With a store that nobody has used.
    fn fresh() -> Self {
        Self::with(Redis::start())
    }

    fn with(redis: Redis) -> Self {
        // The time is the last argument; the script never sees that it was there.
        let script = replaced_once(SCRIPT, "redis.call('TIME')", "{ 0, table.remove(ARGV) }");
        // Keys expire by Redis's own clock, and no test's keys may expire while it runs.
        let slack = format!("SLACK_MS = {TIMED_SLACK_MS}");
        let script = replaced_once(&script, "SLACK_MS=500", &slack);
        let Value::Text(script_sha1) = redis.run(&["SCRIPT", "LOAD", &script]) else {
            panic!("the script does not load")
        };
        Self { redis, script, script_sha1 }
    }

    /// Decides one after the other, each at its own time.
    fn decide_all(&self, asked: &[(u64, Decision)]) -> Vec<Answer> {
        let results = asked.chunks(DECISIONS_MAX).flat_map(|batch| {
            let calls: Vec<u8> =
                batch.iter().flat_map(|(at, ask)| self.call_at(*at, ask)).collect();
            let decisions: Vec<&Decision> = batch.iter().map(|(_, decision)| decision).collect();
            decode(&policy(), &decisions, ScriptCall::Cached, &self.redis.exchange(&calls))
        });
        results.map(|result| result.expect("an answer")).collect()
    }

    /// The call that the filter sends, of the test's script and with a time as its last argument.
    fn call_at(&self, now_us: u64, decision: &Decision) -> Vec<u8> {
        let call = String::from_utf8(encode(&policy(), &[decision], ScriptCall::Cached)).unwrap();
        let call = replaced_once(&call, SCRIPT_SHA1, &self.script_sha1);
        let (count, arguments) = call.strip_prefix('*').unwrap().split_once("\r\n").unwrap();
        let count = count.parse::<usize>().unwrap() + 1;
        let (time, length) = (now_us, now_us.to_string().len());
        format!("*{count}\r\n{arguments}${length}\r\n{time}\r\n").into_bytes()
    }

    fn decide(&self, now_us: u64, charges: &[StoreCharge]) -> Answer {
        self.decide_all(&[(now_us, ask(charges))]).remove(0)
    }

    /// Decides about one level, charges it if it has room, and says what it says.
    fn take(&self, now_us: u64, key: &str, quota: Quota, cost: u64) -> Verdict {
        self.decide(now_us, &[charge(key, quota, cost)]).levels[0]
    }
}

fn replaced_once(text: &str, old: &str, new: &str) -> String {
    assert_eq!(text.matches(old).count(), 1, "{old:?} in the script");
    text.replace(old, new)
}

/// A store that has been in use for long.
fn aged() -> Redis {
    let redis = Redis::start();
    redis.age("f");
    redis
}

/// Decides with the script as it is, on Redis's own clock.
fn decide(redis: &Redis, decisions: &[Decision]) -> Vec<Result<Answer, StoreError>> {
    let body = redis.exchange(&encode(&policy(), decisions, ScriptCall::Load));
    decode(&policy(), decisions, ScriptCall::Load, &body)
}

fn decide_one(redis: &Redis, charges: &[StoreCharge]) -> Result<Answer, StoreError> {
    decide(redis, &[ask(charges)]).remove(0)
}

/// Decides, and reads in the same exchange how long the key lives from then on, in milliseconds.
fn decide_and_read_ttl(redis: &Redis, charges: &[StoreCharge], key: &str) -> (Answer, i64) {
    let decisions = [ask(charges)];
    let mut pipeline = encode(&policy(), &decisions, ScriptCall::Load);
    pipeline.extend(command(&["PTTL", key]));
    let replies = redis.exchange(&pipeline);
    let ttl_at = replies.windows(3).rposition(|window| window == b"\r\n:").unwrap() + 2;
    let (answers, ttl) = replies.split_at(ttl_at);
    let answer = decode(&policy(), &decisions, ScriptCall::Load, answers).remove(0).unwrap();
    let ttl = std::str::from_utf8(&ttl[1..]).unwrap().trim_end().parse().unwrap();
    (answer, ttl)
}

fn policy() -> StorePolicy {
    StorePolicy {
        cluster: "redis".to_owned(),
        timeout: Span::from_millis(50),
        key_prefix: "f".to_owned(),
        username: String::new(),
        password: Secret::default(),
        topology: Topology::Single,
    }
}

fn window(requests: u64, window_us: u64) -> Quota {
    Quota::Window(WindowQuota { requests, window: Span::from_micros(window_us) })
}

fn gcra(rate: u64, per_us: u64, burst: u64) -> Quota {
    Quota::Gcra(GcraQuota { rate, per: Span::from_micros(per_us), burst })
}

fn charge(key: &str, quota: Quota, cost: u64) -> StoreCharge {
    StoreCharge { key: key.to_owned(), level: Level::Shared, quota, cost, hold: false }
}

fn ask(charges: &[StoreCharge]) -> Decision {
    asked(Operation::Decide, charges)
}

/// An operation of a caller that knows nothing of the store's epochs.
fn asked(operation: Operation, charges: &[StoreCharge]) -> Decision {
    let (charges, record) = (charges.to_vec(), record_key("{f}"));
    Decision { group: 0, operation, charges, record, known: State::NONE }
}
