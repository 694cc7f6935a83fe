//! What no request and no answer of the store may do to a real Envoy's VMs and its connections.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::scenarios::{by, window};
use crate::support::client::{Connection, Request};
use crate::support::envoy::Envoy;
use crate::support::go_between::{GoBetween, Manner};
use crate::support::redis::Redis;

const FUZZED: u64 = 10_000;

/// Numbers as good as random, from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> usize {
        usize::try_from(self.next() % end).expect("a small number")
    }

    /// Bytes that end no line: mostly those that HTTP allows, of UTF-8 or not; now and then any at all.
    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let (length, kind) = (self.below(most), self.next() % 100);
        let byte = |random: u64| u8::try_from(random % 256).expect("a byte");
        (0..length)
            .map(|_| match (kind, byte(self.next())) {
                (0, b'\r' | b'\n') => b' ',
                (0, any) => any,
                (1..50, any) => b'!' + any % 94,
                (_, any @ (b'\t' | b' '..=b'~' | 0x80..)) => any,
                (_, any) => 0x80 + any,
            })
            .collect()
    }
}

/// A request without a body, whose header map is like no other's: names that the filter reads, often more
/// than once, names that it does not, empty and long values, bytes of every kind.
fn fuzzed(random: &mut Random) -> Vec<u8> {
    const NAMES: [&str; 13] = [
        "x-tenant-id",
        "X-Tenant-Id",
        "x-api-key",
        "authorization",
        "x-forwarded-for",
        "content-type",
        "origin",
        "access-control-request-method",
        "x-request-id",
        "cookie",
        "x-envoy-attempt-count",
        "te",
        "x-odd",
    ];
    const METHODS: [&str; 5] = ["GET", "HEAD", "DELETE", "OPTIONS", "PURGE"];
    let mut request = METHODS[random.below(5)].as_bytes().to_vec();
    request.extend(b" /");
    if random.next().is_multiple_of(3) {
        let target = random.bytes(60);
        request.extend(target.iter().filter(|byte| byte.is_ascii_graphic()));
    }
    request.extend(b" HTTP/1.1\r\nhost: fairshare.test\r\nconnection: close\r\n");
    for _ in 0..random.below(24) {
        match random.next() % 400 {
            0 => request.extend(random.bytes(20)),
            1..30 => {
                let name = random.bytes(200);
                request.extend(name.iter().filter(|byte| byte.is_ascii_alphanumeric()));
                request.push(b'x');
            }
            _ => request.extend(NAMES[random.below(13)].as_bytes()),
        }
        request.extend(b": ");
        let most = if random.next().is_multiple_of(16) { 4000 } else { 40 };
        request.extend(random.bytes(most));
        request.extend(b"\r\n");
    }
    request.extend(b"\r\n");
    request
}

fn plugin() -> Value {
    json!({
        "identity": {
            "credential": {"from": [{"header": "x-api-key"},
                {"header": "authorization", "scheme": "bearer"}]},
            "client": {"trusted_hops": 1},
        },
        "auth_failures": {"per_client": {"failures": 100_000, "window": "1m"}},
        "limits": [
            {"name": "node", "shared": window(1_000_000, "1m"), "tenant": window(20, "1s"),
             "credential": window(20, "1s"), "client": window(1_000_000, "1m"),
             "in_flight": {"shared": 500, "tenant": 100}},
            {"name": "fleet", "scope": "global", "tenant": window(1000, "1m")},
        ],
        "store": {"cluster": "fairshare_redis", "timeout": "200ms"},
    })
}

