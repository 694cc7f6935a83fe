//! What one worker knows to be charged in the store: units that were granted to it and still count.
//! If the store forgets them, it is told from here.
//!
//! Times are kept coarsely and never too early: a unit that is told again counts at most a quarter of
//! its period for longer than it did.

use super::decision::{PARTS_MAX, Part};
use crate::limiter::Quota;
use crate::map::{Map, seeded};
use crate::policy::{Charge, LevelKey};
use crate::units::{Instant, Span};

/// Keys of one generation. There are two, so a worker remembers at most 16,384 keys, about 4 MiB;
/// beyond that it forgets those that were not charged for the longest time.
const GENERATION_MAX: usize = 8_192;

/// Parts of a period that are kept apart: one less than can count at a time.
const PARTS_PER_PERIOD: u64 = 4;

/// What one worker knows to be charged.
#[derive(Debug)]
pub struct Ledger {
    seed: u64,
    /// Keys that were charged lately, and before that.
    young: Map<LevelKey, Entry>,
    old: Map<LevelKey, Entry>,
    /// From then on nothing of it counts.
    counts_until: Instant,
    /// The store's clock when it last granted anything.
    clock_us: u64,
    any_due: bool,
    dropped: u64,
}

/// A key, and what is charged under it.
#[derive(Debug)]
struct Entry {
    /// Its quota is the one that the store enforces.
    charge: Charge,
    /// The oldest first; at most [`PARTS_MAX`].
    spans: Vec<Charged>,
    /// Whether the store is to be told.
    due: bool,
    /// The store's clock when it was last told; the end of time while it is being told.
    told_us: u64,
}

/// Units that were charged from one time to another, on the store's clock.
#[derive(Clone, Copy, Debug)]
struct Charged {
    first_us: u64,
    last_us: u64,
    units: u64,
}

impl Entry {
    fn period_us(&self) -> u64 {
        self.charge.quota.period().as_micros_ceil()
    }

    /// Whether any of it still counts at `clock_us`.
    fn counts(&self, clock_us: u64) -> bool {
        let last = self.spans.last().map_or(0, |span| span.last_us);
        last.saturating_add(self.period_us()) > clock_us
    }

    fn add(&mut self, units: u64, at_us: u64) {
        let period_us = self.period_us();
        let apart_us = period_us.div_ceil(PARTS_PER_PERIOD);
        if let Some(newest) = self.spans.last_mut()
            && at_us < newest.first_us.saturating_add(apart_us)
        {
            newest.first_us = newest.first_us.min(at_us);
            newest.last_us = newest.last_us.max(at_us);
            newest.units = newest.units.saturating_add(units);
            return;
        }
        self.spans.retain(|span| span.last_us.saturating_add(period_us) > at_us);
        if self.spans.len() >= PARTS_MAX {
            let oldest = self.spans.remove(0);
            if let Some(next) = self.spans.first_mut() {
                next.first_us = oldest.first_us;
                next.units = next.units.saturating_add(oldest.units);
            }
        }
        self.spans.push(Charged { first_us: at_us, last_us: at_us, units });
    }

    /// Units that the store certainly holds at `clock_us`, if it has lost nothing. None are, where
    /// some were charged later than that.
    fn certain(&self, clock_us: u64) -> u64 {
        let (mut sum, mut most) = (0u64, 0);
        for span in self.spans.iter().rev() {
            if span.last_us >= clock_us {
                return 0;
            }
            sum = sum.saturating_add(span.units);
            let age_us = clock_us.saturating_sub(span.first_us);
            let held = match &self.charge.quota {
                Quota::Gcra(quota) => {
                    sum.saturating_sub(quota.leaked_within(Span::from_micros(age_us)))
                }
                _ if age_us < self.period_us() => sum,
                _ => 0,
            };
            most = held.max(most);
        }
        most
    }

    /// Notes that the store is being told, and says what.
    fn tell(&mut self) -> (Charge, [Part; PARTS_MAX]) {
        (self.due, self.told_us) = (false, u64::MAX);
        let mut parts = [Part::default(); PARTS_MAX];
        for (part, span) in parts.iter_mut().zip(&self.spans) {
            *part = Part { at_us: span.last_us, units: span.units };
        }
        (self.charge, parts)
    }
}

