use std::time::{Duration, Instant};

use serde_json::json;

use crate::scenarios::{by, global_limit, window};
use crate::support::client::Connection;
use crate::support::envoy::Envoy;
use crate::support::process::poll_until;
use crate::support::redis::Redis;

/// How long a machine that is busy with other things may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// E3: all Envoys that share a Redis share one budget.
#[test]
fn two_envoys_share_one_global_budget() {
    let redis = Redis::start();
    let plugin = global_limit(json!({}), json!({"tenant": window(30, "1m")}));
    let start = || Envoy::builder(&plugin).redis_unix(redis.socket()).start();
    let envoys = [start(), start()];
    let admitted =
        |envoy: &Envoy| (0..40).filter(|_| envoy.send(&by("acme")).status == 200).count();
    let both: Vec<usize> = std::thread::scope(|scope| {
        let threads = envoys.each_ref().map(|envoy| scope.spawn(move || admitted(envoy)));
        threads.into_iter().map(|thread| thread.join().expect("a client")).collect()
    });
    assert_eq!(both.iter().sum::<usize>(), 30, "{both:?}");
    assert!(redis.keys().iter().all(|key| redis.pttl(key) > 0), "a key without expiry");
}

/// C4: whoever has started a question to the store may go away. Those who wait with it are answered, and
/// what it would have spent is there for another one.
#[test]
fn aborted_initiator_does_not_cancel_the_refill() {
    for consistency in ["leased", "strict"] {
        let redis = Redis::start();
        let settings = json!({"consistency": consistency, "on_store_error": "deny"});
        let plugin = global_limit(settings, json!({"tenant": window(7, "1m")}));
        let envoy = Envoy::builder(plugin).redis_unix(redis.socket()).start();
        let ask = |_| {
            let mut connection = Connection::open(envoy.port()).expect("a connection");
            connection.send_raw(&by("acme").to_bytes()).expect("a request");
            std::thread::sleep(Duration::from_millis(50));
            connection
        };
        redis.pause();
        let initiator = ask(0);
        let mut others: Vec<Connection> = (0..6).map(ask).collect();
        drop(initiator);
        std::thread::sleep(Duration::from_millis(100));
        redis.resume();
        for other in &mut others {
            assert_eq!(other.read_response(false).unwrap().status, 200, "{consistency}");
        }
        let passes = || (envoy.send(&by("acme")).status == 200).then_some(());
        assert!(poll_until(Duration::from_secs(5), passes).is_some(), "{consistency}");
        assert_eq!(envoy.send(&by("acme")).status, 429, "{consistency}");
    }
}

/// VMX-3: a store that cannot even be called, because its cluster is unknown or empty or refuses,
/// delays nobody and follows `on_store_error`; a refusal for its sake charges nothing on the node.
#[test]
fn vmx_3_a_store_that_cannot_be_called_hangs_nobody() {
    let limit = |name: &str| {
        json!({"name": name, "match": {"path": format!("/{name}")}, "scope": "global",
               "consistency": "strict", "on_store_error": name, "tenant": window(9, "1m")})
    };
    let node = json!({"name": "node", "tenant": window(2, "1m")});
    for cluster in ["nope", "empty", "fairshare_redis"] {
        let plugin = json!({
            "limits": [limit("deny"), limit("allow"), node],
            "store": {"cluster": cluster, "timeout": "2s"},
        });
        let empty = "clusters:\n  - name: empty\n    type: STATIC\n    connect_timeout: 1s\n    \
                     load_assignment: {cluster_name: empty}\n  - name: upstream";
        let envoy = Envoy::builder(plugin)
            .redis_unix("/nowhere/redis.sock")
            .replacing("clusters:\n  - name: upstream", empty)
            .start();
        let mut statuses = Vec::new();
        for path in ["/deny", "/allow"] {
            for _ in 0..3 {
                let start = Instant::now();
                statuses.push(envoy.send(&by("acme").with_target(path)).status);
                // Half of the timeout: nobody waits for a call that is not under way.
                assert!(start.elapsed() < Duration::from_secs(1), "{cluster}{path}");
            }
        }
        assert_eq!(statuses, [503, 503, 503, 200, 200, 429], "{cluster}");
    }
}

