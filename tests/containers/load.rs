use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::fleet::Fleet;
use crate::processor::Waits;
use crate::seen::{Seen, Seens};
use crate::support::client::{Connection, Request};

/// Units a second that each tenant has.
pub const LIMIT: usize = 100;

/// The limit's window.
pub const WINDOW: Duration = Duration::from_secs(1);

/// Asks as fast as it may.
pub const NOISY: &str = "noisy";

/// Stays far below its limit, so that no refusal of it is right.
pub const QUIET: &str = "quiet";

/// What answers of the filter are.
const PROBLEM: &str = "application/problem+json";

/// Sends requests of two tenants to all Envoys for as long as `work` runs, and returns its result too.
pub fn under_load<T>(fleet: &Fleet, work: impl FnOnce() -> T) -> (Seens, T) {
    under_load_at("/", fleet, work)
}

/// The same for one path.
pub fn under_load_at<T>(path: &'static str, fleet: &Fleet, work: impl FnOnce() -> T) -> (Seens, T) {
    let envoys = fleet.envoys();
    let ((mut seen, result), waits) = watching(&envoys, || all_clients(path, &fleet.ports, work));
    let times = fleet.times();
    for seen in &mut seen {
        let envoy = fleet.ports.iter().position(|port| *port == seen.port).expect("a port");
        seen.no_processor = waits.between(envoy, seen.sent, seen.done);
        seen.in_envoy = times.get(&target(path, seen.number)).copied();
    }
    (Seens(seen), result)
}

/// Runs clients of two tenants for as long as `work` runs, and then until each has its last answer.
fn all_clients<T>(path: &str, ports: &[u16], work: impl FnOnce() -> T) -> (Vec<Seen>, T) {
    let (stop, seen) = (&AtomicBool::new(false), &Mutex::new(Vec::new()));
    let result = thread::scope(|scope| {
        for port in ports {
            for (tenant, pause) in [(NOISY, 4), (NOISY, 4), (QUIET, 60)] {
                scope.spawn(move || {
                    let mine = client(*port, tenant, path, Duration::from_millis(pause), stop);
                    seen.lock().expect("no client failed").extend(mine);
                });
            }
        }
        let result = work();
        stop.store(true, Ordering::Relaxed);
        result
    });
    (std::mem::take(&mut seen.lock().expect("no client failed")), result)
}

/// Runs `work`, and says for how long the Envoys in these containers waited for a processor meanwhile.
fn watching<T>(envoys: &[String], work: impl FnOnce() -> T) -> (T, Waits) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| Waits::watch(envoys, &stop));
        let result = work();
        stop.store(true, Ordering::Relaxed);
        (result, watch.join().expect("a watch"))
    })
}

/// Runs `work`, and says when the machine itself was late meanwhile: from when to when a request that no
/// limit concerns took longer than `bearable`.
pub fn watched<T>(
    ports: &[u16],
    bearable: Duration,
    work: impl FnOnce() -> T,
) -> (Vec<(Instant, Instant)>, T) {
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let probes = ports.iter().map(|port| {
            scope.spawn(move || client(*port, "nobody", "/healthz", Duration::from_millis(5), stop))
        });
        let probes: Vec<_> = probes.collect();
        let result = work();
        stop.store(true, Ordering::Relaxed);
        let seen = probes.into_iter().flat_map(|probe| probe.join().expect("a probe"));
        let times = seen.map(|seen| (seen.sent, seen.done));
        (times.filter(|(sent, done)| *done - *sent > bearable).collect(), result)
    })
}

fn client(
    port: u16,
    tenant: &'static str,
    path: &str,
    pause: Duration,
    stop: &AtomicBool,
) -> Vec<Seen> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (mut connection, mut seen) = (None, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let request = Request::get(&target(path, number)).tenant(tenant);
        let sent = Instant::now();
        let open = match connection.take() {
            Some(open) => Ok(open),
            None => Connection::open(port),
        };
        let connected = Instant::now();
        let answer = open.and_then(|mut open| {
            let answer = open.send(&request)?;
            if answer.header("connection").is_none_or(|value| value != "close") {
                connection = Some(open);
            }
            Ok(answer)
        });
        let done = Instant::now();
        let header = |name| answer.as_ref().ok()?.header(name);
        let upstream = header("x-envoy-upstream-service-time");
        seen.push(Seen {
            tenant,
            port,
            number,
            sent,
            connected,
            done,
            status: answer.as_ref().ok().map(|answer| answer.status),
            by_filter: header("content-type").as_deref() == Some(PROBLEM),
            in_envoy: None,
            upstream: upstream.map(|millis| millis_of(&millis)).unwrap_or_default(),
            no_processor: Duration::ZERO,
        });
        sleep(pause);
    }
    seen
}

/// Where a request goes, so that it is known in an access log.
fn target(path: &str, number: u64) -> String {
    format!("{path}?{number}")
}

fn millis_of(text: &str) -> Duration {
    Duration::from_millis(text.parse().expect("milliseconds"))
}
