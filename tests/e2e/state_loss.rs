use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::global::worst_window;
use crate::scenarios::{by, global_limit, window};
use crate::support::client::Connection;
use crate::support::envoy::Envoy;
use crate::support::process::{TempDir, poll_until};
use crate::support::redis::{Redis, record};

const LIMIT: usize = 300;
const WINDOW: Duration = Duration::from_secs(2);
const CLIENTS: usize = 8;

/// Time that a client that was refused waits, so that many of them do not take the machine.
const AFTER_A_REFUSAL: Duration = Duration::from_millis(4);

/// When a request was sent, and when its answer was there.
type Admission = (Instant, Instant);

fn plugin(consistency: &str, on_state_loss: &str) -> Value {
    let settings = json!({
        "consistency": consistency, "on_state_loss": on_state_loss, "on_store_error": "deny",
    });
    global_limit(settings, json!({"tenant": window(300, "2s")}))
}

/// What clients that never let up are admitted while `work` runs. A client whose Envoy dies is gone.
fn admitted_while(ports: &[u16], work: impl FnOnce()) -> Vec<Admission> {
    let over = AtomicBool::new(false);
    let client = |port: u16| {
        let mut connection = Connection::open(port).expect("a connection");
        let mut admitted = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let sent = Instant::now();
            match connection.send(&by("acme")).map(|answer| answer.status) {
                Ok(200) => admitted.push((sent, Instant::now())),
                Ok(_) => sleep(AFTER_A_REFUSAL),
                Err(_) => break,
            }
        }
        admitted
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let port = ports[number % ports.len()];
                scope.spawn(move || client(port))
            })
            .collect();
        work();
        over.store(true, Ordering::Relaxed);
        threads.into_iter().flat_map(|thread| thread.join().expect("a client")).collect()
    })
}

/// Nothing over the limit anywhere, and from `settled` on the fleet gets its due again: at once, and
/// again when the store's window, which is a little longer, is over.
fn assert_exact(what: &str, admitted: &[Admission], settled: Instant) {
    let worst = worst_window(admitted, WINDOW);
    let within = |(_, got): &&Admission| *got >= settled && *got < settled + WINDOW * 5 / 4;
    let after = admitted.iter().filter(within).count();
    println!("{what}: worst interval {worst} of {LIMIT}, {after} in a window after the loss");
    assert!(worst <= LIMIT, "{what}: {worst} within one window");
    assert!(after * 2 >= LIMIT, "{what}: only {after} in a window after the loss");
}

fn losses(envoy: &Envoy) -> u64 {
    envoy.metric("fairshare_state_losses", &[("of", "store")])
}

/// All that Redis holds is flushed under traffic: the Envoys tell it what was granted to them before it
/// grants more, so no interval holds more than the limit.
#[test]
fn state_loss_is_rebuilt_within_its_bound() {
    for consistency in ["leased", "strict"] {
        let redis = Redis::start();
        let plugin = plugin(consistency, "rebuild");
        let start = || Envoy::builder(&plugin).redis_unix(redis.socket()).start();
        let envoys = [start(), start()];
        let before = losses(&envoys[0]);
        let mut settled = None;
        let admitted = admitted_while(&envoys.each_ref().map(Envoy::port), || {
            sleep(WINDOW + WINDOW / 4);
            redis.run(&["FLUSHALL"]);
            // The pause, and what was reported a little late.
            settled = Some(Instant::now() + WINDOW + WINDOW / 2);
            sleep(WINDOW * 3);
        });
        assert_exact(consistency, &admitted, settled.expect("a time"));
        assert!(losses(&envoys[0]) > before, "the loss was not noticed");
    }
}

/// A replica takes over that lacks the last writes: those are made up for as well.
#[test]
fn state_loss_by_a_fail_over_is_rebuilt() {
    let front = TempDir::new("front");
    let lead_to = |redis: &Redis| {
        symlink(redis.socket(), front.file("next.sock")).expect("a link");
        fs::rename(front.file("next.sock"), front.file("front.sock")).expect("the front's name");
    };
    let primary = Redis::start();
    lead_to(&primary);
    let plugin = plugin("leased", "rebuild");
    let start = || Envoy::builder(&plugin).redis_unix(front.file("front.sock")).start();
    let envoys = [start(), start()];
    let replica = Redis::start();
    let mut settled = None;
    let admitted = admitted_while(&envoys.each_ref().map(Envoy::port), || {
        sleep(WINDOW / 2);
        // What the replica has got by now is all that it will ever get.
        for key in primary.keys().into_iter().chain([record("fairshare")]) {
            let (text, millis) = (primary.get(&key), primary.pttl(&key).to_string());
            replica.run(&["SET", &key, &text.expect("a value"), "PX", &millis]);
        }
        sleep(WINDOW / 2);
        lead_to(&replica);
        settled = Some(Instant::now() + WINDOW + WINDOW / 2);
        sleep(WINDOW * 3);
    });
    assert_exact("fail-over", &admitted, settled.expect("a time"));
}

/// An Envoy dies together with what Redis holds: with `hold`, not even what it alone knew of is granted
/// twice. The price is a pause of a window.
#[test]
fn state_loss_hold_is_exact() {
    for consistency in ["leased", "strict"] {
        let redis = Redis::start();
        let plugin = plugin(consistency, "hold");
        let start = || Envoy::builder(&plugin).redis_unix(redis.socket()).start();
        let (lost, left) = (start(), start());
        let (ports, mut settled) = ([lost.port(), left.port()], None);
        let admitted = admitted_while(&ports, || {
            sleep(WINDOW + WINDOW / 4);
            drop(lost);
            redis.run(&["FLUSHALL"]);
            settled = Some(Instant::now() + WINDOW + WINDOW / 4);
            sleep(WINDOW * 3);
        });
        assert_exact(consistency, &admitted, settled.expect("a time"));
        let noticed = poll_until(WINDOW, || (losses(&left) > 0).then_some(()));
        assert!(noticed.is_some(), "the loss was not noticed");
    }
}
