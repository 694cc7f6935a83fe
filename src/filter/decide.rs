//! Deciding a request: on the node first, then by leases, then in the store, or without it.

use std::rc::Rc;

use super::Refusal;
use super::group_commit::Asker;
use super::judgement::{Judgement, blamed, judge};
use super::worker::{Step, Stream, Worker};
use crate::host::{Host, StreamId};
use crate::policy::{Charge, OnStoreError, Plan};
use crate::store::leases::LeaseOutcome;
use crate::store::{Answer, Decision, StoreError};
use crate::units::Instant;

/// A request whose global limits are being decided.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: Undecided,
    /// The time at which it is decided without the store.
    deadline: Instant,
    /// What the node charged, to be taken back if the request is not admitted.
    pub(super) node: Charged,
    /// What is to be spent from leases, and what those said once it is spent.
    pub(super) leased: Vec<Charge>,
    spent: Option<Vec<Judgement>>,
    /// What the store is asked about.
    strict: Vec<Charge>,
}

/// A request that is to be decided.
#[derive(Debug)]
pub(super) struct Undecided {
    pub(super) stream: StreamId,
    pub(super) grpc: bool,
    /// Slots of limits in shadow mode, which it holds already.
    pub(super) shadow_slots: Vec<Charge>,
}

/// Charges that the node made.
#[derive(Debug, Default)]
pub(super) struct Charged {
    judgements: Vec<Judgement>,
    at: Vec<Instant>,
}

/// How a request's limits ended.
pub(super) enum Settled {
    Admitted(Vec<Judgement>),
    Refused(Refusal),
}

impl Waiting {
    /// Whether it holds slots while it waits.
    pub(super) fn holds_slots(&self) -> bool {
        let node = self.node.judgements.iter().map(|judgement| &judgement.charge);
        node.chain(&self.request.shadow_slots).any(|charge| charge.quota.is_in_flight())
    }
}

impl Worker {
    pub(super) fn decide(
        &mut self,
        host: &mut impl Host,
        request: Undecided,
        plan: Plan,
        now: Instant,
    ) -> Step {
        let node = match self.charge_node(host, &plan.node, now) {
            Ok(charged) => charged,
            Err(refusal) => return self.end(host, request, Settled::Refused(refusal), now),
        };
        let Plan { leased, strict, .. } = plan;
        if leased.is_empty() && strict.is_empty() {
            return self.end(host, request, Settled::Admitted(node.judgements), now);
        }
        let deadline = now.plus(self.store_timeout());
        let waiting = Waiting { request, deadline, node, leased, spent: None, strict };
        self.advance(host, waiting, now).unwrap_or(Step::Pause)
    }

    /// Takes a request as far as it gets without waiting: to its end, or, where that is none, back
    /// among those that wait.
    pub(super) fn advance(
        &mut self,
        host: &mut impl Host,
        mut waiting: Waiting,
        now: Instant,
    ) -> Option<Step> {
        let stream = waiting.request.stream;
        if waiting.spent.is_none() && !waiting.leased.is_empty() {
            match self.leases.decide(&waiting.leased, now) {
                LeaseOutcome::Admitted(verdicts) => {
                    waiting.spent = Some(judge(&waiting.leased, &verdicts));
                    self.ask_if_low(host, &waiting.leased, now);
                }
                LeaseOutcome::Refused(verdicts) => {
                    let judgements = judge(&waiting.leased, &verdicts);
                    return Some(self.refused(host, waiting, &judgements, now));
                }
                LeaseOutcome::Short(short) => {
                    if waiting.deadline <= now {
                        return Some(self.settle_without_store(host, waiting, now));
                    }
                    return match self.ask(host, short, Some(stream)) {
                        Ok(()) => self.wait(waiting),
                        Err(error) => Some(self.not_asked(host, waiting, error, now)),
                    };
                }
            }
        }
        if waiting.strict.is_empty() {
            return Some(self.admitted(host, waiting, Vec::new(), now));
        }
        let decision = Decision::decide(&waiting.strict, &self.policy);
        let job = self.job(Asker::Stream(stream), decision, waiting.deadline);
        match self.add(host, job) {
            Ok(()) => self.wait(waiting),
            Err(error) => Some(self.not_asked(host, waiting, error, now)),
        }
    }

