//! A sliding window in a bounded number of buckets.
//!
//! A bucket holds the units charged within one sixteenth of the window and counts until the window
//! has passed since the *last* of them, so no interval of the window's length ever holds more than
//! the limit. The price is that the first units of a bucket come back late, by a sixteenth of the
//! window at most: under the worst demand 16/17 of the limit is admitted. Limits whose charges lie
//! further apart than a sixteenth of the window are exact.

use serde::{Deserialize, Serialize};

use super::{Verdict, WindowQuota};
use crate::units::{Instant, Span};

/// Parts of the window that one bucket may span.
const BUCKETS_PER_WINDOW: u64 = 16;

/// The most buckets that are kept. Seventeen can be live at once; where the quota's window shrank
/// and a bucket more would be needed, the newest one takes the charge, which is stricter.
const MAX_BUCKETS: usize = 18;

/// What was spent within the window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowUsage {
    /// The first charge of the newest bucket.
    newest_start: Instant,
    /// Oldest first.
    buckets: Vec<Bucket>,
}

/// Units that leave the window together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Bucket {
    /// The last charge.
    last: Instant,
    units: u64,
}

impl WindowUsage {
    /// Usage of `units`, all spent at `at`.
    pub(super) fn spent_at(at: Instant, units: u64) -> Self {
        match units {
            0 => Self::default(),
            _ => Self { newest_start: at, buckets: vec![Bucket { last: at, units }] },
        }
    }

    /// The latest time that this usage has seen, for a `now` that may lie before it.
    pub(super) fn clamp(&self, now: Instant) -> Instant {
        self.buckets.last().map_or(now, |newest| newest.last.max(now))
    }

    /// Units that still count at `now`.
    fn used(&self, quota: &WindowQuota, now: Instant) -> u64 {
        let live = self.buckets.iter().filter(|bucket| bucket.counts(quota.window, now));
        live.fold(0, |sum, bucket| sum.saturating_add(bucket.units))
    }

    pub(super) fn peek(&self, quota: &WindowQuota, cost: u64, now: Instant) -> Verdict {
        let now = self.clamp(now);
        let used = self.used(quota, now);
        let room = quota.requests.saturating_sub(used);
        let admitted = cost <= room;
        Verdict {
            admitted,
            capacity: quota.requests,
            remaining: if admitted { room.saturating_sub(cost) } else { room },
            retry_after: if admitted { Span::ZERO } else { self.wait(quota, cost, used, now) },
            reset_after: match (admitted, self.buckets.last()) {
                (false, Some(newest)) => newest.last.plus(quota.window).since(now),
                _ => quota.window,
            },
        }
    }

    /// How long until `cost` units fit; the whole window where they never do.
    fn wait(&self, quota: &WindowQuota, cost: u64, mut used: u64, now: Instant) -> Span {
        for bucket in self.buckets.iter().filter(|bucket| bucket.counts(quota.window, now)) {
            used = used.saturating_sub(bucket.units);
            if cost <= quota.requests.saturating_sub(used) {
                return bucket.last.plus(quota.window).since(now);
            }
        }
        quota.window
    }

    /// Charges `cost` units and says at which time they stand.
    pub(super) fn charge(&mut self, quota: &WindowQuota, cost: u64, now: Instant) -> Instant {
        let now = self.clamp(now);
        self.buckets.retain(|bucket| bucket.counts(quota.window, now));
        let full = self.buckets.len() >= MAX_BUCKETS;
        let span = Span::from_nanos(quota.window.as_nanos().div_ceil(BUCKETS_PER_WINDOW));
        match self.buckets.last_mut() {
            Some(newest) if full || now < self.newest_start.plus(span) => {
                newest.last = now;
                newest.units = newest.units.saturating_add(cost);
            }
            _ => {
                self.newest_start = now;
                self.buckets.push(Bucket { last: now, units: cost });
            }
        }
        now
    }

    /// Takes back `cost` units that were charged at `charged_at`, the time that
    /// [`charge`](Self::charge) returned. They stand in the first bucket that ends no earlier, and
    /// that bucket is there for as long as `charged_at` itself lies within the window.
    pub(super) fn refund(
        &mut self,
        quota: &WindowQuota,
        cost: u64,
        charged_at: Instant,
        now: Instant,
    ) {
        if charged_at.plus(quota.window) <= self.clamp(now) {
            return;
        }
        if let Some(bucket) = self.buckets.iter_mut().find(|bucket| bucket.last >= charged_at) {
            bucket.units = bucket.units.saturating_sub(cost);
        }
        // Else the next charge would join an older bucket, and what that one holds would stay longer.
        if self.buckets.last().is_some_and(|newest| newest.units == 0) {
            self.newest_start = Instant::ORIGIN;
        }
        self.buckets.retain(|bucket| bucket.units > 0);
    }

    /// The time from which nothing of this usage counts.
    pub(super) fn expires_at(&self, quota: &WindowQuota) -> Instant {
        self.buckets.last().map_or(Instant::ORIGIN, |newest| newest.last.plus(quota.window))
    }

