//! Deciding a request: on the node first, then in the store, or without it.

use std::rc::Rc;

use super::Refusal;
use super::group_commit::Asker;
use super::judgement::{Judgement, blamed, judge};
use super::worker::{Step, Stream, Worker};
use crate::host::{Host, StreamId};
use crate::policy::{Charge, OnStoreError};
use crate::store::{Answer, StoreError};
use crate::units::Instant;

/// A request whose global limits are being decided.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) grpc: bool,
    /// What the node charged, to be taken back if the request is not admitted.
    pub(super) node: Charged,
    /// What the store is asked about.
    pub(super) global: Vec<Charge>,
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

impl Worker {
    pub(super) fn decide(
        &mut self,
        host: &mut impl Host,
        stream: StreamId,
        grpc: bool,
        node: &[Charge],
        global: Vec<Charge>,
        now: Instant,
    ) -> Step {
        let node = match self.charge_node(host, node, now) {
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
            Err(error) => {
                host.count(self.metrics.store_error(error), 1);
                match self.settle(host, waiting, Err(error), now) {
                    Settled::Admitted(judgements) => self.admit(host, stream, &judgements),
                    Settled::Refused(refusal) => self.refuse(host, &refusal, grpc),
                }
            }
        }
    }

    /// Ends the wait for the store, with its answer or without.
    pub(super) fn settle(
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

    pub(super) fn refund(&mut self, host: &mut impl Host, charged: &Charged, now: Instant) {
        if !charged.judgements.is_empty() {
            let charges: Vec<Charge> =
                charged.judgements.iter().map(|judgement| judgement.charge.clone()).collect();
            self.node.refund(host, &charges, &charged.at, now);
        }
    }
}
