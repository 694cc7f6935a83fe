//! One cell of the node's usage: the charges of a request that lie in one record.

use super::record::{Entry, Record};
use super::shared_data::{SharedData, SharedDataFailure, Swap, Versioned};
use super::slab::{Fingerprint, Slot};
use crate::limiter::{Usage, Verdict};
use crate::policy::Charge;
use crate::units::Instant;

/// Compare-and-swap tries for one cell. A try fails only when another worker's succeeded within
/// the few microseconds between, so with 64 workers on one cell the last try is still to come.
/// When all fail, the request is refused: stricter, never freer.
const SWAP_TRIES: u32 = 64;

/// The charges of a request that share a record.
pub(super) struct Cell {
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
        now: Instant,
        verdicts: &mut [Verdict],
    ) -> bool {
        let record = Slot::decode(bytes).unwrap_or_default().record(self.fingerprint, now);
        self.decide(&record, charges, now, verdicts)
    }

    fn decide(
        &self,
        record: &Record,
        charges: &[Charge],
        now: Instant,
        verdicts: &mut [Verdict],
    ) -> bool {
        let mut admitted = true;
        for (charge, verdict) in self.members(charges, verdicts) {
            *verdict = match record.usage(charge.id) {
                Some(usage) => usage.peek(&charge.quota, charge.cost, now),
                None => Usage::none(&charge.quota).peek(&charge.quota, charge.cost, now),
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
        now: Instant,
        verdicts: &mut [Verdict],
    ) -> CellOutcome {
        for _ in 0..SWAP_TRIES {
            let mut slot = Slot::decode(&value.bytes).unwrap_or_default();
            let mut record = slot.record(self.fingerprint, now);
            if !self.decide(&record, charges, now, verdicts) {
                return CellOutcome::Refused;
            }
            let times = self.charge_record(&mut record, charges, now);
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

    fn charge_record(&self, record: &mut Record, charges: &[Charge], now: Instant) -> Vec<Instant> {
        let charges = self.members.iter().filter_map(|member| charges.get(*member));
        charges
            .map(|charge| {
                let usage = record.usage(charge.id).cloned();
                let mut usage = usage.unwrap_or_else(|| Usage::none(&charge.quota));
                let at = usage.charge(&charge.quota, charge.cost, now);
                record.set(Entry::new(charge.id, usage, &charge.quota, now));
                at
            })
            .collect()
    }

    pub(super) fn refund(
        &self,
        shared: &mut impl SharedData,
        charges: &[Charge],
        charged_at: &[Instant],
        now: Instant,
    ) {
        for _ in 0..SWAP_TRIES {
            let Ok(value) = shared.get(&self.key) else { return };
            let mut slot = Slot::decode(&value.bytes).unwrap_or_default();
            let mut record = slot.record(self.fingerprint, now);
            for member in &self.members {
                let (Some(charge), Some(at)) = (charges.get(*member), charged_at.get(*member))
                else {
                    continue;
                };
                let Some(mut usage) = record.usage(charge.id).cloned() else { continue };
                usage.refund(&charge.quota, charge.cost, *at, now);
                record.set(Entry::new(charge.id, usage, &charge.quota, now));
            }
            slot.put(self.fingerprint, &record, now);
            match shared.swap(&self.key, &slot.encode(), value.version) {
                Ok(Swap::Done) | Err(SharedDataFailure) => return,
                Ok(Swap::Lost) => {}
            }
        }
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
