//! One cell of the node's usage: the charges of a request that lie in one record.

use super::drawn::Order;
use super::holdings::{Holdings, Place};
use super::record::Record;
use super::shared_data::{SharedData, SharedDataFailure, Swap, Version};
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

/// A request's charges, what is asked beside them, and what this worker holds.
pub(super) struct Wish<'a> {
    /// Under the quotas that the node enforces.
    pub(super) charges: &'a [Charge],
    /// One for each charge, or none at all.
    pub(super) orders: &'a [Order],
    pub(super) own: &'a Holdings,
    pub(super) now: Instant,
}

/// A cell's slot and record as they were read, with what goes back taken out.
pub(super) struct Reading {
    slot: Slot,
    record: Record,
}

pub(super) enum CellOutcome {
    Charged(Vec<Instant>, usize),
    Refused,
    GaveUp,
}

impl Cell {
    /// Reads the cell's bytes.
    pub(super) fn read(&self, bytes: Vec<u8>, wish: &Wish<'_>) -> Reading {
        let slot = Slot::decode(bytes).unwrap_or_default();
        let mut record = slot.record(self.fingerprint, wish.now);
        for member in &self.members {
            let order = wish.orders.get(*member).and_then(|order| order.back);
            let (Some((units, at)), Some(charge)) = (order, wish.charges.get(*member)) else {
                continue;
            };
            record.refund(charge, units, at, wish.now);
        }
        Reading { slot, record }
    }

    /// Decides the cell's charges over what was read.
    pub(super) fn decide(
        &self,
        reading: &Reading,
        wish: &Wish<'_>,
        verdicts: &mut [Verdict],
    ) -> bool {
        let mut admitted = true;
        let (record, now) = (&reading.record, wish.now);
        for member in &self.members {
            let (Some(charge), Some(verdict)) =
                (wish.charges.get(*member), verdicts.get_mut(*member))
            else {
                continue;
            };
            let peek = |usage: &Usage| usage.peek(&charge.quota, charge.cost, now);
            *verdict = match (wish.own.share(charge, 0, now), record.usage(charge.id)) {
                (Some(share), _) => peek(&Usage::InFlight(record.slots(charge.id, share, now))),
                (None, Some(usage)) => peek(usage),
                (None, None) => peek(&Usage::none(&charge.quota)),
            };
            admitted &= verdict.admitted;
        }
        admitted
    }

    /// Charges the cell by compare-and-swap, starting from what was read and found to have room.
    pub(super) fn charge(
        &self,
        shared: &mut impl SharedData,
        (reading, version): (Reading, Version),
        wish: &Wish<'_>,
        verdicts: &mut [Verdict],
    ) -> CellOutcome {
        let mut outcome = self.swap(shared, (reading, version), wish, verdicts);
        for _ in 1..SWAP_TRIES {
            if outcome.is_some() {
                break;
            }
            let Ok(value) = shared.get(&self.key) else { return CellOutcome::GaveUp };
            let reading = self.read(value.bytes, wish);
            if !self.decide(&reading, wish, verdicts) {
                return CellOutcome::Refused;
            }
            outcome = self.swap(shared, (reading, value.version), wish, verdicts);
        }
        outcome.unwrap_or(CellOutcome::GaveUp)
    }

    /// Tries once to charge the cell. None where another worker came first.
    fn swap(
        &self,
        shared: &mut impl SharedData,
        (reading, version): (Reading, Version),
        wish: &Wish<'_>,
        verdicts: &[Verdict],
    ) -> Option<CellOutcome> {
        let Reading { mut slot, mut record } = reading;
        let mut times = Vec::with_capacity(self.members.len());
        for member in &self.members {
            if let (Some(charge), Some(told)) = (wish.charges.get(*member), verdicts.get(*member)) {
                let order = wish.orders.get(*member).copied().unwrap_or_default();
                times.push(charge_record(&mut record, charge, order.ahead(told), wish));
            }
        }
        let evicted = slot.put(self.fingerprint, &record, wish.now);
        match shared.swap(&self.key, slot.bytes(), version) {
            Ok(Swap::Done) => Some(CellOutcome::Charged(times, evicted)),
            Ok(Swap::Lost) => None,
            Err(SharedDataFailure) => Some(CellOutcome::GaveUp),
        }
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
                if let (Some(charge), Some(at)) = (charges.get(*member), charged_at.get(*member)) {
                    record.refund(charge, charge.cost, *at, now);
                }
            }
        });
        if written {
            own.written(&self.place, now);
        }
    }
}

/// Charges a record, and `ahead` units beside. Returns where they stand.
fn charge_record(record: &mut Record, charge: &Charge, ahead: u64, wish: &Wish<'_>) -> Instant {
    let now = wish.now;
    if let Some(share) = wish.own.share(charge, charge.cost, now) {
        record.set_slots(charge.id, share, Some(charge.quota.capacity()), now);
        return now;
    }
    record.charge(charge, charge.cost.saturating_add(ahead), now)
}

/// Puts a worker's shares in the place of those that it wrote before.
pub(super) fn set_shares(record: &mut Record, shares: &[(LimitId, Share)], now: Instant) {
    for (limit, share) in shares {
        record.set_slots(*limit, *share, None, now);
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
        let mut slot = Slot::decode(value.bytes).unwrap_or_default();
        let mut record = slot.record(fingerprint, now);
        change(&mut record);
        slot.put(fingerprint, &record, now);
        match shared.swap(key, slot.bytes(), value.version) {
            Ok(Swap::Done) => return true,
            Ok(Swap::Lost) => {}
            Err(SharedDataFailure) => return false,
        }
    }
    false
}
