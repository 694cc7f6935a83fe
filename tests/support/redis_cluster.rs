//! A Redis Cluster of a test's own: three primaries, each with a replica, on the loopback interface.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::ports::free_port;
use super::process::poll_until;
use super::redis::{Redis, Value};

/// Primaries, and as many replicas.
const SHARDS: usize = 3;

const SLOTS: usize = 16_384;

const READY_WITHIN: Duration = Duration::from_secs(30);

/// A running cluster, killed with the value. Node `n` and node `n + 3` began as a primary and its
/// replica.
pub struct RedisCluster {
    nodes: Vec<Option<Node>>,
}

struct Node {
    server: Redis,
    port: u16,
    id: String,
}

// === impl RedisCluster ===

impl RedisCluster {
    /// Starts one whose nodes give each other up after this many milliseconds.
    pub fn start(node_timeout_ms: u32) -> Self {
        Self::with(node_timeout_ms, "--port", &[])
    }

    /// Starts one whose nodes have further arguments, and their ports from this one.
    pub fn with(node_timeout_ms: u32, port_option: &str, arguments: &[&str]) -> Self {
        let ports: Vec<[u16; 2]> = (0..2 * SHARDS).map(|_| [free_port(), free_port()]).collect();
        let nodes: Vec<Node> = ports
            .iter()
            .map(|ports| Node::start(*ports, node_timeout_ms, port_option, arguments))
            .collect();
        for (number, node) in nodes.iter().enumerate() {
            node.ok(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
        }
        for (shard, node) in nodes.iter().take(SHARDS).enumerate() {
            let bounds = [shard, shard + 1].map(|number| number * SLOTS / SHARDS);
            let [first, last] = [bounds[0].to_string(), (bounds[1] - 1).to_string()];
            node.ok(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
        }
        for [port, bus] in &ports[1..] {
            let [port, bus] = [port, bus].map(u16::to_string);
            nodes[0].ok(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
        let cluster = Self { nodes: nodes.into_iter().map(Some).collect() };
        cluster.wait_until_all("have met", |node| node.info("cluster_known_nodes") == "6");
        for replica in SHARDS..2 * SHARDS {
            let primary = cluster.id(replica - SHARDS);
            let replicates = || {
                let reply = cluster.run(replica, &["CLUSTER", "REPLICATE", primary]);
                (reply == Value::Text("OK".to_owned())).then_some(())
            };
            assert!(poll_until(READY_WITHIN, replicates).is_some(), "{replica} does not replicate");
        }
        cluster.wait_until_all("serve", |node| node.info("cluster_state") == "ok");
        let synced = |node: &Node| {
            let text = node.server.info("replication");
            text.contains("role:master") && text.contains("state=online")
                || text.contains("master_link_status:up")
        };
        cluster.wait_until_all("are in step", synced);
        cluster
    }

    /// Where a node listens.
    pub fn address(&self, node: usize) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.node(node).port).into()
    }

    /// A node's name in the cluster.
    pub fn id(&self, node: usize) -> &str {
        &self.node(node).id
    }

    /// Runs one command on a node.
    pub fn run(&self, node: usize, arguments: &[&str]) -> Value {
        self.node(node).server.run(arguments)
    }

    /// Runs one command on a node, which has to do it.
    pub fn ok(&self, node: usize, arguments: &[&str]) {
        self.node(node).ok(arguments);
    }

    /// The names of some keys of a slot.
    pub fn keys_in_slot(&self, node: usize, slot: i64) -> Vec<String> {
        match self.run(node, &["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "100"]) {
            Value::List(keys) => keys.iter().map(text).collect(),
            other => panic!("GETKEYSINSLOT: {other:?}"),
        }
    }

    /// Whether a node is a primary of a cluster that serves.
    pub fn serves(&self, node: usize) -> bool {
        self.is_primary(node) && self.node(node).info("cluster_state") == "ok"
    }

    /// From now on [`run`](Self::run) logs in first.
    pub fn log_in(&mut self, user: &str, password: &str) {
        for node in self.nodes.iter_mut().flatten() {
            node.server.log_in(user, password);
        }
    }

    /// Kills a node in its tracks.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node] = None;
    }

    /// Whether a node is a primary in its own eyes.
    pub fn is_primary(&self, node: usize) -> bool {
        self.node(node).is_primary()
    }

    /// The shard that a slot was given to at the start.
    pub fn shard(slot: i64) -> usize {
        let slot = usize::try_from(slot).expect("a slot");
        (0..SHARDS).find(|shard| slot < (shard + 1) * SLOTS / SHARDS).expect("a slot")
    }

    /// Makes all nodes but those that were killed agree that `node` has the slot.
    pub fn give_slot(&self, slot: i64, node: usize) {
        let (slot, id) = (slot.to_string(), self.id(node));
        for node in self.nodes.iter().flatten().filter(|node| node.is_primary()) {
            node.ok(&["CLUSTER", "SETSLOT", &slot, "NODE", id]);
        }
    }

    fn node(&self, node: usize) -> &Node {
        self.nodes[node].as_ref().expect("a node that was not killed")
    }

    fn wait_until_all(&self, what: &str, holds: impl Fn(&Node) -> bool) {
        let all = || self.nodes.iter().flatten().all(&holds).then_some(());
        assert!(poll_until(READY_WITHIN, all).is_some(), "not all nodes {what}");
    }
}

// === impl Node ===

impl Node {
    fn start(
        [port, bus]: [u16; 2],
        node_timeout_ms: u32,
        port_option: &str,
        arguments: &[&str],
    ) -> Self {
        let [port_text, bus] = [port, bus].map(|port| port.to_string());
        let timeout = node_timeout_ms.to_string();
        let own = [
            "--bind",
            "127.0.0.1",
            port_option,
            &port_text,
            "--cluster-enabled",
            "yes",
            "--cluster-port",
            &bus,
            "--cluster-node-timeout",
            &timeout,
            "--cluster-require-full-coverage",
            "no",
            "--cluster-replica-validity-factor",
            "0",
            "--repl-diskless-sync-delay",
            "0",
        ];
        let server = Redis::with(&[&own[..], arguments].concat());
        let id = text(&server.run(&["CLUSTER", "MYID"]));
        Self { server, port, id }
    }

    fn ok(&self, arguments: &[&str]) {
        assert_eq!(self.server.run(arguments), Value::Text("OK".to_owned()), "{arguments:?}");
    }

    fn is_primary(&self) -> bool {
        let reply = self.server.run(&["ROLE"]);
        matches!(reply, Value::List(role) if role[0] == Value::Text("master".to_owned()))
    }

    fn info(&self, field: &str) -> String {
        let text = text(&self.server.run(&["CLUSTER", "INFO"]));
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {field} in {text}")).trim().to_owned()
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        other => panic!("a text: {other:?}"),
    }
}
