//! One proxy worker's filter.
//!
//! A request's states and what moves it on; anything that is not in the table changes nothing:
//!
//! | state    | request headers            | store's answer or failure | response headers | end |
//! |----------|----------------------------|---------------------------|------------------|-----|
//! | new      | passed, admitted, refused, waiting | –                 | –                | –   |
//! | waiting  | –                          | admitted or refused       | –                | its node units go back |
//! | admitted | –                          | –                         | fields are added | gone |
//!
//! A request that is passed or refused leaves no state behind.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::group_commit::{Asker, Delivery, GroupCommit, Job, Ticket};
use super::judgement::{Judgement, blamed, judge, tightest};
use super::{Metrics, Outcome, RateLimitFields, Refusal, Reply};
use crate::host::{CallId, Host, StreamId};
use crate::policy::{
    Charge, HeaderMap, Identity, Mode, OnStoreError, Policy, RateLimitHeaders, RequestView, Scope,
};
use crate::store::node::NodeStore;
use crate::store::{Answer, Decision, StoreError};
use crate::units::{Instant, Span};

/// What the host is to do with a request now.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Let it pass.
    Continue,
    /// Hold it; the worker resumes or answers it later.
    Pause,
    /// Answer it.
    Reply(Box<Reply>),
}

/// One worker's filter.
#[derive(Debug)]
pub struct Worker {
    policy: Rc<Policy>,
    metrics: Metrics,
    node: NodeStore,
    streams: BTreeMap<StreamId, Stream>,
    group: GroupCommit,
}

/// A request that the worker will hear of again.
#[derive(Debug)]
enum Stream {
    Waiting(Box<Waiting>),
    Admitted(RateLimitFields),
}

/// A request whose global limits are being decided.
#[derive(Debug)]
struct Waiting {
    grpc: bool,
    /// What the node charged, to be taken back if the request is not admitted.
    node: Charged,
    /// What the store is asked about.
    global: Vec<Charge>,
}

/// Charges that the node made.
#[derive(Debug, Default)]
struct Charged {
    judgements: Vec<Judgement>,
    at: Vec<Instant>,
}

/// How a request's limits ended.
enum Settled {
    Admitted(Vec<Judgement>),
    Refused(Refusal),
}

impl Worker {
    /// A worker under `policy`. `seed_candidate` should be random.
    #[must_use]
    pub fn new(policy: Rc<Policy>, seed_candidate: u64) -> Self {
        Self {
            metrics: Metrics::new(&policy),
            node: NodeStore::new(&policy.namespace, seed_candidate),
            streams: BTreeMap::new(),
            group: GroupCommit::default(),
            policy,
        }
    }

    /// The metrics that this worker counts.
    #[must_use]
    pub const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// How often [`on_tick`](Self::on_tick) is needed; never without a store.
    #[must_use]
    pub fn tick_period(&self) -> Option<Span> {
        const PERIOD: Span = Span::from_millis(100);
        self.policy.store.as_ref().map(|_| PERIOD)
    }

    /// A request's headers have arrived.
    pub fn on_request(
        &mut self,
        host: &mut impl Host,
        stream: StreamId,
        headers: HeaderMap<'_>,
        now: Instant,
    ) -> Step {
        if self.policy.mode == Mode::Off {
            return Step::Continue;
        }
        let policy = Rc::clone(&self.policy);
        let request = RequestView::new(headers);
        if request.is_preflight() || policy.exempt.iter().any(|matcher| matcher.matches(&request)) {
            host.count(self.metrics.exempt(), 1);
            return Step::Continue;
        }
        let identity = match policy.identity.identify(&request) {
            Ok(identity) => identity,
            Err(refusal) if policy.mode == Mode::Enforce => {
                return self.refuse(host, &Refusal::identity(refusal, &policy), request.is_grpc());
            }
            Err(_) => Identity::UNKNOWN,
        };
        let (mut node, mut global) = (Vec::new(), Vec::new());
        for (place, limit) in policy.limits.iter().enumerate() {
            if !limit.matcher.matches(&request) {
                continue;
            }
            let charges = policy.charges(place, limit, &identity);
            match (limit.shadow || policy.mode == Mode::Shadow, limit.scope) {
                (true, scope) => self.shadow(host, scope, charges, now),
                (false, Scope::Node) => node.extend(charges),
                (false, Scope::Global) => global.extend(charges),
            }
        }
        self.decide(host, stream, request.is_grpc(), node, global, now)
    }

