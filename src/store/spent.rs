//! What a worker's own memory says to a request: which charges are covered by units that it has drawn and
//! slots that it holds already.

use std::mem;

use super::drawn::Drawn;
use super::holdings::Holdings;
use super::node::NodeOutcome;
use crate::limiter::Verdict;
use crate::policy::Charge;
use crate::units::Instant;

/// What was spent from memory.
pub(super) struct Spent {
    /// In the order of the charges.
    verdicts: Vec<Verdict>,
    /// Positions of the charges for which there was not enough. Their verdicts are yet to come.
    rest: Vec<usize>,
}

impl Spent {
    /// Takes what the worker has drawn or holds, for every charge for which that is enough.
    pub(super) fn of(
        charges: &[Charge],
        own: &mut Holdings,
        drawn: &mut Drawn,
        now: Instant,
    ) -> Self {
        let mut spent = Self { verdicts: Vec::with_capacity(charges.len()), rest: Vec::new() };
        for (position, charge) in charges.iter().enumerate() {
            let told = match charge.quota.is_in_flight() {
                true => own.take_spare(charge, now),
                false => drawn.spend(charge, now),
            };
            let Some(told) = told else {
                spent.rest.push(position);
                spent.verdicts.push(Verdict::refusal(&charge.quota));
                continue;
            };
            spent.verdicts.push(told);
        }
        spent
    }

    /// Gives back what has just been taken.
    pub(super) fn undo(&self, charges: &[Charge], own: &mut Holdings, drawn: &mut Drawn) {
        for (position, charge) in charges.iter().enumerate() {
            match charge.quota.is_in_flight() {
                _ if self.rest.contains(&position) => {}
                true => own.untake_spare(charge),
                false => drawn.unspend(charge),
            }
        }
    }

    /// Whether memory had enough for every charge.
    pub(super) const fn is_all(&self) -> bool {
        self.rest.is_empty()
    }

    /// The charges that are left for the shared data.
    pub(super) fn rest(&self, charges: &[Charge]) -> Vec<Charge> {
        self.rest.iter().filter_map(|position| charges.get(*position).copied()).collect()
    }

    /// What all levels say, where those of the rest said `told`.
    pub(super) fn into_outcome(mut self, mut told: NodeOutcome) -> NodeOutcome {
        for (position, told) in self.rest.iter().zip(mem::take(&mut told.verdicts)) {
            if let Some(verdict) = self.verdicts.get_mut(*position) {
                *verdict = told;
            }
        }
        told.verdicts = self.verdicts;
        told
    }
}
