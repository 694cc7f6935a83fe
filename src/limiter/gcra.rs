//! The generic cell rate algorithm (ITU-T I.371 Annex A, as a leaky bucket), in integers.
//!
//! The level is counted in parts of a unit: one unit is `per` nanoseconds' worth of parts, and
//! `rate` parts leak away every nanosecond. Nothing is ever rounded, so a fast rate cannot round to
//! "unlimited". A clock in whole nanoseconds reads each arrival up to one nanosecond early, so a
//! request may overfill the bucket by less than one nanosecond's leak (and less than one unit):
//! traffic at exactly the allowed rate is never refused.

use serde::{Deserialize, Serialize};

use super::{GcraQuota, Verdict};
use crate::units::{Instant, Span};

/// What is in the bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcraUsage {
    /// Parts in the bucket at `last`.
    level: u128,
    /// Parts that make one unit: the period of the quota under which the level was written.
    parts_per_unit: Span,
    /// The latest time seen.
    last: Instant,
}

impl GcraUsage {
    /// Usage of `units`, all spent at `at`.
    pub(super) fn spent_at(quota: &GcraQuota, at: Instant, units: u64) -> Self {
        Self { level: quota.parts(units), parts_per_unit: quota.per, last: at }
    }

    /// The latest time that this usage has seen, for a `now` that may lie before it.
    pub(super) fn clamp(&self, now: Instant) -> Instant {
        self.last.max(now)
    }

    /// Whole units in the bucket when it was last written, rounded up.
    pub(super) fn units_at_last(&self) -> u64 {
        let units = self.level.div_ceil(u128::from(self.parts_per_unit.as_nanos().max(1)));
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// Parts in the bucket at `now`, in the measure of `quota`.
    fn level_at(&self, quota: &GcraQuota, now: Instant) -> u128 {
        let elapsed = u128::from(now.since(self.last).as_nanos());
        self.rescaled(quota.per).saturating_sub(elapsed.saturating_mul(u128::from(quota.rate)))
    }

    /// The level with units of `parts_per_unit`, rounded up, so that a change of the period frees
    /// nothing.
    fn rescaled(&self, parts_per_unit: Span) -> u128 {
        let (old, new) = (self.parts_per_unit.as_nanos(), parts_per_unit.as_nanos());
        if old == new || old == 0 {
            return self.level;
        }
        let (old, new) = (u128::from(old), u128::from(new));
        let whole = self.level.checked_div(old).unwrap_or(0);
        let rest = self.level.checked_rem(old).unwrap_or(0);
        whole.saturating_mul(new).saturating_add(rest.saturating_mul(new).div_ceil(old))
    }

    pub(super) fn peek(&self, quota: &GcraQuota, cost: u64, now: Instant) -> Verdict {
        let now = self.clamp(now);
        let level = self.level_at(quota, now);
        let full = quota.parts(quota.burst);
        let brim = quota.brim();
        let after = level.saturating_add(quota.parts(cost));
        let admitted = cost <= quota.burst && after <= brim;
        let left = if admitted { after } else { level };
        Verdict {
            admitted,
            capacity: quota.burst,
            remaining: u64::try_from(
                full.saturating_sub(left).checked_div(quota.parts(1)).unwrap_or(0),
            )
            .unwrap_or(u64::MAX),
            retry_after: match admitted {
                true => Span::ZERO,
                false if cost > quota.burst => quota.refill_time().max(quota.per),
                false => quota.leak_time(after.saturating_sub(brim)),
            },
            reset_after: quota.leak_time(left),
        }
    }

    /// Charges `cost` units and says at which time they stand.
    pub(super) fn charge(&mut self, quota: &GcraQuota, cost: u64, now: Instant) -> Instant {
        let now = self.clamp(now);
        *self = Self {
            level: self.level_at(quota, now).saturating_add(quota.parts(cost)),
            parts_per_unit: quota.per,
            last: now,
        };
        now
    }

    /// Takes back what is left of `cost` units that were charged at `charged_at`. What has leaked
    /// away since may already have served another request, so it is not given back a second time.
    pub(super) fn refund(
        &mut self,
        quota: &GcraQuota,
        cost: u64,
        charged_at: Instant,
        now: Instant,
    ) {
        let now = self.clamp(now);
        let leaked =
            u128::from(now.since(charged_at).as_nanos()).saturating_mul(u128::from(quota.rate));
        let left = quota.parts(cost).saturating_sub(leaked);
        *self = Self {
            level: self.level_at(quota, now).saturating_sub(left),
            parts_per_unit: quota.per,
            last: now,
        };
    }

    /// The time from which the bucket is empty.
    pub(super) fn expires_at(&self, quota: &GcraQuota) -> Instant {
        self.last.plus(quota.leak_time(self.rescaled(quota.per)))
    }

    /// Usage at least as strict as this one and as `other`, at every later time.
    pub(super) fn envelope(&self, other: &Self) -> Self {
        Self {
            level: self.level.max(other.rescaled(self.parts_per_unit)),
            parts_per_unit: self.parts_per_unit,
            last: self.last.max(other.last),
        }
    }
}

impl GcraQuota {
    fn parts(&self, units: u64) -> u128 {
        u128::from(units).saturating_mul(u128::from(self.per.as_nanos()))
    }

