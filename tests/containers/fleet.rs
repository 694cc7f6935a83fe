use std::collections::HashMap;
use std::fs;
use std::net::IpAddr;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::support::client::Request;
use crate::support::ports::free_port;
use crate::support::process::{TempDir, poll_until};
use crate::support::tools::{module, repository};

/// How long a container may take to do what it was asked for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where an Envoy's container has its access log.
const ACCESS_LOG: &str = "/tmp/access.log";

/// The containers of `envoy/docker-compose.yaml`, removed with the value.
pub struct Fleet {
    project: String,
    files: TempDir,
    /// The Envoys' ports on loopback.
    pub ports: [u16; 2],
    admin_ports: [u16; 2],
    pub prometheus_port: u16,
    /// Where the Envoys find Redis.
    redis: String,
}

impl Fleet {
    /// Starts the fleet under `plugin` and waits until both Envoys answer.
    pub fn start(plugin: &Value) -> Self {
        Self::start_at(plugin, |_| "redis:6379".to_owned())
    }

    /// The same with a Redis Cluster of three primaries, `redis-1` to `redis-3`, and three replicas.
    pub fn start_on_cluster(plugin: &Value) -> Self {
        Self::start_at(plugin, |fleet| {
            fleet.compose(&["--profile", "cluster", "up", "--detach", "redis-cluster-make"]);
            let in_step = |replica| {
                let state = fleet.run_in(replica, &["redis-cli", "INFO", "replication"]);
                state.contains("master_link_status:up")
            };
            let all = || ["redis-4", "redis-5", "redis-6"].into_iter().all(in_step).then_some(());
            assert!(poll_until(PATIENCE, all).is_some(), "no cluster:\n{}", fleet.logs());
            "redis-cluster:6379".to_owned()
        })
    }

