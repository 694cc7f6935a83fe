//! What a worker does with the redirections of a Redis Cluster, on a host that the tests move by hand
//! and with nodes that say what the tests want. Where a node answers, a real Redis does.
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

use std::collections::BTreeMap;

use fairshare::host::StreamId;
use fairshare::store::{StoreError, slot};
use fairshare::units::Span;
use fake_host::{Outcome, Process, StoreReply};
use serde_json::{Value, json};
use support::redis::{Redis, command};

const ONE: &str = "192.0.2.1:7001";
const TWO: &str = "192.0.2.2:7002";

/// What a node says to each question.
#[derive(Clone)]
enum Says {
    /// What the Redis behind it says.
    Answer,
    /// This error.
    Error(String),
    /// Nothing: it is not there.
    Gone,
}

/// A Redis Cluster whose nodes say what they are told to.
struct Cluster {
    redis: Redis,
    /// By address; the empty one is what the Envoy cluster leads to.
    nodes: BTreeMap<&'static str, Says>,
    /// What `CLUSTER SLOTS` says.
    slots: Vec<u8>,
    /// Whom each question was put to, and whether it came with `ASKING`.
    asked: Vec<(String, bool)>,
}

impl Cluster {
    fn new(nodes: &[(&'static str, Says)]) -> Self {
        let nodes = nodes.iter().cloned().collect();
        let redis = Redis::start();
        ["f:a", "f:b"].iter().for_each(|prefix| redis.age(prefix));
        Self { redis, nodes, slots: b"*0\r\n".to_vec(), asked: vec![] }
    }

    fn call(&mut self, node: Option<&str>, body: &[u8]) -> StoreReply {
        let name = node.unwrap_or_default();
        let says = self.nodes.get(name).unwrap_or(&Says::Gone).clone();
        if contains(body, b"SLOTS") {
            return match says {
                Says::Gone => Err(StoreError::Unreachable),
                _ => Ok(self.slots.clone()),
            };
        }
        self.asked.push((name.to_owned(), contains(body, b"ASKING")));
        match says {
            Says::Gone => Err(StoreError::Unreachable),
            Says::Answer => Ok(self.redis.exchange(body)),
            Says::Error(line) => {
                let mut replies = Vec::new();
                for (name, reply) in [("SCRIPT", "$1\r\nx\r\n"), ("ASKING", "+OK\r\n")] {
                    replies
                        .extend(reply.repeat(usize::from(contains(body, name.as_bytes()))).bytes());
                }
                let count =
                    |name: &[u8]| body.windows(name.len()).filter(|part| *part == name).count();
                let questions = count(b"EVALSHA") + count(b":1:mode");
                replies.extend(format!("-{line}\r\n").repeat(questions).bytes());
                Ok(replies)
            }
        }
    }

    /// All nodes that questions were put to since the last call of this.
    fn take_asked(&mut self) -> Vec<String> {
        self.asked.drain(..).map(|(node, _)| node).collect()
    }
}

fn contains(body: &[u8], part: &[u8]) -> bool {
    body.windows(part.len()).any(|window| window == part)
}

fn moved(limit: &str, node: &str) -> Says {
    Says::Error(format!("MOVED {} {node}", slot(&format!("{{f:{limit}}}"))))
}

/// The entry of `CLUSTER SLOTS` by which a node has the slot of a limit.
fn serves(limit: &str, node: &str) -> String {
    let slot = slot(&format!("{{f:{limit}}}"));
    let (address, port) = node.rsplit_once(':').expect("a port");
    format!(
        "*3\r\n:{slot}\r\n:{slot}\r\n*3\r\n${}\r\n{address}\r\n:{port}\r\n$1\r\nx\r\n",
        address.len()
    )
}

/// Two global limits, `a` of five and `b` of two requests of a tenant.
fn plugin(consistency: &str) -> Value {
    let limit = |name: &str, requests: u64, on_store_error: &str| {
        json!({"name": name, "scope": "global", "consistency": consistency,
            "on_store_error": on_store_error, "tenant": {"requests": requests, "window": "1h"},
            "match": {"headers": {format!("x-{name}"): "yes"}}})
    };
    json!({
        "limits": [limit("a", 5, "deny"), limit("b", 2, "allow")],
        "store": {"cluster": "fairshare_redis", "topology": "cluster", "key_prefix": "f"},
    })
}

fn process(plugin: &Value) -> Process {
    Process::new(&plugin.to_string(), 1).expect("a configuration")
}

/// Starts a request that matches these limits, each a letter.
fn start(process: &mut Process, limits: &str) -> (StreamId, Outcome) {
    let names: Vec<String> = limits.chars().map(|name| format!("x-{name}")).collect();
    let mut pairs: Vec<(&[u8], &[u8])> =
        vec![(b":method", b"GET"), (b":path", b"/"), (b"x-tenant-id", b"acme")];
    pairs.extend(names.iter().map(|name| (name.as_bytes(), &b"yes"[..])));
    process.start(&pairs)
}

/// The status that such a request gets, with all that needs no time.
fn send(process: &mut Process, cluster: &mut Cluster, limits: &str) -> u16 {
    let (stream, outcome) = start(process, limits);
    let settled = process.run_on_nodes(&mut |node, body| cluster.call(node, body));
    let later = settled.into_iter().find(|(waited, _)| *waited == stream);
    let outcome = later.map_or(outcome, |(_, outcome)| outcome);
    if outcome != Outcome::Waits {
        process.end(stream);
    }
    match outcome {
        Outcome::Answered(reply) => reply.status,
        Outcome::Passed(_) => 200,
        Outcome::Waits => 0,
    }
}

/// Lets a timer's period pass.
fn tick(process: &mut Process, cluster: &mut Cluster, millis: u64) {
    process.advance(Span::from_millis(millis));
    process.tick();
    process.run_on_nodes(&mut |node, body| cluster.call(node, body));
}

#[test]
fn a_redirection_is_followed_and_remembered() {
    for consistency in ["strict", "leased"] {
        let mut cluster = Cluster::new(&[("", moved("a", ONE)), (ONE, Says::Answer)]);
        let mut process = process(&plugin(consistency));
        assert_eq!(send(&mut process, &mut cluster, "a"), 200);
        // The script is sent where it is missing.
        assert_eq!(cluster.take_asked(), ["", ONE, ONE]);
        assert_eq!(send(&mut process, &mut cluster, "a"), 200);
        assert_eq!(cluster.take_asked(), [ONE]);
        assert_eq!(process.metrics_with(&["store_calls", ".result=moved"]), 1);
        for expected in [200, 200, 200, 429] {
            assert_eq!(send(&mut process, &mut cluster, "a"), expected, "{consistency}");
        }
    }
}

#[test]
fn nodes_that_send_each_other_the_questions_are_not_followed_for_ever() {
    let mut cluster =
        Cluster::new(&[("", moved("a", ONE)), (ONE, moved("a", TWO)), (TWO, moved("a", ONE))]);
    let mut process = process(&plugin("strict"));
    assert_eq!(send(&mut process, &mut cluster, "a"), 503);
    assert_eq!(cluster.take_asked(), ["", ONE, TWO, ONE, TWO]);
    for _ in 0..10 {
        assert_eq!(send(&mut process, &mut cluster, "a"), 503);
    }
    assert!(cluster.take_asked().len() <= 3 * 5, "it is given up");
}

/// Keys that are on their way are asked for at the node to which they go, and that only once.
#[test]
fn ask_is_followed_once() {
    let ask = format!("ASK {} {TWO}", slot("{f:a}"));
    let mut cluster = Cluster::new(&[("", Says::Error(ask)), (TWO, Says::Answer)]);
    let mut process = process(&plugin("strict"));
    assert_eq!(send(&mut process, &mut cluster, "a"), 200);
    assert_eq!(cluster.asked, [(String::new(), false), (TWO.to_owned(), true)]);
    cluster.nodes.insert("", Says::Answer);
    cluster.asked.clear();
    assert_eq!(send(&mut process, &mut cluster, "a"), 200);
    assert_eq!(cluster.take_asked(), [""]);
    assert_eq!(process.metrics_with(&["store_calls", ".result=ask"]), 1);
}

#[test]
fn keys_that_are_on_their_way_are_tried_again_with_the_next_tick() {
    let try_again = Says::Error("TRYAGAIN Multiple keys request during rehashing of slot".into());
    let mut cluster = Cluster::new(&[("", try_again)]);
    let mut process = process(&plugin("strict"));
    let (stream, _) = start(&mut process, "a");
    process.run_on_nodes(&mut |node, body| cluster.call(node, body));
    assert_eq!(cluster.take_asked(), [""]);
    cluster.nodes.insert("", Says::Answer);
    process.advance(Span::from_millis(10));
    process.tick();
    let settled = process.run_on_nodes(&mut |node, body| cluster.call(node, body));
    assert!(matches!(&settled[..], [(told, Outcome::Passed(_))] if *told == stream), "{settled:?}");
}

/// What a redirection says is not believed where it is no address.
#[test]
fn hostile_addresses_are_not_called() {
    for address in ["evil.example:80", "", ":7001", "1.2.3.4:0", "1.2.3.4:80\tx: y", "::1%lo:80"] {
        let mut cluster = Cluster::new(&[("", moved("a", address))]);
        let mut process = process(&plugin("strict"));
        assert_eq!(send(&mut process, &mut cluster, "a"), 503);
        assert_eq!(cluster.take_asked(), [""], "{address}");
    }
}

/// A shard that is gone is given up by itself: limits on other shards are asked as ever, and hold also
/// for requests that match limits of both.
#[test]
fn a_dead_shard_leaves_the_others_alone() {
    for consistency in ["strict", "leased"] {
        let mut cluster = Cluster::new(&[("", moved("b", TWO)), (ONE, Says::Answer)]);
        let mut process = process(&plugin(consistency));
        for _ in 0..6 {
            assert_eq!(send(&mut process, &mut cluster, "b"), 200, "its limit says allow");
        }
        let given_up = process.metrics_with(&["store_calls", ".result=given_up"]);
        assert_eq!(given_up, 3, "{consistency}");
        cluster.nodes.insert("", moved("a", ONE));
        let statuses: Vec<u16> = (0..7).map(|_| send(&mut process, &mut cluster, "ab")).collect();
        assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429], "{consistency}");
    }
}