    fn decide(
        &mut self,
        host: &mut impl Host,
        stream: StreamId,
        grpc: bool,
        node: Vec<Charge>,
        global: Vec<Charge>,
        now: Instant,
    ) -> Step {
        let node = match self.charge_node(host, &node, now) {
            Ok(charged) => charged,
            Err(refusal) => return self.refuse(host, &refusal, grpc),
        };
        if global.is_empty() {
            return self.admit(host, stream, &node.judgements);
        }
        let waiting = Waiting { grpc, node, global };
        let job = self.job(Asker::Stream(stream), &waiting.global, now);
        match self.group.add(host, job) {
            Ok(()) => {
                self.streams.insert(stream, Stream::Waiting(Box::new(waiting)));
                Step::Pause
            }
            Err(error) => match self.settle(host, waiting, Err(error), now) {
                Settled::Admitted(judgements) => self.admit(host, stream, &judgements),
                Settled::Refused(refusal) => self.refuse(host, &refusal, grpc),
            },
        }
    }

    /// The fields to add to an admitted request's response headers.
    #[must_use]
    pub fn on_response(&mut self, stream: StreamId) -> Option<RateLimitFields> {
        match self.streams.remove(&stream) {
            Some(Stream::Admitted(fields)) => Some(fields),
            Some(waiting @ Stream::Waiting(_)) => {
                // Another filter answers while the request waits; its end is still to come.
                self.streams.insert(stream, waiting);
                None
            }
            None => None,
        }
    }

    /// The request is over, in whatever way.
    pub fn on_end(&mut self, host: &mut impl Host, stream: StreamId, now: Instant) {
        if let Some(Stream::Waiting(waiting)) = self.streams.remove(&stream) {
            self.refund(host, &waiting.node, now);
            host.count(self.metrics.errored(), 1);
        }
    }

    /// The wake-up that [`Host::wake`] asked for.
    pub fn on_wake(&mut self, host: &mut impl Host, now: Instant) {
        self.send(host, now);
        self.deliver(host, now);
    }

    /// A store call has ended.
    pub fn on_store_reply(
        &mut self,
        host: &mut impl Host,
        call: CallId,
        body: Result<&[u8], StoreError>,
        now: Instant,
    ) {
        if let Some(store) = &self.policy.store {
            self.group.receive(store, call, body);
        }
        self.on_wake(host, now);
    }

    /// Time has passed.
    pub fn on_tick(&mut self, host: &mut impl Host, now: Instant) {
        self.group.expire(now);
        self.on_wake(host, now);
    }

    fn send(&mut self, host: &mut impl Host, now: Instant) {
        let Some(store) = &self.policy.store else { return };
        let streams = &self.streams;
        self.group.send(host, store, now, |asker| match asker {
            Asker::Stream(stream) => streams.contains_key(stream),
            Asker::Shadow(_) => true,
        });
    }

    fn deliver(&mut self, host: &mut impl Host, now: Instant) {
        for Delivery { asker, result } in self.group.take_ready() {
            host.count(
                match &result {
                    Ok(_) => self.metrics.store_ok(),
                    Err(error) => self.metrics.store_error(*error),
                },
                1,
            );
            match asker {
                Asker::Stream(stream) => self.deliver_to(host, stream, result, now),
                Asker::Shadow(charges) => {
                    let verdicts = result.map(|answer| answer.verdicts()).unwrap_or_default();
                    self.count_shadow(host, &judge(&charges, &verdicts));
                }
            }
        }
        if self.group.has_ready() && host.wake().is_err() {
            log::error!("the host refuses wake-ups; the next tick goes on");
        }
    }

    fn deliver_to(
        &mut self,
        host: &mut impl Host,
        stream: StreamId,
        result: Result<Answer, StoreError>,
        now: Instant,
    ) {
        let Some(Stream::Waiting(waiting)) = self.streams.remove(&stream) else { return };
        let grpc = waiting.grpc;
        let step = match self.settle(host, *waiting, result, now) {
            Settled::Admitted(judgements) => self.admit(host, stream, &judgements),
            Settled::Refused(refusal) => self.refuse(host, &refusal, grpc),
        };
        match step {
            Step::Reply(reply) => host.reply(stream, &reply),
            Step::Continue | Step::Pause => host.resume(stream),
        }
    }

    /// Ends the wait for the store, with its answer or without.
    fn settle(
        &mut self,
        host: &mut impl Host,
        waiting: Waiting,
        result: Result<Answer, StoreError>,
        now: Instant,
    ) -> Settled {
        let Waiting { mut node, global, .. } = waiting;
        let settled = match result {
            Ok(answer) => self.settle_answer(&global, &answer),
            Err(_) => self.settle_without_store(host, &global, now),
        };
        match settled {
            Settled::Admitted(judgements) => {
                node.judgements.extend(judgements);
                Settled::Admitted(node.judgements)
            }
            Settled::Refused(refusal) => {
                self.refund(host, &node, now);
                Settled::Refused(refusal)
            }
        }
    }

    fn settle_answer(&self, global: &[Charge], answer: &Answer) -> Settled {
        let judgements = judge(global, &answer.verdicts());
        match blamed(&judgements) {
            Some(blamed) => Settled::Refused(Refusal::rate_limited(blamed, &self.policy)),
            None => Settled::Admitted(judgements),
        }
    }