    /// Ends a request that cannot even ask the store.
    fn not_asked(
        &mut self,
        host: &mut impl Host,
        waiting: Waiting,
        error: StoreError,
        now: Instant,
    ) -> Step {
        host.count(self.metrics.store_error(error), 1);
        self.settle_without_store(host, waiting, now)
    }

    fn wait(&mut self, waiting: Waiting) -> Option<Step> {
        self.streams.insert(waiting.request.stream, Stream::Waiting(Box::new(waiting)));
        None
    }

    /// Ends the wait for the store's decision, with its answer or without.
    pub(super) fn settle(
        &mut self,
        host: &mut impl Host,
        waiting: Waiting,
        result: Result<Answer, StoreError>,
        now: Instant,
    ) -> Step {
        let Ok(answer) = result else { return self.settle_without_store(host, waiting, now) };
        let judgements = judge(&waiting.strict, &answer.levels);
        match answer.admitted {
            true => self.admitted(host, waiting, judgements, now),
            false => self.refused(host, waiting, &judgements, now),
        }
    }

    /// Gives back what a request has taken, wherever it took it.
    pub(super) fn give_back(&mut self, host: &mut impl Host, waiting: &Waiting, now: Instant) {
        self.refund(host, &waiting.node, now);
        if waiting.spent.is_some() {
            self.leases.unspend(&waiting.leased);
        }
    }

    fn refused(
        &mut self,
        host: &mut impl Host,
        waiting: Waiting,
        judgements: &[Judgement],
        now: Instant,
    ) -> Step {
        self.give_back(host, &waiting, now);
        let settled = match blamed(judgements).or(judgements.first()) {
            Some(blamed) => Settled::Refused(Refusal::no_room(blamed, &self.policy)),
            None => Settled::Admitted(Vec::new()),
        };
        self.end(host, waiting.request, settled, now)
    }

    /// Ends a request that every level admits, with what all of them said.
    fn admitted(
        &mut self,
        host: &mut impl Host,
        waiting: Waiting,
        more: Vec<Judgement>,
        now: Instant,
    ) -> Step {
        let mut judgements = waiting.node.judgements;
        judgements.extend(waiting.spent.unwrap_or_default());
        judgements.extend(more);
        self.end(host, waiting.request, Settled::Admitted(judgements), now)
    }

    /// Decides by each limit's `on_store_error` what the store, or a lease, has not decided.
    pub(super) fn settle_without_store(
        &mut self,
        host: &mut impl Host,
        waiting: Waiting,
        now: Instant,
    ) -> Step {
        let policy = Rc::clone(&self.policy);
        let undecided = if waiting.spent.is_some() { &[][..] } else { waiting.leased.as_slice() };
        let mut local = Vec::new();
        for charge in undecided.iter().chain(&waiting.strict) {
            let Some(limit) = policy.limits.get(charge.place) else { continue };
            match limit.on_store_error {
                OnStoreError::Allow => {}
                OnStoreError::Deny => {
                    self.give_back(host, &waiting, now);
                    let refusal = Refusal::store_unavailable(charge.place, &policy);
                    return self.end(host, waiting.request, Settled::Refused(refusal), now);
                }
                OnStoreError::Local { fraction_ppm } => local.push(Charge {
                    id: limit.fallback_id,
                    quota: charge.quota.scaled(fraction_ppm, 1_000_000, charge.cost),
                    ..charge.clone()
                }),
            }
        }
        match self.charge_node(host, &local, now) {
            Ok(charged) => self.admitted(host, waiting, charged.judgements, now),
            Err(refusal) => {
                self.give_back(host, &waiting, now);
                self.end(host, waiting.request, Settled::Refused(refusal), now)
            }
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
            Some(blamed) => Err(Refusal::no_room(blamed, &self.policy)),
            None => Ok(Charged::default()),
        }
    }

    pub(super) fn refund(&mut self, host: &mut impl Host, charged: &Charged, now: Instant) {
        if !charged.judgements.is_empty() {
            let charges: Vec<Charge> =
                charged.judgements.iter().map(|judgement| judgement.charge.clone()).collect();
            self.node.refund(host, &charges, &charged.at, now);
        }
    }
}
