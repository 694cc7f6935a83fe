use std::thread::sleep;
use std::time::{Duration, Instant};

use fairshare::store::slot;
use serde_json::{Value, json};

use crate::fleet::Fleet;
use crate::load::{LIMIT, under_load, under_load_at, watched};
use crate::seen::Seens;
use crate::slow_link::SlowLink;
use crate::support::process::poll_until;
use crate::support::redis_cluster::RedisCluster;

const SECOND: Duration = Duration::from_secs(1);

/// For how long the store may delay a request: `store.timeout`.
const TIMEOUT: Duration = Duration::from_millis(500);
const TIMEOUT_ON_CLUSTER: Duration = SECOND;

/// For how long a client may wait for the whole way.
const PATIENCE: Duration = Duration::from_secs(2);

/// For how long a unit that these limits lease may be spent.
const LEASE_LIFE: Duration = Duration::from_millis(31);

/// For how long an Envoy that is stopped has its clients go elsewhere: `DRAIN_S` of
/// `envoy/compose/envoy.sh`.
const DRAIN: Duration = SECOND;

/// The longest pause after a loss of state that nobody has much to tell of.
const PAUSE: Duration = Duration::from_secs(2);

/// Waits until a node of a Redis Cluster that has failed has no slots any more.
const UNTIL_TAKEN_OVER: &str = "for _ in {1..200}; do \
    redis-cli CLUSTER NODES | grep -q ',fail .*connected$' && exit; sleep 0.1; done; exit 1";

/// A limit of [`LIMIT`] a second for each tenant.
fn plugin(on_store_error: &Value) -> Value {
    let mut limit = json!({
        "name": "chaos", "scope": "global", "tenant": {"requests": LIMIT, "window": "1s"},
    });
    let base = limit.as_object_mut().expect("an object");
    base.extend(on_store_error.as_object().expect("an object").clone());
    json!({
        "exempt": [{"path": "/healthz"}],
        "limits": [limit],
        "store": {"cluster": "fairshare_redis", "timeout": millis(TIMEOUT)},
    })
}

/// Such a limit for the paths below `/<shard>`, on each of the first two shards of a Redis Cluster.
fn plugin_on_two_shards() -> Value {
    let is_on =
        |shard, name: &str| RedisCluster::shard(slot(&format!("{{fairshare:{name}}}"))) == shard;
    let limit = |shard| {
        let mut names = (0..).map(|number| format!("limit-{number}"));
        let name = names.find(|name| is_on(shard, name)).expect("a name");
        json!({
            "name": name, "scope": "global", "on_store_error": "deny",
            "match": {"path_prefix": format!("/{shard}")},
            "tenant": {"requests": LIMIT, "window": "1s"},
        })
    };
    json!({
        "exempt": [{"path": "/healthz"}],
        "limits": [limit(0), limit(1)],
        "store": {"cluster": "fairshare_redis", "topology": "cluster", "timeout": millis(TIMEOUT_ON_CLUSTER)},
    })
}

fn millis(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}

fn deny() -> Value {
    json!({"on_store_error": "deny"})
}

/// Drops a share of a container's packets from and to Redis under load. All three times are in seconds.
/// Returns what the clients saw, and when it was over.
fn drop_packets(
    fleet: &Fleet,
    (service, share): (&str, f64),
    (before, during, after): (u32, u32, u32),
) -> (Seens, Instant) {
    under_load(fleet, || {
        sleep(before * SECOND);
        fleet.drop_packets(service, share);
        sleep(during * SECOND);
        fleet.heal(service);
        let healed = Instant::now();
        sleep(after * SECOND);
        healed
    })
}

/// What holds whatever happens while the store keeps its state and no limit says `deny`.
fn assert_holds(seen: &Seens, timeout: Duration) {
    assert!(seen.worst() <= 1.0, "{} of the limit in one window", seen.worst());
    seen.assert_prompt(timeout, PATIENCE);
}

/// Redis vanishes from the network and comes back: nobody waits for longer than the timeout, nothing
/// is admitted that was not granted, and the fleet recovers by itself.
#[test]
#[ignore = "needs Docker: ./envoy/test.sh chaos"]
fn chaos_redis_cut_off_and_back() {
    let fleet = Fleet::start(&plugin(&deny()));
    let (seen, healed) = drop_packets(&fleet, ("redis", 1.0), (3, 3, 4));
    seen.report("redis cut off, deny", healed);
    assert_holds(&seen, TIMEOUT);
    assert!(seen.server_errors() > 0, "the cut was not felt");
    assert_eq!(seen.unanswered(), 0);
    assert!(seen.recovery(healed) < 2 * SECOND);
}