/// VMX-1 d: ten thousand fuzzed header maps, byte for byte over sockets: no VM fails, and a request like any
/// other is served afterwards.
#[test]
fn vmx_1_d_fuzzed_header_maps_never_trap() {
    let redis = Redis::start();
    let envoy = Envoy::builder(plugin()).redis_unix(redis.socket()).start();
    assert_eq!(envoy.send(&by("before")).status, 200);
    let port = envoy.port();
    let client = |seed: u64| {
        let mut statuses = std::collections::BTreeMap::<u16, u64>::new();
        for number in 0..FUZZED / 4 {
            // Each request has a seed of its own, to be sent again alone.
            let request = fuzzed(&mut Random(seed * 1_000_000 + number));
            let mut connection = Connection::open(port).expect("Envoy listens");
            let sent = connection.send_raw(&request);
            let answer = sent.and_then(|()| connection.read_response(request.starts_with(b"HEAD")));
            // Envoy may close where bytes are no HTTP.
            *statuses.entry(answer.map_or(0, |answer| answer.status)).or_default() += 1;
        }
        statuses
    };
    let statuses: Vec<_> = std::thread::scope(|scope| {
        let clients: Vec<_> = (1..=4).map(|seed| scope.spawn(move || client(seed))).collect();
        clients.into_iter().map(|client| client.join().expect("a client")).collect()
    });
    let count = |wanted: u16| -> u64 { statuses.iter().filter_map(|seen| seen.get(&wanted)).sum() };
    assert!(count(200) > FUZZED / 20, "{statuses:?}");
    assert_eq!((count(500), count(503)), (0, 0), "{statuses:?}");
    let seen = envoy.metric("fairshare_requests", &[]);
    assert!(seen > FUZZED / 4, "only {seen} came to the filter: {statuses:?}");
    assert!(!envoy.log().contains("vm failed"), "{}", envoy.log());
    for stat in ["vm_reload_success", "vm_reload_failure", "vm_reload_backoff"] {
        assert_eq!(envoy.stat(&format!("wasm.fairshare.{stat}")), 0, "{}", envoy.stats());
    }
    assert_eq!(envoy.send(&by("afterwards")).status, 200);
}

/// VMX-2 a, c, d: whoever is refused is answered once and at once: on one connection each request's answer is
/// its own, also where the store answers later, and while another request waits for it.
#[test]
fn vmx_2_a_c_d_one_answer_each() {
    let store = GoBetween::start(Redis::start());
    let plugin = json!({
        "auth_failures": {"per_client": {"failures": 100, "window": "1m"}},
        "limits": [
            {"name": "fleet", "match": {"path_prefix": "/fleet"}, "scope": "global",
             "consistency": "strict", "on_store_error": "deny", "tenant": window(100, "1m")},
            {"name": "node", "match": {"path_prefix": "/node"}, "tenant": window(0, "1m")},
        ],
        "store": {"cluster": "fairshare_redis", "timeout": "400ms"},
    });
    let envoy = Envoy::builder(plugin).redis_unix(store.socket()).workers(1).start();
    let to = |path: &str| Request::get(path).tenant("acme");
    let mut connection = Connection::open(envoy.port()).expect("a connection");
    let mut status = |path: &str| {
        let start = Instant::now();
        let status = connection.send(&to(path)).expect("an answer").status;
        assert!(start.elapsed() < Duration::from_secs(1), "{path}: {:?}", start.elapsed());
        status
    };
    assert_eq!(status("/fleet"), 200);
    store.set(Manner::Late(Duration::from_millis(1200)));
    assert_eq!(status("/node"), 429, "a");
    assert_eq!(status("/fleet"), 503, "c: the store answers later");
    // The late answer comes meanwhile.
    for _ in 0..20 {
        assert_eq!(status("/node"), 429, "c");
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut waiting = Connection::open(envoy.port()).expect("a connection");
    waiting.send_raw(&to("/fleet").to_bytes()).expect("a request");
    assert_eq!(status("/node"), 429, "d");
    let start = Instant::now();
    assert_eq!(waiting.read_response(false).expect("an answer").status, 503, "d");
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(!waiting.is_readable(Duration::from_millis(1500)), "a second answer");
    assert!(!envoy.log().contains("vm failed"), "{}", envoy.log());
}
