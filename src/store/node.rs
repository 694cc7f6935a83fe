//! The node's usage: one state for all workers of a process, in the host's shared data.
//!
//! Charges for which the worker has drawn enough, or holds a spare slot, are decided in its memory. The
//! others are grouped into cells: one for everyone, one each for the tenant, the credential and the
//! client. [`NodeStore::decide`] reads every cell, decides all charges, and only where all fit writes
//! them, each cell by compare-and-swap. Where another worker came first, the cell is read
//! and decided anew; where it has no room any more, what was already written is taken back. So
//! nothing is ever admitted beyond a limit, and a refused request ends with nothing spent.
//!
//! Slots of requests in flight are charges as well, but of another kind: what a worker writes is not
//! one more or one less but the number of slots that it holds, from its own memory
//! ([`crate::limiter::Share`]). They are given back by [`NodeStore::release`] when the request ends.
//!
//! Memory: four levels, the shared one a single cell, the others [`SLOTS`] slots of normally at
//! most [`SLOT_BYTES`](super::slab::SLOT_BYTES) each: 24 MiB, however many subjects there are.

use std::cell::Cell as StdCell;

use super::cell::{Cell, CellOutcome, Reading, Wish, rewrite, set_shares};
use super::drawn::{Drawn, Order, enforced};
use super::holdings::{Holdings, Place};
use super::numbers::next_number;
use super::record::Record;
use super::shared_data::{SharedData, SharedDataFailure, Version, Versioned};
use super::slab::Fingerprint;
use super::spent::Spent;
use crate::limiter::{Share, Verdict};
use crate::policy::{Charge, Level, LimitId, Subject};
use crate::units::Instant;

/// Slots of each level but the shared one. It never depends on the configuration, so that a change
/// of the configuration finds all usage where it was.
pub const SLOTS: u64 = 2048;

/// The most bytes of a key after its prefix: a level's letter and the number of one of its slots.
const ADDRESS_BYTES: usize = 6;

/// The key that numbers the holders of slots, for all namespaces.
const HOLDERS: &str = "fairshare/1/holders";

/// The key under which workers tell how many of their requests hold slots; one for the process,
/// whatever the namespaces, as there is one metric that shows it.
const TALLY: &str = "fairshare/1/in_flight";

/// What the node says to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeOutcome {
    /// Whether every level had room, and all were charged.
    pub admitted: bool,
    /// What each charge's level says, in the order of the charges.
    pub verdicts: Vec<Verdict>,
    /// Where each charge stands in time, if it was charged now, and not drawn before.
    charged_at: Vec<Instant>,
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
    own: Holdings,
    drawn: Drawn,
}

impl NodeStore {
    /// The usage of `namespace`. `seed_candidate` should be random: the first process-wide user's
    /// becomes everyone's.
    #[must_use]
    pub fn new(namespace: &str, seed_candidate: u64) -> Self {
        Self {
            prefix: format!("fairshare/1/{namespace}/"),
            seed: None,
            seed_candidate,
            own: Holdings::new(seed_candidate),
            drawn: Drawn::new(seed_candidate),
        }
    }

    /// Decides all charges, and charges none.
    pub fn peek(
        &mut self,
        shared: &mut impl SharedData,
        charges: &[Charge],
        now: Instant,
    ) -> NodeOutcome {
        // What there is in memory is not charged, only looked at.
        let spent = Spent::of(charges, &mut self.own, &mut self.drawn, now);
        spent.undo(charges, &mut self.own, &mut self.drawn);
        if spent.is_all() {
            return spent.into_outcome(NodeOutcome::nothing());
        }
        let outcome = self.peek_shared(shared, &spent.rest(charges), now);
        spent.into_outcome(outcome)
    }

    /// Decides all charges, and charges them if every one fits.
    pub fn decide(
        &mut self,
        shared: &mut impl SharedData,
        charges: &[Charge],
        now: Instant,
    ) -> NodeOutcome {
        let spent = Spent::of(charges, &mut self.own, &mut self.drawn, now);
        if spent.is_all() {
            return spent.into_outcome(NodeOutcome::nothing());
        }
        let outcome = self.decide_shared(shared, &spent.rest(charges), now);
        if !outcome.admitted {
            spent.undo(charges, &mut self.own, &mut self.drawn);
        }
        spent.into_outcome(outcome)
    }

    fn peek_shared(
        &mut self,
        shared: &mut impl SharedData,
        charges: &[Charge],
        now: Instant,
    ) -> NodeOutcome {
        let enforced: Vec<Charge> = charges.iter().map(enforced).collect();
        let Ok((cells, seen)) = self.read(shared, &enforced) else {
            return NodeOutcome::gave_up(charges);
        };
        let wish = Wish { charges: &enforced, orders: &[], own: &self.own, now };
        look(&cells, seen, &wish, charges).0
    }