/// A node that is gone is looked for, and the one that took its place is asked at once.
#[test]
fn a_fail_over_is_noticed_from_the_topology() {
    let mut cluster = Cluster::new(&[("", moved("a", ONE)), (ONE, Says::Answer)]);
    cluster.slots = format!("*1\r\n{}", serves("a", ONE)).into_bytes();
    let mut process = process(&plugin("strict"));
    assert_eq!(send(&mut process, &mut cluster, "a"), 200);
    tick(&mut process, &mut cluster, 300);
    cluster.nodes.insert(ONE, Says::Gone);
    for _ in 0..5 {
        assert_eq!(send(&mut process, &mut cluster, "a"), 503);
    }
    cluster.nodes.insert(TWO, Says::Answer);
    cluster.slots = format!("*1\r\n{}", serves("a", TWO)).into_bytes();
    (0..6).for_each(|_| tick(&mut process, &mut cluster, 100));
    cluster.take_asked();
    for expected in [200, 200, 200, 200, 429] {
        assert_eq!(send(&mut process, &mut cluster, "a"), expected);
    }
    assert_eq!(cluster.take_asked(), [TWO; 4]);
}

/// A burst that one node has to take in turns keeps nobody from another one.
#[test]
fn a_burst_at_one_node_keeps_nobody_from_the_others() {
    let mut cluster = Cluster::new(&[("", Says::Answer), (ONE, Says::Answer), (TWO, Says::Answer)]);
    cluster.slots = format!("*2\r\n{}{}", serves("a", ONE), serves("b", TWO)).into_bytes();
    let mut process = process(&plugin("strict"));
    (0..3).for_each(|_| tick(&mut process, &mut cluster, 100));
    assert_eq!(send(&mut process, &mut cluster, "ab"), 200);
    cluster.take_asked();
    for (header, tenants) in [(b"x-a", 3000), (b"x-b", 300)] {
        for tenant in 0..tenants {
            let tenant = format!("t{tenant}");
            process.start(&[
                (b":path", b"/"),
                (b"x-tenant-id", tenant.as_bytes()),
                (header, b"yes"),
            ]);
        }
    }
    assert_eq!(process.wake().1, 8 + 2, "calls to the one and to the other");
    let mut run =
        |process: &mut Process| process.run_on_nodes(&mut |node, body| cluster.call(node, body));
    let settled = [(); 2].map(|()| run(&mut process)).concat();
    assert_eq!(fake_host::passed(&settled), 3300);
}

