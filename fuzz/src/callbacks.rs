//! Whatever comes in whatever order, each request has one outcome, and nothing stays held.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use fairshare::filter::{MetricId, Reply, Step, Worker};
use fairshare::host::{CallId, Host, StoreCall, StreamId, WakeFailure};
use fairshare::policy::HeaderMap;
use fairshare::store::StoreError;
use fairshare::store::shared_data::{SharedData, SharedDataFailure, Swap, Version, Versioned};
use fairshare::units::{Instant, Span};

use crate::bytes::Bytes;
use crate::policies::policy;
use crate::store;

/// The most callbacks of a run, so that long inputs are no slower than they are useful.
const STEPS_MAX: usize = 150;

/// Requests that the host lets go or answers in one callback run nested in one another.
const OUTCOMES_MAX: usize = 64;

/// Time after which a worker that vanished holds nothing any more, and then some.
const REST: Span = Span::from_secs(20);

/// What can fail, one bit each.
const READS: u8 = 1;
const WRITES: u8 = 2;
const WAKES: u8 = 4;
const CALLS: u8 = 8;

/// A host of one worker.
#[derive(Default)]
struct Machine {
    fails: u8,
    data: BTreeMap<String, (Vec<u8>, u32)>,
    version: u32,
    wakes: usize,
    calls: Vec<(CallId, Vec<u8>)>,
    next_call: u32,
    /// Requests that are paused.
    paused: BTreeSet<StreamId>,
    /// Outcomes in this callback.
    outcomes: usize,
    /// The last value of each gauge.
    gauges: BTreeMap<usize, u64>,
}

impl Machine {
    fn settle(&mut self, stream: StreamId) {
        assert!(self.paused.remove(&stream), "{stream:?} has an outcome that nobody waits for");
        self.outcomes += 1;
        assert!(self.outcomes <= OUTCOMES_MAX, "too many requests in one callback");
    }
}

impl SharedData for Machine {
    fn get(&mut self, key: &str) -> Result<Versioned, SharedDataFailure> {
        if self.fails & READS != 0 {
            return Err(SharedDataFailure);
        }
        let found = self.data.get(key).cloned();
        Ok(match found {
            Some((bytes, version)) => Versioned { bytes, version: Version::At(version) },
            None => Versioned { bytes: vec![], version: Version::Absent },
        })
    }

    fn swap(&mut self, key: &str, bytes: &[u8], seen: Version) -> Result<Swap, SharedDataFailure> {
        if self.fails & WRITES != 0 {
            return Err(SharedDataFailure);
        }
        if self.data.get(key).is_some_and(|(_, version)| seen != Version::At(*version)) {
            return Ok(Swap::Lost);
        }
        self.version += 1;
        self.data.insert(key.to_owned(), (bytes.to_vec(), self.version));
        Ok(Swap::Done)
    }
}

impl Host for Machine {
    fn wake(&mut self) -> Result<(), WakeFailure> {
        if self.fails & WAKES != 0 {
            return Err(WakeFailure);
        }
        self.wakes += 1;
        Ok(())
    }

    fn call_store(&mut self, call: &StoreCall<'_>) -> Result<CallId, StoreError> {
        assert!(call.timeout >= Span::from_millis(1), "the host reads this as no timeout");
        if self.fails & CALLS != 0 {
            return Err(StoreError::Unreachable);
        }
        self.next_call += 1;
        self.calls.push((CallId(self.next_call), call.body.to_vec()));
        Ok(CallId(self.next_call))
    }

    fn resume(&mut self, stream: StreamId) {
        self.settle(stream);
    }

    fn reply(&mut self, stream: StreamId, _reply: &Reply) {
        self.settle(stream);
    }

    fn property(&mut self, _path: &[&str]) -> Option<Vec<u8>> {
        Some(b"192.0.2.7:5000".to_vec())
    }

    fn count(&mut self, _metric: MetricId, by: u64) {
        assert!(by > 0, "hosts refuse to add nothing");
    }

    fn record(&mut self, metric: MetricId, value: u64) {
        self.gauges.insert(metric.0, value);
    }
}

/// A worker, its host, and how far it is.
struct Run {
    worker: Worker,
    machine: Machine,
    now: Instant,
    /// Requests that have not ended.
    alive: Vec<StreamId>,
    next_stream: u32,
}

/// Reads bytes as callbacks and what they carry.
pub fn run(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let policy = policy(bytes.below(3));
    let mut run = Run {
        worker: Worker::new(Rc::clone(&policy), 7),
        machine: Machine::default(),
        now: Instant::ORIGIN.plus(Span::from_secs(1000)),
        alive: Vec::new(),
        next_stream: 0,
    };
    for _ in 0..STEPS_MAX {
        if bytes.is_empty() {
            break;
        }
        run.step(&mut bytes);
    }
    run.come_to_rest();
}

