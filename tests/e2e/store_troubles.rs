use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::scenarios::{by, global_limit, window};
use crate::support::client::Connection;
use crate::support::envoy::Envoy;
use crate::support::process::{TempDir, poll_until};
use crate::support::redis::Redis;

const TIMEOUT: Duration = Duration::from_millis(100);

/// What a busy machine adds to an answer.
const SLACK: Duration = Duration::from_millis(900);

/// A name under which one server after the other is found, as behind an address that fails over.
struct Front(TempDir);

impl Front {
    fn socket(&self) -> std::path::PathBuf {
        self.0.file("front.sock")
    }

    fn lead_to(&self, redis: &Redis) {
        let next = self.0.file("next.sock");
        symlink(redis.socket(), &next).expect("a link");
        fs::rename(next, self.socket()).expect("the front's name");
    }
}

/// Tells the clients that it is over, also where the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until the store is asked again and answers.
fn recovers(envoy: &Envoy, what: &str) {
    let answered = || envoy.metric("fairshare_store_calls", &[("result", "ok")]);
    let (before, start) = (answered(), Instant::now());
    // Probes answer as well, so a handful of answers means that requests are decided there again.
    let again = poll_until(Duration::from_secs(10), || (answered() >= before + 5).then_some(()));
    println!("{what}: answers again after {:?}", start.elapsed());
    assert!(again.is_some(), "{what}: the store is not asked again");
}

/// RED-4, RED-6: whatever happens to Redis under traffic, every request is answered, none with an
/// error, none much later than `store.timeout`; and once Redis is well it is asked again.
#[test]
fn redis_paused_killed_flushed_failed_over() {
    let front = Front(TempDir::new("front"));
    let mut redis = Redis::start();
    front.lead_to(&redis);
    let settings = json!({"consistency": "strict", "on_store_error": "allow"});
    let mut plugin = global_limit(settings, json!({"tenant": window(1_000_000, "1m")}));
    plugin["store"]["timeout"] = json!("100ms");
    let envoy = Envoy::builder(&plugin).redis_unix(front.socket()).start();
    let over = AtomicBool::new(false);
    let client = || {
        let mut connection = Connection::open(envoy.port()).expect("a connection");
        let (mut sent, mut admitted, mut slowest) = (0_u32, 0_u32, Duration::ZERO);
        while !over.load(Ordering::Relaxed) {
            let start = Instant::now();
            let status = connection.send(&by("acme")).expect("an answer").status;
            // A store that has forgotten grants nothing until the nodes have told it what they know.
            assert!([200, 429].contains(&status), "{status}");
            admitted += u32::from(status == 200);
            slowest = slowest.max(start.elapsed());
            sent += 1;
            thread::sleep(Duration::from_millis(2));
        }
        assert!(admitted > sent / 2, "{admitted} of {sent} are let through");
        (sent, slowest)
    };
    let mut troubles = || {
        let _end = Ends(&over);
        recovers(&envoy, "at first");
        redis.pause();
        thread::sleep(Duration::from_secs(1));
        redis.resume();
        recovers(&envoy, "paused");
        redis = Redis::start();
        thread::sleep(Duration::from_millis(500));
        front.lead_to(&redis);
        recovers(&envoy, "killed and started anew");
        redis.run(&["FLUSHALL"]);
        redis.run(&["SCRIPT", "FLUSH"]);
        recovers(&envoy, "flushed");
        // The primary is demoted, and for a while its address still leads to it.
        let promoted = Redis::start();
        redis.run(&["REPLICAOF", "127.0.0.1", "1"]);
        thread::sleep(Duration::from_secs(1));
        front.lead_to(&promoted);
        recovers(&envoy, "failed over");
    };
    let clients: Vec<(u32, Duration)> = thread::scope(|scope| {
        let threads = [scope.spawn(client), scope.spawn(client)];
        troubles();
        threads.map(|thread| thread.join().expect("a client")).into()
    });
    println!("requests, and the slowest answer, of each client: {clients:?}");
    assert!(clients.iter().all(|(sent, slowest)| *sent > 50 && *slowest <= TIMEOUT + SLACK));
    for kind in ["timeout", "unreachable", "read_only"] {
        let calls = envoy.metric("fairshare_store_calls", &[("result", kind)]);
        assert!(calls > 0, "{kind} is counted");
    }
}
