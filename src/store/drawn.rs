//! Units of the node's levels that a worker draws ahead of need, to spend them from its own memory.
//!
//! A request at a busy level would read and write the node's usage for one unit; so the worker takes a
//! few more along and spends them without asking anyone. They are charged before they are spent, so
//! nothing is ever spent that the node has not charged, whatever becomes of the worker.
//!
//! A unit charged at `T` is spent before `T + life`. A window of such a level therefore counts charges
//! for one life longer than its own length, and a GCRA level keeps in reserve what leaks within one:
//! a sixty-fourth at most. Levels of fewer than [`CAPACITY_MIN`] units never draw, and lose nothing.
//!
//! What is not spent goes back with the next draw, or soon by itself.

use super::sweep::Sweep;
use crate::limiter::{GcraQuota, Quota, Verdict, WindowQuota};
use crate::map::{Map, seeded};
use crate::policy::{Charge, LevelKey};
use crate::units::{Instant, Span};

/// Levels with less room are charged one request at a time.
const CAPACITY_MIN: u64 = 1024;

/// A life is at most this part of a level's period, and a draw of what is left of the level.
const PARTS: u64 = 64;

/// The longest life of what is drawn.
const LIFE_MAX: Span = Span::from_millis(50);

/// The shortest life for which drawing is worth while.
const LIFE_MIN: Span = Span::from_millis(5);

/// The most requests for which units are drawn at once.
const REQUESTS_MAX: u64 = 128;

/// The most levels of subjects that are looked after: about 200 KiB. Others are charged one request
/// at a time.
const TABLE_MAX: usize = 1024;

/// The most levels whose units go back by themselves at one look.
pub(super) const RETURNS_MAX: usize = 64;

/// How a level's units are drawn. It follows from the quota alone, so all workers agree on it.
struct Terms {
    life: Span,
    /// What the node enforces, so that spending obeys the level's own quota.
    charged: Quota,
}

/// What one worker has drawn.
#[derive(Debug)]
pub(super) struct Drawn {
    draws: Map<LevelKey, Draw>,
    sweep: Sweep,
}

/// What was drawn of one level of one subject.
#[derive(Debug)]
struct Draw {
    /// Units not yet spent.
    units: u64,
    /// Where they stand in the node's usage.
    charged_at: Instant,
    /// The time from which they may not be spent any more.
    until: Instant,
    /// Units that were drawn together, the first request's own among them.
    size: u64,
    /// What the node said.
    told: Verdict,
    /// The quota under which they are charged.
    quota: Quota,
}

/// What a charge asks of the node beside its own units.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Order {
    /// Units that go back, and where they stand.
    pub(super) back: Option<(u64, Instant)>,
    /// Units wanted ahead of need.
    ahead: u64,
}

impl Terms {
    fn of(quota: &Quota) -> Option<Self> {
        if quota.capacity() < CAPACITY_MIN || quota.is_in_flight() {
            return None;
        }
        let part = quota.period().as_nanos().checked_div(PARTS).unwrap_or(0);
        let life = Span::from_nanos(part).min(LIFE_MAX);
        if life < LIFE_MIN {
            return None;
        }
        let charged = match *quota {
            Quota::Window(quota) => {
                Quota::Window(WindowQuota { window: quota.window.plus(life), ..quota })
            }
            Quota::Gcra(quota) => {
                let burst = quota.burst.saturating_sub(quota.leaked_within(life));
                Quota::Gcra(GcraQuota { burst, ..quota })
            }
            Quota::InFlight(_) => return None,
        };
        Some(Self { life, charged })
    }
}

/// `charge` under the quota that the node enforces. A request that only the whole of a level could
/// ever hold may have it.
pub(super) fn enforced(charge: &Charge) -> Charge {
    let charged = Terms::of(&charge.quota).map(|terms| terms.charged);
    let quota = charged.filter(|quota| charge.cost <= quota.capacity()).unwrap_or(charge.quota);
    Charge { quota, ..*charge }
}

