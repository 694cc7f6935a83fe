//! Minutes of everything at once: aborts, resets, huge and odd headers, slow requests, refusals, a
//! store that comes and goes, and a reload every few seconds. Run by `./envoy/soak.sh`.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and they do have a clock and an environment"
)]

mod support;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::client::{Connection, Request, Response};
use support::envoy::{Envoy, Update};
use support::process::poll_until;
use support::redis::Redis;

const MIB: u64 = 1 << 20;
const RELOAD_EVERY: Duration = Duration::from_secs(4);

/// How many requests ended in which way.
#[derive(Default)]
struct Tally {
    admitted: AtomicU64,
    refused: AtomicU64,
    bad: AtomicU64,
    unavailable: AtomicU64,
    aborted: AtomicU64,
    /// Nothing came of them, and nothing accounts for that.
    unanswered: AtomicU64,
    /// Answers of 5xx that nothing accounts for, by path and reason.
    undue: Mutex<BTreeMap<String, u64>>,
    /// By what the filter says why it refused; by their status where the proxy or the upstream did.
    refusals: Mutex<BTreeMap<String, u64>>,
    /// Requests of tenants with names that come again, under limits that do not change.
    admissions: Mutex<Vec<Admission>>,
}

/// A request that went through.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Admission {
    path: &'static str,
    tenant: u64,
    sent: Instant,
    done: Instant,
}

/// What each tenant may have in a second below these paths.
const LEASED: (&str, u64) = ("/leased", 4);
const STRICT: (&str, u64) = ("/strict", 3);

/// The part of a leased limit that the one Envoy adds while the store is away, in hundredths.
const LOCAL_PERCENT: u64 = 50;

/// The most of one tenant that certainly was admitted within one second below a path: sent after its
/// begin, and answered before its end.
fn worst(admissions: &[Admission], path: &str) -> u64 {
    let mut of_path: Vec<&Admission> = admissions.iter().filter(|one| one.path == path).collect();
    // A soak of days has millions of them, of which each is compared with those of its second alone.
    of_path.sort_unstable_by_key(|one| (one.tenant, one.sent));
    let within = |rest: &[&Admission]| {
        let Some(first) = rest.first() else { return 0 };
        let end = first.sent + Duration::from_secs(1);
        let second = rest.iter().take_while(|one| one.tenant == first.tenant && one.sent < end);
        second.filter(|one| one.done < end).count()
    };
    let most = (0..of_path.len()).map(|first| within(&of_path[first..])).max();
    u64::try_from(most.unwrap_or(0)).unwrap()
}

#[test]
fn the_worst_second_is_found() {
    let start = Instant::now();
    let at = |millis: u64| start + Duration::from_millis(millis);
    let one = |path, tenant, sent: u64, done: u64| Admission {
        path,
        tenant,
        sent: at(sent),
        done: at(done),
    };
    let mut admissions = vec![
        one("/a", 1, 990, 1000),
        one("/a", 1, 0, 10),
        one("/a", 1, 900, 1100),
        one("/a", 1, 1050, 1060),
        one("/a", 2, 1001, 1002),
        one("/b", 1, 995, 999),
    ];
    // From 900 on; from 0 on the second one is not certainly in it.
    assert_eq!((worst(&admissions, "/a"), worst(&admissions, "/b")), (3, 1));
    admissions.extend((0..200_000).map(|number| one("/c", 1, number * 300, number * 300 + 1)));
    assert_eq!(worst(&admissions, "/c"), 4);
}