/// The mode that operators set lies on a shard of its own, and is asked for there.
#[test]
fn the_mode_is_asked_for_where_it_lies() {
    let elsewhere = Says::Error(format!("MOVED {} {ONE}", slot("{f}")));
    let mut cluster = Cluster::new(&[("", elsewhere), (ONE, Says::Answer)]);
    let set = ["SET", "{f}:1:mode", "shadow by=me at=now", "PX", "60000"];
    cluster.redis.run(&set);
    let mut process = process(&plugin("strict"));
    (0..70).for_each(|_| tick(&mut process, &mut cluster, 100));
    assert_eq!(process.metric("fairshare_mode"), 1, "shadow");
    assert!(cluster.take_asked().contains(&ONE.to_owned()));
}

/// A request that matches limits on two shards spends nothing where the second one refuses.
#[test]
fn what_a_later_shard_refuses_the_earlier_ones_get_back() {
    for consistency in ["strict", "leased"] {
        let mut cluster = Cluster::new(&[("", Says::Answer)]);
        let mut process = process(&plugin(consistency));
        let statuses: Vec<u16> = (0..5).map(|_| send(&mut process, &mut cluster, "ab")).collect();
        assert_eq!(statuses, [200, 200, 429, 429, 429], "{consistency}");
        (0..3).for_each(|_| tick(&mut process, &mut cluster, 500));
        for expected in [200, 200, 200, 429] {
            assert_eq!(send(&mut process, &mut cluster, "a"), expected, "{consistency}");
        }
        let keys = cluster.redis.keys();
        assert!(keys.iter().any(|key| key.starts_with("{f:a}:1:a:t:")), "{keys:?}");
        assert!(keys.iter().any(|key| key.starts_with("{f:b}:1:b:t:")), "{keys:?}");
    }
}

