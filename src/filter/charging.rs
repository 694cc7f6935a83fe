//! A worker's part in charging its node.

use super::judgement::{Judgement, judge};
use super::worker::Worker;
use crate::host::Host;
use crate::policy::Charge;
use crate::store::node::NodeOutcome;
use crate::units::Instant;

impl Worker {
    /// Decides and charges on the node.
    pub(super) fn charge_node(
        &mut self,
        host: &mut impl Host,
        charges: &[Charge],
        now: Instant,
    ) -> Result<Vec<Judgement>, Vec<Judgement>> {
        if charges.is_empty() {
            return Ok(Vec::new());
        }
        let outcome = self.node.decide(host, charges, now);
        self.judge_node(host, charges, &outcome)
    }

    /// What the node says to `charges`, as its consent or as its refusal.
    pub(super) fn judge_node(
        &self,
        host: &mut impl Host,
        charges: &[Charge],
        outcome: &NodeOutcome,
    ) -> Result<Vec<Judgement>, Vec<Judgement>> {
        if outcome.evicted > 0 {
            host.count(self.metrics.evictions(), u64::try_from(outcome.evicted).unwrap_or(1));
        }
        if outcome.gave_up {
            host.count(self.metrics.given_up(), 1);
        }
        let judgements = judge(charges, &outcome.verdicts);
        match outcome.admitted || judgements.is_empty() {
            true => Ok(judgements),
            false => Err(judgements),
        }
    }
}
