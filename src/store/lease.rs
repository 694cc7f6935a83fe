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
use super::demand::Demand;
use super::lease_terms::LeaseTerms;
use super::parcel::{Parcel, Spend};
use crate::limiter::{Quota, Verdict};
use crate::units::{Instant, Span};

/// The longest time for which a refusal is believed, where a life is not longer: units may go back to
/// the store meanwhile.
const REFUSED_MAX: Span = Span::from_secs(1);

/// Parcels that are kept apart. Before a further one is taken, the first two to expire become one.
const PARCELS_MAX: usize = 4;

/// The prepaid units of one level for one subject. The store grants them in whole requests, so none
/// are left that no request can use.
#[derive(Clone, Debug)]
pub struct Lease {
    quota: Quota,
    life: Span,
    /// The first to expire comes first. Those that are over stay until they are taken out.
    parcels: Vec<Parcel>,
    /// What the store last said about a further request, and when.
    told: Option<(Verdict, Instant)>,
    demand: Demand,
    last_used: Instant,
}

/// What a lease says to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseVerdict {
    /// There are units.
    Admitted,
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
        let terms = LeaseTerms::of(&quota, cost);
        Self {
            quota,
            life: terms.life(),
            parcels: Vec::new(),
            told: None,
            demand: Demand::new(&quota, cost, &terms),
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
        if self.parcels.iter().any(|parcel| parcel.pays(cost, now)) {
            return LeaseVerdict::Admitted;
        }
        let verdict = Verdict { remaining: 0, ..self.told(now) };
        match self.is_refused(now) {
            true => LeaseVerdict::Refused(verdict),
            false => {
                LeaseVerdict::Short(Verdict { admitted: !self.is_told_to_wait(now), ..verdict })
            }
        }
    }

    /// What the store said last and what there is, of which nothing is spent.
    fn told(&self, now: Instant) -> Verdict {
        let (told, at) = self.told.unwrap_or((Verdict::refusal(&self.quota), Instant::ORIGIN));
        let passed = now.since(at);
        Verdict {
            admitted: false,
            capacity: self.quota.capacity(),
            remaining: told.remaining.saturating_add(self.units(now)),
            retry_after: told.retry_after.minus(passed),
            reset_after: told.reset_after.minus(passed),
        }
    }

    /// Whether the store's last refusal still stands: until it said that there would be room, but
    /// not for long, because what others hold and do not use may go back at any time.
    fn is_refused(&self, now: Instant) -> bool {
        let Some((told, at)) = self.told else { return false };
        told.retry_after.min(self.life.max(REFUSED_MAX)) > now.since(at)
    }

    /// Whether the time has not come at which the store said that there would be room.
    fn is_told_to_wait(&self, now: Instant) -> bool {
        self.told.is_some_and(|(told, at)| told.retry_after > now.since(at))
    }

    /// Spends `cost` units of one parcel, the first to expire that has them. Says which, and what is left.
    pub fn spend(&mut self, cost: u64, now: Instant) -> Option<Spend> {
        let parcel = self.parcels.iter_mut().find(|parcel| parcel.pays(cost, now))?;
        parcel.units = parcel.units.saturating_sub(cost);
        let Parcel { granted_at_us, expires_at, .. } = *parcel;
        let unused_since = std::mem::replace(&mut self.last_used, now);
        self.demand.note_spent(cost);
        let verdict = Verdict { admitted: true, retry_after: Span::ZERO, ..self.told(now) };
        Some(Spend { granted_at_us, units: cost, expires_at, unused_since, verdict })
    }

    /// Takes back what [`spend`](Self::spend) has just done.
    pub fn undo(&mut self, spend: Spend) {
        self.unspend(spend);
        self.last_used = spend.unused_since;
    }

    /// Gives back units that a request had spent and did not use, to the parcel that they came from.
    /// Returns how many; those of a parcel that is no more are lost.
    pub fn unspend(&mut self, spend: Spend) -> u64 {
        self.demand.note_unspent(spend.units);
        let origin = |parcel: &&mut Parcel| parcel.granted_at_us == spend.granted_at_us;
        match self.parcels.iter_mut().find(origin) {
            Some(parcel) => {
                parcel.units = parcel.units.saturating_add(spend.units);
                spend.units
            }
            None => 0,
        }
    }

    /// Whether more should be asked for although there are units: they, or the newest parcel's life, are
    /// over before an answer can be sure to be there.
    #[must_use]
    pub fn is_low(&self, now: Instant) -> bool {
        self.takes_more(now)
            && (self.lives_for(now) < self.demand.margin()
                || !self.demand.is_met(self.units(now), self.demand.margin(), now))
    }

    /// Whether more may be asked for, if others of the same request are low: one question for all of
    /// them costs less than one for each.
    #[must_use]
    pub fn joins(&self, now: Instant) -> bool {
        self.takes_more(now)
            && (self.lives_for(now) < self.demand.longest_margin()
                || !self.demand.is_met(self.units(now), self.life, now))
    }

    fn takes_more(&self, now: Instant) -> bool {
        self.demand.takes_more() && !self.is_refused(now)
    }

    /// For how long the newest units can be spent.
    fn lives_for(&self, now: Instant) -> Span {
        self.parcels.last().map_or(Span::ZERO, |newest| newest.expires_at.since(now))
    }

    /// What to ask for, where requests that cost `firm` units together wait. Who else asks before that
    /// is [`answered`](Self::answered), because of other leases of the same request, asks for nothing
    /// ahead.
    pub fn ask(&mut self, firm: u64, now: Instant) -> Want {
        let units = (self.units(now), self.lives_for(now));
        Want { firm, ahead: self.demand.ask(units, self.told.is_some(), now) }
    }

    /// Notes that a question is over, whatever came of it.
    pub const fn answered(&mut self) {
        self.demand.answered();
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
        self.demand.note_round_trip(now.since(sent_at));
        let expires_at = sent_at.plus(self.life);
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
        self.demand.asked_at().max(self.last_used)
    }

    /// Whether the lease is as good as a new one.
    #[must_use]
    pub fn is_blank(&self, now: Instant) -> bool {
        self.parcels.is_empty() && !self.demand.is_asked() && !self.is_told_to_wait(now)
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
        // 50 units in 50 ms are 100 in one life of 100 ms. 51 are still there, and 50 will be spent in time.
        assert_eq!(lease.ask(0, at(50)), Want { firm: 0, ahead: 50 });
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

    /// Goal: the answer is there before the units are over, however far the store is, and a near one is
    /// asked no more often than it must.
    #[test]
    fn a_far_store_is_asked_sooner() {
        // A life is 100 ms; a unit is spent each millisecond.
        for (round_trip, asked_at) in [(1, 88), (6, 88), (20, 60), (40, 50), (90, 50)] {
            let mut lease = Lease::new(window(6400, 3200), 1);
            lease.ask(0, at(0));
            lease.answered();
            lease.take(100, 7, told(0), at(0), at(round_trip));
            let low = (round_trip..100).find(|millis| {
                lease.spend(1, at(*millis));
                lease.is_low(at(*millis))
            });
            let low = low.expect("before they are over");
            assert!(low.abs_diff(asked_at.max(round_trip)) <= 2, "{round_trip} ms: after {low} ms");
        }
    }

    /// Goal: who is refused elsewhere keeps no units from going back.
    #[test]
    fn what_is_undone_was_never_spent() {
        let mut lease = Lease::new(window(100, 320_000), 1);
        lease.take(10, 7, told(0), at(0), at(1));
        lease.spend(1, at(2));
        let before = format!("{lease:?}");
        let spend = lease.spend(3, at(5)).expect("units");
        lease.undo(spend);
        assert_eq!(format!("{lease:?}"), before);
    }
}