    /// The same usage in one bucket: less memory, and never less strict.
    pub(super) fn coarsen(&mut self) {
        let Some(newest) = self.buckets.last() else { return };
        self.buckets = vec![Bucket { last: newest.last, units: self.units() }];
    }

    /// All units that are kept, whether or not they still count.
    pub(super) fn units(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, bucket| sum.saturating_add(bucket.units))
    }
}

impl Bucket {
    fn counts(&self, window: Span, now: Instant) -> bool {
        self.last.plus(window) > now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: WindowQuota = WindowQuota { requests: 10, window: Span::from_secs(1) };

    fn at_millis(millis: u64) -> Instant {
        Instant::ORIGIN.plus(Span::from_millis(millis))
    }

    fn take(usage: &mut WindowUsage, quota: &WindowQuota, now: Instant) -> bool {
        let admitted = usage.peek(quota, 1, now).admitted;
        if admitted {
            usage.charge(quota, 1, now);
        }
        admitted
    }

    /// Goal: a burst at a window's end is not followed by a second one at the next one's start,
    /// wherever on the clock the first one falls.
    #[test]
    fn tim_3_no_double_burst_at_a_window_edge() {
        for start in (0..1000).step_by(10) {
            let mut usage = WindowUsage::default();
            let burst = |usage: &mut WindowUsage, at| {
                (0..10).filter(|_| take(usage, &SECOND, at_millis(at))).count()
            };
            assert_eq!(burst(&mut usage, start + 950), 10);
            assert_eq!(burst(&mut usage, start + 1050), 0);
            assert_eq!(burst(&mut usage, start + 1950), 10);
        }
    }

    #[test]
    fn tim_9_one_per_window_is_admitted_exactly_one_window_later() {
        let quota = WindowQuota { requests: 1, window: Span::from_secs(10) };
        let mut usage = WindowUsage::default();
        assert!(take(&mut usage, &quota, at_millis(0)));
        assert!(!take(&mut usage, &quota, Instant::from_nanos(9_999_999_999)));
        assert!(take(&mut usage, &quota, at_millis(10_000)));
    }

    #[test]
    fn limits_of_up_to_sixteen_are_exact_under_even_traffic() {
        for requests in 1..=16 {
            let quota = WindowQuota { requests, window: Span::from_secs(1) };
            let mut usage = WindowUsage::default();
            for k in 0..200 {
                let now = Instant::from_nanos((k * 1_000_000_000u64).div_ceil(requests));
                assert!(take(&mut usage, &quota, now), "{requests}: request {k}");
            }
        }
    }

    #[test]
    fn a_limit_of_zero_refuses_everything_and_says_the_window() {
        let quota = WindowQuota { requests: 0, window: Span::from_secs(60) };
        let verdict = WindowUsage::default().peek(&quota, 1, at_millis(5));
        assert!(!verdict.admitted);
        assert_eq!(verdict.retry_after, Span::from_secs(60));
    }

    #[test]
    fn the_largest_limit_never_overflows() {
        let quota = WindowQuota { requests: u64::MAX, window: Span::from_secs(86_400) };
        let mut usage = WindowUsage::default();
        for _ in 0..3 {
            assert!(take(&mut usage, &quota, at_millis(1)));
        }
        usage.charge(&quota, u64::MAX, at_millis(2));
        assert!(!usage.peek(&quota, 1, at_millis(3)).admitted);
    }

    #[test]
    fn memory_stays_bounded_when_the_window_grows() {
        let mut usage = WindowUsage::default();
        for k in 0..1000 {
            let window = Span::from_millis(1 + k);
            usage.charge(&WindowQuota { requests: u64::MAX, window }, 1, at_millis(k));
        }
        assert!(usage.buckets.len() <= MAX_BUCKETS);
    }

    #[test]
    fn a_charge_that_is_taken_back_keeps_nothing_longer() {
        let mut usage = WindowUsage::default();
        usage.charge(&SECOND, 10, at_millis(0));
        let charged_at = usage.charge(&SECOND, 5, at_millis(990));
        usage.refund(&SECOND, 5, charged_at, at_millis(990));
        usage.charge(&SECOND, 1, at_millis(991));
        assert_eq!(usage.peek(&SECOND, 0, at_millis(1000)).remaining, 9);
    }

    #[test]
    fn a_clock_that_steps_back_neither_frees_nor_locks() {
        let quota = WindowQuota { requests: 2, window: Span::from_secs(1) };
        let mut usage = WindowUsage::default();
        assert!(take(&mut usage, &quota, at_millis(100_000)));
        assert!(take(&mut usage, &quota, at_millis(89_000)));
        let refused = usage.peek(&quota, 1, at_millis(89_000));
        assert!(!refused.admitted);
        assert_eq!(refused.retry_after, Span::from_secs(1));
        assert!(take(&mut usage, &quota, at_millis(101_000)));
    }
}