/// The same, with a fraction of the limit on each node meanwhile: at most nodes times fraction on top.
#[test]
#[ignore = "needs Docker: ./envoy/test.sh chaos"]
fn chaos_redis_cut_off_with_a_local_fraction() {
    let fleet = Fleet::start(&plugin(&json!({"on_store_error": "local", "local_fraction": 0.5})));
    let (seen, healed) = drop_packets(&fleet, ("redis", 1.0), (3, 3, 3));
    seen.report("redis cut off, local: up to 2.000", healed);
    assert!(seen.worst() <= 2.0, "{} of the limit in one window", seen.worst());
    assert_eq!((seen.server_errors(), seen.unanswered(), seen.wrong_refusals()), (0, 0, 0));
    seen.assert_prompt(TIMEOUT, PATIENCE);
}

/// One Envoy loses Redis: the other one is not touched.
#[test]
#[ignore = "needs Docker: ./envoy/test.sh chaos"]
fn chaos_one_envoy_cut_off() {
    let fleet = Fleet::start(&plugin(&deny()));
    let (seen, healed) = drop_packets(&fleet, ("envoy-1", 1.0), (2, 3, 3));
    seen.report("one Envoy cut off, deny", healed);
    assert_holds(&seen, TIMEOUT);
    assert!(seen.server_errors() > 0, "the cut was not felt");
    let timeouts = fleet.metric(1, "fairshare_store_calls", r#"result="timeout""#);
    assert!(timeouts == 0 || !seen.stalls().is_empty(), "{timeouts} timeouts of the other one");
    assert!(seen.recovery(healed) < 2 * SECOND);
}

/// One in twenty packets to Redis and one in twenty from it is lost.
#[test]
#[ignore = "needs Docker: ./envoy/test.sh chaos"]
fn chaos_packet_loss() {
    let fleet = Fleet::start(&plugin(&json!({"on_store_error": "local"})));
    let (seen, healed) = drop_packets(&fleet, ("redis", 0.05), (1, 6, 2));
    seen.report("1 packet in 20 lost, local: up to 2.000", healed);
    assert!(seen.worst() <= 2.0, "{} of the limit in one window", seen.worst());
    assert_eq!((seen.server_errors(), seen.unanswered(), seen.wrong_refusals()), (0, 0, 0));
    seen.assert_prompt(TIMEOUT, PATIENCE);
}

/// The same where nothing is admitted without Redis.
#[test]
#[ignore = "needs Docker: ./envoy/test.sh chaos"]
fn chaos_packet_loss_without_a_local_fraction() {
    let fleet = Fleet::start(&plugin(&deny()));
    let (seen, healed) = drop_packets(&fleet, ("redis", 0.05), (1, 6, 3));
    seen.report("1 packet in 20 lost, deny", healed);
    assert_holds(&seen, TIMEOUT);
    assert_eq!((seen.wrong_refusals(), seen.unanswered()), (0, 0));
    assert!(seen.recovery(healed) < 2 * SECOND);
}

/// The Envoys are stopped and started one after the other: what they had leased is lost, not doubled.
#[test]
#[ignore = "needs Docker: ./envoy/test.sh chaos"]
fn chaos_rolling_restart() {
    let fleet = Fleet::start(&plugin(&deny()));
    let (seen, (away, healed)) = under_load(&fleet, || {
        let away = ["envoy-1", "envoy-2"].into_iter().enumerate().map(|(number, service)| {
            sleep(2 * SECOND);
            // Until an Envoy has had its clients go elsewhere, it answers.
            let from = Instant::now() + DRAIN;
            fleet.compose(&["restart", "--timeout", "10", service]);
            fleet.wait_for(number);
            (from, Instant::now())
        });
        let away: Vec<_> = away.collect();
        let healed = Instant::now();
        sleep(2 * SECOND);
        (away, healed)
    });
    seen.report("rolling restart, deny", healed);
    assert_holds(&seen, TIMEOUT);
    // The store is there all the time, so that no limit has a reason to deny.
    let errors = seen.server_errors_apart_from(&seen.stalls());
    assert_eq!((seen.wrong_refusals(), errors), (0, 0));
    assert_eq!(
        seen.unanswered_apart_from(&away),
        0,
        "without an answer of an Envoy that was there"
    );
    assert!(seen.recovery(healed) < 2 * SECOND);
}

/// A new process takes over from the old one under load.
#[test]
#[ignore = "needs Docker: ./envoy/test.sh chaos"]
fn chaos_hot_restart() {
    let fleet = Fleet::start(&plugin(&deny()));
    let epoch = || fleet.metric(0, "envoy_server_hot_restart_epoch", "");
    assert_eq!(epoch(), 0);
    let (seen, restarted) = under_load(&fleet, || {
        sleep(2 * SECOND);
        fleet.signal("envoy-1", "HUP");
        let restarted = Instant::now();
        sleep(8 * SECOND);
        restarted
    });
    seen.report("hot restart, deny", restarted);
    assert_eq!(epoch(), 1, "the old process is still there");
    assert_holds(&seen, TIMEOUT);
    let errors = seen.server_errors_apart_from(&seen.stalls());
    assert_eq!((seen.wrong_refusals(), errors, seen.unanswered()), (0, 0, 0));
}

/// Redis is killed, and its replica takes over under its name: what the replica had not yet got is
/// made up for by the Envoys.
#[test]
#[ignore = "needs Docker: ./envoy/test.sh chaos"]
fn chaos_primary_killed_and_replica_takes_over() {
    let fleet = Fleet::start(&plugin(&deny()));
    fleet.compose(&["--profile", "replica", "up", "--detach", "redis-replica"]);
    let in_sync = || {
        let state = fleet.run_in("redis-replica", &["redis-cli", "INFO", "replication"]);
        state.contains("master_link_status:up").then_some(())
    };
    assert!(poll_until(20 * SECOND, in_sync).is_some(), "the replica gets no data");
    let (seen, healed) = under_load(&fleet, || {
        sleep(3 * SECOND);
        fleet.signal("redis", "KILL");
        fleet.run_in("redis-replica", &["redis-cli", "REPLICAOF", "NO", "ONE"]);
        fleet.rename_redis("redis-replica");
        let healed = Instant::now();
        sleep(10 * SECOND);
        healed
    });
    seen.report("primary killed, replica takes over", healed);
    assert_holds(&seen, TIMEOUT);
    assert_eq!(seen.unanswered(), 0);
    assert!(seen.time_of_wrong_refusals() < PAUSE);
    // Envoy asks for the name every five seconds.
    assert!(seen.recovery(healed) < 8 * SECOND);
}

/// A primary of a Redis Cluster vanishes, its replica takes over, and it comes back as a replica: limits
/// on other shards notice nothing.
#[test]
#[ignore = "needs Docker: ./envoy/test.sh chaos"]
fn chaos_cluster_primary_cut_off_and_replica_takes_over() {
    let fleet = Fleet::start_on_cluster(&plugin_on_two_shards());
    let fail_over = || {
        sleep(3 * SECOND);
        fleet.isolate("redis-1");
        fleet.run_in("redis-2", &["bash", "-c", UNTIL_TAKEN_OVER]);
        let healed = Instant::now();
        sleep(3 * SECOND);
        fleet.heal("redis-1");
        sleep(3 * SECOND);
        healed
    };
    let (late, (other, (seen, healed))) = watched(&fleet.ports, LEASE_LIFE, || {
        under_load_at("/1", &fleet, || under_load_at("/0", &fleet, fail_over))
    });
    println!("the machine was late {} times", late.len());
    seen.report("primary of a cluster cut off", healed);
    other.report("the same, limit on another shard", healed);
    for seen in [&seen, &other] {
        assert_holds(seen, TIMEOUT_ON_CLUSTER);
        assert_eq!(seen.unanswered(), 0);
    }
    assert!(seen.server_errors() > 0, "the cut was not felt");
    assert!(seen.time_of_wrong_refusals() < PAUSE);
    // To hear of the new primary, and the pause after a loss of state.
    assert!(seen.recovery(healed) < 3 * SECOND);
    assert_eq!(other.wrong_refusals(), 0);
    // Only on a machine that is itself late, a reply may come too late for a lease again and again.
    assert_eq!(other.server_errors_apart_from(&late), 0, "errors on another shard");
    let (errors, cut_off) = (other.server_errors(), seen.server_errors());
    assert!(
        errors * 20 <= cut_off,
        "{errors} errors on another shard, {cut_off} on the one cut off"
    );
}

/// The way to Redis becomes slow, and then slower than the timeout: the first costs time alone, and the
/// second is as if Redis were away.
#[test]
#[ignore = "needs Docker: ./envoy/test.sh chaos"]
fn chaos_delay() {
    let mut link = None;
    let fleet = Fleet::start_at(&plugin(&deny()), |fleet| {
        fleet.compose(&["up", "--detach", "redis"]);
        let started = link.insert(SlowLink::start((fleet.address("redis"), 6379).into()));
        format!("host.docker.internal:{}", started.port())
    });
    let link = link.expect("a link");
    // Shorter than a lease's life, and longer than the timeout.
    for (millis, scenario) in [(5, "0.01 s to Redis and back"), (400, "0.8 s to Redis and back")] {
        let (seen, healed) = under_load(&fleet, || {
            sleep(SECOND);
            link.delay(millis);
            sleep(4 * SECOND);
            link.delay(0);
            let healed = Instant::now();
            sleep(3 * SECOND);
            healed
        });
        seen.report(&format!("{scenario}, deny"), healed);
        assert_holds(&seen, TIMEOUT);
        assert_eq!((seen.wrong_refusals(), seen.unanswered()), (0, 0));
        let errors = seen.server_errors_apart_from(&seen.stalls());
        assert_eq!(errors > 0, millis > 250, "the timeout is 0.5 s");
        assert!(seen.recovery(healed) < 2 * SECOND);
    }
}