fn plugin(round: u64) -> Value {
    let window = |requests: u64| json!({"requests": requests, "window": "1s"});
    json!({
        "limits": [
            {"name": "node", "shared": window(80), "tenant": window(5 + round % 7),
             "credential": {"rate": 10, "per": "1s", "burst": 20},
             "in_flight": {"shared": 200, "tenant": 50, "credential": 20}},
            {"name": "leased", "match": {"path_prefix": "/leased"}, "scope": "global",
             "shared": window(40), "tenant": window(LEASED.1), "local_fraction": 0.5},
            {"name": "strict", "match": {"path_prefix": "/strict"}, "scope": "global",
             "consistency": "strict", "on_store_error": "deny", "tenant": window(STRICT.1)},
            {"name": "watched", "mode": "shadow", "tenant": window(3), "in_flight": {"tenant": 1}},
        ],
        "store": {"cluster": "fairshare_redis", "timeout": "50ms"},
    })
}

/// A number as good as random, from a seed that moves on (SplitMix64).
fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A number below `end`.
fn below(seed: &mut u64, end: usize) -> usize {
    usize::try_from(random(seed) % u64::try_from(end).unwrap()).unwrap()
}

/// A byte that no ASCII text has.
fn odd_byte(seed: &mut u64) -> u8 {
    u8::try_from(0x80 + random(seed) % 0x80).unwrap()
}

/// Any request at all: known and invented tenants, odd bytes, huge values, slow answers. With it comes
/// its path, and the number in a tenant's name that comes again.
fn request(seed: &mut u64) -> (Request, &'static str, Option<u64>) {
    let path = ["/", LEASED.0, STRICT.0][below(seed, 3)];
    let mut known = None;
    let mut request = match random(seed) % 4 {
        0 => Request::post(path, vec![b'x'; below(seed, 100_000)]),
        _ => Request::get(path),
    };
    request = match random(seed) % 8 {
        0 => request,
        1 => request.tenant([b'a', odd_byte(seed)]),
        2 => request.tenant("a").tenant("b"),
        3 => request.tenant(format!("invented-{}", random(seed))),
        number => {
            known = Some(number);
            request.tenant(format!("tenant-{number}"))
        }
    };
    if below(seed, 2) == 0 {
        request = request.header("authorization", format!("Bearer k{}", random(seed) % 5));
    }
    let request = match random(seed) % 16 {
        0 => request.header("x-echo-delay-ms", (random(seed) % 1500).to_string()),
        1 => request.header("x-echo-abort", ["headers", "body"][below(seed, 2)]),
        2 => request.header("x-huge", vec![b'h'; below(seed, 50_000)]),
        3 => request.header("x-odd", [odd_byte(seed), odd_byte(seed)]),
        _ => request,
    };
    (request, path, known)
}

/// Why a request was refused.
fn reason(answer: &Response) -> String {
    let problem = answer.header("content-type").as_deref() == Some("application/problem+json");
    let code = problem.then(|| answer.json()["code"].as_str().map(str::to_owned)).flatten();
    code.unwrap_or_else(|| format!("{} of others", answer.status))
}

/// Whether something accounts for an answer of 5xx: a limit that denies without the store, or an upstream that
/// closed the connection because the request asked for it.
fn is_due(request: &Request, path: &str, reason: &str) -> bool {
    let aborts = (b"x-echo-abort".to_vec(), b"headers".to_vec());
    match reason {
        "store_unavailable" => path == STRICT.0,
        "503 of others" => request.pairs().contains(&aborts),
        _ => false,
    }
}

/// Whether something accounts for a request that ends without a whole answer: an upstream that was to end it in the
/// middle, or that takes longer than a listener lives after a reload; a body that was not read when it was refused.
/// One that hangs ends with its listener too, so what is not slow on purpose must not.
fn may_end_unanswered(request: &Request, error: ErrorKind) -> bool {
    let ends = (b"x-echo-abort".to_vec(), b"body".to_vec());
    let pairs = request.pairs();
    let has = |name: &[u8]| pairs.iter().any(|(known, _)| known == name);
    match error {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => has(b"content-length"),
        ErrorKind::UnexpectedEof => pairs.contains(&ends) || has(b"x-echo-delay-ms"),
        _ => false,
    }
}

