//! The node's usage: one state for all workers of a process, in the host's shared data.
//!
//! A request's charges are grouped into cells: one for everyone, one for its tenant, one for its
//! credential. [`NodeStore::decide`] reads every cell, decides all charges, and only where all fit
//! writes them, each cell by compare-and-swap. Where another worker came first, the cell is read
//! and decided anew; where it has no room any more, what was already written is taken back. So
//! nothing is ever admitted beyond a limit, and a refused request ends with nothing spent.
//!
//! Memory: three levels, the shared one a single cell, the others [`SLOTS`] slots of normally at
//! most [`SLOT_BYTES`](super::slab::SLOT_BYTES) each: 16 MiB, however many subjects there are.

use super::record::{Entry, Record};
use super::slab::{Fingerprint, Slot};
use crate::limiter::{Usage, Verdict};
use crate::policy::{Charge, Level, Subject};
use crate::units::Instant;

/// Slots of each level but the shared one. It never depends on the configuration, so that a change
/// of the configuration finds all usage where it was.
pub const SLOTS: u64 = 2048;

/// Compare-and-swap tries for one cell. A try fails only when another worker's succeeded within
/// the few microseconds between, so with 64 workers on one cell the last try is still to come.
/// When all fail, the request is refused: stricter, never freer.
const SWAP_TRIES: u32 = 64;

/// What a value's writer must have seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// There was no such key.
    Absent,
    /// The key had this version.
    At(u32),
}

/// A value and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The value.
    pub bytes: Vec<u8>,
    /// Its version.
    pub version: Version,
}

/// What a conditional write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// The value is written.
    Done,
    /// Someone else wrote since; nothing is written.
    Lost,
}

/// The host could not read or write its shared data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedDataFailure;

/// The host's shared data: one map for all workers of the process, with compare-and-swap.
pub trait SharedData {
    /// Reads a key. An absent key reads as no bytes of version [`Version::Absent`].
    ///
    /// # Errors
    ///
    /// [`SharedDataFailure`] where the host reports anything but a value or its absence.
    fn get(&mut self, key: &str) -> Result<Versioned, SharedDataFailure>;

    /// Writes a key if it still has the version that was seen.
    ///
    /// # Errors
    ///
    /// [`SharedDataFailure`] where the host reports anything but success or a lost swap.
    fn swap(&mut self, key: &str, bytes: &[u8], seen: Version) -> Result<Swap, SharedDataFailure>;
}

/// What the node says to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeOutcome {
    /// Whether every level had room, and all were charged.
    pub admitted: bool,
    /// What each charge's level says, in the order of the charges.
    pub verdicts: Vec<Verdict>,
    /// Where each charge stands in time, for a refund. Empty unless admitted.
    pub charged_at: Vec<Instant>,
    /// Records evicted while they still mattered.
    pub evicted: usize,
    /// Whether the host's shared data failed or its contention outlasted every try.
    pub gave_up: bool,
}

/// The node's usage.
#[derive(Debug)]
pub struct NodeStore {
    prefix: String,
    /// Spreads subjects over slots in a way that nobody outside can predict.
    seed: Option<u64>,
    seed_candidate: u64,
}

/// The charges of a request that share a record.
struct Cell {
    key: String,
    fingerprint: Fingerprint,
    /// Positions in the request's charges.
    members: Vec<usize>,
}

enum CellOutcome {
    Charged(Vec<Instant>, usize),
    Refused,
    GaveUp,
}

impl NodeStore {
    /// The usage of `namespace`. `seed_candidate` should be random: the first process-wide user's
    /// becomes everyone's.
    #[must_use]
    pub fn new(namespace: &str, seed_candidate: u64) -> Self {
        Self { prefix: format!("fairshare/1/{namespace}/"), seed: None, seed_candidate }
    }

    /// Decides all charges, and charges them if every one fits.
    pub fn decide(
        &mut self,
        shared: &mut impl SharedData,
        charges: &[Charge],
        now: Instant,
    ) -> NodeOutcome {
        let Ok(cells) = self.cells(shared, charges) else {
            return NodeOutcome::gave_up(charges);
        };
        let mut outcome = NodeOutcome {
            admitted: true,
            verdicts: vec![],
            charged_at: vec![],
            ..Default::default()
        };
        outcome.verdicts = charges.iter().map(|charge| Verdict::refusal(&charge.quota)).collect();
        let mut seen = Vec::with_capacity(cells.len());
        for cell in &cells {
            let Ok(value) = shared.get(&cell.key) else { return NodeOutcome::gave_up(charges) };
            outcome.admitted &= cell.peek(&value.bytes, charges, now, &mut outcome.verdicts);
            seen.push(value);
        }
        if outcome.admitted {
            charge_all(shared, &cells, seen, charges, now, &mut outcome);
        }
        outcome
    }

