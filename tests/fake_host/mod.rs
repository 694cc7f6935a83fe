//! A host with the proxy's semantics and a clock that tests move: one process of several workers
//! that share data by compare-and-swap, wake themselves, and call a store.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests fail by panicking"
)]

/// Calls of the store.
mod calls;
/// What a worker's host does.
mod host;
/// What all workers of a process share.
mod shared_map;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

pub use calls::{FakeCall, StoreReply};
use fairshare::config::{self, ConfigError};
use fairshare::filter::{RateLimitFields, Reply, Step, Worker};
use fairshare::host::StreamId;
use fairshare::policy::{HeaderMap, Policy};
use fairshare::units::{Instant, Span};
pub use host::FakeHost;
pub use shared_map::SharedMap;

/// One proxy process.
pub struct Process {
    workers: Vec<FakeWorker>,
    /// Workers of earlier configurations, whose requests go on to their ends.
    draining: Vec<FakeWorker>,
    plugin: String,
    machine: Rc<RefCell<Machine>>,
    next_stream: u32,
    next_worker: usize,
    /// The workers that cannot call the store, and get no requests.
    cut_off: Range<usize>,
}

/// What all workers of the process share.
#[derive(Default)]
pub struct Machine {
    data: BTreeMap<String, (Vec<u8>, u32)>,
    last_cas: u32,
    /// How often shared data were written.
    pub swaps: u32,
    metrics: BTreeMap<String, u64>,
    pub now: Instant,
    /// Whether reads and writes of shared data fail.
    pub broken: bool,
    /// So many of the next swaps are lost, as if another worker wrote the same bytes just before.
    pub lost_swaps: u32,
    /// Swaps are made and said to be lost.
    pub lies: bool,
    /// Swaps that are lost are said to be made.
    pub boasts: bool,
    /// Runs before the next swap, as another worker that comes in between.
    pub before_swap: Option<Interloper>,
}

/// Another worker's deed.
pub type Interloper = Box<dyn FnOnce(&mut SharedMap)>;

/// One worker thread.
pub struct FakeWorker {
    pub worker: Worker,
    pub host: FakeHost,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It went upstream; these fields stand on its answer.
    Passed(Option<RateLimitFields>),
    /// It was answered here.
    Answered(Reply),
    /// It still waits for the store.
    Waits,
}

impl Process {
    /// A process of `workers` workers under this plugin JSON.
    pub fn new(plugin: &str, workers: usize) -> Result<Self, Vec<ConfigError>> {
        let machine = Rc::new(RefCell::new(Machine::default()));
        machine.borrow_mut().now = Instant::ORIGIN.plus(Span::from_secs(1_000_000));
        let mut process = Self {
            workers: vec![],
            draining: vec![],
            plugin: String::new(),
            machine,
            next_stream: 1,
            next_worker: 0,
            cut_off: 0..0,
        };
        process.configure(plugin, workers)?;
        Ok(process)
    }

    /// Puts another plugin JSON in force, or leaves the old one.
    pub fn update(&mut self, plugin: &str) -> Result<(), Vec<ConfigError>> {
        self.configure(plugin, self.workers.len())
    }

    fn configure(&mut self, plugin: &str, workers: usize) -> Result<(), Vec<ConfigError>> {
        let policy = Rc::new(config::parse(plugin.as_bytes())?);
        let new = (0..workers).map(|_| FakeWorker::new(&policy, &self.machine)).collect();
        self.draining.extend(std::mem::replace(&mut self.workers, new));
        plugin.clone_into(&mut self.plugin);
        self.cut_off(self.cut_off.clone());
        Ok(())
    }

    /// The VM of every worker traps: none of its requests is ever heard of again, and fresh VMs take
    /// their place.
    pub fn trap(&mut self) {
        let policy = Rc::new(config::parse(self.plugin.as_bytes()).expect("it was taken"));
        self.draining.clear();
        for worker in &mut self.workers {
            *worker = FakeWorker::new(&policy, &self.machine);
        }
    }

    pub fn machine(&self) -> Rc<RefCell<Machine>> {
        Rc::clone(&self.machine)
    }

    pub fn advance(&mut self, span: Span) {
        let mut machine = self.machine.borrow_mut();
        machine.now = machine.now.plus(span);
    }