#[test]
fn what_accounts_for_no_answer_is_known() {
    let (plain, post) = (Request::get("/"), Request::post("/", "x"));
    let ends = Request::get("/").header("x-echo-abort", "body");
    let slow = Request::get("/").header("x-echo-delay-ms", "1400");
    assert!(may_end_unanswered(&slow, ErrorKind::UnexpectedEof));
    assert!(!may_end_unanswered(&slow, ErrorKind::WouldBlock));
    assert!(may_end_unanswered(&ends, ErrorKind::UnexpectedEof));
    assert!(may_end_unanswered(&post, ErrorKind::BrokenPipe));
    assert!(!may_end_unanswered(&plain, ErrorKind::UnexpectedEof), "as after a hang");
    assert!(!may_end_unanswered(&ends, ErrorKind::WouldBlock));
    assert!(!may_end_unanswered(&post, ErrorKind::WouldBlock));
}

#[test]
fn what_accounts_for_5xx_is_known() {
    let (plain, ends) = (Request::get("/"), Request::get("/").header("x-echo-abort", "body"));
    let aborts = Request::get("/").header("x-echo-abort", "headers");
    assert!(is_due(&plain, STRICT.0, "store_unavailable"));
    assert!(is_due(&aborts, "/", "503 of others"));
    assert!(!is_due(&plain, LEASED.0, "store_unavailable"), "its limit does not deny");
    assert!(!is_due(&plain, "/", "503 of others"), "as after a trap");
    assert!(!is_due(&ends, "/", "503 of others"));
    assert!(!is_due(&aborts, "/", "504 of others"));
}

fn client(port: u16, mut seed: u64, stop: &AtomicBool, tally: &Tally) {
    let count = |counter: &AtomicU64| {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    while !stop.load(Ordering::Relaxed) {
        let (request, path, known) = request(&mut seed);
        let Ok(mut connection) = Connection::open(port) else { continue };
        if below(&mut seed, 5) == 0 {
            // Half a request, or a whole one whose answer nobody waits for.
            let bytes = request.to_bytes();
            let end = bytes.len() - below(&mut seed, bytes.len().min(200));
            drop(connection.send_raw(&bytes[..end]));
            thread::sleep(Duration::from_millis(random(&mut seed) % 30));
            count(&tally.aborted);
            continue;
        }
        let sent = Instant::now();
        let answer = match connection.send(&request) {
            Ok(answer) => answer,
            Err(error) => {
                let ended = may_end_unanswered(&request, error.kind());
                count(if ended { &tally.aborted } else { &tally.unanswered });
                continue;
            }
        };
        if answer.status == 200 {
            count(&tally.admitted);
            let admission =
                known.map(|tenant| Admission { path, tenant, sent, done: Instant::now() });
            tally.admissions.lock().unwrap().extend(admission);
            continue;
        }
        let reason = reason(&answer);
        if answer.status >= 500 && !is_due(&request, path, &reason) {
            *tally.undue.lock().unwrap().entry(format!("{path} {reason}")).or_default() += 1;
        }
        *tally.refusals.lock().unwrap().entry(reason).or_default() += 1;
        match answer.status {
            429 => count(&tally.refused),
            503 => count(&tally.unavailable),
            _ => count(&tally.bad),
        }
    }
}

impl Tally {
    fn print(&self, time: Duration, reloads: usize) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let decided = [&self.admitted, &self.refused, &self.bad, &self.unavailable];
        let sent = decided.into_iter().chain([&self.aborted, &self.unanswered]);
        println!(
            "soak: {time:?}, {} requests: {} admitted, {} refused, {} other 4xx and 5xx, {} unavailable, {} aborted, {} unanswered, {reloads} reloads",
            sent.map(read).sum::<u64>(),
            read(&self.admitted),
            read(&self.refused),
            read(&self.bad),
            read(&self.unavailable),
            read(&self.aborted),
            read(&self.unanswered),
        );
        println!("soak: refusals {:?}", self.refusals.lock().unwrap());
        println!("soak: 5xx that nothing accounts for {:?}", self.undue.lock().unwrap());
    }

    /// Requests were decided in both ways, and never too many admitted; each had an answer, and the one it is due.
    fn check(&self) {
        let (admitted, refused) = (&self.admitted, &self.refused);
        assert!(admitted.load(Ordering::Relaxed) > 0 && refused.load(Ordering::Relaxed) > 0);
        assert_eq!(self.unanswered.load(Ordering::Relaxed), 0, "requests without an answer");
        assert!(self.undue.lock().unwrap().is_empty(), "{:?}", self.undue.lock().unwrap());
        let admissions = self.admissions.lock().unwrap();
        let (leased, strict) = (worst(&admissions, LEASED.0), worst(&admissions, STRICT.0));
        println!(
            "soak: at most {strict} of {} strict units and {leased} of {} leased ones in a second",
            STRICT.1, LEASED.1
        );
        assert!(strict <= STRICT.1, "more than the strict limit in a second");
        let most = (100 + LOCAL_PERCENT) * LEASED.1;
        assert!(100 * leased <= most, "more than the leased limit in a second");
    }
}