    fn decide_shared(
        &mut self,
        shared: &mut impl SharedData,
        charges: &[Charge],
        now: Instant,
    ) -> NodeOutcome {
        let enforced: Vec<Charge> = charges.iter().map(enforced).collect();
        let orders: Vec<Order> = charges.iter().map(|c| self.drawn.order(c, now)).collect();
        let Ok((cells, seen)) = self.read(shared, &enforced) else {
            return NodeOutcome::gave_up(charges);
        };
        let wish = Wish { charges: &enforced, orders: &orders, own: &self.own, now };
        let (mut outcome, readings) = look(&cells, seen, &wish, charges);
        if outcome.admitted {
            let written = charge_all(shared, &cells, readings, &wish, &mut outcome);
            self.settle(shared, &cells, written, (charges, &enforced, &orders), now, &mut outcome);
        }
        outcome.say_capacities(charges);
        outcome
    }

    /// Notes what the cells that were written now hold; where not all were, takes back what the
    /// request was charged there. What was drawn ahead there stays drawn.
    fn settle(
        &mut self,
        shared: &mut impl SharedData,
        cells: &[Cell],
        written: usize,
        (charges, enforced, orders): (&[Charge], &[Charge], &[Order]),
        now: Instant,
        outcome: &mut NodeOutcome,
    ) {
        for cell in cells.iter().take(written) {
            for member in &cell.members {
                let (Some(charge), Some(enforced), Some(order), Some(told), Some(at)) = (
                    charges.get(*member),
                    enforced.get(*member),
                    orders.get(*member),
                    outcome.verdicts.get(*member),
                    outcome.charged_at.get(*member),
                ) else {
                    continue;
                };
                self.drawn.take((charge, enforced), *at, (told, order.ahead(told)), now);
                match outcome.admitted {
                    true => self.own.hold(charge, told, now),
                    // Until it is written that it is not held, the share is to be written again.
                    false => drop(self.own.change(charge, 0, 0, now)),
                }
            }
            if !outcome.admitted {
                cell.refund(shared, enforced, &outcome.charged_at, &mut self.own, now);
            }
        }
        if !outcome.admitted {
            outcome.charged_at.clear();
        }
    }

    /// Reads every cell.
    fn read(
        &mut self,
        shared: &mut impl SharedData,
        charges: &[Charge],
    ) -> Result<(Vec<Cell>, Vec<Versioned>), SharedDataFailure> {
        let cells = self.cells(shared, charges)?;
        let seen = cells.iter().map(|cell| shared.get(&cell.key)).collect::<Result<_, _>>()?;
        Ok((cells, seen))
    }

    /// Gives back slots. Where the host fails or contention outlasts every try, the next
    /// [renewal](Self::renew) does.
    pub fn release(&mut self, shared: &mut impl SharedData, slots: &[Charge], now: Instant) {
        for slot in slots {
            self.own.change(slot, 0, 1, now);
        }
        let Ok(cells) = self.cells(shared, slots) else { return };
        for cell in &cells {
            cell.refund(shared, slots, &[], &mut self.own, now);
        }
    }

    /// Gives back one slot without telling the shared data at once, where `verdict` says that the level was
    /// nearly empty when the slot was taken. Returns whether it did.
    pub fn refund_later(&mut self, slot: &Charge, verdict: &Verdict) -> bool {
        self.own.release_later(slot, verdict)
    }

    /// Charges what has happened already, whether or not it fits. Where the host fails or contention
    /// outlasts every try, the charge is lost.
    pub fn charge_regardless(
        &mut self,
        shared: &mut impl SharedData,
        charge: &Charge,
        now: Instant,
    ) {
        let Ok(seed) = self.seed(shared) else { return };
        let (key, fingerprint) = self.address(charge.level, charge.subject, seed);
        rewrite(shared, &key, fingerprint, now, &|record| {
            record.charge(charge, charge.cost, now);
        });
    }

    /// Gives back what was drawn and will not be spent, and writes the shares of slots that are held
    /// again, those whose turn it is.
    pub fn renew(&mut self, shared: &mut impl SharedData, now: Instant) {
        for (charge, at) in self.drawn.leftovers(now) {
            let Ok(seed) = self.seed(shared) else { return };
            let (key, fingerprint) = self.address(charge.level, charge.subject, seed);
            rewrite(shared, &key, fingerprint, now, &|record| {
                record.refund(&charge, charge.cost, at, now);
            });
        }
        let due = self.own.due(now);
        if due.is_empty() {
            return;
        }
        let Ok(seed) = self.seed(shared) else { return };
        for place in due {
            let shares = self.own.shares(&place, now);
            let (key, fingerprint) = self.address(place.level, place.subject, seed);
            let change = |record: &mut Record| set_shares(record, &shares, now);
            let written = rewrite(shared, &key, fingerprint, now, &change);
            if written {
                self.own.written(&place, now);
            }
        }
    }