    /// Lets time pass, with all that timers do in it.
    pub fn pass(&mut self, span: Span) {
        const TICK: Span = Span::from_millis(100);
        let end = self.machine.borrow().now.plus(span);
        while self.machine.borrow().now < end {
            let left = end.since(self.machine.borrow().now);
            self.advance(left.min(TICK));
            self.tick();
        }
    }

    pub fn metric(&self, name: &str) -> u64 {
        self.machine.borrow().metrics.get(name).copied().unwrap_or(0)
    }

    /// The sum of all metrics whose names contain every part.
    pub fn metrics_with(&self, parts: &[&str]) -> u64 {
        let machine = self.machine.borrow();
        let named =
            machine.metrics.iter().filter(|(name, _)| parts.iter().all(|p| name.contains(p)));
        named.map(|(_, value)| value).sum()
    }

    /// Everything that is kept in shared data, as text.
    pub fn shared_keys(&self) -> Vec<String> {
        self.machine.borrow().data.keys().cloned().collect()
    }

    /// Starts a request on the next worker in turn. It lasts until [`end`](Self::end).
    pub fn start(&mut self, pairs: &[(&[u8], &[u8])]) -> (StreamId, Outcome) {
        self.start_with(pairs, &[])
    }

    /// The same; `properties` are the request's attributes, by their path with dots.
    pub fn start_with(
        &mut self,
        pairs: &[(&[u8], &[u8])],
        properties: &[(&str, &[u8])],
    ) -> (StreamId, Outcome) {
        let stream = StreamId(self.next_stream);
        self.next_stream += 1;
        while self.cut_off.contains(&(self.next_worker % self.workers.len())) {
            self.next_worker += 1;
        }
        let number = self.next_worker % self.workers.len();
        self.next_worker += 1;
        let now = self.machine.borrow().now;
        let FakeWorker { worker, host } = &mut self.workers[number];
        let owned = |(path, value): &(&str, &[u8])| ((*path).to_owned(), value.to_vec());
        host.properties = properties.iter().map(owned).collect();
        host.statuses.insert(stream, upstream_status(pairs));
        let bytes = HeaderMap::serialize(pairs);
        let outcome = match worker.on_request(host, stream, HeaderMap::new(&bytes), now) {
            Step::Continue => Outcome::Passed(host.answer(worker, stream, now)),
            Step::Reply(reply) => Outcome::Answered(Rc::unwrap_or_clone(reply)),
            Step::Pause => Outcome::Waits,
        };
        (stream, outcome)
    }

    /// Runs all wake-ups and hands every store call to `store`, until nothing is left to do.
    /// Returns what became of the requests that waited.
    pub fn run(&mut self, store: &mut dyn FnMut(&[u8]) -> StoreReply) -> Vec<(StreamId, Outcome)> {
        self.run_on_nodes(&mut |_, body| store(body))
    }

    /// The same, with a store of several nodes.
    pub fn run_on_nodes(
        &mut self,
        store: &mut dyn FnMut(Option<&str>, &[u8]) -> StoreReply,
    ) -> Vec<(StreamId, Outcome)> {
        let mut settled = Vec::new();
        for FakeWorker { worker, host } in self.workers.iter_mut().chain(&mut self.draining) {
            for _ in 0..100 {
                let now = self.machine.borrow().now;
                if host.wakes > 0 {
                    host.wakes -= 1;
                    worker.on_wake(host, now);
                } else if let Some(FakeCall { id, node, body, .. }) = host.calls.pop() {
                    let reply = store(node.as_deref(), &body);
                    worker.on_store_reply(host, id, reply.as_deref().map_err(|error| *error), now);
                } else {
                    break;
                }
                settled.extend(host.take_outcomes(worker, now));
            }
        }
        settled
    }

    /// Runs all wake-ups and lets the store answer the calls that have lasted for `rtt`.
    pub fn run_after(
        &mut self,
        rtt: Span,
        store: &mut dyn FnMut(&[u8]) -> StoreReply,
    ) -> Vec<(StreamId, Outcome)> {
        let mut settled = Vec::new();
        let now = self.machine.borrow().now;
        for FakeWorker { worker, host } in &mut self.workers {
            loop {
                let due = host.calls.iter().position(|call| now.since(call.made_at) >= rtt);
                if host.wakes > 0 {
                    host.wakes -= 1;
                    worker.on_wake(host, now);
                } else if let Some(due) = due {
                    let FakeCall { id, body, .. } = host.calls.remove(due);
                    let reply = store(&body);
                    worker.on_store_reply(host, id, reply.as_deref().map_err(|error| *error), now);
                } else {
                    break;
                }
                settled.extend(host.take_outcomes(worker, now));
            }
        }
        settled
    }

