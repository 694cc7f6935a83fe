//! A host that costs next to nothing, and a worker on it: what is left is the filter.
#![allow(dead_code, unreachable_pub, reason = "each binary uses its own part of this")]
#![allow(clippy::panic, clippy::arithmetic_side_effects, reason = "no part of the filter")]

use std::collections::BTreeMap;
use std::rc::Rc;

use fairshare::config;
use fairshare::filter::{MetricId, Reply, Step, Worker};
use fairshare::host::{CallId, Host, StoreCall, StreamId, WakeFailure};
use fairshare::policy::{HeaderMap, Policy};
use fairshare::store::StoreError;
use fairshare::store::shared_data::{SharedData, SharedDataFailure, Swap, Version, Versioned};
use fairshare::units::{Instant, Span};

/// Three levels of rates and three caps, as in `local_cpu_vs_empty_plugin`.
pub const FULL: &str = r#"{
  "identity": {"credential": {"from": [{"header": "x-api-key"}]}},
  "limits": [{
    "name": "dns", "match": {"path_prefix": "/dns/"}, "scope": "node",
    "shared": {"requests": 100000000, "window": "1s"},
    "tenant": {"requests": 50000000, "window": "1s"},
    "credential": {"rate": 10000000, "per": "1s", "burst": 20000000},
    "in_flight": {"shared": 5000, "tenant": 1000, "credential": 500}
  }]
}"#;

/// One process's shared data and metrics, with as few steps as can be.
#[derive(Default)]
pub struct PlainHost {
    data: BTreeMap<String, (Vec<u8>, u32)>,
    last_version: u32,
    /// Calls of the host, apart from those for time and headers.
    pub calls: u64,
    /// Whether there is a store.
    pub has_store: bool,
    /// What it was asked and has not answered.
    pub asked: Vec<(CallId, Vec<u8>)>,
    /// Whether the worker wants to be woken.
    pub is_woken: bool,
    /// Requests that were let go after they had waited.
    pub resumed: Vec<StreamId>,
}

/// A worker whose requests come one after the other.
pub struct Bench {
    pub worker: Worker,
    pub host: PlainHost,
    pub now: Instant,
    next: u32,
}

impl SharedData for PlainHost {
    fn get(&mut self, key: &str) -> Result<Versioned, SharedDataFailure> {
        self.calls += 1;
        Ok(match self.data.get(key) {
            Some((bytes, version)) => {
                Versioned { bytes: bytes.clone(), version: Version::At(*version) }
            }
            None => Versioned { bytes: Vec::new(), version: Version::Absent },
        })
    }

    fn swap(&mut self, key: &str, bytes: &[u8], seen: Version) -> Result<Swap, SharedDataFailure> {
        self.calls += 1;
        self.last_version += 1;
        if let Some((value, version)) = self.data.get_mut(key) {
            if seen != Version::At(*version) {
                return Ok(Swap::Lost);
            }
            (*version, *value) = (self.last_version, bytes.to_vec());
            return Ok(Swap::Done);
        }
        self.data.insert(key.to_owned(), (bytes.to_vec(), self.last_version));
        Ok(Swap::Done)
    }
}

impl Host for PlainHost {
    fn wake(&mut self) -> Result<(), WakeFailure> {
        self.is_woken = true;
        Ok(())
    }

    fn call_store(&mut self, call: &StoreCall<'_>) -> Result<CallId, StoreError> {
        if !self.has_store {
            return Err(StoreError::Unreachable);
        }
        self.calls += 1;
        let id = CallId(u32::try_from(self.calls).unwrap_or(0));
        self.asked.push((id, call.body.to_vec()));
        Ok(id)
    }

    fn resume(&mut self, stream: StreamId) {
        self.resumed.push(stream);
    }

    fn reply(&mut self, _: StreamId, _: &Reply) {}

    fn property(&mut self, _: &[&str]) -> Option<Vec<u8>> {
        None
    }

    fn count(&mut self, _: MetricId, _: u64) {
        self.calls += 1;
    }