    /// Tells that `count` requests of this worker hold slots, and returns how many of the process
    /// do. None where that cannot be known now.
    pub fn tally(&mut self, shared: &mut impl SharedData, count: u64, now: Instant) -> Option<u64> {
        let everything = LimitId::of_in_flight("");
        let share = Share::new(self.own.holder().unwrap_or_default(), count, now);
        let all = StdCell::new(0);
        let tell = |record: &mut Record| {
            record.set_slots(everything, share, None, now);
            all.set(record.slots(everything, share, now).used(now));
        };
        rewrite(shared, TALLY, Fingerprint::ONLY, now, &tell).then(|| all.get())
    }

    fn cells(
        &mut self,
        shared: &mut impl SharedData,
        charges: &[Charge],
    ) -> Result<Vec<Cell>, SharedDataFailure> {
        let seed = self.seed(shared)?;
        if self.own.holder().is_none() && charges.iter().any(|charge| charge.quota.is_in_flight()) {
            self.own.set_holder(next_number(shared, HOLDERS)?);
        }
        let mut cells: Vec<Cell> = Vec::with_capacity(4);
        for (position, charge) in charges.iter().enumerate() {
            let place = Place::of(charge);
            if let Some(cell) = cells.iter_mut().find(|cell| cell.place == place) {
                cell.members.push(position);
                continue;
            }
            let (key, fingerprint) = self.address(charge.level, charge.subject, seed);
            cells.push(Cell { place, key, fingerprint, members: vec![position] });
        }
        Ok(cells)
    }

    fn address(&self, level: Level, subject: Option<Subject>, seed: u64) -> (String, Fingerprint) {
        let mut key = String::with_capacity(self.prefix.len().saturating_add(ADDRESS_BYTES));
        key.push_str(&self.prefix);
        key.push(level.letter());
        let Some(subject) = subject else {
            return (key, Fingerprint::ONLY);
        };
        let (fingerprint, place) = subject.halves();
        // The high bits of a product with a secret odd factor: a universal hash.
        let slot = place.wrapping_mul(seed | 1).rotate_left(11) % SLOTS;
        key.push('/');
        key.push_str(itoa::Buffer::new().format(slot));
        (key, Fingerprint::new(fingerprint))
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

/// Decides over what stands in the cells.
fn look(
    cells: &[Cell],
    seen: Vec<Versioned>,
    wish: &Wish<'_>,
    charges: &[Charge],
) -> (NodeOutcome, Vec<(Reading, Version)>) {
    let verdicts = charges.iter().map(|charge| Verdict::refusal(&charge.quota)).collect();
    let mut outcome = NodeOutcome { admitted: true, verdicts, ..NodeOutcome::default() };
    let mut readings = Vec::with_capacity(cells.len());
    for (cell, value) in cells.iter().zip(seen) {
        let reading = cell.read(value.bytes, wish);
        outcome.admitted &= cell.decide(&reading, wish, &mut outcome.verdicts);
        readings.push((reading, value.version));
    }
    outcome.say_capacities(charges);
    (outcome, readings)
}

/// Writes every cell, until one has no room any more. Returns how many were written.
fn charge_all(
    shared: &mut impl SharedData,
    cells: &[Cell],
    readings: Vec<(Reading, Version)>,
    wish: &Wish<'_>,
    outcome: &mut NodeOutcome,
) -> usize {
    outcome.charged_at = vec![wish.now; wish.charges.len()];
    for (position, (cell, reading)) in cells.iter().zip(readings).enumerate() {
        match cell.charge(shared, reading, wish, &mut outcome.verdicts) {
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
        outcome.admitted = false;
        return position;
    }
    cells.len()
}

impl NodeOutcome {
    /// What no charges come to.
    fn nothing() -> Self {
        Self { admitted: true, ..Self::default() }
    }

    /// What the node enforces is its own affair; levels are told as they are configured.
    fn say_capacities(&mut self, charges: &[Charge]) {
        for (verdict, charge) in self.verdicts.iter_mut().zip(charges) {
            verdict.capacity = charge.quota.capacity();
            verdict.reset_after = verdict.reset_after.min(charge.quota.period());
        }
    }

    fn gave_up(charges: &[Charge]) -> Self {
        Self {
            verdicts: charges.iter().map(|charge| Verdict::refusal(&charge.quota)).collect(),
            gave_up: true,
            ..Self::default()
        }
    }
}
