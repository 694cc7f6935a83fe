//! Prepaid units of one level of a global limit: what a worker may spend without asking.
//!
//! The store charges a parcel of units when it grants it, and the parcel may be spent until it
//! expires. So that no interval ever holds more than the limit, the store counts as if every unit
//! were spent as late as possible ([`LeaseTerms`]). Nothing is spent that was not granted, so a lost
//! reply, a crash or a node that is cut off can only waste units, never create any.
//!
//! A parcel's life is measured by the worker's own clock, from *before* it was asked for: no two
//! clocks are ever compared, and an answer that comes later than one life grants nothing.

use super::Want;
use super::lease_terms::LeaseTerms;
use super::parcel::{Parcel, Spend};
use crate::limiter::{Quota, Verdict};
use crate::units::{Instant, Span};

/// The longest time for which a refusal is believed, where a life is not longer: units may go back to
/// the store meanwhile.
const REFUSED_MAX: Span = Span::from_secs(1);

/// Parts of a level's capacity that a worker without experience asks for ahead of need.
const FIRST_SHARE: u64 = 64;

/// Parts of a level's capacity that a worker asks for ahead of need at most.
const LARGEST_SHARE: u64 = 8;

/// Parcels that are kept apart. Before a further one is taken, the first two to expire become one.
const PARCELS_MAX: usize = 4;

/// The prepaid units of one level for one subject. The store grants them in whole requests, so none
/// are left that no request can use.
#[derive(Clone, Debug)]
pub struct Lease {
    quota: Quota,
    /// What a request costs.
    cost: u64,
    terms: LeaseTerms,
    /// The first to expire comes first. Those that are over stay until they are taken out.
    parcels: Vec<Parcel>,
    /// What the store last said about a further request, and when.
    told: Option<(Verdict, Instant)>,
    /// Units spent since `asked_at`, when the store was last asked.
    spent: u64,
    asked_at: Instant,
    /// Questions about it that are under way.
    questions: u32,
    last_used: Instant,
}

/// What a lease says to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseVerdict {
    /// There are units.
    Admitted(Verdict),
    /// The store has none, and has said until when.
    Refused(Verdict),
    /// The store is to be asked. What it said last decides no more; it tells only how long others who
    /// are refused elsewhere have to wait.
    Short(Verdict),
}

impl Lease {
    /// A lease without units.
    #[must_use]
    pub fn new(quota: Quota, cost: u64) -> Self {
        Self {
            quota,
            cost: cost.max(1),
            terms: LeaseTerms::of(&quota, cost),
            parcels: Vec::new(),
            told: None,
            spent: 0,
            asked_at: Instant::ORIGIN,
            questions: 0,
            last_used: Instant::ORIGIN,
        }
    }

    /// The quota under which the units were granted.
    #[must_use]
    pub const fn quota(&self) -> &Quota {
        &self.quota
    }

    /// Whether `cost` units can be spent at `now`.
    #[must_use]
    pub fn peek(&self, cost: u64, now: Instant) -> LeaseVerdict {
        let units = self.units(now);
        let (told, at) = self.told.unwrap_or((Verdict::refusal(&self.quota), Instant::ORIGIN));
        let passed = now.since(at);
        let admitted = self.parcels.iter().any(|parcel| parcel.pays(cost, now));
        let verdict = Verdict {
            admitted,
            capacity: self.quota.capacity(),
            remaining: told.remaining.saturating_add(units.saturating_sub(cost)),
            retry_after: told.retry_after.minus(passed),
            reset_after: told.reset_after.minus(passed),
        };
        if admitted {
            return LeaseVerdict::Admitted(Verdict { retry_after: Span::ZERO, ..verdict });
        }
        let verdict = Verdict { remaining: 0, ..verdict };
        match self.is_refused(now) {
            true => LeaseVerdict::Refused(verdict),
            false => {
                LeaseVerdict::Short(Verdict { admitted: !self.is_told_to_wait(now), ..verdict })
            }
        }
    }

