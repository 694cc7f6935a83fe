//! What one subject has used, limit by limit, and its bytes.

use serde::{Deserialize, Serialize};

use crate::limiter::{InFlightUsage, Quota, Share, Usage};
use crate::policy::{Charge, LimitId};
use crate::units::Instant;

/// Bytes of one record, slots of requests in flight left out, beyond which its usage is kept more
/// coarsely.
const RECORD_BYTES_FINE: usize = 1024;

/// The fill of slots that are held: they are evicted last, after limits that are used up.
const FILL_HELD: u8 = u8::MAX;

/// Slots are few where no more than one in so many of their cap is taken. Few are evicted first, because
/// a flood of subjects with one request each would else drive out limits that are used up. Whoever was
/// evicted is taken to hold, with each worker, the most that anyone evicted did: a quarter of the cap where
/// each of 64 workers had few.
pub(super) const FEW_PART: u64 = 256;

/// The fill of a limit that is used up.
const FILL_USED_UP: u8 = FILL_HELD - 1;

/// Bytes that a record of a limit or two takes.
const BYTES_EXPECTED: usize = 96;

/// Entries that a record keeps: a rate and a cap for as many limits as there may be. More there can
/// only be where limits were renamed over and over within their windows; then those that were charged
/// last are kept.
const ENTRIES_MAX: usize = 2 * crate::policy::MAX_LIMITS;

/// What one subject has used of one limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    limit: LimitId,
    /// The time from which the entry no longer matters.
    expires_at: Instant,
    /// Which part of the limit was used when the entry was written, in 254ths; more where it is
    /// slots that are held.
    fill: u8,
    usage: Usage,
}

/// What one subject has used, by limit, the one charged last at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record(Vec<Entry>);

impl Entry {
    /// What was used of `limit`, written at `now` under `quota`. Slots of requests in flight have a
    /// [way of their own](Record::set_slots).
    #[must_use]
    pub fn new(limit: LimitId, usage: Usage, quota: &Quota, now: Instant) -> Self {
        let left = u128::from(usage.peek(quota, 0, now).remaining);
        let part_left = left
            .saturating_mul(FILL_USED_UP.into())
            .checked_div(u128::from(quota.capacity()))
            .and_then(|part| u8::try_from(part).ok());
        let fill = FILL_USED_UP.saturating_sub(part_left.unwrap_or(0));
        Self { limit, expires_at: usage.expires_at(quota), fill, usage }
    }
}

impl Record {
    pub(super) const EMPTY: Self = Self(Vec::new());

    /// What was used of `limit`.
    #[must_use]
    pub fn usage(&self, limit: LimitId) -> Option<&Usage> {
        self.0.iter().find(|entry| entry.limit == limit).map(|entry| &entry.usage)
    }

    /// Sets what was used of the entry's limit.
    pub fn set(&mut self, entry: Entry) {
        self.0.retain(|old| old.limit != entry.limit);
        self.0.push(entry);
    }

    /// Charges `units` of what `charge` is about, whether or not they fit, and says at which time they
    /// stand.
    pub(super) fn charge(&mut self, charge: &Charge, units: u64, now: Instant) -> Instant {
        let mut usage = self.take(charge.id).unwrap_or_else(|| Usage::none(&charge.quota));
        let at = usage.charge(&charge.quota, units, now);
        self.0.push(Entry::new(charge.id, usage, &charge.quota, now));
        at
    }

    /// Takes back `units` that [`charge`](Self::charge) said stand at `at`. Slots of requests in flight
    /// are not taken back but [set](Self::set_slots).
    pub(super) fn refund(&mut self, charge: &Charge, units: u64, at: Instant, now: Instant) {
        if charge.quota.is_in_flight() {
            return;
        }
        if let Some(mut usage) = self.take(charge.id) {
            usage.refund(&charge.quota, units, at, now);
            self.0.push(Entry::new(charge.id, usage, &charge.quota, now));
        }
    }