#[test]
#[ignore = "takes minutes: ./envoy/soak.sh"]
fn nothing_traps_leaks_or_grows() {
    let minutes = std::env::var("FAIRSHARE_SOAK_MINUTES").ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(60 * minutes.unwrap_or(10));
    let redis = Redis::start();
    let mut envoy = Envoy::builder(plugin(0)).redis_unix(redis.socket()).start();
    let (stop, tally) = (AtomicBool::new(false), Tally::default());
    let (start, port) = (Instant::now(), envoy.port());
    let mut resident = Vec::new();
    thread::scope(|scope| {
        for number in 0..8 {
            let (stop, tally) = (&stop, &tally);
            scope.spawn(move || client(port, number * 1_000_003, stop, tally));
        }
        for round in 1.. {
            thread::sleep(RELOAD_EVERY);
            assert_eq!(envoy.update_plugin(plugin(round)), Update::Accepted);
            match round % 10 {
                3 => redis.pause(),
                4 => redis.resume(),
                7 => drop(redis.run(&["SCRIPT", "FLUSH"])),
                _ => {}
            }
            resident.push((start.elapsed(), envoy.resident_bytes()));
            if start.elapsed() >= time {
                break;
            }
        }
        redis.resume();
        stop.store(true, Ordering::Relaxed);
    });
    tally.print(start.elapsed(), resident.len());
    let minute = Duration::from_secs(60);
    let settled: Vec<u64> =
        resident.iter().filter(|(at, _)| *at >= minute).map(|(_, bytes)| *bytes).collect();
    let (first, last) = (settled.first().copied(), settled.last().copied());
    println!(
        "soak: memory {:?} MiB after a minute, {:?} MiB at the end",
        first.map(|bytes| bytes / MIB),
        last.map(|bytes| bytes / MIB)
    );
    let in_flight = || envoy.metric("fairshare_in_flight", &[]);
    poll_until(Duration::from_secs(40), || (in_flight() == 0).then_some(()));
    let traps = envoy.log().matches("vm failed").count();
    println!("soak: {} in flight at the end, {traps} traps", in_flight());
    assert_eq!((in_flight(), traps), (0, 0), "{}", envoy.log());
    assert_eq!(envoy.stat("wasm.fairshare.vm_reload_success"), 0, "no VM was ever made anew");
    tally.check();
    assert!(redis.keys().iter().all(|key| redis.pttl(key) > 0), "a key without expiry");
    if let (Some(first), Some(last)) = (first, last) {
        assert!(
            last < first + 24 * MIB,
            "{} MiB more after the first minute",
            (last - first) / MIB
        );
    }
}
