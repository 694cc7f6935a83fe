//! One proxy worker's filter.
//!
//! A request's states and what moves it on; anything that is not in the table changes nothing:
//!
//! | state    | request headers            | store's answer or failure | response headers | end |
//! |----------|----------------------------|---------------------------|------------------|-----|
//! | new      | passed, admitted, refused, waiting | –                 | –                | –   |
//! | waiting  | –                          | admitted or refused       | –                | its units and slots go back |
//! | admitted | –                          | –                         | fields are added | its slots go back |
//!
//! A request that is passed or refused leaves no state behind, and one that is admitted none but its
//! slots and the fields that its answer will have. The end comes once for every request, however it
//! ended; only where the host's VM is lost does it never come.

use std::collections::VecDeque;
use std::rc::Rc;

use super::charging_in_store::ChargingInStore;
use super::decide::{Undecided, Waiting};
use super::fields::Telling;
use super::group_commit::GroupCommit;
use super::judgement::Judgement;
use super::key_groups::KeyGroups;
use super::leasing::Questions;
use super::mode::ModeInForce;
use super::node_refusals::NodeRefusals;
use super::standing::Standing;
use super::{Metrics, RateLimitFields, Refusal, Reply};
use crate::host::{CallId, Host, StreamId};
use crate::map::{Map, seeded};
use crate::policy::{HeaderMap, Identity, KnownDigests, Mode, Policy, RequestView, Scope, Subject};
use crate::store::epoch::Known;
use crate::store::leases::Leases;
use crate::store::ledger::Ledger;
use crate::store::node::NodeStore;
use crate::store::top_refused::TopRefused;
use crate::store::{StoreError, record_key, tag};
use crate::units::{Instant, Span};

/// How often the worker does what need not be done at once.
const CHORES_PERIOD: Span = Span::from_millis(100);

/// What the host is to do with a request now.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Let it pass.
    Continue,
    /// Hold it; the worker resumes or answers it later.
    Pause,
    /// Answer it.
    Reply(Rc<Reply>),
}

/// One worker's filter.
#[derive(Debug)]
pub struct Worker {
    pub(super) policy: Rc<Policy>,
    pub(super) mode: ModeInForce,
    pub(super) metrics: Metrics,
    pub(super) node: NodeStore,
    pub(super) streams: Map<StreamId, Stream>,
    pub(super) group: GroupCommit,
    /// When requests that wait are to be let go, the first one first.
    pub(super) deadlines: VecDeque<(Instant, StreamId)>,
    chores_at: Instant,
    pub(super) groups: KeyGroups,
    pub(super) standing: Standing,
    pub(super) leases: Leases,
    pub(super) ledger: Ledger,
    pub(super) refused: TopRefused,
    /// Requests that the store is to charge.
    pub(super) charging: ChargingInStore,
    pub(super) node_refusals: NodeRefusals,
    digests: KnownDigests,
    /// Those that were told last: their strings are written anew.
    fields: RateLimitFields,
    /// Leases that are being asked for.
    pub(super) questions: Questions,
}

/// A request that the worker will hear of again.
#[derive(Debug)]
pub(super) enum Stream {
    Waiting(Box<Waiting>),
    Admitted {
        /// For the answer.
        telling: Option<Telling>,
        /// Slots that it holds until it ends.
        slots: Vec<Judgement>,
        /// The client to whom the answer may be a failed authentication.
        watched: Option<Subject>,
    },
}

impl Worker {
    /// A worker under `policy`. `seed_candidate` should be random.
    #[must_use]
    pub fn new(policy: Rc<Policy>, seed_candidate: u64) -> Self {
        Self {
            mode: ModeInForce::new(&policy),
            metrics: Metrics::new(&policy),
            node: NodeStore::new(&policy.namespace, seed_candidate),
            streams: seeded(0),
            group: GroupCommit::new(records(&policy)),
            deadlines: VecDeque::new(),
            chores_at: Instant::ORIGIN,
            groups: KeyGroups::new(&policy),
            standing: Standing::default(),
            leases: Leases::new(seed_candidate),
            ledger: Ledger::new(seed_candidate),
            refused: TopRefused::new(&policy.namespace),
            charging: ChargingInStore::new(seed_candidate),
            node_refusals: NodeRefusals::new(seed_candidate),
            digests: KnownDigests::new(seed_candidate),
            fields: RateLimitFields::default(),
            questions: Questions::new(seed_candidate),
            policy,
        }
    }

    /// The metrics that this worker counts.
    #[must_use]
    pub const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// How often [`on_tick`](Self::on_tick) is needed.
    #[must_use]
    pub fn tick_period(&self) -> Span {
        match self.policy.store {
            // No request waits for the store for longer than its timeout and one such period.
            Some(_) => Span::from_millis(10),
            None => CHORES_PERIOD,
        }
    }

