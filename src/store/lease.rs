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
        Self {
            quota,
            parcels: Vec::new(),
            told: None,
            demand: Demand::new(&quota, &LeaseTerms::of(&quota, cost), cost),
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
        told.retry_after.min(self.demand.life().max(REFUSED_MAX)) > now.since(at)
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
        Some(Spend { granted_at_us, units: cost, expires_at, unused_since, spent_at: now, verdict })
    }

    /// Gives back units that a request had spent and did not use, to the parcel that they came from.
    /// Returns how many; those of a parcel that is no more are lost. Who is refused elsewhere keeps no
    /// units from going back.
    pub fn unspend(&mut self, spend: Spend) -> u64 {
        if self.last_used == spend.spent_at {
            self.last_used = spend.unused_since;
        }
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
            && (self.lives_for(now) < self.demand.oldest()
                || !self.demand.is_met(self.units(now), self.demand.margin(), now))
    }

    /// Whether more may be asked for, if others of the same request are low: one question for all of
    /// them costs less than one for each.
    #[must_use]
    pub fn joins(&self, now: Instant) -> bool {
        self.takes_more(now)
            && (self.lives_for(now) < self.demand.longest_margin()
                || !self.demand.is_met(self.units(now), self.demand.life(), now))
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
        Want { firm, ahead: self.demand.ask(firm, units, self.told.is_some(), now) }
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
        let expires_at = sent_at.plus(self.demand.life());
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
        let unused = self.touched_at().plus(idle) <= now;
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
mod tests;
