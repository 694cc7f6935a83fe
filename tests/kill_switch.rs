//! How a node follows the mode in the store where answers are lost, on a host that the tests move by
//! hand. What the mode does is in `tests/scenarios/mode.rs`.
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

use fairshare::store::{StoreError, slot};
use fairshare::units::Span;
use fake_host::{Process, StoreReply};
use serde_json::{Value, json};
use support::redis::{Redis, Value as Reply};

const SECOND: u32 = 10;

fn plugin(topology: &str) -> Value {
    json!({
        "limits": [{"name": "node", "tenant": {"requests": 1, "window": "1h"}}],
        "store": {"cluster": "fairshare_redis", "topology": topology},
    })
}

fn process(plugin: &Value, workers: usize) -> Process {
    Process::new(&plugin.to_string(), workers).expect("a configuration")
}

/// A tenth of a second passes. Returns how many questions are under way.
fn tenth(process: &mut Process) -> usize {
    process.advance(Span::from_millis(100));
    process.tick();
    process.wake().1
}

/// The tenths of a second until a node of so many workers is off, where the store's word changes right
/// after an answer and the next `lost` answers are lost, each after so many tenths.
fn tenths_until_off(workers: usize, lost: usize, lost_after: u32) -> u32 {
    let redis = Redis::start();
    let mut process = process(&plugin("single"), workers);
    let mut answer = |body: &[u8]| Ok(redis.exchange(body));
    for _ in 0..10 * SECOND {
        tenth(&mut process);
        process.run(&mut answer);
    }
    while tenth(&mut process) == 0 {}
    process.run(&mut answer);
    redis.run(&["SET", "{fairshare}:1:mode", "off by=me at=now", "EX", "3600"]);
    let (mut losses, mut pending) = (0, 0);
    for tenths in 1..=30 * SECOND {
        let asked = tenth(&mut process);
        pending += u32::from(asked > 0);
        if losses == lost {
            process.run(&mut answer);
        } else if pending > lost_after {
            losses += asked;
            pending = 0;
            process.run(&mut |_| Err(StoreError::Timeout));
        }
        if process.metric("fairshare_mode") == 0 {
            return tenths;
        }
    }
    panic!("the node does not follow");
}

/// Whoever throws the switch is followed within ten seconds, as the pages say.
#[test]
fn a_node_follows_within_ten_seconds_though_two_answers_are_lost() {
    for workers in [1, 2, 4] {
        for lost_after in [0, SECOND] {
            let tenths = tenths_until_off(workers, 2, lost_after);
            assert!(tenths < 10 * SECOND, "{workers} workers, lost after {lost_after}: {tenths}");
        }
        assert!(tenths_until_off(workers, 0, 0) <= 3 * SECOND + 2, "{workers} workers");
    }
}

/// How often the workers of a node ask in half a minute in which nobody answers.
fn asked_in_vain(process: &mut Process) -> usize {
    let mut asked = 0;
    for _ in 0..30 * SECOND {
        tenth(process);
        process.run(&mut |_| {
            asked += 1;
            Err(StoreError::Unreachable)
        });
    }
    asked
}

/// However far away its expiry is, a switch ends a day after the store was last heard of; while the store
/// answers, it stands for as long as it does there.
#[test]
fn a_mode_outlives_the_store_for_a_day_at_most() {
    const HOUR: u32 = 3600 * SECOND;
    let redis = Redis::start();
    let mut process = process(&plugin("single"), 1);
    redis.run(&["SET", "{fairshare}:1:mode", "off by=me at=now", "EX", "315360000"]);
    let mut pass = |tenths: u32, is_away: bool| {
        for _ in 0..tenths {
            tenth(&mut process);
            process.run(&mut |body| match is_away {
                true => Err(StoreError::Unreachable),
                false => Ok(redis.exchange(body)),
            });
        }
        process.metric("fairshare_mode")
    };
    assert_eq!(pass(10 * SECOND, false), 0);
    // The last answer is three seconds old at most.
    assert_eq!(pass(24 * HOUR - 4 * SECOND, true), 0, "it has ended too early");
    assert_eq!(pass(5 * SECOND, true), 2, "it has not ended");
    assert_eq!(pass(10 * SECOND, false), 0, "it holds again");
}

