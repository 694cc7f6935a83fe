//! The slots of requests in flight that one worker holds, in its own memory.
//!
//! This is the truth of which shared data have a copy: the worker's shares. Whenever a record is
//! written its shares are written with it, and those of requests that last are written again after
//! [`RENEWAL_PERIOD`], a third of their lease, or up to twice that where there are many.
//!
//! Where a level was nearly empty when a request came, its slot need not be free at once for others to
//! find room: it is given back in memory, and the shared data learn of it with the next write of the
//! record or the next look at what is due, which spares a request its second write. Where that is so for
//! more subjects than a look can write, those of whose levels next to nothing was taken are not written
//! at all: their leases run out.

use std::hash::{Hash, Hasher};

use super::record::FEW_PART;
use crate::limiter::{Share, Verdict};
use crate::map::{Map, seeded};
use crate::policy::{Charge, Level, LimitId, Subject};
use crate::units::{Instant, Span};

/// The age at which a share is due to be written again.
pub(super) const RENEWAL_PERIOD: Span = Span::from_secs(5);

/// For how long after it was written a share is taken to stand: well within its lease.
const SPARE_FOR: Span = RENEWAL_PERIOD.plus(RENEWAL_PERIOD);

/// Slots that were taken while no more than one in so many was taken may be given back later than at
/// once. Smaller caps are always exact.
const LATER_PART: u64 = 16;

/// Records whose slots may be given back later than at once, and that are written at one look
/// however few there are.
const UNWRITTEN_MAX: usize = 64;

/// Whose record at which level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) level: Level,
    pub(super) subject: Option<Subject>,
}

/// The slots that one worker holds.
#[derive(Debug)]
pub(super) struct Holdings {
    /// The worker's number among all holders of the process. None until a slot is asked for.
    holder: Option<u64>,
    places: Map<Place, Held>,
    /// When shares were last looked through for those that are due.
    renewed_at: Instant,
    /// Places with something unwritten.
    unwritten: usize,
}

/// The slots of one record.
#[derive(Debug)]
struct Held {
    slots: Vec<Slots>,
    /// Since when the shares may stand in the shared data as they are.
    written_at: Instant,
    /// Whether slots were given back of which the shared data are to know at the next look.
    unwritten: bool,
}

/// The slots of one cap. None held stands there until the shared data know of it.
#[derive(Debug)]
pub(super) struct Slots {
    limit: LimitId,
    held: u64,
    /// Slots that stand in the shared data as this worker's, at least.
    written: u64,
    /// Slots that others held when they were last looked at.
    others: u64,
}

impl Place {
    pub(super) const fn of(charge: &Charge) -> Self {
        Self { level: charge.level, subject: charge.subject }
    }
}

impl Hash for Place {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.level.hash_of(self.subject.as_ref()));
    }
}

impl Holdings {
    pub(super) const fn new(seed: u64) -> Self {
        Self { holder: None, places: seeded(seed), renewed_at: Instant::ORIGIN, unwritten: 0 }
    }

    pub(super) const fn holder(&self) -> Option<u64> {
        self.holder
    }

    pub(super) const fn set_holder(&mut self, holder: u64) {
        self.holder = Some(holder);
    }

    /// The worker's share of what `charge` is about, with `more` slots than it holds. None where the
    /// charge is about no slots.
    pub(super) fn share(&self, charge: &Charge, more: u64, now: Instant) -> Option<Share> {
        let holder = self.holder.filter(|_| charge.quota.is_in_flight())?;
        let held = self.places.get(&Place::of(charge));
        let held = held.and_then(|held| held.of(charge.id)).map_or(0, |slots| slots.held);
        Some(Share::new(holder, held.saturating_add(more), now))
    }

    /// Holds a slot more that stands in the shared data as this worker's already, and says what the
    /// level says of it. None where there is none, or where it may soon count no more.
    pub(super) fn take_spare(&mut self, charge: &Charge, now: Instant) -> Option<Verdict> {
        let place = self.places.get_mut(&Place::of(charge))?;
        if now.since(place.written_at) >= SPARE_FOR {
            return None;
        }
        let slots = place.slots.iter_mut().find(|slots| slots.limit == charge.id)?;
        let held = slots.held.saturating_add(charge.cost);
        let taken = slots.others.saturating_add(held);
        let remaining = charge.quota.capacity().checked_sub(taken)?;
        if held > slots.written {
            return None;
        }
        slots.held = held;
        Some(Verdict { remaining, ..Verdict::admission(&charge.quota) })
    }

    /// Gives back what [`take_spare`](Self::take_spare) has just taken. The shared data may have been told
    /// of it meanwhile, as held, so they learn of it at the next look.
    pub(super) fn untake_spare(&mut self, charge: &Charge) {
        let Some(place) = self.places.get_mut(&Place::of(charge)) else { return };
        if let Some(slots) = place.slots.iter_mut().find(|slots| slots.limit == charge.id) {
            slots.held = slots.held.saturating_sub(charge.cost);
            self.unwritten = self.unwritten.saturating_add(usize::from(!place.unwritten));
            place.unwritten = true;
        }
    }