    /// Answers the oldest call of the first worker, and no other.
    pub fn answer_one(&mut self, store: &mut dyn FnMut(&[u8]) -> StoreReply) {
        let now = self.machine.borrow().now;
        let FakeWorker { worker, host } = &mut self.workers[0];
        let FakeCall { id, body, .. } = host.calls.remove(0);
        worker.on_store_reply(host, id, store(&body).as_deref().map_err(|error| *error), now);
    }

    /// Runs all wake-ups, and lets the store say nothing. Returns what became of requests, and how
    /// many calls are under way.
    pub fn wake(&mut self) -> (Vec<(StreamId, Outcome)>, usize) {
        let mut settled = Vec::new();
        let mut calls = 0;
        for FakeWorker { worker, host } in &mut self.workers {
            let now = self.machine.borrow().now;
            settled.extend(host.take_outcomes(worker, now));
            while host.wakes > 0 {
                host.wakes -= 1;
                worker.on_wake(host, now);
                settled.extend(host.take_outcomes(worker, now));
            }
            calls += host.calls.len();
        }
        (settled, calls)
    }

    /// A request is over, in whatever way. Workers that do not know it, because it was refused or
    /// never had headers, are told as well, as a proxy tells them.
    pub fn end(&mut self, stream: StreamId) {
        let now = self.machine.borrow().now;
        for FakeWorker { worker, host } in self.workers.iter_mut().chain(&mut self.draining) {
            worker.on_end(host, stream, || now);
        }
    }

    /// Time passes for every worker's timer.
    pub fn tick(&mut self) {
        let now = self.machine.borrow().now;
        for FakeWorker { worker, host } in self.workers.iter_mut().chain(&mut self.draining) {
            worker.on_tick(host, now);
        }
    }

    /// From now on these workers cannot call the store, all others can, and these get no requests. So is
    /// the VM of a proxy's main thread.
    pub fn cut_off(&mut self, workers: Range<usize>) {
        for (number, FakeWorker { host, .. }) in self.workers.iter_mut().enumerate() {
            host.store_reachable = !workers.contains(&number);
        }
        self.cut_off = workers;
    }

    /// Whether the host can call the store at all.
    pub fn set_store_reachable(&mut self, reachable: bool) {
        for FakeWorker { host, .. } in &mut self.workers {
            host.store_reachable = reachable;
        }
    }
}

impl FakeWorker {
    pub fn new(policy: &Rc<Policy>, machine: &Rc<RefCell<Machine>>) -> Self {
        let worker = Worker::new(Rc::clone(policy), 77);
        let host = FakeHost::new(machine, worker.metrics().names().to_vec());
        Self { worker, host }
    }
}

impl Outcome {
    /// The status of its answer; 0 where there is none yet.
    pub fn status(&self) -> u16 {
        match self {
            Self::Answered(reply) => reply.status,
            Self::Passed(_) => 200,
            Self::Waits => 0,
        }
    }
}

/// How many of these requests went upstream.
pub fn passed(outcomes: &[(StreamId, Outcome)]) -> usize {
    outcomes.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Passed(_))).count()
}

impl Machine {
    /// The time in microseconds, as a store's clock tells it.
    pub fn now_us(&self) -> u64 {
        self.now.as_nanos() / 1000
    }

    pub fn metrics(&self) -> &BTreeMap<String, u64> {
        &self.metrics
    }

    /// Counts `by` more of the first metric whose name contains `part`, if there is such a metric.
    pub fn miscount(&mut self, part: &str, by: i64) -> Option<()> {
        let (_, value) = self.metrics.iter_mut().find(|(name, _)| name.contains(part))?;
        *value = value.checked_add_signed(by)?;
        Some(())
    }

    /// Bytes of all values.
    pub fn bytes(&self) -> usize {
        self.data.values().map(|(value, _)| value.len()).sum()
    }
}

/// What the upstream answers: 200, or what the request asks for.
fn upstream_status(pairs: &[(&[u8], &[u8])]) -> Vec<u8> {
    let wanted = pairs.iter().find(|(name, _)| *name == b"x-echo-status");
    wanted.map_or(b"200".to_vec(), |(_, status)| status.to_vec())
}
