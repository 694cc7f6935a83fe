use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fairshare::store::slot;
use serde_json::{Value, json};

use crate::backends::{Authority, PASSWORD, text};
use crate::global::worst_window;
use crate::scenarios::window;
use crate::support::client::{Connection, Request};
use crate::support::envoy::Envoy;
use crate::support::page;
use crate::support::process::poll_until;
use crate::support::redis_cluster::RedisCluster;

const LIMIT: u64 = 100;

const SOON: Duration = Duration::from_secs(20);

/// Admissions of one path: when each was sent, and when its answer was there.
type Admissions = Vec<(Instant, Instant)>;

/// Names of limits, the one at each place on the shard of that number.
fn limits_on_each_shard() -> [String; 3] {
    [0, 1, 2].map(|shard| {
        let mut names = (0..).map(|number| format!("limit-{number}"));
        names.find(|name| RedisCluster::shard(slot_of(name)) == shard).expect("a name")
    })
}

fn slot_of(limit: &str) -> i64 {
    slot(&format!("{{fairshare:{limit}}}"))
}

/// The limits of these names, each for the paths below its own name, the first one leased.
fn plugin(names: &[String]) -> Value {
    let limit = |(place, name): (usize, &String)| {
        json!({"name": name, "scope": "global", "on_store_error": "deny",
            "consistency": if place == 0 { "leased" } else { "strict" },
            "match": {"path_prefix": format!("/{name}")}, "tenant": window(LIMIT, "1s")})
    };
    let limits: Vec<Value> = names.iter().enumerate().map(limit).collect();
    let store = json!({"cluster": "fairshare_redis", "topology": "cluster", "timeout": "300ms"});
    json!({"limits": limits, "store": store})
}

/// Asks for one path until it is told to stop.
fn drive(port: u16, path: &str, stop: &AtomicBool) -> Admissions {
    let mut connection = Connection::open(port).expect("a connection");
    let request = Request::get(path).tenant("acme");
    let mut admitted = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let sent = Instant::now();
        let status = connection.send(&request).expect("an answer").status;
        match status {
            200 => admitted.push((sent, Instant::now())),
            429 | 503 => std::thread::sleep(Duration::from_millis(2)),
            other => panic!("{path}: {other}"),
        }
    }
    admitted
}

fn wait(seconds: f64) {
    std::thread::sleep(Duration::from_secs_f64(seconds));
}

/// Moves a slot with all that is in it from one primary to another, as an operator does.
fn move_slot(cluster: &RedisCluster, slot: i64, [from, to]: [usize; 2]) {
    let number = slot.to_string();
    cluster.ok(to, &["CLUSTER", "SETSLOT", &number, "IMPORTING", cluster.id(from)]);
    cluster.ok(from, &["CLUSTER", "SETSLOT", &number, "MIGRATING", cluster.id(to)]);
    let port = cluster.address(to).port().to_string();
    for _ in 0..10 {
        for key in cluster.keys_in_slot(from, slot) {
            let migrate = ["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"];
            cluster.run(from, &migrate);
        }
        // What is new goes to the new node meanwhile.
        wait(0.05);
    }
    cluster.give_slot(slot, to);
}

/// What happens to the cluster while traffic flows: a primary steps down, another one is killed, and a
/// slot moves. Returns when a shard was away.
fn disturb(cluster: &mut RedisCluster, moving: &str) -> [Instant; 2] {
    wait(1.5);
    cluster.ok(4, &["CLUSTER", "FAILOVER"]);
    assert!(poll_until(SOON, || cluster.is_primary(4).then_some(())).is_some());
    wait(1.5);
    let killed = Instant::now();
    cluster.kill(0);
    assert!(poll_until(SOON, || cluster.serves(3).then_some(())).is_some());
    let recovered = Instant::now();
    wait(2.5);
    move_slot(cluster, slot_of(moving), [2, 3]);
    wait(1.5);
    [killed, recovered]
}

/// Runs traffic for each of the limits through each Envoy for as long as `meanwhile` takes.
fn under_traffic<T>(
    names: &[String],
    envoys: &[Envoy],
    meanwhile: impl FnOnce() -> T,
) -> (BTreeMap<String, Admissions>, T) {
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let all = names.iter().flat_map(|name| envoys.iter().map(move |envoy| (name, envoy)));
        let start = |(name, envoy): (&String, &Envoy)| {
            let (path, port) = (format!("/{name}"), envoy.port());
            (name.clone(), scope.spawn(move || drive(port, &path, stop)))
        };
        let drivers: Vec<_> = all.map(start).collect();
        let result = meanwhile();
        stop.store(true, Ordering::Relaxed);
        let mut admitted: BTreeMap<String, Admissions> = BTreeMap::new();
        for (name, driver) in drivers {
            admitted.entry(name).or_default().extend(driver.join().expect("a driver"));
        }
        (admitted, result)
    })
}