    /// Whether the store's last refusal still stands: until it said that there would be room, but
    /// not for long, because what others hold and do not use may go back at any time.
    fn is_refused(&self, now: Instant) -> bool {
        let Some((told, at)) = self.told else { return false };
        told.retry_after.min(self.terms.life().max(REFUSED_MAX)) > now.since(at)
    }

    /// Whether the time has not come at which the store said that there would be room.
    fn is_told_to_wait(&self, now: Instant) -> bool {
        self.told.is_some_and(|(told, at)| told.retry_after > now.since(at))
    }

    /// Spends `cost` units of one parcel, the first to expire that has them, and says which.
    pub fn spend(&mut self, cost: u64, now: Instant) -> Option<Spend> {
        let parcel = self.parcels.iter_mut().find(|parcel| parcel.pays(cost, now))?;
        parcel.units = parcel.units.saturating_sub(cost);
        self.spent = self.spent.saturating_add(cost);
        self.last_used = now;
        let Parcel { granted_at_us, expires_at, .. } = *parcel;
        Some(Spend { granted_at_us, units: cost, expires_at })
    }

    /// Gives back units that a request had spent and did not use, to the parcel that they came from.
    /// Returns how many; those of a parcel that is no more are lost.
    pub fn unspend(&mut self, spend: Spend) -> u64 {
        self.spent = self.spent.saturating_sub(spend.units);
        let origin = |parcel: &&mut Parcel| parcel.granted_at_us == spend.granted_at_us;
        match self.parcels.iter_mut().find(origin) {
            Some(parcel) => {
                parcel.units = parcel.units.saturating_add(spend.units);
                spend.units
            }
            None => 0,
        }
    }

    /// Whether more should be asked for although there are units: less than a quarter of the newest
    /// parcel's life is left, or fewer units are than half of what is needed for one.
    #[must_use]
    pub fn is_low(&self, now: Instant) -> bool {
        self.takes_more(now) && (self.is_old(now) || !self.lasts(2, now))
    }

    /// Whether more may be asked for, if others of the same request are low: one question for all of
    /// them costs less than one for each. There is room for a quarter of a life at least.
    #[must_use]
    pub fn joins(&self, now: Instant) -> bool {
        self.takes_more(now) && (self.is_old(now) || !self.lasts(1, now))
    }

    fn takes_more(&self, now: Instant) -> bool {
        self.terms.ahead() && self.questions == 0 && !self.is_refused(now)
    }

    fn is_old(&self, now: Instant) -> bool {
        let quarter = Span::from_nanos(self.terms.life().as_nanos().checked_div(4).unwrap_or(0));
        self.parcels.last().is_none_or(|newest| newest.expires_at.since(now) < quarter)
    }

    /// Whether the units last for one part in `parts` of a life, or for as much as is asked for at most.
    /// It is [`ahead`](Self::ahead) without its division, because every request wants to know.
    fn lasts(&self, parts: u64, now: Instant) -> bool {
        let units = self.units(now).saturating_add(1).saturating_mul(parts);
        let elapsed = now.since(self.asked_at).as_nanos();
        let needed = self.spent.saturating_mul(self.terms.life().as_nanos());
        units > self.most() || units.saturating_mul(elapsed) > needed
    }

    /// The most units that are asked for ahead of need.
    fn most(&self) -> u64 {
        let share = self.quota.capacity().checked_div(LARGEST_SHARE).unwrap_or(0);
        let rest = share.checked_rem(self.cost).unwrap_or(0);
        share.saturating_sub(rest).max(self.cost)
    }

    /// What to ask for, where requests that cost `firm` units together wait. Who else asks before that
    /// is [`answered`](Self::answered), because of other leases of the same request, asks for nothing
    /// ahead.
    pub fn ask(&mut self, firm: u64, now: Instant) -> Want {
        self.questions = self.questions.saturating_add(1);
        if self.questions > 1 {
            return Want { firm, ahead: 0 };
        }
        let ahead = self.ahead(now).saturating_sub(self.units(now));
        (self.spent, self.asked_at) = (0, now);
        Want { firm, ahead }
    }

