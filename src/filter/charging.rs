//! A worker's part in charging its node.

use std::rc::Rc;

use super::Refusal;
use super::decide::{Settled, Undecided};
use super::judgement::{Admission, Judgement, judge, to_blame};
use super::worker::{Step, Worker};
use crate::host::Host;
use crate::policy::Charge;
use crate::store::node::NodeOutcome;
use crate::units::Instant;

impl Worker {
    /// Decides a request in which nobody but the node has a say.
    pub(super) fn decide_on_node(
        &mut self,
        host: &mut impl Host,
        request: Undecided,
        charges: &[Charge],
        now: Instant,
    ) -> Step {
        if let Some(remembered) = self.node_refusals.find(charges, now) {
            let reply = remembered.reply(&self.policy, request.grpc);
            let refusal = Rc::clone(&remembered.refusal);
            self.release(host, request.shadow_slots, || now);
            self.count_refusal(host, &refusal);
            return Step::Reply(reply);
        }
        let settled = match self.charge_node(host, charges, now) {
            Ok(admission) => Settled::Admitted(admission),
            Err(judgements) => match to_blame(&judgements) {
                Some(blamed) => {
                    let refusal = Rc::new(Refusal::no_room(blamed, &self.policy));
                    self.node_refusals.remember(charges, blamed, &refusal, now);
                    Settled::Refused(refusal)
                }
                None => Settled::Admitted(Admission::default()),
            },
        };
        self.end(host, request, settled, now)
    }

    /// Decides and charges on the node.
    pub(super) fn charge_node(
        &mut self,
        host: &mut impl Host,
        charges: &[Charge],
        now: Instant,
    ) -> Result<Admission, Vec<Judgement>> {
        if charges.is_empty() {
            return Ok(Admission::default());
        }
        let outcome = self.node.decide(host, charges, now);
        self.judge_node(host, charges, &outcome)?;
        let mut admission = Admission::default();
        admission.add(charges, &outcome.verdicts);
        Ok(admission)
    }

    /// What the node says to `charges`, as its consent or as its refusal.
    pub(super) fn judge_node(
        &self,
        host: &mut impl Host,
        charges: &[Charge],
        outcome: &NodeOutcome,
    ) -> Result<(), Vec<Judgement>> {
        if outcome.evicted > 0 {
            host.count(self.metrics.evictions(), u64::try_from(outcome.evicted).unwrap_or(1));
        }
        if outcome.gave_up {
            host.count(self.metrics.given_up(), 1);
        }
        match outcome.admitted || charges.is_empty() {
            true => Ok(()),
            false => Err(judge(charges, &outcome.verdicts)),
        }
    }
}
