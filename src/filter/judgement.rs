//! The verdicts of all levels of a request, and which of them to tell.

use std::cmp::Reverse;

use crate::limiter::Verdict;
use crate::policy::Charge;
use crate::units::Span;

/// What one charge's level said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Judgement {
    pub(super) charge: Charge,
    pub(super) verdict: Verdict,
}

/// What an admitted request is told of, and what it holds. A request has many levels and most of them
/// admit it, so no more is kept.
#[derive(Debug, Default)]
pub(super) struct Admission {
    tightest: Option<Judgement>,
    /// Slots of requests in flight.
    pub(super) slots: Vec<Judgement>,
}

impl Admission {
    /// By levels that have charged a request, and perhaps others before.
    pub(super) fn add<'a>(
        &mut self,
        charges: &'a [Charge],
        verdicts: impl IntoIterator<Item = &'a Verdict>,
    ) {
        for (&charge, &verdict) in charges.iter().zip(verdicts) {
            let least = self.tightest.as_ref().map(|tightest| tightness(&tightest.verdict));
            if charge.quota.is_in_flight() {
                self.slots.push(Judgement { charge, verdict });
            } else if least.is_none_or(|least| tightness(&verdict) < least) {
                self.tightest = Some(Judgement { charge, verdict });
            }
        }
    }

    /// The level with the least left; of several, the one that is free again last. What is left of a
    /// cap on requests in flight tells little about the next request, so such a level counts only where
    /// there is no other.
    pub(super) fn tightest(&self) -> Option<&Judgement> {
        let fullest = || self.slots.iter().min_by_key(|slot| tightness(&slot.verdict));
        self.tightest.as_ref().or_else(fullest)
    }
}

/// Less is tighter.
fn tightness(verdict: &Verdict) -> (u64, Reverse<Span>) {
    (verdict.remaining, Reverse(verdict.reset_after))
}

/// Pairs each charge with its verdict.
pub(super) fn judge(charges: &[Charge], verdicts: &[Verdict]) -> Vec<Judgement> {
    let mut judgements = Vec::with_capacity(charges.len());
    for (charge, verdict) in charges.iter().zip(verdicts) {
        judgements.push(Judgement { charge: *charge, verdict: *verdict });
    }
    judgements
}

/// The level to tell a refused request of. Contention refuses without a level that says no: then the
/// first one takes the blame.
pub(super) fn to_blame(judgements: &[Judgement]) -> Option<&Judgement> {
    blamed(judgements).or(judgements.first())
}

/// The refusing level that has room last: whoever waits for it need not fear the others.
pub(super) fn blamed(judgements: &[Judgement]) -> Option<&Judgement> {
    let refusing = judgements.iter().filter(|judgement| !judgement.verdict.admitted);
    refusing.max_by_key(|judgement| judgement.verdict.retry_after)
}
