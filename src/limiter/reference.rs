//! A slow, obvious limiter that keeps every admission, and the properties that tie the fast ones
//! to it.

use proptest::prelude::*;

use super::{GcraQuota, Quota, Usage, WindowQuota};
use crate::units::{Instant, Span};

/// Every admission, as `(time in nanoseconds, units)`.
#[derive(Default)]
struct Log(Vec<(u64, u64)>);

impl Log {
    /// Units admitted in `(now - length, now]`.
    fn within(&self, length: u64, now: u64) -> u64 {
        let recent = self.0.iter().filter(|(at, _)| *at <= now && at + length > now);
        recent.map(|(_, units)| units).sum()
    }

    /// The most units in any interval `[t, t + length)`.
    fn worst(&self, length: u64) -> u64 {
        self.0.iter().map(|(at, _)| self.within(length, *at)).max().unwrap_or(0)
    }
}

/// Arrivals: gaps of many sizes, so that bursts, window edges and idle times all occur.
fn arrivals() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let gap = prop_oneof![Just(0u64), 1..5u64, 1..200u64, 900..1100u64, 1..5000u64];
    prop::collection::vec((gap, 1..4u64), 1..300)
}

fn run(quota: &Quota, arrivals: &[(u64, u64)], mut check: impl FnMut(&Log, u64, u64, bool)) -> Log {
    let (mut usage, mut log, mut now) = (Usage::none(quota), Log::default(), 0);
    for (gap, cost) in arrivals {
        now += gap;
        let verdict = usage.peek(quota, *cost, Instant::from_nanos(now));
        check(&log, now, *cost, verdict.admitted);
        if verdict.admitted {
            usage.charge(quota, *cost, Instant::from_nanos(now));
            log.0.push((now, *cost));
        }
    }
    log
}

/// Units in the bucket by definition: each nanosecond takes `rate / per` of them out.
fn gcra_level(log: &Log, quota: &GcraQuota, now: u64) -> u128 {
    let (mut level, mut last) = (0u128, 0);
    for (at, units) in log.0.iter().copied().chain([(now, 0)]) {
        level = level.saturating_sub(u128::from(at - last) * u128::from(quota.rate));
        level += u128::from(units) * u128::from(quota.per.as_nanos());
        last = at;
    }
    level
}

proptest! {
    /// Goal: whatever arrives, no interval of the window's length holds more than the limit, and
    /// nothing is refused that would fit a window longer by a sixteenth.
    #[test]
    fn window_is_never_exceeded_in_any_interval(
        arrivals in arrivals(), requests in 0..40u64, window in 1..3000u64,
    ) {
        let quota = Quota::Window(WindowQuota { requests, window: Span::from_nanos(window) });
        let log = run(&quota, &arrivals, |log, now, cost, admitted| {
            if !admitted {
                let longer = window + window.div_ceil(16);
                assert!(log.within(longer, now) + cost > requests, "refused although it fits");
            }
        });
        prop_assert!(log.worst(window) <= requests);
    }

    /// Goal: the fast GCRA decides every request exactly as the definition does, so no interval
    /// `t` ever holds more than `burst + rate·t/per`, read with a clock of whole nanoseconds.
    #[test]
    fn gcra_is_never_exceeded_in_any_interval(
        arrivals in arrivals(), rate in 1..50u64, per in 1..2000u64, burst in 0..40u64,
    ) {
        let gcra = GcraQuota { rate, per: Span::from_nanos(per), burst };
        let full = u128::from(burst) * u128::from(per);
        // Times are read in whole nanoseconds: less than one nanosecond's leak is unread.
        let unread = u128::from(rate.min(per)) - 1;
        let log = run(&Quota::Gcra(gcra), &arrivals, |log, now, cost, admitted| {
            let after = gcra_level(log, &gcra, now) + u128::from(cost) * u128::from(per);
            assert_eq!(admitted, cost <= burst && after <= full + unread);
        });
        for (i, (from, _)) in log.0.iter().enumerate() {
            let mut units = 0;
            for (to, cost) in &log.0[i..] {
                units += u128::from(*cost) * u128::from(per);
                prop_assert!(units <= full + u128::from(rate) * u128::from(to - from) + unread);
            }
        }
    }

    /// Goal: whoever waits for as long as a refusal says is admitted, and not a nanosecond before
    /// for GCRA, where the wait is exact.
    #[test]
    fn rsp_1_waiting_for_retry_after_is_enough(
        arrivals in arrivals(), window_form in any::<bool>(), units in 1..20u64, time in 1..3000u64,
    ) {
        let quota = match window_form {
            true => Quota::Window(WindowQuota { requests: units, window: Span::from_nanos(time) }),
            false => Quota::Gcra(GcraQuota { rate: 3, per: Span::from_nanos(time), burst: units }),
        };
        let (mut usage, mut now) = (Usage::none(&quota), 0);
        for (gap, cost) in arrivals {
            now += gap;
            let at = Instant::from_nanos(now);
            let verdict = usage.peek(&quota, cost, at);
            if verdict.admitted {
                usage.charge(&quota, cost, at);
                continue;
            }
            prop_assert!(!verdict.retry_after.is_zero());
            if cost <= units {
                prop_assert!(usage.peek(&quota, cost, at.plus(verdict.retry_after)).admitted);
                let sooner = at.plus(verdict.retry_after.minus(Span::from_nanos(1)));
                prop_assert!(window_form || !usage.peek(&quota, cost, sooner).admitted);
            }
        }
    }

    /// Goal: a refund never leaves more room than if its charge had never been made.
    #[test]
    fn a_refund_frees_at_most_its_own_charge(
        before in arrivals(), after in arrivals(), window_form in any::<bool>(), wait in 0..4000u64,
    ) {
        let quota = match window_form {
            true => Quota::Window(WindowQuota { requests: 500, window: Span::from_nanos(1000) }),
            false => Quota::Gcra(GcraQuota { rate: 1, per: Span::from_nanos(7), burst: 500 }),
        };
        let (mut with, mut without, mut now) = (Usage::none(&quota), Usage::none(&quota), 0);
        let charge_all = |usages: [&mut Usage; 2], list: &[(u64, u64)], now: &mut u64| {
            let start = *now;
            for usage in usages {
                *now = start;
                for (gap, cost) in list {
                    *now += gap;
                    usage.charge(&quota, *cost, Instant::from_nanos(*now));
                }
            }
        };
        charge_all([&mut with, &mut without], &before, &mut now);
        let charged_at = with.charge(&quota, 5, Instant::from_nanos(now));
        charge_all([&mut with, &mut without], &after, &mut now);
        now += wait;
        with.refund(&quota, 5, charged_at, Instant::from_nanos(now));
        let room = |usage: &Usage| usage.peek(&quota, 0, Instant::from_nanos(now)).remaining;
        prop_assert!(room(&with) <= room(&without));
    }
}