    /// Whether requests are let through unseen.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.mode.is(Mode::Off)
    }

    /// A request's headers have arrived.
    pub fn on_request(
        &mut self,
        host: &mut impl Host,
        stream: StreamId,
        headers: HeaderMap<'_>,
        now: Instant,
    ) -> Step {
        if self.is_off() {
            return Step::Continue;
        }
        let policy = Rc::clone(&self.policy);
        let attributes = policy.attributes(|path| host.property(path));
        let request = RequestView::new(headers, &attributes);
        if request.is_preflight() || policy.exempt.iter().any(|matcher| matcher.matches(&request)) {
            host.count(self.metrics.exempt(), 1);
            return Step::Continue;
        }
        let client = policy.identity.client(&request, &mut self.digests);
        if let Some(refused) = self.throttle(host, &request, client, now) {
            return refused;
        }
        let identity = match policy.identity.identify(&request, client, &mut self.digests) {
            Ok(identity) => identity,
            Err(refusal) if self.mode.is(Mode::Enforce) => {
                return self.refuse(host, &Refusal::identity(refusal, &policy), request.is_grpc());
            }
            Err(_) => Identity::unknown(client),
        };
        let mut plan = policy.plan(&request, &identity, self.mode.in_force);
        let mut shadow_slots = Vec::new();
        for shadow in std::mem::take(&mut plan.shadows) {
            shadow_slots.extend(self.shadow(host, shadow, now));
        }
        let watched = policy.watched(&request, client);
        let grpc = request.is_grpc();
        self.decide(host, Undecided { stream, grpc, shadow_slots, watched }, plan, now)
    }

    /// The fields to add to an admitted request's response headers.
    #[must_use]
    pub fn on_response(&mut self, stream: StreamId) -> Option<&RateLimitFields> {
        // Where another filter answers while the request waits, its end is still to come.
        let Some(Stream::Admitted { telling, slots, .. }) = self.streams.get_mut(&stream) else {
            return None;
        };
        let telling = telling.take();
        if slots.is_empty() {
            self.streams.remove(&stream);
        }
        self.fields.write(&telling?, &self.policy);
        Some(&self.fields)
    }

    /// The request is over, in whatever way. Few ends need to know the time, which costs a call of the
    /// host.
    pub fn on_end(
        &mut self,
        host: &mut impl Host,
        stream: StreamId,
        now: impl FnOnce() -> Instant,
    ) {
        match self.streams.remove(&stream) {
            Some(Stream::Waiting(waiting)) => {
                let now = now();
                self.give_back(host, &waiting, now);
                self.release(host, waiting.request.shadow_slots, || now);
                host.count(self.metrics.errored(), 1);
            }
            Some(Stream::Admitted { slots, .. }) => self.release(host, slots, now),
            None => {}
        }
    }

    /// The wake-up that [`Host::wake`] asked for.
    pub fn on_wake(&mut self, host: &mut impl Host, now: Instant) {
        self.report_losses(host, now);
        // Whatever waits for a store that is given up now is not sent any more.
        self.note_calls(host, now);
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
        // A connection that the store has closed says nothing.
        if body.is_ok_and(|body| !body.is_empty()) {
            self.standing.note_answer();
        }
        if self.mode.takes(call) {
            return self.on_mode_reply(host, body, now);
        }
        if let Some(store) = &self.policy.store {
            if !self.groups.takes(call) {
                self.group.receive(store, &mut self.groups, call, body, now);
            } else if let Err(error) = self.groups.learn(store, body, now) {
                host.count(self.metrics.store_error(error), 1);
            }
        }
        self.on_wake(host, now);
    }

    /// Time has passed.
    pub fn on_tick(&mut self, host: &mut impl Host, now: Instant) {
        self.leave_crowds(host, now);
        self.expire(now);
        self.group.forget(now);
        self.group.try_again();
        if self.chores_at <= now {
            self.chores_at = now.plus(CHORES_PERIOD);
            self.do_chores(host, now);
        }
        self.on_wake(host, now);
    }

    /// What need not be done at once.
    fn do_chores(&mut self, host: &mut impl Host, now: Instant) {
        self.follow_mode(host, now);
        self.look_after_store(host, now);
        if let (Some(store), true) = (&self.policy.store, self.standing.may_claim()) {
            self.groups.ask(host, store, now);
        }
        self.watch_store(host, now);
        self.return_leftovers(now);
        self.count_lease_events(host);
        self.tell_refused(host, now);
        self.node.renew(host, now);
        let holding = self.streams.values().filter(|stream| stream.holds_slots()).count();
        let holding = u64::try_from(holding).unwrap_or(u64::MAX);
        if let Some(in_flight) = self.node.tally(host, holding, now) {
            host.record(self.metrics.in_flight(), in_flight);
        }
    }
}

/// The records of the store's epochs, one for each group of keys that holds usage.
fn records(policy: &Policy) -> Vec<Known> {
    let mut records: Vec<Known> = Vec::new();
    let limits = policy.limits.iter().enumerate();
    for (place, limit) in limits.filter(|(_, limit)| limit.scope == Scope::Global) {
        let group = policy.key_group(place);
        let is_new = records.iter().all(|known| known.group != group);
        if let (Some(store), true) = (&policy.store, is_new) {
            let record = record_key(&tag(store, &limit.name));
            records.push(Known::new(&policy.namespace, group, record));
        }
    }
    records
}

impl Stream {
    fn holds_slots(&self) -> bool {
        match self {
            Self::Waiting(waiting) => !waiting.request.shadow_slots.is_empty(),
            Self::Admitted { slots, .. } => !slots.is_empty(),
        }
    }
}