/// Two Envoys and a Redis Cluster of three primaries with a replica each, under traffic that never
/// lets up. No window is exceeded, a shard that is away leaves the others alone, and when its replica
/// has taken over it is asked again.
#[test]
fn redis_cluster_follows_moved_and_failover() {
    let mut cluster = RedisCluster::start(1_000);
    let names = limits_on_each_shard();
    let plugin = plugin(&names);
    // Each begins with a replica, and with the node that will be killed.
    let ports = [5, 0].map(|node| cluster.address(node).port().to_string());
    let seeds = [
        ("HOST_1", "127.0.0.1"),
        ("PORT_1", &*ports[0]),
        ("HOST_2", "127.0.0.1"),
        ("PORT_2", &*ports[1]),
    ];
    let start = || Envoy::builder(&plugin).redis_by("cluster.yaml", &seeds).start();
    let envoys = [start(), start()];
    let (admitted, [killed, recovered]) =
        under_traffic(&names, &envoys, || disturb(&mut cluster, &names[2]));
    let end = Instant::now();
    for (place, name) in names.iter().enumerate() {
        let all = &admitted[name];
        let between = |from: Instant, to: Instant| {
            all.iter().filter(|(sent, got)| *sent >= from && *got < to).count()
        };
        let worst = worst_window(all, Duration::from_secs(1));
        let away = between(killed, recovered);
        let again = all.iter().map(|(_, got)| *got).filter(|got| *got > recovered).min();
        let again = again.map(|again| again - recovered);
        let outage = recovered - killed;
        println!(
            "{name}: {} admitted, worst second {worst}, {away} while a shard was away for {outage:?}, again after {again:?}",
            all.len()
        );
        assert!(worst <= 100, "{name}: {worst} in one second");
        assert!(place == 0 || away > 0, "{name} was given up with another shard");
        assert!(again < Some(Duration::from_secs(2)), "{name}: asked again after {again:?}");
        assert!(between(end - Duration::from_secs(2), end) > 0, "{name}: nothing any more");
    }
    for result in ["moved", "ask"] {
        let counts =
            envoys.each_ref().map(|e| e.metric("fairshare_store_calls", &[("result", result)]));
        println!("{result}: {counts:?}");
        assert!(counts.iter().sum::<u64>() > 0, "no {result}");
    }
}

/// What the page says about the user, on every node. Nobody else gets in but the test itself.
fn restrict(cluster: &mut RedisCluster) {
    let words = page::command("docs/redis-cluster.md", "redis-cli ACL SETUSER fairshare");
    let words: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
    for node in 0..6 {
        cluster.ok(node, &words);
        cluster.ok(node, &["ACL", "SETUSER", "default", "off"]);
    }
    cluster.log_in("tester", "t3ster");
}

/// A cluster that speaks nothing but TLS, between its nodes too, whose certificates bear this name.
fn start_with_tls(authority: &Authority, name: &str) -> RedisCluster {
    let [certificate, key] = authority.sign(name);
    let ca = text(&authority.certificate());
    let tester = ["--user", "tester", "on", ">t3ster", "~*", "&*", "+@all"];
    let files =
        ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    let among = ["--tls-cluster", "yes", "--tls-replication", "yes", "--tls-auth-clients", "no"];
    let replicas = ["--masteruser", "tester", "--masterauth", "t3ster"];
    let arguments = [&tester[..], &files, &among, &replicas].concat();
    RedisCluster::with(1_000, "--tls-port", &arguments)
}

/// Goal: over TLS and as the user of the page, limits on every shard hold, also while one fails over; a
/// certificate for another name and a wrong password are told apart, and admit nobody.
#[test]
fn redis_cluster_with_tls_and_acl() {
    const NAME: &str = "redis.example";
    let authority = Authority::new();
    let mut cluster = start_with_tls(&authority, NAME);
    restrict(&mut cluster);
    let names = limits_on_each_shard();
    let ports = [5, 1].map(|node| cluster.address(node).port().to_string());
    let ca = text(&authority.certificate());
    let start = |name: &str, password: &str| {
        let mut plugin = plugin(&names);
        plugin["store"]["username"] = json!("fairshare");
        plugin["store"]["password"] = json!(password);
        let values = [
            ("HOST_1", "127.0.0.1"),
            ("PORT_1", &*ports[0]),
            ("HOST_2", "127.0.0.1"),
            ("PORT_2", &*ports[1]),
            ("HOST", name),
            ("CA", &ca),
        ];
        Envoy::builder(&plugin).redis_by("cluster-tls.yaml", &values).start()
    };
    let envoys = [start(NAME, PASSWORD), start(NAME, PASSWORD)];
    let (admitted, recovered) = under_traffic(&names, &envoys, || {
        wait(2.0);
        cluster.kill(0);
        assert!(poll_until(SOON, || cluster.serves(3).then_some(())).is_some());
        let recovered = Instant::now();
        wait(4.0);
        recovered
    });
    for name in &names {
        let all = &admitted[name];
        let worst = worst_window(all, Duration::from_secs(1));
        let (before, after): (Admissions, Admissions) =
            all.iter().copied().partition(|(_, got)| *got < recovered);
        println!("{name}: {} before, {} after, worst second {worst}", before.len(), after.len());
        assert!(worst <= 100, "{name}: {worst} in one second");
        assert!(before.len() >= 100 && after.len() >= 200, "{name}: its shard is not asked");
    }
    for envoy in &envoys {
        assert!(envoy.stat("cluster.redis_nodes.ssl.handshake") > 0);
        assert!(envoy.stat("cluster.redis_nodes.ssl.session_reused") > 0);
        let texts = [envoy.log(), envoy.stats(), envoy.prometheus()];
        assert!(texts.iter().all(|text| !text.contains(PASSWORD)));
    }
    let statuses = |envoy: &Envoy| {
        let send = |name| envoy.send(&Request::get(&format!("/{name}")).tenant("other")).status;
        names.each_ref().map(send)
    };
    let other = start("other.example", PASSWORD);
    assert_eq!(statuses(&other), [503; 3]);
    assert!(other.stat("cluster.redis.ssl.fail_verify_san") > 0);
    let stranger = start(NAME, "not the password");
    assert_eq!(statuses(&stranger), [503; 3]);
    assert!(stranger.metric("fairshare_store_calls", &[("result", "wrong_pass")]) > 0);
    // A worker that was not asked about the first shard since its primary was killed learns of it now.
    let served = || (statuses(&envoys[0]) == [200; 3]).then_some(());
    assert!(poll_until(SOON, served).is_some(), "{:?}", statuses(&envoys[0]));
}