impl Ledger {
    /// Nothing. `seed` should be random.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            young: seeded(seed),
            old: seeded(seed),
            counts_until: Instant::ORIGIN,
            clock_us: 0,
            any_due: false,
            dropped: 0,
        }
    }

    /// Whether the store holds anything that this worker could tell it again.
    #[must_use]
    pub fn counts(&self, now: Instant) -> bool {
        self.counts_until > now
    }

    /// Notes that `units` were charged at `at_us`. The quota of `charge` is what the store enforces.
    pub fn granted(&mut self, charge: &Charge, units: u64, at_us: u64, now: Instant) {
        if units == 0 {
            return;
        }
        self.counts_until = self.counts_until.max(now.plus(charge.quota.period()));
        self.clock_us = at_us;
        let key = LevelKey::of(charge);
        if !self.young.contains_key(&key) {
            if self.young.len() >= GENERATION_MAX {
                let young = std::mem::replace(&mut self.young, seeded(self.seed));
                let lost = std::mem::replace(&mut self.old, young);
                let lost = lost.values().filter(|entry| entry.counts(at_us)).count();
                self.dropped = self.dropped.saturating_add(u64::try_from(lost).unwrap_or(0));
            }
            let entry = self.old.remove(&key).unwrap_or_else(|| Entry {
                charge: *charge,
                spans: Vec::new(),
                due: false,
                told_us: 0,
            });
            self.young.insert(key, entry);
        }
        if let Some(entry) = self.young.get_mut(&key) {
            entry.charge.quota = charge.quota;
            entry.add(units, at_us);
        }
    }

    /// Notes that `units` that were charged at `at_us` are on their way back.
    pub fn given_back(&mut self, charge: &Charge, units: u64, at_us: u64) {
        let Some(entry) = self.entry(&LevelKey::of(charge)) else { return };
        if let Some(span) = entry.spans.iter_mut().find(|span| span.last_us >= at_us) {
            span.units = span.units.saturating_sub(units);
        }
    }

    /// What the store is to be told at once about `charge`, because at `clock_us` it held only `held`
    /// units, fewer than it should.
    pub fn missing(
        &mut self,
        charge: &Charge,
        held: u64,
        clock_us: u64,
    ) -> Option<(Charge, [Part; PARTS_MAX])> {
        let capacity = charge.quota.capacity();
        let entry = self.entry(&LevelKey::of(charge))?;
        let lost = held < entry.certain(clock_us).min(capacity);
        (lost && entry.told_us < clock_us).then(|| entry.tell())
    }

    /// The store has lost what `key` holds.
    pub fn lose(&mut self, key: &LevelKey) {
        if let Some(entry) = self.entry(key) {
            entry.due = true;
            self.any_due = true;
        }
    }

    /// The store has lost everything that is `rebuilt`, and is to be told.
    pub fn lose_all(&mut self, rebuilt: impl Fn(&Charge) -> bool) {
        for entry in self.young.values_mut().chain(self.old.values_mut()) {
            entry.due |= rebuilt(&entry.charge);
        }
        self.any_due = true;
    }

    /// At most `most` reports to the store, the more recent half of all keys first.
    pub fn take_due(
        &mut self,
        most: usize,
        may_tell: impl Fn(&Charge) -> bool,
    ) -> Vec<(Charge, [Part; PARTS_MAX])> {
        if !self.any_due {
            return Vec::new();
        }
        let (mut reports, mut left) = (Vec::new(), false);
        for entry in self.young.values_mut().chain(self.old.values_mut()) {
            entry.due &= entry.counts(self.clock_us);
            if entry.due && reports.len() < most && may_tell(&entry.charge) {
                reports.push(entry.tell());
            }
            left |= entry.due;
        }
        self.any_due = left;
        reports
    }

    /// The store was told about `key` at `clock_us`.
    pub fn told(&mut self, key: &LevelKey, clock_us: u64) {
        if let Some(entry) = self.entry(key) {
            entry.told_us = clock_us;
        }
    }

    /// Keys that were forgotten although they counted, since the last call.
    pub const fn take_dropped(&mut self) -> u64 {
        std::mem::replace(&mut self.dropped, 0)
    }

    fn entry(&mut self, key: &LevelKey) -> Option<&mut Entry> {
        match self.young.get_mut(key) {
            Some(entry) => Some(entry),
            None => self.old.get_mut(key),
        }
    }
}
