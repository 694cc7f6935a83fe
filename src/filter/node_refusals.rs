//! Refusals of the node that a worker remembers, so that a flood of refused requests asks nobody.
//!
//! A level that has just refused a request will refuse the next one that is charged to the same levels as
//! well, until the time at which units are free again. What is remembered is the finished answer, for just
//! these levels together: beside another level it might have to name a longer wait. It is forgotten by
//! that time, and after [`KEPT_FOR`] at the latest, because another worker may give units back sooner; so
//! a request that comes when the answer says it may finds the node asked anew.

use std::rc::Rc;

use super::judgement::Judgement;
use super::{Refusal, Reply};
use crate::map::{Map, seeded};
use crate::policy::{Charge, LevelKey, Policy};
use crate::store::sweep::Sweep;
use crate::units::{Instant, Span};

/// The longest time for which a level is not asked again.
const KEPT_FOR: Span = Span::from_millis(20);

/// The most refusals that are remembered, with answers of some thousand bytes each.
const REFUSALS_MAX: usize = 512;

/// The latest refusals, by the last one of the levels that the request was to be charged to.
#[derive(Debug)]
pub(super) struct NodeRefusals {
    refusals: Map<LevelKey, Remembered>,
    sweep: Sweep,
}

/// What a level has said.
#[derive(Debug)]
pub(super) struct Remembered {
    until: Instant,
    levels: Box<[LevelKey]>,
    pub(super) refusal: Rc<Refusal>,
    /// The answer that says so, for a gRPC request or any other, once there was one.
    replies: [Option<Rc<Reply>>; 2],
}

impl NodeRefusals {
    pub(super) fn new(seed: u64) -> Self {
        Self { refusals: seeded(seed), sweep: Sweep::default() }
    }

    /// What was said to a request that was to be charged to the same levels.
    pub(super) fn find(&mut self, charges: &[Charge], now: Instant) -> Option<&mut Remembered> {
        if self.refusals.is_empty() {
            return None;
        }
        let remembered = self.refusals.get_mut(&LevelKey::of(charges.last()?))?;
        let is_same = remembered.levels.iter().copied().eq(charges.iter().map(LevelKey::of));
        (is_same && now < remembered.until).then_some(remembered)
    }

    /// Remembers what was said to a request with these `charges`. Nobody knows when a request in flight
    /// ends, so a cap is asked every time.
    pub(super) fn remember(
        &mut self,
        charges: &[Charge],
        blamed: &Judgement,
        refusal: &Rc<Refusal>,
        now: Instant,
    ) {
        let Judgement { charge, verdict } = blamed;
        let (Some(last), false) = (charges.last(), charge.quota.is_in_flight() || verdict.admitted)
        else {
            return;
        };
        let key = LevelKey::of(last);
        let is_full = self.refusals.len() >= REFUSALS_MAX;
        if is_full && self.sweep.is_due(now) {
            self.refusals.retain(|_, remembered| now < remembered.until);
        }
        if self.refusals.len() < REFUSALS_MAX || self.refusals.contains_key(&key) {
            let remembered = Remembered {
                until: now.plus(verdict.retry_after.min(KEPT_FOR)),
                levels: charges.iter().map(LevelKey::of).collect(),
                refusal: Rc::clone(refusal),
                replies: [None, None],
            };
            self.refusals.insert(key, remembered);
        }
    }
}

impl Remembered {
    pub(super) fn reply(&mut self, policy: &Policy, grpc: bool) -> Rc<Reply> {
        let [plain, of_grpc] = &mut self.replies;
        let reply = if grpc { of_grpc } else { plain };
        Rc::clone(reply.get_or_insert_with(|| Rc::new(self.refusal.reply(policy, grpc))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Code;
    use crate::limiter::{InFlightQuota, Quota, Verdict, WindowQuota};
    use crate::policy::{Level, LimitId, Subject};

    const T: Instant = Instant::from_nanos(1_000_000_000);
    const WINDOW: Quota = Quota::Window(WindowQuota { requests: 5, window: Span::from_secs(60) });

    fn refused(number: usize, quota: Quota, retry_after: Span) -> (Judgement, Rc<Refusal>) {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&number.to_le_bytes());
        let charge = Charge {
            place: 0,
            id: LimitId::of("dns"),
            level: Level::Tenant,
            subject: Some(Subject(digest)),
            quota,
            cost: 1,
        };
        let verdict = Verdict { retry_after, ..Verdict::refusal(&quota) };
        let judgement = Judgement { charge, verdict };
        let refusal = Refusal {
            code: Code::RateLimited,
            place: Some(0),
            level: Some(charge.level),
            subject: charge.subject,
            detail: String::new(),
            retry_after: Some(retry_after),
            fields: None,
        };
        (judgement, Rc::new(refusal))
    }

    fn remembers(refusals: &mut NodeRefusals, judgement: &Judgement, now: Instant) -> bool {
        refusals.find(&[judgement.charge], now).is_some()
    }

    #[test]
    fn a_level_is_asked_again_when_it_said_and_soon_in_any_case() {
        for (retry_after, kept_for) in
            [(Span::from_millis(3), Span::from_millis(3)), (Span::from_secs(9), KEPT_FOR)]
        {
            let mut refusals = NodeRefusals::new(7);
            let (judgement, refusal) = refused(1, WINDOW, retry_after);
            assert!(!remembers(&mut refusals, &judgement, T));
            refusals.remember(&[judgement.charge], &judgement, &refusal, T);
            let end = T.plus(kept_for);
            let before = Instant::from_nanos(end.as_nanos() - 1);
            assert!(remembers(&mut refusals, &judgement, before));
            assert!(!remembers(&mut refusals, &judgement, end));
            let (another, _) = refused(2, WINDOW, retry_after);
            assert!(!remembers(&mut refusals, &another, T));
            assert!(
                refusals.find(&[another.charge, judgement.charge], T).is_none(),
                "a longer list"
            );
        }
    }

    #[test]
    fn requests_in_flight_and_contention_are_not_remembered() {
        let cap = Quota::InFlight(InFlightQuota { requests: 1 });
        let (in_flight, refusal) = refused(1, cap, Span::from_secs(1));
        let (mut contended, _) = refused(2, WINDOW, Span::from_secs(1));
        contended.verdict.admitted = true;
        let mut refusals = NodeRefusals::new(7);
        for judgement in [in_flight, contended] {
            refusals.remember(&[judgement.charge], &judgement, &refusal, T);
            assert!(!remembers(&mut refusals, &judgement, T));
        }
    }

    #[test]
    fn there_are_at_most_so_many_and_those_that_are_over_make_room() {
        let mut refusals = NodeRefusals::new(7);
        for number in 0..REFUSALS_MAX + 9 {
            let (judgement, refusal) = refused(number, WINDOW, Span::from_secs(1));
            refusals.remember(&[judgement.charge], &judgement, &refusal, T);
        }
        assert_eq!(refusals.refusals.len(), REFUSALS_MAX);
        let (judgement, refusal) = refused(REFUSALS_MAX + 20, WINDOW, Span::from_secs(1));
        let later = T.plus(KEPT_FOR);
        refusals.remember(&[judgement.charge], &judgement, &refusal, later);
        assert!(remembers(&mut refusals, &judgement, later));
        assert_eq!(refusals.refusals.len(), 1);
    }
}