    /// Notes that a question is over, whatever came of it.
    pub const fn answered(&mut self) {
        self.questions = self.questions.saturating_sub(1);
    }

    /// Takes what the store granted to a question sent at `sent_at`, and what it says about more.
    pub fn take(
        &mut self,
        units: u64,
        clock_us: u64,
        told: Verdict,
        sent_at: Instant,
        now: Instant,
    ) {
        self.told = Some((told, now));
        if units == 0 {
            return;
        }
        let expires_at = sent_at.plus(self.terms.life());
        if self.parcels.len() >= PARCELS_MAX {
            self.parcels.retain(|parcel| parcel.units > 0);
        }
        if self.parcels.len() >= PARCELS_MAX {
            let first = self.parcels.remove(0);
            if let Some(next) = self.parcels.first_mut() {
                *next = next.with(first);
            }
        }
        self.parcels.push(Parcel { units, granted_at_us: clock_us, expires_at });
    }

    /// Takes out what can go back to the store, as one parcel: units that have expired, and all of
    /// them where nobody has spent any for `idle`.
    pub fn leftovers(&mut self, idle: Span, now: Instant) -> Option<Parcel> {
        let unused = self.last_used.plus(idle) <= now;
        let (over, kept) =
            self.parcels.iter().partition(|parcel| unused || parcel.expires_at <= now);
        self.parcels = kept;
        let over: Vec<Parcel> = over;
        over.into_iter().filter(|parcel| parcel.units > 0).reduce(Parcel::with)
    }

    /// When it was last asked for or spent from.
    #[must_use]
    pub fn touched_at(&self) -> Instant {
        self.asked_at.max(self.last_used)
    }

    /// Whether the lease is as good as a new one.
    #[must_use]
    pub fn is_blank(&self, now: Instant) -> bool {
        self.parcels.is_empty() && self.questions == 0 && !self.is_told_to_wait(now)
    }

    /// Units of all parcels, whether or not they can be spent.
    #[must_use]
    pub fn all_units(&self) -> u64 {
        self.parcels.iter().fold(0, |sum, parcel| sum.saturating_add(parcel.units))
    }

    /// Units that can be spent at `now`.
    #[must_use]
    pub fn units(&self, now: Instant) -> u64 {
        let live = self.parcels.iter().filter(|parcel| parcel.expires_at > now);
        live.fold(0, |sum, parcel| sum.saturating_add(parcel.units))
    }