/// A client that leaves between two shards leaves nothing charged.
#[test]
fn a_client_that_leaves_gets_back_what_the_first_shard_charged() {
    let mut cluster = Cluster::new(&[("", moved("b", TWO)), (ONE, Says::Answer)]);
    cluster.nodes.insert("", moved("a", ONE));
    let mut process = process(&plugin("strict"));
    assert_eq!(send(&mut process, &mut cluster, "a"), 200);
    let (stream, outcome) = start(&mut process, "ab");
    assert_eq!(outcome, Outcome::Waits);
    // The answer of the first shard is there when the client goes; the second one is being asked.
    let mut answered = false;
    process.run_on_nodes(&mut |node, body| match std::mem::replace(&mut answered, true) {
        false => cluster.call(node, body),
        true => Ok(b"-TRYAGAIN\r\n".to_vec()),
    });
    process.end(stream);
    process.run_on_nodes(&mut |node, body| cluster.call(node, body));
    cluster.nodes.insert("", moved("a", ONE));
    for expected in [200, 200, 200, 200, 429] {
        assert_eq!(send(&mut process, &mut cluster, "a"), expected);
    }
}

/// Nodes that contradict each other about who has a shard do not make requests wait again and again.
#[test]
fn a_shard_that_is_gone_stays_given_up_though_the_topology_alternates() {
    let mut cluster = Cluster::new(&[("", moved("a", ONE))]);
    let mut process = process(&plugin("strict"));
    for _ in 0..4 {
        send(&mut process, &mut cluster, "a");
    }
    let given_up = |process: &Process| process.metrics_with(&["store_calls", ".result=given_up"]);
    let before = given_up(&process);
    for node in [ONE, TWO].repeat(20) {
        cluster.slots = format!("*1\r\n{}", serves("a", node)).into_bytes();
        (0..3).for_each(|_| tick(&mut process, &mut cluster, 100));
        assert_eq!(send(&mut process, &mut cluster, "a"), 503);
    }
    assert_eq!(given_up(&process) - before, 40);
}

/// A topology of more ranges than an answer of the script has integers.
#[test]
fn a_topology_in_which_every_slot_is_a_range_of_its_own_is_read() {
    let mut cluster = Cluster::new(&[("", Says::Answer), (TWO, Says::Answer)]);
    cluster.slots =
        format!("*16384\r\n{}{}", serves("b", ONE).repeat(16_383), serves("a", TWO)).into_bytes();
    let mut process = process(&plugin("strict"));
    (0..3).for_each(|_| tick(&mut process, &mut cluster, 100));
    cluster.take_asked();
    assert_eq!(send(&mut process, &mut cluster, "a"), 200);
    let asked = cluster.take_asked();
    assert!(!asked.is_empty() && asked.iter().all(|node| node == TWO), "{asked:?}");
}

/// A user who may not ask for the topology is seen in the metrics.
#[test]
fn topology_questions_that_fail_are_counted() {
    let mut cluster = Cluster::new(&[("", Says::Answer)]);
    cluster.slots = b"-NOPERM no permissions to run the 'cluster|slots' command\r\n".to_vec();
    let mut process = process(&plugin("strict"));
    (0..10).for_each(|_| tick(&mut process, &mut cluster, 100));
    let counted = process.metrics_with(&["store_calls", ".result=no_permission"]);
    assert!((1..=5).contains(&counted), "{counted}");
}

#[test]
fn the_script_of_a_node_is_known_by_its_text() {
    // The questions of this file are told apart by their texts; none of them stands in the script.
    let script = String::from_utf8(command(&[fairshare::store::SCRIPT])).unwrap();
    for text in ["SLOTS", "ASKING", "EVALSHA"] {
        assert!(!script.contains(text), "{text}");
    }
}
