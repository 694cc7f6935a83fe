//! Asking the store for leases ahead of need, once for all who wait, and giving back what is left.
//!
//! A question belongs to nobody: when the request that caused it goes away, it goes on for those
//! who still wait. While one is under way, no second one is asked about the same charges.

use std::rc::Rc;

use super::group_commit::{Asker, Delivery};
use super::worker::Worker;
use crate::host::{Host, StreamId};
use crate::map::Map;
use crate::policy::{Charge, Policy};
use crate::store::lease::LeaseTerms;
use crate::store::leases::LeaseKey;
use crate::store::{Answer, Decision, Grants, StoreError};
use crate::units::Instant;

/// Questions that wait or are under way, by the leases that they are about.
pub(super) type Questions = Map<Vec<LeaseKey>, Question>;

/// A question for leases.
#[derive(Debug)]
pub(super) struct Question {
    charges: Rc<[Charge]>,
    /// Requests that wait for its answer, the first one first.
    waiting: Vec<StreamId>,
    sent: bool,
}

impl Worker {
    /// Asks for leases, or joins those who have asked.
    ///
    /// # Errors
    ///
    /// Why nobody will answer.
    pub(super) fn ask(
        &mut self,
        host: &mut impl Host,
        charges: Vec<Charge>,
        stream: Option<StreamId>,
    ) -> Result<(), StoreError> {
        if !self.breaker.is_closed() {
            return Err(StoreError::GivenUp);
        }
        let keys = keys(&charges);
        if !self.questions.contains_key(&keys) {
            host.wake().map_err(|_| StoreError::Unreachable)?;
        }
        let question = self.questions.entry(keys).or_insert_with(|| Question {
            charges: charges.into(),
            waiting: Vec::new(),
            sent: false,
        });
        question.waiting.extend(stream);
        Ok(())
    }

    /// Asks for more before what is there runs out. Nobody waits for it, so nothing is lost where
    /// it cannot be asked.
    pub(super) fn ask_if_low(&mut self, host: &mut impl Host, charges: &[Charge], now: Instant) {
        let low = self.leases.low(charges, now);
        if !low.is_empty() {
            let _ = self.ask(host, low, None);
        }
    }

    /// Hands the questions that are new to the next call.
    pub(super) fn queue_questions(&mut self, now: Instant) {
        let deadline = now.plus(self.store_timeout());
        let mut jobs = Vec::new();
        for question in self.questions.values_mut().filter(|question| !question.sent) {
            question.sent = true;
            let waiting = u64::try_from(question.waiting.len()).unwrap_or(u64::MAX);
            let wants = self.leases.ask(&question.charges, waiting, now);
            let decision = Decision::lease(&question.charges, wants, &self.policy);
            jobs.push((Asker::Lease(Rc::clone(&question.charges), now), decision));
        }
        for (asker, decision) in jobs {
            let job = self.job(asker, decision, deadline);
            self.group.add_awake(job);
        }
    }

    /// Takes what the store granted, and lets those who waited try again.
    pub(super) fn on_leases(
        &mut self,
        charges: &[Charge],
        sent_at: Instant,
        result: Result<Answer, StoreError>,
        now: Instant,
    ) {
        let error = match result {
            Ok(Answer { levels, grants: Some(Grants { clock_us, units }), .. }) => {
                for ((charge, units), told) in charges.iter().zip(units).zip(levels) {
                    self.leases.take(charge, (units, clock_us), told, sent_at, now);
                }
                None
            }
            Ok(_) => Some(StoreError::Malformed),
            Err(error) => Some(error),
        };
        let question = self.questions.remove(&keys(charges));
        let waiting = question.into_iter().flat_map(|question| question.waiting);
        self.group.add_ready(waiting.map(|stream| Delivery::GoOn(stream, error)));
    }

    /// Adds what happened to leases since the last time to the metrics.
    pub(super) fn count_lease_events(&mut self, host: &mut impl Host) {
        for (metric, units) in self.metrics.lease_units(&self.leases.take_events()) {
            if units > 0 {
                host.count(metric, units);
            }
        }
    }

    /// Sends back what nobody needs.
    pub(super) fn return_leftovers(&mut self, now: Instant) {
        if !self.breaker.is_closed() {
            return;
        }
        let policy: Rc<Policy> = Rc::clone(&self.policy);
        let deadline = now.plus(self.store_timeout());
        for (charge, parcel) in self.leases.leftovers(now) {
            let charge = Charge {
                cost: parcel.units,
                quota: *LeaseTerms::of(&charge.quota).charged(),
                ..charge
            };
            let decision = Decision::give_back(&[charge], parcel.granted_at_us, &policy);
            let job = self.job(Asker::Return(parcel.units), decision, deadline);
            self.group.add_awake(job);
        }
    }
}

impl Worker {
    /// Sends back what the store has charged for a request that is not let through after all. Where
    /// it cannot be sent, the units stay spent.
    pub(super) fn return_strict(
        &mut self,
        host: &mut impl Host,
        charges: &[Charge],
        granted_at_us: u64,
        now: Instant,
    ) {
        let decision = Decision::give_back(charges, granted_at_us, &self.policy);
        let job = self.job(Asker::Return(0), decision, now.plus(self.store_timeout()));
        let _ = self.add(host, job);
    }
}

fn keys(charges: &[Charge]) -> Vec<LeaseKey> {
    charges.iter().map(LeaseKey::of).collect()
}
