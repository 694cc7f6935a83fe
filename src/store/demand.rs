//! How many units a worker's requests want of one level, and so when to ask the store for more and for
//! how many.

use super::lease_terms::LeaseTerms;
use crate::limiter::Quota;
use crate::units::{Instant, Span};

/// Parts of a level's capacity that a worker without experience asks for ahead of need.
const FIRST_SHARE: u64 = 64;

/// Parts of a level's capacity that a worker asks for ahead of need at most.
const LARGEST_SHARE: u64 = 8;

/// A [margin](Demand::margin) is one of so many parts of a life at least, and one of so many at most.
const SHORTEST_MARGIN: u64 = 8;
const LONGEST_MARGIN: u64 = 2;

/// In the last one of so many parts of its life a parcel is old, however many units it has: whoever comes
/// after its end would wait.
const OLD_PART: u64 = 4;

/// What requests want of one level.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    /// Whether units may be had ahead of need.
    ahead: bool,
    capacity: u64,
    /// What a request costs.
    cost: u64,
    life: Span,
    /// Units spent since `asked_at`, when the store was last asked.
    spent: u64,
    asked_at: Instant,
    margin: Span,
    /// Questions that are under way.
    questions: u32,
}

impl Demand {
    pub(super) fn new(quota: &Quota, terms: &LeaseTerms, cost: u64) -> Self {
        let life = terms.life();
        Self {
            ahead: terms.ahead(),
            capacity: quota.capacity(),
            cost: cost.max(1),
            life,
            spent: 0,
            asked_at: Instant::ORIGIN,
            margin: part(life, LONGEST_MARGIN),
            questions: 0,
        }
    }

    /// How long units can be spent.
    pub(super) const fn life(&self) -> Span {
        self.life
    }

    pub(super) const fn note_spent(&mut self, units: u64) {
        self.spent = self.spent.saturating_add(units);
    }

    pub(super) const fn note_unspent(&mut self, units: u64) {
        self.spent = self.spent.saturating_sub(units);
    }

    /// Notes how long the store took to answer.
    pub(super) fn note_round_trip(&mut self, time: Span) {
        let twice = time.plus(time);
        self.margin = twice.max(part(self.life, SHORTEST_MARGIN)).min(self.longest_margin());
    }

    /// For how long units should last when more are asked for: two round trips to the store and back, but
    /// no less than an eighth of a life and no more than half of one.
    pub(super) const fn margin(&self) -> Span {
        self.margin
    }

    pub(super) fn longest_margin(&self) -> Span {
        part(self.life, LONGEST_MARGIN)
    }

    /// The time that the newest units should live when more are asked for.
    pub(super) fn oldest(&self) -> Span {
        self.margin.max(part(self.life, OLD_PART))
    }

    /// When the store was last asked.
    pub(super) const fn asked_at(&self) -> Instant {
        self.asked_at
    }

    pub(super) const fn is_asked(&self) -> bool {
        self.questions > 0
    }

    /// Whether to ask ahead of need makes sense now.
    pub(super) const fn takes_more(&self) -> bool {
        self.ahead && self.questions == 0
    }

    /// Whether `units` last for `time`, or are as many as would be asked for at most for so long. It is
    /// [`ahead`](Self::ahead) without its division, because every request wants to know.
    pub(super) fn is_met(&self, units: u64, time: Span, now: Instant) -> bool {
        if units < self.cost {
            return false;
        }
        // Products of two numbers of 64 bits.
        let product =
            |units: u64, time: Span| u128::from(units).wrapping_mul(u128::from(time.as_nanos()));
        let lasts = |spent: u64, within: Span| product(units, within) >= product(spent, time);
        lasts(self.spent, self.experience(now)) || lasts(self.most(), self.life)
    }

    /// The time in which units were spent since the store was last asked. Those who waited for its answer
    /// spent theirs at once, which says nothing about others.
    fn experience(&self, now: Instant) -> Span {
        now.since(self.asked_at).max(part(self.life, SHORTEST_MARGIN))
    }

    /// What to ask for ahead of need and of the `firm` units that are waited for, where there are `units`
    /// already, which last `for_time`, and where the store has been `heard` before.
    pub(super) fn ask(
        &mut self,
        firm: u64,
        (units, for_time): (u64, Span),
        heard: bool,
        now: Instant,
    ) -> u64 {
        self.questions = self.questions.saturating_add(1);
        if self.questions > 1 {
            return 0;
        }
        let ahead = self.ahead(heard, now);
        let meanwhile = scaled(ahead, for_time, self.life);
        (self.spent, self.asked_at) = (0, now);
        let more = ahead.saturating_sub(units.min(self.whole(meanwhile)));
        // The store grants one cost to whoever asks.
        more.saturating_sub(if firm == 0 { self.cost } else { 0 })
    }

    /// Notes that a question is over, whatever came of it.
    pub(super) const fn answered(&mut self) {
        self.questions = self.questions.saturating_sub(1);
    }

    /// Units for one life, for whole requests: as many as were spent in the time since the last
    /// question, or a small share of the capacity where there is no experience.
    fn ahead(&self, heard: bool, now: Instant) -> u64 {
        if !self.ahead {
            return 0;
        }
        let units = match heard {
            false => self.capacity.checked_div(FIRST_SHARE).unwrap_or(0).max(1),
            true => scaled(self.spent, self.life, self.experience(now)),
        };
        self.whole(units).min(self.most())
    }

    /// As many units as whole requests take.
    fn whole(&self, units: u64) -> u64 {
        units.checked_next_multiple_of(self.cost).unwrap_or(units)
    }

    /// The most units that are asked for ahead of need.
    fn most(&self) -> u64 {
        let share = self.capacity.checked_div(LARGEST_SHARE).unwrap_or(0);
        let rest = share.checked_rem(self.cost).unwrap_or(0);
        share.saturating_sub(rest).max(self.cost)
    }
}

/// As many as `units` are for `of`, for `time`; rounded up.
fn scaled(units: u64, time: Span, of: Span) -> u64 {
    let product = u128::from(units).saturating_mul(u128::from(time.as_nanos()));
    let scaled = product.div_ceil(u128::from(of.as_nanos().max(1)));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

fn part(whole: Span, parts: u64) -> Span {
    Span::from_nanos(whole.as_nanos().checked_div(parts).unwrap_or(0))
}
