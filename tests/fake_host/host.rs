use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use fairshare::filter::{MetricId, RateLimitFields, Reply, Worker};
use fairshare::host::{CallId, Host, StoreCall, StreamId, WakeFailure};
use fairshare::policy::HeaderMap;
use fairshare::store::StoreError;
use fairshare::store::shared_data::{SharedData, SharedDataFailure, Swap, Version, Versioned};
use fairshare::units::{Instant, Span};

use super::{FakeCall, Machine, Outcome, SharedMap};

/// The host of one worker.
pub struct FakeHost {
    shared: SharedMap,
    metric_names: Vec<String>,
    pub wakes: usize,
    next_call: u32,
    pub calls: Vec<FakeCall>,
    outcomes: Vec<(StreamId, Outcome)>,
    pub store_reachable: bool,
    /// The attributes of the request at hand, by their path with dots.
    pub(super) properties: BTreeMap<String, Vec<u8>>,
    /// What the upstream says to a request.
    pub(super) statuses: BTreeMap<StreamId, Vec<u8>>,
}

impl FakeHost {
    /// What became of requests in one callback, before anything is answered to them. The proxy runs
    /// each of them nested in the one before, on one stack, so a callback may not have many.
    pub fn take_decided(&mut self) -> Vec<(StreamId, Outcome)> {
        let outcomes = std::mem::take(&mut self.outcomes);
        assert!(outcomes.len() <= 64, "{} requests in one callback", outcomes.len());
        outcomes
    }

    /// The same, with the fields that stand on their answers.
    pub(super) fn take_outcomes(
        &mut self,
        worker: &mut Worker,
        now: Instant,
    ) -> Vec<(StreamId, Outcome)> {
        let outcomes = self.take_decided();
        let with_fields = |(stream, outcome)| match outcome {
            Outcome::Passed(_) => (stream, Outcome::Passed(self.answer(worker, stream, now))),
            other => (stream, other),
        };
        outcomes.into_iter().map(with_fields).collect()
    }

    pub(super) fn new(machine: &Rc<RefCell<Machine>>, metric_names: Vec<String>) -> Self {
        Self {
            shared: SharedMap::new(machine),
            metric_names,
            wakes: 0,
            next_call: 0,
            calls: vec![],
            outcomes: vec![],
            store_reachable: true,
            properties: BTreeMap::new(),
            statuses: BTreeMap::new(),
        }
    }

    /// Hands the upstream's answer to the worker, as the adapter does.
    pub(super) fn answer(
        &mut self,
        worker: &mut Worker,
        stream: StreamId,
        now: Instant,
    ) -> Option<RateLimitFields> {
        let status = self.statuses.remove(&stream).unwrap_or_default();
        if worker.watches(stream) {
            let headers = HeaderMap::serialize(&[(b":status", &status)]);
            worker.on_answer(self, stream, HeaderMap::new(&headers), now);
        }
        worker.on_response(stream).cloned()
    }
}

impl SharedData for FakeHost {
    fn get(&mut self, key: &str) -> Result<Versioned, SharedDataFailure> {
        self.shared.get(key)
    }

    fn swap(&mut self, key: &str, bytes: &[u8], seen: Version) -> Result<Swap, SharedDataFailure> {
        self.shared.swap(key, bytes, seen)
    }
}

impl Host for FakeHost {
    fn wake(&mut self) -> Result<(), WakeFailure> {
        self.wakes += 1;
        Ok(())
    }

    fn call_store(&mut self, call: &StoreCall<'_>) -> Result<CallId, StoreError> {
        assert!(call.timeout >= Span::from_millis(1), "the host reads this as no timeout");
        if !self.store_reachable {
            return Err(StoreError::Unreachable);
        }
        self.next_call += 1;
        let id = CallId(self.next_call);
        let (node, body) = (call.node.map(str::to_owned), call.body.to_vec());
        let made_at = self.shared.0.borrow().now;
        self.calls.push(FakeCall { id, node, body, made_at, timeout: call.timeout });
        Ok(id)
    }

    fn resume(&mut self, stream: StreamId) {
        self.outcomes.push((stream, Outcome::Passed(None)));
    }

    fn reply(&mut self, stream: StreamId, reply: &Reply) {
        self.outcomes.push((stream, Outcome::Answered(reply.clone())));
    }

    fn property(&mut self, path: &[&str]) -> Option<Vec<u8>> {
        self.properties.get(&path.join(".")).cloned()
    }

    fn count(&mut self, metric: MetricId, by: u64) {
        assert!(by > 0, "hosts refuse to add nothing");
        let name = self.metric_names[metric.0].clone();
        *self.shared.0.borrow_mut().metrics.entry(name).or_default() += by;
    }

    fn record(&mut self, metric: MetricId, value: u64) {
        let name = self.metric_names[metric.0].clone();
        self.shared.0.borrow_mut().metrics.insert(name, value);
    }
}