    /// Units for one life, for whole requests: as many as were spent in the time since the last
    /// question, or a small share of the capacity where there is no experience.
    fn ahead(&self, now: Instant) -> u64 {
        if !self.terms.ahead() {
            return 0;
        }
        let capacity = self.quota.capacity();
        let elapsed = u128::from(now.since(self.asked_at).as_nanos().max(1));
        let per_life = u128::from(self.spent)
            .saturating_mul(u128::from(self.terms.life().as_nanos()))
            .div_ceil(elapsed);
        let units = match self.told {
            None => capacity.checked_div(FIRST_SHARE).unwrap_or(0).max(1),
            Some(_) => u64::try_from(per_life).unwrap_or(u64::MAX),
        };
        units.checked_next_multiple_of(self.cost).unwrap_or(units).min(self.most())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::WindowQuota;

    const T: Instant = Instant::from_nanos(1_000_000_000_000);

    fn window(requests: u64, millis: u64) -> Quota {
        Quota::Window(WindowQuota { requests, window: Span::from_millis(millis) })
    }

    fn told(retry_millis: u64) -> Verdict {
        Verdict {
            admitted: retry_millis == 0,
            capacity: 100,
            remaining: 50,
            retry_after: Span::from_millis(retry_millis),
            reset_after: Span::from_secs(1),
        }
    }

    fn at(millis: u64) -> Instant {
        T.plus(Span::from_millis(millis))
    }

    #[test]
    fn small_and_short_levels_are_granted_only_what_is_waited_for() {
        for quota in [window(15, 10_000), window(1000, 100)] {
            let mut lease = Lease::new(quota, 1);
            assert_eq!(lease.ask(3, T), Want { firm: 3, ahead: 0 });
            assert!(!lease.is_low(T));
        }
    }

    #[test]
    fn a_parcel_lives_from_before_it_was_asked_for() {
        let mut lease = Lease::new(window(100, 3200), 1);
        lease.take(10, 7, told(0), at(0), at(40));
        assert_eq!(lease.units(at(99)), 10);
        assert_eq!(lease.units(at(100)), 0);
        assert!(matches!(lease.peek(1, at(100)), LeaseVerdict::Short(verdict) if verdict.admitted));
    }

    #[test]
    fn a_refusal_is_remembered_until_it_could_pass() {
        let mut lease = Lease::new(window(100, 3200), 1);
        lease.take(0, 7, told(300), at(0), at(10));
        assert!(matches!(lease.peek(1, at(309)), LeaseVerdict::Refused(verdict)
            if verdict.retry_after == Span::from_millis(1)));
        assert!(matches!(lease.peek(1, at(310)), LeaseVerdict::Short(verdict) if verdict.admitted));
        assert!(lease.is_blank(at(310)));
    }

    #[test]
    fn what_is_asked_ahead_follows_demand() {
        let mut lease = Lease::new(window(6400, 3200), 1);
        assert_eq!(lease.ask(1, at(0)), Want { firm: 1, ahead: 100 });
        lease.take(101, 7, told(0), at(0), at(1));
        for _ in 0..50 {
            lease.spend(1, at(20));
        }
        assert_eq!(lease.ask(1, at(30)), Want { firm: 1, ahead: 0 }, "one is under way");
        lease.answered();
        lease.answered();
        // 50 units in 50 ms are 100 in one life of 100 ms; 51 are still there.
        assert_eq!(lease.ask(0, at(50)), Want { firm: 0, ahead: 49 });
    }

    /// Goal: however many answers come at once, parcels are few, and nothing that they granted is lost.
    #[test]
    fn parcels_are_bounded_and_keep_their_units() {
        let mut lease = Lease::new(window(6400, 3200), 1);
        for clock_us in 1..=100 {
            lease.take(2, clock_us, told(0), at(clock_us / 20), at(10));
        }
        assert!(lease.parcels.len() <= PARCELS_MAX);
        assert_eq!(lease.units(at(99)), 200);
        // What was joined is as old as the oldest of it.
        let back = lease.leftovers(Span::from_secs(1), at(100));
        assert_eq!(back.map(|parcel| parcel.granted_at_us), Some(1));
        assert!(lease.units(at(100)) <= 2 * 3);
    }

    /// Goal: what another one gives back serves a small level soon, not after its whole window.
    #[test]
    fn a_refusal_of_a_long_window_is_soon_put_to_the_test() {
        let mut lease = Lease::new(window(1, 3_600_000), 1);
        lease.take(0, 7, told(3_600_000), at(0), at(0));
        assert!(matches!(lease.peek(1, at(999)), LeaseVerdict::Refused(verdict)
            if verdict.retry_after == Span::from_millis(3_599_001)));
        let later = lease.peek(1, at(1000));
        assert!(matches!(later, LeaseVerdict::Short(verdict)
            if !verdict.admitted && verdict.retry_after == Span::from_millis(3_599_000)));
        assert!(!lease.is_blank(at(3_599_999)), "it can still be told");
        assert!(lease.is_blank(at(3_600_000)));
    }

    #[test]
    fn what_is_not_spent_can_go_back() {
        let mut lease = Lease::new(window(100, 3200), 1);
        lease.take(10, 7, told(0), at(0), at(1));
        lease.spend(4, at(2));
        assert_eq!(lease.leftovers(Span::from_secs(1), at(50)), None);
        let back = lease.leftovers(Span::from_secs(1), at(100));
        assert_eq!(back.map(|parcel| (parcel.units, parcel.granted_at_us)), Some((6, 7)));
        assert!(lease.is_blank(at(100)));
    }
}