    /// The same with the Redis that `prepare` says, once it is ready.
    pub fn start_at(plugin: &Value, prepare: impl FnOnce(&Self) -> String) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut fleet = Self {
            project: format!("fairshare{}x{number}", std::process::id()),
            files: TempDir::new("containers"),
            ports: [free_port(), free_port()],
            admin_ports: [free_port(), free_port()],
            prometheus_port: free_port(),
            redis: String::new(),
        };
        fs::write(fleet.files.file("plugin.json"), plugin.to_string()).expect("a file");
        fleet.redis = prepare(&fleet);
        fleet.compose(&["up", "--detach"]);
        for envoy in 0..2 {
            fleet.wait_for(envoy);
        }
        // A store that is new grants nothing for half a second.
        for path in ["/0", "/1"] {
            fleet.wait_for_room(path);
        }
        fleet
    }

    /// Waits until both Envoys admit requests to a path, on behalf of a tenant of its own.
    fn wait_for_room(&self, path: &str) {
        let probe = Request::get(path).tenant("probe");
        let admits = |port| probe.try_send(port).is_ok_and(|answer| answer.status == 200);
        let all = || self.ports.iter().all(|port| admits(*port)).then_some(());
        assert!(poll_until(PATIENCE, all).is_some(), "no room for {path}:\n{}", self.logs());
    }

    /// Waits until an Envoy answers.
    pub fn wait_for(&self, envoy: usize) {
        let probe = Request::get("/healthz");
        let answers = poll_until(PATIENCE, || probe.try_send(self.ports[envoy]).ok());
        assert!(answers.is_some(), "envoy-{} does not answer:\n{}", envoy + 1, self.logs());
    }

    /// Runs a command of Compose on the fleet and returns what it prints.
    pub fn compose(&self, arguments: &[&str]) -> String {
        let file = repository().join("envoy/docker-compose.yaml");
        let plugin = self.files.file("plugin.json");
        let mut command = match has_compose_plugin() {
            true => Command::new("docker"),
            false => Command::new("docker-compose"),
        };
        if has_compose_plugin() {
            command.arg("compose");
        }
        command.args(["--project-name", &self.project, "--file"]).arg(file).args(arguments);
        command.env("FAIRSHARE_PLUGIN", plugin).env("FAIRSHARE_MODULE", module());
        command.env("FAIRSHARE_REDIS", &self.redis).env("FAIRSHARE_ACCESS_LOG", ACCESS_LOG);
        let ports = [
            ("FAIRSHARE_PORT", self.ports[0]),
            ("FAIRSHARE_PORT_2", self.ports[1]),
            ("FAIRSHARE_ADMIN_PORT", self.admin_ports[0]),
            ("FAIRSHARE_ADMIN_PORT_2", self.admin_ports[1]),
            ("FAIRSHARE_PROMETHEUS_PORT", self.prometheus_port),
        ];
        command.envs(ports.map(|(name, port)| (name, port.to_string())));
        run(&mut command)
    }

    fn logs(&self) -> String {
        self.compose(&["logs", "--tail", "20"])
    }

    /// Runs a program within a service's container.
    pub fn run_in(&self, service: &str, program: &[&str]) -> String {
        let container = self.container(service);
        run(Command::new("docker").args(["exec", &container]).args(program))
    }

    /// Sends a signal to a service's first process.
    pub fn signal(&self, service: &str, signal: &str) {
        let container = self.container(service);
        run(Command::new("docker").args(["kill", "--signal", signal, &container]));
    }

    /// Drops this share of a container's packets from and to Redis: 1 cuts it off.
    pub fn drop_packets(&self, service: &str, share: f64) {
        let share = format!("{share}");
        for (chain, port) in [
            ("INPUT", "--dport"),
            ("INPUT", "--sport"),
            ("OUTPUT", "--dport"),
            ("OUTPUT", "--sport"),
        ] {
            let mut rule = vec!["--append", chain, "--protocol", "tcp", port, "6379"];
            if share != "1" {
                rule.extend(["--match", "statistic", "--mode", "random", "--probability", &share]);
            }
            rule.extend(["--jump", "DROP"]);
            self.iptables(service, &rule);
        }
    }

    /// Drops all packets from and to a container: nobody hears of it any more.
    pub fn isolate(&self, service: &str) {
        for chain in ["INPUT", "OUTPUT"] {
            self.iptables(service, &["--append", chain, "--jump", "DROP"]);
        }
    }

    /// Where a container is in the network that it shares with Redis.
    pub fn address(&self, service: &str) -> IpAddr {
        let network = format!("{}_store", self.project);
        let format = format!("{{{{(index .NetworkSettings.Networks \"{network}\").IPAddress}}}}");
        let container = self.container(service);
        let address =
            run(Command::new("docker").args(["inspect", "--format", &format, &container]));
        address.trim().parse().expect("an address")
    }

    /// Ends what [`drop_packets`](Self::drop_packets) or [`isolate`](Self::isolate) began, which must have dropped
    /// something: what holds in spite of no trouble shows nothing.
    pub fn heal(&self, service: &str) {
        let rules = self.iptables(service, &["--list-rules", "--verbose"]);
        assert!(dropped(&rules) > 0, "nothing of {service} was dropped:\n{rules}");
        self.iptables(service, &["--flush"]);
    }

    /// Lets `to` be found under the name `redis` instead of the container that was.
    pub fn rename_redis(&self, to: &str) {
        let (network, container) = (format!("{}_store", self.project), self.container(to));
        run(Command::new("docker").args(["network", "disconnect", &network, &container]));
        let arguments = ["network", "connect", "--alias", "redis", &network, &container];
        run(Command::new("docker").args(arguments));
    }

    /// A counter of an Envoy, summed over its series that carry `label`.
    pub fn metric(&self, envoy: usize, name: &str, label: &str) -> u64 {
        let answer = Request::get("/stats/prometheus").send(self.admin_ports[envoy]).text();
        let series = answer.lines().filter(|line| line.starts_with(name) && line.contains(label));
        series.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// What the Envoys' access logs say: the path of each request, and for how long its Envoy had it.
    pub fn times(&self) -> HashMap<String, Duration> {
        (0..2).flat_map(|envoy| self.times_of(envoy)).collect()
    }

    fn times_of(&self, envoy: usize) -> HashMap<String, Duration> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let last = format!("/healthz?last-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        Request::get(&last).send(self.ports[envoy]);
        let written = || {
            // Has Envoy write what it would keep for ten seconds.
            Request::post("/reopen_logs", "").send(self.admin_ports[envoy]);
            let service = format!("envoy-{}", envoy + 1);
            let log = self.run_in(&service, &["cat", ACCESS_LOG]);
            log.contains(&format!(" {last} ")).then_some(log)
        };
        let log = poll_until(PATIENCE, written).expect("an access log");
        log.lines().filter_map(time_of).collect()
    }

    fn iptables(&self, service: &str, rule: &[&str]) -> String {
        let container = self.container(service);
        let pid =
            run(Command::new("docker").args(["inspect", "--format", "{{.State.Pid}}", &container]));
        // The rule is one of the container's own network, not of this machine's.
        run(Command::new("nsenter")
            .args(["--target", pid.trim(), "--net", "iptables", "--wait"])
            .args(rule))
    }

    /// The Envoys' containers.
    pub fn envoys(&self) -> [String; 2] {
        ["envoy-1", "envoy-2"].map(|service| self.container(service))
    }

    fn container(&self, service: &str) -> String {
        let listed = self.compose(&["ps", "--quiet", service]);
        let id = listed.lines().next().unwrap_or_else(|| panic!("no container of {service}"));
        id.trim().to_owned()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        let profiles = ["--profile", "replica", "--profile", "cluster"];
        self.compose(&[&profiles[..], &["down", "--volumes", "--timeout", "1"]].concat());
    }
}

/// The path and the time of a line of the access log of `envoy/envoy.yaml`.
fn time_of(line: &str) -> Option<(String, Duration)> {
    let path = line.split(' ').nth(2)?;
    let (_, millis) = line.rsplit_once(" ms=")?;
    Some((path.to_owned(), Duration::from_millis(millis.parse().ok()?)))
}

/// The packets that rules have dropped, as `iptables --list-rules --verbose` has them.
fn dropped(rules: &str) -> u64 {
    let drops = rules.lines().filter(|rule| rule.starts_with("-A ") && rule.ends_with(" -j DROP"));
    drops.filter_map(|rule| rule.split_once(" -c ")?.1.split(' ').next()?.parse::<u64>().ok()).sum()
}

#[test]
fn dropped_packets_are_counted() {
    let rules = "-P INPUT ACCEPT -c 9 720\n\
        -A INPUT -p tcp -m tcp --sport 6379 -m statistic --mode random --probability 0.05 -c 3 180 -j DROP\n\
        -A OUTPUT -c 4 240 -j DROP\n-A OUTPUT -c 5 300 -j ACCEPT\n";
    assert_eq!(dropped(rules), 7);
    assert_eq!(dropped(&rules.replace("-c 3 ", "-c 0 ").replace("-c 4 ", "-c 0 ")), 0);
}

fn has_compose_plugin() -> bool {
    let version = Command::new("docker").args(["compose", "version"]).output();
    version.is_ok_and(|output| output.status.success())
}

fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{out}{err}");
    out.into_owned()
}