impl Run {
    fn step(&mut self, bytes: &mut Bytes<'_>) {
        self.machine.outcomes = 0;
        match bytes.below(12) {
            0..=3 => self.request(bytes),
            4 => {
                let stream = self.stream(bytes);
                let map = HeaderMap::serialize(&[(b":status", b"401")]);
                if self.worker.watches(stream) {
                    let map = HeaderMap::new(&map);
                    self.worker.on_answer(&mut self.machine, stream, map, self.now);
                }
                let _ = self.worker.on_response(stream);
            }
            5 => {
                let stream = self.stream(bytes);
                self.end(stream);
            }
            6 | 7 => self.wake(),
            8 | 9 => self.answer(bytes),
            10 => self.tick(Span::from_millis(bytes.byte().into())),
            _ => self.machine.fails = bytes.byte(),
        }
    }

    fn request(&mut self, bytes: &mut Bytes<'_>) {
        self.next_stream += 1;
        let stream = StreamId(self.next_stream);
        self.alive.push(stream);
        let path = [b"/leased".as_slice(), b"/strict", b"/", b"/healthz"][bytes.below(4)];
        let tenant = [b"acme".as_slice(), b"globex", b"", b"far too long a name"][bytes.below(4)];
        let map = HeaderMap::serialize(&[
            (b":method", b"GET"),
            (b":path", path),
            (b"x-tenant-id", tenant),
            (b"x-api-key", b"key"),
        ]);
        let map = HeaderMap::new(&map);
        if self.worker.on_request(&mut self.machine, stream, map, self.now) == Step::Pause {
            self.machine.paused.insert(stream);
        }
    }

    fn stream(&self, bytes: &mut Bytes<'_>) -> StreamId {
        let place = bytes.below(self.alive.len().max(1));
        self.alive.get(place).copied().unwrap_or(StreamId(9_999_999))
    }

    fn end(&mut self, stream: StreamId) {
        self.alive.retain(|alive| *alive != stream);
        self.machine.paused.remove(&stream);
        self.worker.on_end(&mut self.machine, stream, || self.now);
    }

    fn wake(&mut self) {
        if self.machine.wakes > 0 {
            self.machine.wakes -= 1;
            self.worker.on_wake(&mut self.machine, self.now);
        }
    }

    fn tick(&mut self, span: Span) {
        self.machine.outcomes = 0;
        self.now = self.now.plus(span);
        self.worker.on_tick(&mut self.machine, self.now);
    }

    /// A call ends, or one that nobody has made.
    fn answer(&mut self, bytes: &mut Bytes<'_>) {
        let kind = bytes.below(8);
        let (call, question) = match self.machine.calls.is_empty() || kind == 7 {
            true => (CallId(u32::MAX), Vec::new()),
            false => self.machine.calls.remove(bytes.below(self.machine.calls.len())),
        };
        let body = match kind {
            0 | 1 => Ok(store::granting(&question)),
            2 => Ok(store::refusing(&question)),
            3 => Ok(store::without_script(&question)),
            4 => Err(StoreError::ALL[bytes.below(StoreError::ALL.len())]),
            5 => {
                let mut body = store::granting(&question);
                body.truncate(usize::from(bytes.byte()));
                Ok(body)
            }
            _ => {
                let length = bytes.byte().into();
                Ok(bytes.take(length).to_vec())
            }
        };
        let body = body.as_deref().map_err(|error| *error);
        self.worker.on_store_reply(&mut self.machine, call, body, self.now);
    }

    /// The host works again, but all messages and answers are lost: only the timer is left.
    fn come_to_rest(&mut self) {
        self.machine.fails = 0;
        let waits = self.machine.paused.len() / OUTCOMES_MAX + 1;
        for _ in 0..waits + 6 {
            self.tick(Span::from_millis(10));
        }
        assert!(self.machine.paused.is_empty(), "{:?} wait for ever", self.machine.paused);
        for stream in std::mem::take(&mut self.alive) {
            self.end(stream);
        }
        let end = self.now.plus(REST);
        while self.now < end {
            self.tick(Span::from_secs(1));
        }
        let names = self.worker.metrics().names();
        let gauge = names.iter().position(|name| name == "fairshare_in_flight");
        let in_flight = gauge.and_then(|place| self.machine.gauges.get(&place));
        assert!(in_flight.is_none_or(|slots| *slots == 0), "{in_flight:?} slots stay taken");
    }
}