    /// The most parts that the bucket may hold: the burst, and what leaks before the clock's next
    /// reading.
    pub(super) fn brim(&self) -> u128 {
        let unread = self.rate.min(self.per.as_nanos()).saturating_sub(1);
        self.parts(self.burst).saturating_add(u128::from(unread))
    }

    /// Whole units that leak away within `span`, rounded up.
    #[must_use]
    pub fn leaked_within(&self, span: Span) -> u64 {
        let parts = u128::from(span.as_nanos()).saturating_mul(u128::from(self.rate));
        let units = parts.div_ceil(u128::from(self.per.as_nanos().max(1)));
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    fn leak_time(&self, parts: u128) -> Span {
        let nanos = parts.div_ceil(u128::from(self.rate.max(1)));
        Span::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Span = Span::from_secs(60);

    fn quota(rate: u64, per: Span, burst: u64) -> GcraQuota {
        GcraQuota { rate, per, burst }
    }

    fn take(usage: &mut GcraUsage, quota: &GcraQuota, nanos: u64) -> bool {
        let now = Instant::from_nanos(nanos);
        let admitted = usage.peek(quota, 1, now).admitted;
        if admitted {
            usage.charge(quota, 1, now);
        }
        admitted
    }

    #[test]
    fn tim_9_traffic_at_exactly_the_rate_is_never_refused() {
        let fast = quota(600, Span::from_secs(1), 400);
        let mut usage = GcraUsage::default();
        assert!((0..6000).all(|k: u64| take(&mut usage, &fast, (k * 1_000_000_000).div_ceil(600))));

        let slow = quota(7, MINUTE, 1);
        let mut usage = GcraUsage::default();
        let hour =
            (0..420u64).filter(|k| take(&mut usage, &slow, (k * 60_000_000_000).div_ceil(7)));
        assert_eq!(hour.count(), 420);
    }

    #[test]
    fn tim_6_extreme_rates_neither_overflow_nor_round_to_unlimited() {
        let mut usage = GcraUsage::default();
        let two_per_nano = quota(2_000_000_000, Span::from_secs(1), 1);
        assert!(take(&mut usage, &two_per_nano, 5));
        assert!(!take(&mut usage, &two_per_nano, 5));

        let mut usage = GcraUsage::default();
        let yearly = quota(1, Span::from_secs(365 * 86_400), 1_000_000);
        assert!((0..1_000_000).all(|_| take(&mut usage, &yearly, 7)));
        assert!(!take(&mut usage, &yearly, 7));
    }

    #[test]
    fn tim_7_a_clock_that_steps_never_mints_units() {
        let (second, one_per_second) = (1_000_000_000, quota(1, Span::from_secs(1), 2));
        let mut usage = GcraUsage::default();
        assert!(take(&mut usage, &one_per_second, 100 * second));
        assert!(take(&mut usage, &one_per_second, 100 * second));
        let refused = usage.peek(&one_per_second, 1, Instant::from_nanos(89 * second));
        assert!(!refused.admitted);
        assert_eq!(refused.retry_after, Span::from_secs(1));
        assert!(take(&mut usage, &one_per_second, 101 * second));
        for _ in 0..100 {
            assert!(!take(&mut usage, &one_per_second, 89 * second));
            assert!(!take(&mut usage, &one_per_second, 101 * second));
        }
    }

    #[test]
    fn a_refund_gives_back_only_what_has_not_leaked() {
        let one_per_second = quota(1, Span::from_secs(1), 1);
        let mut usage = GcraUsage::default();
        let charged_at = usage.charge(&one_per_second, 1, Instant::ORIGIN);
        let later = Instant::ORIGIN.plus(Span::from_secs(1));
        usage.charge(&one_per_second, 1, later);
        usage.refund(&one_per_second, 1, charged_at, later);
        assert!(!usage.peek(&one_per_second, 1, later).admitted);
    }

    #[test]
    fn a_changed_period_keeps_the_units() {
        let mut usage = GcraUsage::default();
        let before = quota(10, Span::from_secs(1), 10);
        for _ in 0..10 {
            assert!(take(&mut usage, &before, 0));
        }
        let after = quota(10, MINUTE, 12);
        assert_eq!(usage.peek(&after, 1, Instant::ORIGIN).remaining, 1);
    }
}
