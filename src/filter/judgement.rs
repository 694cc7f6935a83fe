//! The verdicts of all levels of a request, and which of them to tell.

use crate::limiter::Verdict;
use crate::policy::Charge;

/// What one charge's level said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Judgement {
    pub(super) charge: Charge,
    pub(super) verdict: Verdict,
}

/// Pairs each charge with its verdict.
pub(super) fn judge(charges: &[Charge], verdicts: &[Verdict]) -> Vec<Judgement> {
    let mut judgements = Vec::with_capacity(charges.len());
    for (charge, verdict) in charges.iter().zip(verdicts) {
        judgements.push(Judgement { charge: *charge, verdict: *verdict });
    }
    judgements
}

/// The level with the least left; of several, the one that is free again last. What is left of a
/// cap on requests in flight tells little about the next request, so such a level counts only where
/// there is no other.
pub(super) fn tightest(judgements: &[Judgement]) -> Option<&Judgement> {
    judgements.iter().min_by_key(|Judgement { charge, verdict }| {
        let left = (verdict.remaining, std::cmp::Reverse(verdict.reset_after));
        (charge.quota.is_in_flight(), left)
    })
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