    /// Takes out what was used of `limit`.
    fn take(&mut self, limit: LimitId) -> Option<Usage> {
        let position = self.0.iter().position(|entry| entry.limit == limit)?;
        Some(self.0.remove(position).usage)
    }

    /// The slots that are taken under `limit`, with this share in the place of its holder's.
    pub(super) fn slots(&self, limit: LimitId, share: Share, now: Instant) -> InFlightUsage {
        let mut slots = match self.usage(limit) {
            Some(Usage::InFlight(slots)) => slots.clone(),
            _ => InFlightUsage::default(),
        };
        slots.assert(share, now);
        slots
    }

    /// Puts a holder's share of the slots under `limit` in the place of the one before. Where the cap's
    /// `capacity` is not at hand, they are not taken for few.
    pub(super) fn set_slots(
        &mut self,
        limit: LimitId,
        share: Share,
        capacity: Option<u64>,
        now: Instant,
    ) {
        let slots = self.slots(limit, share, now);
        let expires_at = slots.expires_at();
        let few = capacity.and_then(|capacity| capacity.checked_div(FEW_PART)).unwrap_or(0);
        let fill = if slots.used(now) > few { FILL_HELD } else { 0 };
        self.set(Entry { limit, expires_at, fill, usage: Usage::InFlight(slots) });
    }

    /// The time from which nothing of the record matters.
    pub(super) fn expires_at(&self) -> Instant {
        self.0.iter().map(|entry| entry.expires_at).max().unwrap_or(Instant::ORIGIN)
    }

    /// The fullest entry's fill.
    pub(super) fn fill(&self) -> u8 {
        self.0.iter().map(|entry| entry.fill).max().unwrap_or(0)
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok().map(Self)
    }

    /// The record's bytes, without the entries that no longer matter. A large record loses detail,
    /// never units.
    pub(super) fn encode(&self, now: Instant) -> Vec<u8> {
        let mut live: Vec<&Entry> = self.0.iter().filter(|entry| entry.expires_at > now).collect();
        live.drain(..live.len().saturating_sub(ENTRIES_MAX));
        let bytes = bytes_of(&live);
        if bytes.len() <= RECORD_BYTES_FINE || rate_bytes(&live) <= RECORD_BYTES_FINE {
            return bytes;
        }
        let mut coarse: Vec<Entry> = live.into_iter().cloned().collect();
        coarse.iter_mut().for_each(|entry| entry.usage.coarsen());
        bytes_of(&coarse)
    }

    /// Merges `other`, so that this record is at least as strict as both.
    pub(super) fn envelop(&mut self, other: Self) {
        for new in other.0 {
            match self.0.iter_mut().find(|entry| entry.limit == new.limit) {
                Some(old) => {
                    old.usage = old.usage.envelope(&new.usage);
                    old.expires_at = old.expires_at.max(new.expires_at);
                    old.fill = old.fill.max(new.fill);
                }
                None => self.0.push(new),
            }
        }
        self.0.iter_mut().for_each(|entry| entry.usage.coarsen());
    }
}

/// Bytes of what is no slots: those cannot be kept more coarsely, and are few.
fn rate_bytes(entries: &[&Entry]) -> usize {
    let rates: Vec<&&Entry> =
        entries.iter().filter(|entry| !matches!(entry.usage, Usage::InFlight(_))).collect();
    bytes_of(&rates).len()
}