    /// Takes back charges that [`decide`](Self::decide) made; `charged_at` is what it returned.
    /// Where the host fails or contention outlasts every try, the units stay spent.
    pub fn refund(
        &mut self,
        shared: &mut impl SharedData,
        charges: &[Charge],
        charged_at: &[Instant],
        now: Instant,
    ) {
        let Ok(cells) = self.cells(shared, charges) else { return };
        for cell in &cells {
            cell.refund(shared, charges, charged_at, now);
        }
    }

    fn cells(
        &mut self,
        shared: &mut impl SharedData,
        charges: &[Charge],
    ) -> Result<Vec<Cell>, SharedDataFailure> {
        let seed = self.seed(shared)?;
        let mut cells: Vec<(Level, Option<Subject>, Cell)> = Vec::with_capacity(3);
        for (position, charge) in charges.iter().enumerate() {
            let known = cells
                .iter_mut()
                .find(|(level, subject, _)| *level == charge.level && *subject == charge.subject);
            if let Some((_, _, cell)) = known {
                cell.members.push(position);
                continue;
            }
            let (key, fingerprint) = self.address(charge.level, charge.subject, seed);
            let cell = Cell { key, fingerprint, members: vec![position] };
            cells.push((charge.level, charge.subject, cell));
        }
        Ok(cells.into_iter().map(|(_, _, cell)| cell).collect())
    }

    fn address(&self, level: Level, subject: Option<Subject>, seed: u64) -> (String, Fingerprint) {
        let (prefix, letter) = (&self.prefix, level.letter());
        let Some(subject) = subject else {
            return (format!("{prefix}{letter}"), Fingerprint::ONLY);
        };
        let (fingerprint, place) = subject.halves();
        // The high bits of a product with a secret odd factor: a universal hash.
        let slot = place.wrapping_mul(seed | 1).rotate_left(11) % SLOTS;
        (format!("{prefix}{letter}/{slot}"), Fingerprint::new(fingerprint))
    }

    fn seed(&mut self, shared: &mut impl SharedData) -> Result<u64, SharedDataFailure> {
        if let Some(seed) = self.seed {
            return Ok(seed);
        }
        let key = format!("{}seed", self.prefix);
        shared.swap(&key, &self.seed_candidate.to_le_bytes(), Version::Absent)?;
        let value = shared.get(&key)?;
        let bytes = value.bytes.first_chunk().ok_or(SharedDataFailure)?;
        let seed = u64::from_le_bytes(*bytes);
        self.seed = Some(seed);
        Ok(seed)
    }
}

/// Writes every cell; where one has no room any more, takes back those before it.
fn charge_all(
    shared: &mut impl SharedData,
    cells: &[Cell],
    seen: Vec<Versioned>,
    charges: &[Charge],
    now: Instant,
    outcome: &mut NodeOutcome,
) {
    outcome.charged_at = vec![now; charges.len()];
    for (position, (cell, value)) in cells.iter().zip(seen).enumerate() {
        match cell.charge(shared, value, charges, now, &mut outcome.verdicts) {
            CellOutcome::Charged(times, evicted) => {
                outcome.evicted = outcome.evicted.saturating_add(evicted);
                for (member, at) in cell.members.iter().zip(times) {
                    if let Some(slot) = outcome.charged_at.get_mut(*member) {
                        *slot = at;
                    }
                }
                continue;
            }
            CellOutcome::Refused => {}
            CellOutcome::GaveUp => outcome.gave_up = true,
        }
        for written in cells.iter().take(position) {
            written.refund(shared, charges, &outcome.charged_at, now);
        }
        outcome.admitted = false;
        outcome.charged_at.clear();
        return;
    }
}

impl NodeOutcome {
    fn gave_up(charges: &[Charge]) -> Self {
        Self {
            verdicts: charges.iter().map(|charge| Verdict::refusal(&charge.quota)).collect(),
            gave_up: true,
            ..Self::default()
        }
    }
}

impl Cell {
    /// Decides the cell's charges over what `bytes` hold.
    fn peek(
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
    fn charge(
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

    fn refund(
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