impl Order {
    /// The units that are drawn ahead of need from a level that says this to the request.
    pub(super) fn ahead(&self, told: &Verdict) -> u64 {
        self.ahead.min(told.remaining.checked_div(PARTS).unwrap_or(0))
    }
}

impl Drawn {
    pub(super) fn new(seed: u64) -> Self {
        Self { draws: seeded(seed), sweep: Sweep::default() }
    }

    /// Spends the charge's units. Says what is left; none, and nothing is spent, where there are not enough.
    pub(super) fn spend(&mut self, charge: &Charge, now: Instant) -> Option<Verdict> {
        let draw = self.draws.get_mut(&LevelKey::of(charge))?;
        if now < draw.charged_at || draw.until <= now {
            return None;
        }
        draw.units = draw.units.checked_sub(charge.cost)?;
        let remaining = draw.told.remaining.saturating_add(draw.units);
        Some(Verdict { remaining, ..draw.told })
    }

    /// Gives back what [`spend`](Self::spend) has just spent.
    pub(super) fn unspend(&mut self, charge: &Charge) {
        if let Some(draw) = self.draws.get_mut(&LevelKey::of(charge)) {
            draw.units = draw.units.saturating_add(charge.cost);
        }
    }

    /// What to ask of the node together with the charge's own units: twice as much as the last time
    /// where that was spent before its time was over, else as much as was needed.
    pub(super) fn order(&self, charge: &Charge, now: Instant) -> Order {
        let Some(draw) = self.draws.get(&LevelKey::of(charge)) else { return Order::default() };
        let spent = draw.size.saturating_sub(draw.units);
        let wanted = match Terms::of(&charge.quota) {
            Some(_) if now < draw.until => spent.saturating_mul(2),
            Some(Terms { life, .. }) if now < draw.until.plus(life) => spent,
            _ => 0,
        };
        let ahead = wanted.min(charge.cost.saturating_mul(REQUESTS_MAX));
        let back = (draw.units > 0).then_some((draw.units, draw.charged_at));
        Order { back, ahead }
    }

    /// Takes what the node charged for a request at `charged_at`, `ahead` of its need. What was to go
    /// back has gone.
    pub(super) fn take(
        &mut self,
        (charge, enforced): (&Charge, &Charge),
        charged_at: Instant,
        (told, ahead): (&Verdict, u64),
        now: Instant,
    ) {
        let Some(Terms { life, .. }) = Terms::of(&charge.quota) else { return };
        let key = LevelKey::of(charge);
        if self.draws.len() >= TABLE_MAX && !self.draws.contains_key(&key) {
            if self.sweep.is_due(now) {
                self.draws.retain(|_, draw| draw.units > 0 || now < draw.until);
            }
            if self.draws.len() >= TABLE_MAX {
                return;
            }
        }
        let draw = Draw {
            units: ahead,
            charged_at,
            until: now.plus(life),
            size: ahead.saturating_add(charge.cost),
            told: Verdict { remaining: told.remaining.saturating_sub(ahead), ..*told },
            quota: enforced.quota,
        };
        self.draws.insert(key, draw);
    }

    /// Charges that stand for units that nobody will spend, each with where those stand. They are
    /// taken to have gone back.
    pub(super) fn leftovers(&mut self, now: Instant) -> Vec<(Charge, Instant)> {
        let over = self.draws.iter_mut().filter(|(_, draw)| draw.units > 0 && draw.until <= now);
        let back = |(LevelKey { id, level, subject }, draw): (&LevelKey, &mut Draw)| {
            let cost = std::mem::take(&mut draw.units);
            let (id, level, subject, quota) = (*id, *level, *subject, draw.quota);
            (Charge { place: 0, id, level, subject, quota, cost }, draw.charged_at)
        };
        over.take(RETURNS_MAX).map(back).collect()
    }
}
