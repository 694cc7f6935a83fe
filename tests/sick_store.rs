//! Public reports of stores that answered oddly, each through the whole filter on a host of the tests'
//! own.
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

use fairshare::store::{SCRIPT, StoreError};
use fairshare::units::Span;
use fake_host::{Process, StoreReply};
use serde_json::json;
use support::commands::{reply_to_each, sends_the_script};
use support::redis::{Redis, Value};

/// What a store may say instead of an answer, and what it is then counted as.
const ODD_REPLIES: [(&[u8], &str); 16] = [
    (b"-READONLY You can't write against a read only replica.\r\n", "read_only"),
    (b"-NOAUTH Authentication required.\r\n", "no_auth"),
    (b"-WRONGPASS invalid username-password pair or user is disabled.\r\n", "wrong_pass"),
    (b"-NOPERM User app has no permissions to run the 'evalsha' command\r\n", "no_permission"),
    (b"-LOADING Redis is loading the dataset in memory\r\n", "loading"),
    (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", "out_of_memory"),
    (b"-CLUSTERDOWN The cluster is down\r\n", "cluster_down"),
    (b"-MOVED 1 h:1\r\n", "moved"),
    (b"-ASK 1 h:1\r\n", "ask"),
    (b"-BUSY Redis is busy running a script.\r\n", "busy"),
    (b"-ERR something else\r\n", "other"),
    (b"$-1\r\n", "malformed"),
    (b"*0\r\n", "malformed"),
    (b"$1\r\n7\r\n", "malformed"),
    (b":-1\r\n", "malformed"),
    (b"*5\r\n:1\r\n:1\r\n:4", "truncated"),
];

/// A budget in the store, and a limit of two a minute on the node.
fn process(consistency: &str, on_store_error: &str) -> Process {
    let plugin = json!({
        "limits": [
            {"name": "fleet", "scope": "global", "consistency": consistency,
             "on_store_error": on_store_error, "tenant": {"requests": 5, "window": "1m"}},
            {"name": "node", "tenant": {"requests": 2, "window": "1m"}},
        ],
        "store": {"cluster": "fairshare_redis", "timeout": "50ms"},
    });
    Process::new(&plugin.to_string(), 1).expect("a configuration")
}

/// The status that a request of the tenant gets, whatever the store does.
fn status(process: &mut Process, tenant: &str, store: &mut dyn FnMut(&[u8]) -> StoreReply) -> u16 {
    answer(process, &[(b":path", b"/"), (b"x-tenant-id", tenant.as_bytes())], store)
}

/// The same for a path.
fn path_status(
    process: &mut Process,
    path: &str,
    store: &mut dyn FnMut(&[u8]) -> StoreReply,
) -> u16 {
    answer(process, &[(b":path", path.as_bytes()), (b"x-tenant-id", b"acme")], store)
}

fn answer(
    process: &mut Process,
    headers: &[(&[u8], &[u8]); 2],
    store: &mut dyn FnMut(&[u8]) -> StoreReply,
) -> u16 {
    let method: (&[u8], &[u8]) = (b":method", b"GET");
    let (stream, outcome) = process.start(&[method, headers[0], headers[1]]);
    let later = process.run(store).into_iter().find(|(waited, _)| *waited == stream);
    let status = later.map_or(outcome, |(_, later)| later).status();
    assert_ne!(status, 0, "the request has no answer");
    process.end(stream);
    status
}

fn calls(process: &Process, result: &str) -> u64 {
    process.metrics_with(&["fairshare_store_calls.", &format!(".result={result}")])
}

/// A second passes, in which the worker does what it does by itself.
fn a_second(process: &mut Process, store: &mut dyn FnMut(&[u8]) -> StoreReply) {
    for _ in 0..10 {
        process.advance(Span::from_millis(100));
        process.tick();
        process.run(store);
    }
}

/// RED-4: whatever the store says, it is never a grant, is counted by its kind, follows
/// `on_store_error`, and a second after it is well again it is asked again. Limits on the node hold.
#[test]
fn red_4_every_odd_reply_follows_on_store_error() {
    let redis = Redis::start();
    for consistency in ["strict", "leased"] {
        for (on_store_error, expected) in [("allow", [200, 200, 429]), ("deny", [503; 3])] {
            for (number, (reply, kind)) in ODD_REPLIES.into_iter().enumerate() {
                let case = format!("{consistency} {on_store_error} {}", reply.escape_ascii());
                let mut process = process(consistency, on_store_error);
                let mut sick = |body: &[u8]| Ok(reply_to_each(body, reply));
                let tenant = format!("{consistency}-{on_store_error}-{number}");
                let seen = [(); 3].map(|()| status(&mut process, &tenant, &mut sick));
                assert_eq!(seen, expected, "{case}");
                assert!(calls(&process, kind) > 0, "{case} is not counted as {kind}");
                assert_eq!(calls(&process, "ok"), 0, "{case} counted as a grant");
                let mut healthy = |body: &[u8]| Ok(redis.exchange(body));
                a_second(&mut process, &mut healthy);
                let seen = status(&mut process, &format!("{tenant}-later"), &mut healthy);
                assert_eq!(seen, 200, "{case}, a second later");
                assert!(calls(&process, "ok") > 0, "{case}: not asked a second later");
            }
        }
    }
}

/// RED-4: however soon a store is sick again, and however long it may take to answer, all is well within a
/// second of its health.
#[test]
fn red_4_a_store_that_is_sick_again_and_again_is_well_within_a_second() {
    let redis = Redis::start();
    for consistency in ["strict", "leased"] {
        let plugin = json!({
            "limits": [{"name": "fleet", "scope": "global", "consistency": consistency,
                "on_store_error": "deny", "tenant": {"requests": 5, "window": "1m"}}],
            "store": {"cluster": "fairshare_redis", "timeout": "2s", "key_prefix": consistency},
        });
        redis.age(consistency);
        let mut process = Process::new(&plugin.to_string(), 1).expect("a configuration");
        for (number, (reply, _)) in ODD_REPLIES.into_iter().enumerate() {
            let case = format!("{consistency}, {number}: {}", reply.escape_ascii());
            let mut sick = |body: &[u8]| Ok(reply_to_each(body, reply));
            let tenant = format!("tenant-{number}");
            let seen = [(); 4].map(|()| status(&mut process, &tenant, &mut sick));
            assert_eq!(seen, [503; 4], "{case}");
            // It is given up at once, and found to be sick still in one of two cases.
            for _ in 0..number % 2 * 4 {
                process.advance(Span::from_millis(100));
                process.tick();
                process.run(&mut sick);
            }
            let mut healthy = |body: &[u8]| Ok(redis.exchange(body));
            a_second(&mut process, &mut healthy);
            assert_eq!(status(&mut process, &tenant, &mut healthy), 200, "{case}");
        }
    }
}

/// RED-4: half a reply, and no reply at all.
#[test]
fn red_4_broken_exchanges_follow_on_store_error() {
    let errors = [StoreError::Reset, StoreError::Unreachable, StoreError::Timeout];
    for (on_store_error, expected) in [("allow", [200, 200, 429]), ("deny", [503; 3])] {
        for error in errors {
            let mut process = process("strict", on_store_error);
            let seen = [(); 3].map(|()| status(&mut process, "acme", &mut |_| Err(error)));
            assert_eq!(seen, expected, "{error}");
            assert!(calls(&process, error.name()) > 0, "{error}");
        }
    }
}

/// RED-3: the script is flushed, comes back, and is flushed again before it runs: it is sent once, the
/// request is charged once, and where that does not help, the limit follows `on_store_error`.
#[test]
fn red_3_a_script_that_never_stays_is_sent_once_for_a_request() {
    for consistency in ["strict", "leased"] {
        for (on_store_error, expected) in [("allow", 200), ("deny", 503)] {
            let mut process = process(consistency, on_store_error);
            let mut sent = 0;
            let mut forgetful = |body: &[u8]| {
                sent += usize::from(sends_the_script(body));
                Ok(reply_to_each(body, b"-NOSCRIPT No matching script.\r\n"))
            };
            assert_eq!(status(&mut process, "acme", &mut forgetful), expected);
            assert!((1..=2).contains(&sent), "{consistency}: sent {sent} times");
            assert_eq!(calls(&process, "no_script"), 1, "{consistency}");
            assert_eq!(calls(&process, "ok"), 0, "{consistency}");
        }
    }
}

/// RED-3: what is flushed once between two calls is no error, and each call is charged once.
#[test]
fn red_3_a_flush_between_calls_charges_each_call_once() {
    let redis = Redis::start();
    let mut process = process("strict", "deny");
    let mut flushed = 0;
    for _ in 0..2 {
        redis.run(&["SCRIPT", "FLUSH"]);
        let mut counted = |body: &[u8]| {
            flushed += usize::from(sends_the_script(body));
            Ok(redis.exchange(body))
        };
        assert_eq!(status(&mut process, "acme", &mut counted), 200);
    }
    assert_eq!(flushed, 2, "each call found the script gone, and sent it");
    let usage = redis.keys().into_iter().find(|key| key.contains(":fleet:t:")).expect("a key");
    let units = redis.get(&usage).unwrap().split(' ').nth(3).map(str::to_owned);
    assert_eq!(units.as_deref(), Some("2"));
    assert_eq!(calls(&process, "no_script"), 0);
    assert_eq!(calls(&process, "ok"), 2);
}

/// RED-1: replies that break off at every byte leave no key without expiry, and are no grant.
#[test]
fn red_1_a_reply_cut_at_every_byte_leaves_expiry_and_grants_nothing() {
    let redis = Redis::start();
    for consistency in ["strict", "leased"] {
        // The second one finds the script there, as all that follow do.
        let mut whole = 0;
        for tenant in ["first", "second"] {
            let mut measured = |body: &[u8]| {
                let replies = redis.exchange(body);
                whole = replies.len();
                Ok(replies)
            };
            let mut process = process(consistency, "deny");
            assert_eq!(status(&mut process, tenant, &mut measured), 200);
        }
        assert!(whole > 10);
        for end in 0..whole {
            let mut process = process(consistency, "deny");
            let tenant = format!("{consistency}-{end}");
            let mut cut = |body: &[u8]| {
                let mut replies = redis.exchange(body);
                replies.truncate(end);
                Ok(replies)
            };
            assert_eq!(status(&mut process, &tenant, &mut cut), 503, "cut after {end}");
        }
    }
    for key in redis.keys() {
        let millis = redis.pttl(&key);
        assert!((1..=120_000).contains(&millis), "{key}: {millis} ms");
    }
    assert_ne!(redis.run(&["DBSIZE"]), Value::Integer(0));
}

/// Where to cut a pipeline: at every byte but those of the script's text, of which every 401st is taken.
fn cuts(pipeline: &[u8]) -> Vec<usize> {
    let script = SCRIPT.as_bytes();
    let start = pipeline.windows(script.len()).position(|window| window == script);
    let text = start.map_or(0..0, |start| start..start + script.len());
    (0..pipeline.len()).filter(|end| !text.contains(end) || (end - text.start) % 401 == 1).collect()
}

/// Sends a request of a fresh tenant, whose pipeline breaks off at `end`, and another one. Returns where that
/// pipeline could have been cut. Where it `uploads` the script, the store has lost it.
fn cut_once(redis: &Redis, consistency: &str, uploads: bool, end: Option<usize>) -> Vec<usize> {
    redis.run(if uploads { &["SCRIPT", "FLUSH"] } else { &["SCRIPT", "LOAD", SCRIPT] });
    let mut process = process(consistency, "deny");
    let mut ends = Vec::new();
    let mut cut = |body: &[u8]| {
        let decides = body.windows(9).any(|word| word == b":fleet:t:");
        if ends.is_empty() && decides && sends_the_script(body) == uploads {
            ends = cuts(body);
            return Ok(redis.exchange(&body[..end.unwrap_or(body.len())]));
        }
        Ok(redis.exchange(body))
    };
    let seen = [(); 2].map(|()| status(&mut process, "acme", &mut cut));
    assert_eq!(seen, [end.map_or(200, |_| 503), 200], "{consistency}, {uploads}, cut at {end:?}");
    ends
}

/// RED-1: requests that break off, at every byte of a decision and at all that has structure of the script's
/// upload, leave no key without expiry and are no grant; and whoever comes next is charged.
#[test]
fn red_1_a_request_cut_at_every_byte_leaves_expiry_and_grants_nothing() {
    let redis = Redis::start();
    for (consistency, uploads) in
        [("strict", false), ("leased", false), ("strict", true), ("leased", true)]
    {
        let ends = cut_once(&redis, consistency, uploads, None);
        assert!(ends.len() > 200, "{} cuts", ends.len());
        for end in ends {
            redis.run(&["FLUSHDB"]);
            redis.age("fairshare");
            cut_once(&redis, consistency, uploads, Some(end));
            assert!(!redis.keys().is_empty());
            for key in redis.keys() {
                let millis = redis.pttl(&key);
                assert!((1..=120_000).contains(&millis), "cut at {end}: {key}, {millis} ms");
            }
        }
        redis.run(&["FLUSHDB"]);
        redis.age("fairshare");
    }
}

/// Two limits of which one decides about `/a` and the other about `/b`.
fn two_limits() -> Process {
    let limit = |name: &str| {
        json!({"name": name, "match": {"path_prefix": format!("/{name}")}, "scope": "global",
               "on_store_error": "deny", "shared": {"requests": 100, "window": "10s"}})
    };
    let plugin = json!({
        "limits": [limit("a"), limit("b")],
        "store": {"cluster": "fairshare_redis", "timeout": "50ms"},
    });
    Process::new(&plugin.to_string(), 1).expect("a configuration")
}

/// Goal: an error that is not about the store does not keep it given up.
#[test]
fn a_key_of_a_wrong_type_does_not_keep_the_store_given_up() {
    for (key, expected) in [("{fairshare}:1:a:s", 200), ("{fairshare}:1:epoch", 503)] {
        let redis = Redis::start();
        let mut process = two_limits();
        redis.run(&["DEL", key]);
        redis.run(&["LPUSH", key, "x"]);
        for _ in 0..5 {
            assert_eq!(path_status(&mut process, "/b", &mut |_| Err(StoreError::Timeout)), 503);
        }
        assert!(calls(&process, "given_up") > 0, "{key}");
        let mut healthy = |body: &[u8]| Ok(redis.exchange(body));
        a_second(&mut process, &mut healthy);
        let before = calls(&process, "given_up");
        assert_eq!(path_status(&mut process, "/b", &mut healthy), expected, "{key}");
        assert_eq!(calls(&process, "given_up"), before, "{key} keeps the store given up");
    }
}

/// Goal: a store that can be read but not written is given up once, and stays so, although it answers
/// whoever only asks.
#[test]
fn a_store_that_takes_no_writes_stays_given_up() {
    for settings in [["REPLICAOF", "127.0.0.1", "1"], ["CONFIG", "SET", "maxmemory 1"]] {
        let redis = Redis::start();
        let mut process = process("strict", "allow");
        let mut store = |body: &[u8]| Ok(redis.exchange(body));
        assert_eq!(status(&mut process, "before", &mut store), 200);
        let words: Vec<&str> = settings.iter().flat_map(|word| word.split(' ')).collect();
        redis.run(&words);
        let before = calls(&process, "ok");
        for number in 0..30 {
            assert_eq!(status(&mut process, &format!("t{number}"), &mut store), 200);
            process.advance(Span::from_millis(100));
            process.tick();
            process.run(&mut store);
        }
        let given_up = calls(&process, "given_up");
        assert!(given_up >= 27, "{words:?}: {given_up} of 30 did not wait");
        assert_eq!(calls(&process, "ok"), before, "{words:?}");
    }
}
