//! A worker's part where the store loses its state: it notices, tells the node, and reports what was
//! granted to it.

use std::rc::Rc;

use super::job::Asker;
use super::worker::Worker;
use crate::host::Host;
use crate::policy::{Charge, LevelKey, OnStateLoss, Policy};
use crate::store::epoch::{PATIENCE, PATIENCE_IDLE};
use crate::store::{Answer, Decision, PARTS_MAX, Part, StoreError};
use crate::units::Instant;

/// Reports that are made in one go: a pipeline of them.
const REPORTS_MAX: usize = 256;

impl Worker {
    /// Tells the other workers of a new epoch as soon as it is seen, and makes the reports that are
    /// due.
    pub(super) fn report_losses(&mut self, host: &mut impl Host, now: Instant) {
        let policy = Rc::clone(&self.policy);
        for known in self.group.known.iter_mut().filter(|known| known.lost) {
            known.lost = false;
            self.ledger.lose_all(|charge| {
                policy.key_group(charge.place) == known.group
                    && rule(&policy, charge) == OnStateLoss::Rebuild
            });
            if known.exchange(host, None, now).first {
                log::warn!("fairshare: the store has lost state: {}", known.reason());
                host.count(self.metrics.state_lost(), 1);
            }
        }
        if self.group.has_room(REPORTS_MAX) {
            let groups = &self.groups;
            let may_tell = |charge: &Charge| groups.is_asked(policy.key_group(charge.place));
            for (charge, parts) in self.ledger.take_due(REPORTS_MAX, may_tell) {
                self.report(charge, parts, now);
            }
        }
    }

    /// Learns from the node's other workers, and asks the store, for all of them, where nobody has
    /// heard of it for long: whoever has something to report must notice in time, and whoever is idle
    /// has a pause behind it before traffic comes.
    pub(super) fn watch_store(&mut self, host: &mut impl Host, now: Instant) {
        let patience = if self.ledger.counts(now) { PATIENCE } else { PATIENCE_IDLE };
        let mut polls = Vec::new();
        for known in &mut self.group.known {
            let may_ask = self.standing.may_claim() && self.groups.is_asked(known.group);
            let patience = may_ask.then_some(patience);
            if known.exchange(host, patience, now).ask {
                polls.push(Decision::poll(known));
            }
        }
        for decision in polls {
            let job = self.job(Asker::Poll, decision, now.plus(self.store_timeout()));
            self.group.add_awake(job);
        }
        let dropped = self.ledger.take_dropped();
        if dropped > 0 {
            host.count(self.metrics.evictions(), dropped);
        }
    }

    /// Notes what an answer says to be charged to `charge`, in the terms of the store, and whether it
    /// had forgotten what was charged before.
    pub(super) fn note_granted(
        &mut self,
        host: &mut impl Host,
        charges: &[Charge],
        answer: &Answer,
        is_current: bool,
        now: Instant,
    ) {
        for ((charge, units), told) in charges.iter().zip(&answer.units).zip(&answer.levels) {
            let held = charge.quota.capacity().saturating_sub(told.remaining);
            let held = held.saturating_sub(*units);
            let missing = is_current.then(|| self.ledger.missing(charge, held, answer.clock_us));
            if let Some((charge, parts)) = missing.flatten() {
                host.count(self.metrics.key_lost(), 1);
                self.report(charge, parts, now);
            }
            self.ledger.granted(charge, *units, answer.clock_us, now);
            if !is_current {
                // Granted before the loss, and heard of after it.
                self.ledger.lose(&LevelKey::of(charge));
            }
        }
    }

    /// Takes the store's answer to a report.
    pub(super) fn on_report(
        &mut self,
        charges: &[Charge],
        result: &Result<Answer, StoreError>,
        is_current: bool,
    ) {
        for key in charges.iter().map(LevelKey::of) {
            match result {
                Ok(answer) if is_current => self.ledger.told(&key, answer.clock_us),
                _ => self.ledger.lose(&key),
            }
        }
    }

    fn report(&mut self, charge: Charge, parts: [Part; PARTS_MAX], now: Instant) {
        let decision = Decision::restore(&charge, parts, &self.policy);
        let deadline = now.plus(self.store_timeout());
        let job = self.job(Asker::Report([charge].into()), decision, deadline);
        self.group.add_awake(job);
    }
}

fn rule(policy: &Policy, charge: &Charge) -> OnStateLoss {
    policy.limits.get(charge.place).map_or(OnStateLoss::Rebuild, |limit| limit.on_state_loss)
}
