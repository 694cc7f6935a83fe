//! One cell of the node's usage: the charges of a request that lie in one record.

use super::holdings::{Holdings, Place};
use super::record::{Entry, Record};
use super::shared_data::{SharedData, SharedDataFailure, Swap, Versioned};
use super::slab::{Fingerprint, Slot};
use crate::limiter::{Share, Usage, Verdict};
use crate::policy::{Charge, LimitId};
use crate::units::Instant;

/// Compare-and-swap tries for one cell. A try fails only when another worker's succeeded within
/// the few microseconds between, so with 64 workers on one cell the last try is still to come.
/// When all fail, the request is refused: stricter, never freer.
const SWAP_TRIES: u32 = 64;

/// The charges of a request that share a record.
pub(super) struct Cell {
    pub(super) place: Place,
    pub(super) key: String,
    pub(super) fingerprint: Fingerprint,
    /// Positions in the request's charges.
    pub(super) members: Vec<usize>,
}

pub(super) enum CellOutcome {
    Charged(Vec<Instant>, usize),
    Refused,
    GaveUp,
}

impl Cell {
    /// Decides the cell's charges over what `bytes` hold.
    pub(super) fn peek(
        &self,
        bytes: &[u8],
        charges: &[Charge],
        own: &Holdings,
        now: Instant,
        verdicts: &mut [Verdict],
    ) -> bool {
        let record = Slot::decode(bytes).unwrap_or_default().record(self.fingerprint, now);
        self.decide(&record, charges, own, now, verdicts)
    }

    fn decide(
        &self,
        record: &Record,
        charges: &[Charge],
        own: &Holdings,
        now: Instant,
        verdicts: &mut [Verdict],
    ) -> bool {
        let mut admitted = true;
        for (charge, verdict) in self.members(charges, verdicts) {
            let peek = |usage: &Usage| usage.peek(&charge.quota, charge.cost, now);
            *verdict = match (own.share(charge, 0, now), record.usage(charge.id)) {
                (Some(share), _) => peek(&Usage::InFlight(record.slots(charge.id, share, now))),
                (None, Some(usage)) => peek(usage),
                (None, None) => peek(&Usage::none(&charge.quota)),
            };
            admitted &= verdict.admitted;
        }
        admitted
    }

    /// Charges the cell by compare-and-swap, starting from what was seen.
    pub(super) fn charge(
        &self,
        shared: &mut impl SharedData,
        mut value: Versioned,
        charges: &[Charge],
        own: &Holdings,
        now: Instant,
        verdicts: &mut [Verdict],
    ) -> CellOutcome {
        for _ in 0..SWAP_TRIES {
            let mut slot = Slot::decode(&value.bytes).unwrap_or_default();
            let mut record = slot.record(self.fingerprint, now);
            if !self.decide(&record, charges, own, now, verdicts) {
                return CellOutcome::Refused;
            }
            let times = self.charge_record(&mut record, charges, own, now);
            let evicted = slot.put(self.fingerprint, &record, now);
            match shared.swap(&self.key, &slot.encode(), value.version) {
                Ok(Swap::Done) => return CellOutcome::Charged(times, evicted),
                Ok(Swap::Lost) => {}
                Err(SharedDataFailure) => return CellOutcome::GaveUp,
            }
            drop(slot);
            match shared.get(&self.key) {
                Ok(newer) => value = newer,
                Err(SharedDataFailure) => return CellOutcome::GaveUp,
            }
        }
        CellOutcome::GaveUp
    }

    fn charge_record(
        &self,
        record: &mut Record,
        charges: &[Charge],
        own: &Holdings,
        now: Instant,
    ) -> Vec<Instant> {
        self.of(charges)
            .map(|charge| {
                if let Some(share) = own.share(charge, charge.cost, now) {
                    record.set_slots(charge.id, share, now);
                    return now;
                }
                let usage = record.usage(charge.id).cloned();
                let mut usage = usage.unwrap_or_else(|| Usage::none(&charge.quota));
                let at = usage.charge(&charge.quota, charge.cost, now);
                record.set(Entry::new(charge.id, usage, &charge.quota, now));
                at
            })
            .collect()
    }

    /// Takes back what was charged, and writes the shares that the worker has now.
    pub(super) fn refund(
        &self,
        shared: &mut impl SharedData,
        charges: &[Charge],
        charged_at: &[Instant],
        own: &mut Holdings,
        now: Instant,
    ) {
        let shares = own.shares(&self.place, now);
        let written = rewrite(shared, &self.key, self.fingerprint, now, &|record| {
            set_shares(record, &shares, now);
            for member in &self.members {
                let (Some(charge), Some(at)) = (charges.get(*member), charged_at.get(*member))
                else {
                    continue;
                };
                if charge.quota.is_in_flight() {
                    continue;
                }
                let Some(mut usage) = record.usage(charge.id).cloned() else { continue };
                usage.refund(&charge.quota, charge.cost, *at, now);
                record.set(Entry::new(charge.id, usage, &charge.quota, now));
            }
        });
        if written {
            own.written(&self.place, now);
        }
    }

    /// The charges of the cell among those of the request.
    pub(super) fn of<'a>(&self, charges: &'a [Charge]) -> impl Iterator<Item = &'a Charge> {
        self.members.iter().filter_map(|member| charges.get(*member))
    }

    fn members<'a>(
        &'a self,
        charges: &'a [Charge],
        verdicts: &'a mut [Verdict],
    ) -> impl Iterator<Item = (&'a Charge, &'a mut Verdict)> {
        charges
            .iter()
            .zip(verdicts)
            .enumerate()
            .filter_map(|(position, pair)| self.members.contains(&position).then_some(pair))
    }
}

/// Puts a worker's shares in the place of those that it wrote before.
pub(super) fn set_shares(record: &mut Record, shares: &[(LimitId, Share)], now: Instant) {
    for (limit, share) in shares {
        record.set_slots(*limit, *share, now);
    }
}

/// Changes a record by compare-and-swap, whatever it holds. Returns whether it was written.
pub(super) fn rewrite(
    shared: &mut impl SharedData,
    key: &str,
    fingerprint: Fingerprint,
    now: Instant,
    change: &dyn Fn(&mut Record),
) -> bool {
    for _ in 0..SWAP_TRIES {
        let Ok(value) = shared.get(key) else { return false };
        let mut slot = Slot::decode(&value.bytes).unwrap_or_default();
        let mut record = slot.record(fingerprint, now);
        change(&mut record);
        slot.put(fingerprint, &record, now);
        match shared.swap(key, &slot.encode(), value.version) {
            Ok(Swap::Done) => return true,
            Ok(Swap::Lost) => {}
            Err(SharedDataFailure) => return false,
        }
    }
    false
}