/// In postcard's wire format, without a second allocation for what most records hold.
fn bytes_of(entries: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(entries, Vec::with_capacity(BYTES_EXPECTED)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::limiter::WindowQuota;
    use crate::store::slab::{Fingerprint, SLOT_BYTES, Slot};
    use crate::units::Span;

    /// A fingerprint as good as random (Knuth's multiplicative hashing).
    fn random(number: u64) -> Fingerprint {
        Fingerprint::new((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23))
    }

    fn hold(bytes: &mut Vec<u8>, subject: u64, share: Share, now: Instant) -> u64 {
        let limit = LimitId::of_in_flight("dns");
        let mut slot = Slot::decode(std::mem::take(bytes)).unwrap();
        let mut record = slot.record(random(subject), now);
        record.set_slots(limit, share, None, now);
        let used = record.slots(limit, share, now).used(now);
        slot.put(random(subject), &record, now);
        *bytes = slot.bytes().to_vec();
        used
    }

    /// Goal: records with slots in them are evicted after all others.
    #[test]
    fn slots_that_are_held_are_evicted_last() {
        let (mut bytes, now) = (Vec::new(), Instant::from_nanos(1));
        assert_eq!(hold(&mut bytes, 0, Share::new(1, 3, now), now), 3);
        let quota = Quota::Window(WindowQuota { requests: 1, window: Span::from_secs(9) });
        for subject in 1..300 {
            let mut slot = Slot::decode(bytes).unwrap();
            let mut usage = Usage::none(&quota);
            usage.charge(&quota, 1, now);
            let mut record = Record::default();
            record.set(Entry::new(LimitId::of("dns"), usage, &quota, now));
            slot.put(random(subject), &record, now);
            bytes = slot.bytes().to_vec();
        }
        assert!(bytes.len() <= SLOT_BYTES);
        // A stranger that the overflow is asked about has none of the slots.
        assert_eq!(hold(&mut bytes, 1, Share::new(2, 0, now), now), 0);
        assert_eq!(hold(&mut bytes, 0, Share::new(2, 0, now), now), 3);
    }

    /// Goal: a flood of subjects that hold a slot or two of a large cap does not drive out a limit that is
    /// used up; nor is it itself forgotten.
    #[test]
    fn few_slots_are_evicted_before_a_limit_that_is_used_up() {
        let (mut slot, now) = (Slot::default(), Instant::from_nanos(1));
        let quota = Quota::Window(WindowQuota { requests: 1, window: Span::from_secs(9) });
        let (used_up, limit) = (LimitId::of("dns"), LimitId::of_in_flight("dns"));
        let mut usage = Usage::none(&quota);
        usage.charge(&quota, 1, now);
        let mut record = Record::default();
        record.set(Entry::new(used_up, usage, &quota, now));
        slot.put(random(0), &record, now);
        for subject in 1..300 {
            let mut record = slot.record(random(subject), now);
            record.set_slots(limit, Share::new(1, 1, now), Some(FEW_PART), now);
            slot.put(random(subject), &record, now);
        }
        assert_eq!(slot.record(random(0), now), record, "the limit that is used up was evicted");
        for subject in 1..300 {
            let record = slot.record(random(subject), now);
            assert_eq!(record.slots(limit, Share::new(2, 0, now), now).used(now), 1, "{subject}");
        }
    }

    /// Goal: where so many subjects hold slots that their records do not fit, each is taken to hold
    /// at least what it does, and a holder is never wrong about its own.
    #[test]
    fn slots_that_are_evicted_are_not_forgotten() {
        let (mut bytes, mut now) = (Vec::new(), Instant::from_nanos(1));
        let mut held: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        for step in 0..3000u64 {
            let (holder, subject) = (step % 3 + 1, step.wrapping_mul(7919) % 400);
            let own = held.entry((holder, subject)).or_default();
            *own = if *own == 0 || step % 5 > 1 { *own + 1 } else { *own - 1 };
            let share = Share::new(holder, *own, now);
            let used = hold(&mut bytes, subject, share, now);
            let truth = (1..4).filter_map(|holder| held.get(&(holder, subject))).sum::<u64>();
            assert!(used >= truth, "step {step}: {used} of {truth}");
            assert!(bytes.len() <= SLOT_BYTES, "{}", bytes.len());
            now = now.plus(Span::from_micros(10));
        }
        // Once all are over and their leases too, nothing is left of it.
        let later = now.plus(Span::from_secs(17));
        assert_eq!(hold(&mut bytes, 5, Share::new(9, 1, later), later), 1);
        assert!(bytes.len() < 64, "{}", bytes.len());
    }
}