/// A store that is away is no reason to ask it more and more often.
#[test]
fn a_node_asks_twice_a_second_at_most_while_nobody_answers() {
    for workers in [1, 8] {
        let (redis, mut process) = (Redis::start(), process(&plugin("single"), workers));
        // Each of those who were never answered asks for itself.
        let asked = asked_in_vain(&mut process);
        let expected = 20 * workers..=60 * workers;
        assert!(expected.contains(&asked), "{workers} new workers: {asked} in 30 s");
        for _ in 0..SECOND {
            tenth(&mut process);
            process.run(&mut |body| Ok(redis.exchange(body)));
        }
        let asked = asked_in_vain(&mut process);
        assert!((20..=60).contains(&asked), "{workers} workers: {asked} in 30 s");
    }
}

/// While the mode's key moves to another node of a Redis Cluster, its old node is still the one to ask.
#[test]
fn the_node_to_which_the_mode_is_on_its_way_is_not_taken_for_its_own() {
    let (key_slot, other) = (slot("{fairshare}"), "192.0.2.2:7002");
    for (word, followed) in [("ASK", false), ("MOVED", true)] {
        let mut process = process(&plugin("cluster"), 1);
        let mut asked = Vec::new();
        let mut nodes = |node: Option<&str>, body: &[u8]| -> StoreReply {
            if body.windows(5).any(|window| window == b"SLOTS") {
                return Ok(b"*0\r\n".to_vec());
            }
            asked.push(node.unwrap_or_default().to_owned());
            Ok(match node {
                None => format!("-{word} {key_slot} {other}\r\n").repeat(2).into_bytes(),
                Some(_) => b"$-1\r\n:-2\r\n".to_vec(),
            })
        };
        for _ in 0..10 * SECOND {
            tenth(&mut process);
            process.run_on_nodes(&mut nodes);
        }
        assert_eq!(asked.iter().any(|node| node == other), followed, "{word}: {asked:?}");
        let failed = process.metrics_with(&["mode_reads", "failed"]);
        assert!(failed > 0, "{word} is not counted");
    }
}

/// The user of `docs/redis-cluster.md` may read the mode, do all else that the filter does, and touch
/// nothing else.
#[test]
fn the_user_that_is_documented_for_a_redis_cluster_may_read_the_mode() {
    let page = include_str!("../docs/redis-cluster.md").replace("\\\n", "");
    let line = page.lines().find_map(|line| line.strip_prefix("redis-cli ACL SETUSER "));
    let rules = line.expect("a line for redis-cli").replace("'>a long password'", ">secret");
    let rules = rules.replace('\'', "");
    let (user, _) = rules.split_once(' ').expect("a user");
    let redis = Redis::start();
    redis.run(&["ACL", "SETUSER"].into_iter().chain(rules.split_whitespace()).collect::<Vec<_>>());
    for (allowed, command) in [
        (true, &["CLUSTER", "SLOTS"][..]),
        (true, &["ASKING"]),
        (true, &["SET", "{fairshare:a}:1:a:s", "x"]),
        (false, &["GET", "{fairshare}:1:a:s"]),
        (false, &["GET", "{other:a}:1:a:s"]),
        (false, &["FLUSHALL"]),
    ] {
        let reply = redis.run(&[&["ACL", "DRYRUN", user][..], command].concat());
        assert_eq!(reply == Reply::Text("OK".to_owned()), allowed, "{command:?}: {reply:?}");
    }
    let mut plugin = plugin("cluster");
    plugin["limits"][0]["scope"] = json!("global");
    plugin["store"]["username"] = json!(user);
    plugin["store"]["password"] = json!("secret");
    let mut process = process(&plugin, 1);
    redis.run(&["SET", "{fairshare}:1:mode", "shadow by=me at=now", "EX", "60"]);
    process.start(&[(b":method", b"GET"), (b":path", b"/"), (b"x-tenant-id", b"acme")]);
    for _ in 0..5 * SECOND {
        process.run(&mut |body| Ok(redis.exchange(body)));
        tenth(&mut process);
    }
    assert_eq!(process.metrics_with(&["store_calls", "no_permission"]), 0);
    assert!(process.metrics_with(&["store_calls", ".result=ok"]) > 0);
    assert_eq!(process.metric("fairshare_mode"), 1, "shadow");
}