    /// Holds a slot more, as it was written to the shared data; `told` is what the level said of it.
    pub(super) fn hold(&mut self, charge: &Charge, told: &Verdict, now: Instant) {
        if let Some(slots) = self.change(charge, charge.cost, 0, now) {
            let taken = told.capacity.saturating_sub(told.remaining);
            slots.written = slots.held;
            slots.others = taken.saturating_sub(slots.held);
        }
    }

    /// The worker's shares of one record.
    pub(super) fn shares(&self, place: &Place, now: Instant) -> Vec<(LimitId, Share)> {
        let Some((holder, held)) = self.holder.zip(self.places.get(place)) else { return vec![] };
        let share = |slots: &Slots| (slots.limit, Share::new(holder, slots.held, now));
        held.slots.iter().map(share).collect()
    }

    /// Holds `gain` slots more, and `loss` fewer, of what the charge is about. Without either, the
    /// worker's share is to be written again.
    pub(super) fn change(
        &mut self,
        charge: &Charge,
        gain: u64,
        loss: u64,
        now: Instant,
    ) -> Option<&mut Slots> {
        if !charge.quota.is_in_flight() {
            return None;
        }
        let new = || Held { slots: Vec::new(), written_at: now, unwritten: false };
        let place = self.places.entry(Place::of(charge)).or_insert_with(new);
        let known = place.slots.iter().position(|slots| slots.limit == charge.id);
        let position = known.unwrap_or(place.slots.len());
        if known.is_none() {
            place.slots.push(Slots { limit: charge.id, held: 0, written: 0, others: 0 });
        }
        let slots = place.slots.get_mut(position)?;
        slots.held = slots.held.saturating_add(gain).saturating_sub(loss);
        if gain == loss {
            slots.written = 0;
        }
        Some(slots)
    }

    /// Gives back a slot of which the shared data need not know at once, as `verdict` said when it was
    /// taken: so of a cap's slots a sixteenth at most is ever taken for taken that is free, until the
    /// next look at what is [due](Self::due). Where much is unwritten already, they need never know if
    /// [few](FEW_PART) were taken: those run out with their leases. Returns whether it gave it back.
    pub(super) fn release_later(&mut self, charge: &Charge, verdict: &Verdict) -> bool {
        let taken = verdict.capacity.saturating_sub(verdict.remaining);
        let is_within = |part| verdict.capacity.checked_div(part).is_some_and(|few| taken <= few);
        if !is_within(LATER_PART) {
            return false;
        }
        let place = Place::of(charge);
        let Some(held) = self.places.get_mut(&place) else { return false };
        let is_told = held.unwritten || self.unwritten < UNWRITTEN_MAX;
        if !is_told && !is_within(FEW_PART) {
            return false;
        }
        let Some(slots) = held.slots.iter_mut().find(|slots| slots.limit == charge.id) else {
            return false;
        };
        slots.held = slots.held.saturating_sub(1);
        if is_told {
            self.unwritten = self.unwritten.saturating_add(usize::from(!held.unwritten));
            held.unwritten = true;
        } else if held.slots.iter().all(|slots| slots.held == 0) {
            self.places.remove(&place);
        }
        true
    }

    /// The worker's shares of the record stand in the shared data as they are.
    pub(super) fn written(&mut self, place: &Place, now: Instant) {
        if let Some(held) = self.places.get_mut(place) {
            held.slots.retain(|slots| slots.held > 0);
            held.slots.iter_mut().for_each(|slots| slots.written = slots.held);
            held.written_at = now;
            self.unwritten = self.unwritten.saturating_sub(usize::from(held.unwritten));
            held.unwritten = false;
            if held.slots.is_empty() {
                self.places.remove(place);
            }
        }
    }

    /// The records whose shares are to be written again now. Where many are, they are spread over the
    /// time to come: as large a part of all as the time since the last call is of the period.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Place> {
        let elapsed = u128::from(now.since(self.renewed_at).as_nanos());
        self.renewed_at = now;
        let all = self.places.len();
        let part = u128::try_from(all)
            .unwrap_or(u128::MAX)
            .saturating_mul(elapsed)
            .div_ceil(u128::from(RENEWAL_PERIOD.as_nanos().max(1)));
        let most = usize::try_from(part).unwrap_or(all).max(UNWRITTEN_MAX);
        let old = |held: &Held| now.since(held.written_at) >= RENEWAL_PERIOD;
        let due = self.places.iter().filter(|(_, held)| held.unwritten || old(held));
        due.take(most).map(|(place, _)| *place).collect()
    }
}

impl Held {
    fn of(&self, limit: LimitId) -> Option<&Slots> {
        self.slots.iter().find(|slots| slots.limit == limit)
    }
}