/// Admissions of one tenant that many clients got from two Envoys within `time`: when each was sent,
/// and when its answer was there.
fn admissions(envoys: &[Envoy], clients: usize, time: Duration) -> Vec<(Instant, Instant)> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients)
            .map(|number| {
                let port = envoys[number % envoys.len()].port();
                scope.spawn(move || {
                    let mut connection = Connection::open(port).expect("a connection");
                    let mut admitted = Vec::new();
                    while start.elapsed() < time {
                        let sent = Instant::now();
                        let answer = connection.send(&by("acme")).expect("an answer");
                        if answer.status == 200 {
                            admitted.push((sent, Instant::now()));
                        }
                    }
                    admitted
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a client")).collect()
    })
}

/// The most admissions that certainly lie within one window: sent after its start, answered before
/// its end.
pub(crate) fn worst_window(admissions: &[(Instant, Instant)], window: Duration) -> usize {
    let within = |start: Instant| {
        admissions.iter().filter(|(sent, got)| *sent >= start && *got < start + window).count()
    };
    admissions.iter().map(|(sent, _)| within(*sent)).max().unwrap_or(0)
}

/// Runs rounds until one `lacks` nothing. A machine that is busy with other things lets leases expire and clients
/// wait, which costs admissions and never adds any; so what must be in no round is asserted in each.
pub(crate) fn some_round_gets_its_due(mut lacks: impl FnMut() -> Option<String>) {
    const ROUNDS: usize = 4;
    let lacking: Vec<String> = (0..ROUNDS).map_while(|_| lacks()).collect();
    assert!(lacking.len() < ROUNDS, "no round gets its due: {lacking:?}");
}

/// The promise of global limits, both ways of deciding them: over two Envoys no interval holds more
/// than the limit, and under demand that never lets up at least nine tenths of it are admitted.
#[test]
fn global_window_is_never_exceeded_in_any_interval() {
    const LIMIT: u64 = 200;
    let time = Duration::from_secs(6);
    for consistency in ["leased", "strict"] {
        some_round_gets_its_due(|| {
            let redis = Redis::start();
            let levels = json!({"tenant": window(LIMIT, "1s")});
            let settings = json!({"consistency": consistency, "on_store_error": "deny"});
            let plugin = global_limit(settings, levels);
            let start = || Envoy::builder(&plugin).redis_unix(redis.socket()).start();
            let envoys = [start(), start()];
            let admitted = admissions(&envoys, 8, time);
            let (count, worst) = (admitted.len(), worst_window(&admitted, Duration::from_secs(1)));
            println!("{consistency}: {count} admitted in {time:?}, worst second {worst}");
            assert!(worst <= 200, "{consistency}: {worst} in one second");
            (count < 6 * 200 * 9 / 10).then(|| format!("{consistency}: only {count} admitted"))
        });
    }
}

/// Each worker leases for itself. However many of them there are, with demand at each that never lets up,
/// no interval holds more than the limit, and nine tenths of it are admitted.
#[test]
fn leases_of_many_workers_add_up_to_the_limit() {
    const SECONDS: u64 = 6;
    let balanced =
        "name: fairshare\n    connection_balance_config: {exact_balance: {}}\n    address:";
    for (limit, workers) in [(600, [2, 2]), (600, [4, 2]), (100, [4, 2])] {
        some_round_gets_its_due(|| {
            let redis = Redis::start();
            let settings = json!({"consistency": "leased", "on_store_error": "deny"});
            let levels = json!({"shared": window(limit, "2s"), "tenant": window(limit, "2s")});
            let plugin = global_limit(settings, levels);
            let envoys = workers.map(|workers| {
                let builder = Envoy::builder(&plugin).redis_unix(redis.socket()).workers(workers);
                builder.replacing("name: fairshare\n    address:", balanced).start()
            });
            let admitted = admissions(&envoys, 16, Duration::from_secs(SECONDS));
            let (count, worst) = (admitted.len(), worst_window(&admitted, Duration::from_secs(2)));
            println!(
                "{workers:?}: {count} admitted in {SECONDS} s, worst interval {worst} of {limit}"
            );
            for (envoy, workers) in envoys.iter().zip(workers) {
                for worker in 0..workers {
                    let name = format!("listener.127.0.0.1_0.worker_{worker}.downstream_cx_total");
                    assert!(envoy.stat(&name) > 0, "worker {worker} of {workers} had no clients");
                }
            }
            let limit = usize::try_from(limit).expect("a small number");
            assert!(worst <= limit, "{workers:?}: {worst} in one window of {limit}");
            (count < limit * 3 * 9 / 10)
                .then(|| format!("{workers:?}: only {count} of {limit} in each window"))
        });
    }
}

/// What one Envoy does not spend goes to the other one when demand moves.
#[test]
fn unused_leases_return_to_others() {
    let redis = Redis::start();
    let plugin =
        global_limit(json!({"consistency": "leased"}), json!({"tenant": window(300, "1h")}));
    let start = || Envoy::builder(&plugin).redis_unix(redis.socket()).start();
    let (one, other) = (start(), start());
    let spent = (0..40).filter(|_| one.send(&by("acme")).status == 200).count();
    assert_eq!(spent, 40);
    // What is left in one worker of the other Envoy goes back, too, once it is idle.
    let (mut left, start) = (0, Instant::now());
    while left < 260 && start.elapsed() < Duration::from_secs(20) {
        left += (0..20).filter(|_| other.send(&by("acme")).status == 200).count();
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(left, 260);
}

/// A number of Redis's own, from a section of what it tells of itself.
pub(crate) fn statistic(redis: &Redis, section: &str, name: &str) -> u64 {
    let info = redis.info(section);
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.expect("a statistic").trim().parse().expect("a number")
}

/// O10: clients that invent a tenant for each request, each of which the store has to be asked about, open
/// no more connections to Redis than the page on the store says, and all of them are served.
#[test]
fn invented_tenants_make_few_connections() {
    const TENANTS: usize = 8_000;
    const CLIENTS: usize = 32;
    let redis = Redis::start();
    let settings = json!({"consistency": "leased", "on_store_error": "deny"});
    let mut plugin = global_limit(settings, json!({"tenant": window(100, "1m")}));
    plugin["store"]["timeout"] = json!("10s");
    let envoy = Envoy::builder(plugin).redis_unix(redis.socket()).workers(1).start();
    assert_eq!(envoy.send(&by("acme")).status, 200);
    let before = statistic(&redis, "stats", "total_connections_received");
    let start = Instant::now();
    let client = |number: usize| {
        let mut connection = Connection::open(envoy.port()).expect("a connection");
        for tenant in 0..TENANTS / CLIENTS {
            let answer = connection.send(&by(&format!("t{number}-{tenant}")));
            assert_eq!(answer.expect("an answer").status, 200);
        }
    };
    std::thread::scope(|scope| {
        (0..CLIENTS).for_each(|number| drop(scope.spawn(move || client(number))))
    });
    let time = start.elapsed();
    let connections = statistic(&redis, "stats", "total_connections_received") - before;
    println!("{TENANTS} tenants in {time:?}, {connections} connections to Redis");
    assert!(redis.keys().len() > TENANTS, "all were asked about");
    // For leases, for what goes back, for polls and for the mode.
    let each_second = 500 + 10 + 7 + 1;
    let millis = u64::try_from(time.as_millis()).expect("a short time");
    assert!(connections <= 8 + each_second * millis / 1000, "{connections} in {time:?}");
}

/// RED-6, C3: a store that hangs delays a few requests by its timeout and then nobody, and some time after its
/// recovery it is asked again by itself. How soon is told by `tests/slow_store.rs`, in a time of its own.
#[test]
fn a_hanging_store_delays_few_requests_and_comes_back() {
    // Far more than a machine that is busy with other things adds to a request.
    const TIMEOUT: Duration = Duration::from_secs(2);
    let redis = Redis::start();
    let settings = json!({"consistency": "strict", "on_store_error": "allow"});
    let mut plugin = global_limit(settings, json!({"tenant": window(100_000, "1m")}));
    plugin["store"]["timeout"] = json!("2s");
    let envoy = Envoy::builder(&plugin).redis_unix(redis.socket()).workers(1).start();
    let mut connection = Connection::open(envoy.port()).expect("a connection");
    let mut timed = || {
        let start = Instant::now();
        assert_eq!(connection.send(&by("acme")).expect("an answer").status, 200);
        start.elapsed()
    };
    let calls = |result: &str| envoy.metric("fairshare_store_calls", &[("result", result)]);
    timed();
    let hung = Instant::now();
    redis.pause();
    let delays: Vec<Duration> = (0..50).map(|_| timed()).collect();
    let delayed = delays.iter().filter(|delay| **delay > TIMEOUT / 2).count();
    assert!((1..=4).contains(&delayed), "{delayed} requests were delayed: {delays:?}");
    let unasked = calls("given_up");
    assert!((46..50).contains(&unasked), "{unasked} of 50 did not wait for the store");
    redis.resume();
    let answered = calls("ok");
    let asked = || {
        timed();
        (calls("ok") > answered).then_some(())
    };
    poll_until(PATIENCE, asked).expect("it is asked again");
    // Envoy shows a histogram once it has flushed its values, every five seconds.
    let exchanges = || envoy.metric("fairshare_store_seconds_count", &[]);
    let counted = poll_until(PATIENCE, || (exchanges() >= 2).then(exchanges));
    // Two of the healthy store and three of the sick one, some that were asked since, and five probes a second.
    let most = 40 + 5 * hung.elapsed().as_secs();
    assert!(counted.is_some_and(|count| count <= most), "{counted:?} exchanges with Redis");
}
