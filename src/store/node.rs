//! The node's usage: one state for all workers of a process, in the host's shared data.
//!
//! A request's charges are grouped into cells: one for everyone, one each for its tenant, its
//! credential and its client. [`NodeStore::decide`] reads every cell, decides all charges, and only where all fit
//! writes them, each cell by compare-and-swap. Where another worker came first, the cell is read
//! and decided anew; where it has no room any more, what was already written is taken back. So
//! nothing is ever admitted beyond a limit, and a refused request ends with nothing spent.
//!
//! Memory: four levels, the shared one a single cell, the others [`SLOTS`] slots of normally at
//! most [`SLOT_BYTES`](super::slab::SLOT_BYTES) each: 24 MiB, however many subjects there are.

use super::cell::{Cell, CellOutcome};
use super::shared_data::{SharedData, SharedDataFailure, Version, Versioned};
use super::slab::Fingerprint;
use crate::limiter::Verdict;
use crate::policy::{Charge, Level, Subject};
use crate::units::Instant;

/// Slots of each level but the shared one. It never depends on the configuration, so that a change
/// of the configuration finds all usage where it was.
pub const SLOTS: u64 = 2048;

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
        let mut cells: Vec<(Level, Option<Subject>, Cell)> = Vec::with_capacity(4);
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