    fn record(&mut self, _: MetricId, _: u64) {
        self.calls += 1;
    }
}

impl PlainHost {
    /// What stands under a key.
    pub fn value(&self, key: &str) -> Vec<u8> {
        self.data.get(key).map(|(bytes, _)| bytes.clone()).unwrap_or_default()
    }
}

impl Bench {
    pub fn new(plugin: &str) -> Self {
        let policy = policy(plugin);
        let now = Instant::from_nanos(1_000_000_000_000);
        Self { worker: Worker::new(policy, 7), host: PlainHost::default(), now, next: 0 }
    }

    /// One that has a store, which answers when it is told to.
    pub fn with_store(plugin: &str) -> Self {
        let mut bench = Self::new(plugin);
        bench.host.has_store = true;
        bench
    }

    /// These requests come at once and wait, and the wake-up follows from which the store is called.
    pub fn ask(&mut self, requests: &[Vec<u8>]) {
        for headers in requests {
            self.next += 1;
            let (stream, headers) = (StreamId(self.next), HeaderMap::new(headers));
            let step = self.worker.on_request(&mut self.host, stream, headers, self.now);
            assert!(step == Step::Pause, "{step:?}");
        }
        self.wake();
    }

    /// The store's replies come, and the wake-ups that it takes until nobody is left.
    pub fn answer(&mut self, replies: &[(CallId, Vec<u8>)]) {
        for (call, body) in replies {
            self.worker.on_store_reply(&mut self.host, *call, Ok(body), self.now);
        }
        self.wake();
    }

    fn wake(&mut self) {
        while std::mem::take(&mut self.host.is_woken) {
            self.worker.on_wake(&mut self.host, self.now);
        }
    }

    /// A whole request, 100 µs after the one before: its headers, those of its answer, its end.
    /// Returns whether it was admitted.
    pub fn request(&mut self, headers: &[u8]) -> bool {
        self.next += 1;
        self.now = self.now.plus(Span::from_micros(100));
        let stream = StreamId(self.next);
        let headers = HeaderMap::new(headers);
        let step = self.worker.on_request(&mut self.host, stream, headers, self.now);
        let _ = std::hint::black_box(self.worker.on_response(stream));
        self.worker.on_end(&mut self.host, stream, || self.now);
        step == Step::Continue
    }
}

pub fn policy(plugin: &str) -> Rc<Policy> {
    match config::parse(plugin.as_bytes()) {
        Ok(policy) => Rc::new(policy),
        Err(errors) => panic!("{}", errors.iter().map(ToString::to_string).collect::<String>()),
    }
}

/// The headers that a browser's request has behind Envoy, from this tenant.
pub fn headers(tenant: &str) -> Vec<u8> {
    HeaderMap::serialize(&[
        (b":authority", b"api.example.com"),
        (b":path", b"/dns/lookup?name=example.com"),
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b"accept", b"*/*"),
        (b"user-agent", b"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36"),
        (b"x-forwarded-proto", b"https"),
        (b"x-request-id", b"7f6f2c1e-6f0b-4a0e-9d7c-0a4c1f2b3d4e"),
        (b"x-tenant-id", tenant.as_bytes()),
        (b"x-api-key", b"k-0123456789abcdef0123456789abcdef"),
    ])
}

/// As many limits as `count`, all of which match; each of three levels.
pub fn many_limits(count: usize) -> String {
    let limit = |number: usize| {
        format!(
            r#"{{"name": "l{number}", "scope": "node",
                "shared": {{"requests": 100000000, "window": "1s"}},
                "tenant": {{"requests": 50000000, "window": "1s"}},
                "credential": {{"rate": 10000000, "per": "1s", "burst": 20000000}}}}"#
        )
    };
    let limits: Vec<String> = (0..count).map(limit).collect();
    format!(
        r#"{{"identity": {{"credential": {{"from": [{{"header": "x-api-key"}}]}}}}, "limits": [{}]}}"#,
        limits.join(",")
    )
}