    /// Decides by each limit's `on_store_error`.
    fn settle_without_store(
        &mut self,
        host: &mut impl Host,
        global: &[Charge],
        now: Instant,
    ) -> Settled {
        let policy = Rc::clone(&self.policy);
        let mut local = Vec::new();
        for charge in global {
            let Some(limit) = policy.limits.get(charge.place) else { continue };
            match limit.on_store_error {
                OnStoreError::Allow => {}
                OnStoreError::Deny => {
                    return Settled::Refused(Refusal::store_unavailable(charge.place, &policy));
                }
                OnStoreError::Local { fraction_ppm } => local.push(Charge {
                    id: limit.fallback_id,
                    quota: charge.quota.scaled(fraction_ppm, 1_000_000, charge.cost),
                    ..charge.clone()
                }),
            }
        }
        match self.charge_node(host, &local, now) {
            Ok(charged) => Settled::Admitted(charged.judgements),
            Err(refusal) => Settled::Refused(refusal),
        }
    }

    /// Decides and charges on the node.
    fn charge_node(
        &mut self,
        host: &mut impl Host,
        charges: &[Charge],
        now: Instant,
    ) -> Result<Charged, Refusal> {
        if charges.is_empty() {
            return Ok(Charged::default());
        }
        let outcome = self.node.decide(host, charges, now);
        if outcome.evicted > 0 {
            host.count(self.metrics.evictions(), u64::try_from(outcome.evicted).unwrap_or(1));
        }
        if outcome.gave_up {
            host.count(self.metrics.given_up(), 1);
        }
        let judgements = judge(charges, &outcome.verdicts);
        if outcome.admitted {
            return Ok(Charged { judgements, at: outcome.charged_at });
        }
        // Contention refuses without a level that says no: then the first one takes the blame.
        match blamed(&judgements).or(judgements.first()) {
            Some(blamed) => Err(Refusal::rate_limited(blamed, &self.policy)),
            None => Ok(Charged::default()),
        }
    }

    fn refund(&mut self, host: &mut impl Host, charged: &Charged, now: Instant) {
        if !charged.judgements.is_empty() {
            let charges: Vec<Charge> =
                charged.judgements.iter().map(|judgement| judgement.charge.clone()).collect();
            self.node.refund(host, &charges, &charged.at, now);
        }
    }

    fn admit(&mut self, host: &mut impl Host, stream: StreamId, judgements: &[Judgement]) -> Step {
        let Some(tightest) = tightest(judgements) else {
            host.count(self.metrics.admitted_without_limit(), 1);
            return Step::Continue;
        };
        let charge = &tightest.charge;
        host.count(self.metrics.requests(charge.place, charge.level, Outcome::Admitted), 1);
        if self.policy.headers.rate_limit == RateLimitHeaders::Always {
            let fields = RateLimitFields::about(tightest, &self.policy);
            self.streams.insert(stream, Stream::Admitted(fields));
        }
        Step::Continue
    }

    fn refuse(&mut self, host: &mut impl Host, refusal: &Refusal, grpc: bool) -> Step {
        host.count(self.metrics.refusals(refusal.code), 1);
        let level = refusal.place.zip(refusal.level);
        host.count(
            match level {
                Some((place, level)) => self.metrics.requests(place, level, Outcome::Refused),
                None => self.metrics.errored(),
            },
            1,
        );
        Step::Reply(Box::new(refusal.reply(&self.policy, grpc)))
    }

    /// Evaluates a limit by itself, without any effect on the request.
    fn shadow(&mut self, host: &mut impl Host, scope: Scope, charges: Vec<Charge>, now: Instant) {
        if charges.is_empty() {
            return;
        }
        match scope {
            Scope::Node => {
                let outcome = self.node.decide(host, &charges, now);
                self.count_shadow(host, &judge(&charges, &outcome.verdicts));
            }
            Scope::Global => {
                let asker = Asker::Shadow(charges.as_slice().into());
                let job = self.job(asker, &charges, now);
                // A limit that is only watched may miss a request, but must not disturb one.
                if let Err(error) = self.group.add(host, job) {
                    host.count(self.metrics.store_error(error), 1);
                }
            }
        }
    }

    fn count_shadow(&self, host: &mut impl Host, judgements: &[Judgement]) {
        if let Some(Judgement { charge, .. }) = blamed(judgements) {
            let metric = self.metrics.requests(charge.place, charge.level, Outcome::ShadowRefused);
            host.count(metric, 1);
        }
    }

    fn job(&self, asker: Asker, charges: &[Charge], now: Instant) -> Job {
        let timeout = self.policy.store.as_ref().map_or(Span::ZERO, |store| store.timeout);
        let ticket = Ticket { asker, deadline: now.plus(timeout), reloaded: false };
        Job { ticket, decision: Decision::new(charges, &self.policy) }
    }
}
