//! Changes of limits, forms and clocks on usage that is already there.

use super::*;

const MINUTE_US: u64 = 60 * SECOND_US;

#[test]
fn cfg_2_a_changed_limit_applies_to_current_usage() {
    let timed = Timed::start();
    let admitted = |limit: u64, calls: usize, at: u64| -> Vec<bool> {
        let call = || timed.take(START_US + at, "k", window(limit, MINUTE_US), 1).admitted;
        (0..calls).map(|_| call()).collect()
    };
    assert_eq!(admitted(5, 6, 0), [true, true, true, true, true, false]);
    assert_eq!(admitted(8, 4, SECOND_US), [true, true, true, false]);
    assert_eq!(admitted(3, 1, 2 * SECOND_US), [false]);
    assert_eq!(admitted(3, 4, MINUTE_US + SECOND_US), [true, true, true, false]);
}

#[test]
fn a_changed_window_counts_what_is_still_known() {
    let timed = Timed::start();
    let take =
        |at, requests, window_us| timed.take(START_US + at, "k", window(requests, window_us), 1);
    for step in 0..5 {
        assert!(take(step * 4 * SECOND_US, 5, MINUTE_US).admitted);
    }
    // Shorter: the last three of the five lie within it.
    let shorter = take(16 * SECOND_US, 3, 12 * SECOND_US);
    assert!(!shorter.admitted);
    assert_eq!(shorter.retry_after, Span::from_secs(4), "when the third one leaves");
    // Longer: all five count, and the oldest leaves first.
    let longer = take(20 * SECOND_US, 5, 10 * MINUTE_US);
    assert!(!longer.admitted);
    assert_eq!(longer.retry_after, Span::from_secs(600 - 20));
}

/// Goal: a window that grows a thousandfold keeps its buckets bounded, never frees anything, and
/// does not stay coarse.
#[test]
fn a_window_that_grows_keeps_its_buckets_bounded() {
    let timed = Timed::start();
    let (short, long) = (window(1 << 40, SECOND_US), window(1 << 40, 1_000 * SECOND_US));
    for step in 0..17 {
        assert!(timed.take(START_US + step * 62_500, "k", short, 1).admitted);
    }
    let mut charged = 16;
    for step in 1..=16 {
        charged += 1;
        let verdict = timed.take(START_US + SECOND_US + step * 62_500_000, "k", long, 1);
        let value = timed.redis.get("k").unwrap();
        assert!(value.matches(':').count() <= 18, "{value}");
        let used = (1 << 40) - verdict.remaining;
        assert!(used >= charged.min(16) && used <= 33, "{used} after {step}");
    }
    // One short window's buckets have left; the long window's own are counted one by one.
    let last = timed.take(START_US + SECOND_US + 1_000 * SECOND_US + 1, "k", long, 0);
    assert_eq!((1 << 40) - last.remaining, 16);
}

#[test]
fn a_changed_form_counts_usage_as_spent_when_it_was_last_seen() {
    let timed = Timed::start();
    let (ten, rate) = (window(10, MINUTE_US), gcra(10, MINUTE_US, 10));
    assert!(timed.take(START_US, "wg", ten, 7).admitted);
    let changed = timed.take(START_US, "wg", rate, 4);
    assert!(!changed.admitted);
    assert_eq!((changed.remaining, changed.retry_after), (3, Span::from_secs(6)));
    // It leaks from then on, although nothing was written in between.
    assert!(timed.take(START_US + 6 * SECOND_US, "wg", rate, 4).admitted);

    assert!(timed.take(START_US, "gw", rate, 7).admitted);
    let changed = timed.take(START_US + SECOND_US, "gw", ten, 4);
    assert!(!changed.admitted);
    assert_eq!((changed.remaining, changed.retry_after), (3, Span::from_secs(59)));
    assert!(timed.take(START_US + MINUTE_US, "gw", ten, 10).admitted);

    // More than the new form can hold is all that it can hold.
    assert!(timed.take(START_US, "much", window(1 << 50, MINUTE_US), 1 << 50).admitted);
    assert_eq!(timed.take(START_US, "much", rate, 1).retry_after, Span::from_secs(6));
}

#[test]
fn a_changed_period_keeps_the_units_and_rounds_up() {
    let timed = Timed::start();
    let take = |key: &str, at, quota, cost| timed.take(START_US + at, key, quota, cost);
    assert!(take("k", 0, gcra(10, SECOND_US, 10), 10).admitted);
    assert_eq!(take("k", 0, gcra(10, MINUTE_US, 12), 0).remaining, 2);
    assert_eq!(take("k", 0, gcra(10, 7, 12), 0).remaining, 2);

    // Half a unit of 2 parts is no whole number of parts of 3.
    assert!(take("half", 0, gcra(1, 2, 1), 1).admitted);
    assert!(take("half", 1, gcra(1, 2, 2), 1).admitted);
    assert_eq!(take("half", 1, gcra(1, 3, 2), 0).reset_after, Span::from_micros(5));

    // 15825 parts of 43438 are a little more than 2841076968132 of 7798464539761. In doubles the
    // little is lost, and with it, but for the script's rounding up, a part would be.
    timed.redis.run(&["SET", "odd", &format!("g1 {START_US} 15825 43438 1")]);
    let odd = take("odd", 0, gcra(1, 7_798_464_539_761, 1), 0);
    assert_eq!(odd.reset_after, Span::from_micros(2_841_076_968_133));

    // Far beyond what doubles hold: as full as can be said, and never free.
    assert!(take("far", 0, gcra(1, 1, 1 << 50), 1 << 50).admitted);
    let far = take("far", 0, gcra(1, 1 << 50, 8), 1);
    assert!(!far.admitted);
    assert_eq!(far.remaining, 0);
}

#[test]
fn a_raised_rate_helps_at_once() {
    let timed = Timed::start();
    let day_us = 86_400 * SECOND_US;
    assert!(timed.take(START_US, "k", gcra(1, day_us, 1), 1).admitted);
    let faster = gcra(1, SECOND_US, 1);
    assert!(!timed.take(START_US + SECOND_US / 2, "k", faster, 1).admitted);
    assert!(timed.take(START_US + SECOND_US, "k", faster, 1).admitted);
}

/// Goal: a clock that steps back and forth never mints a unit, and never makes anyone wait longer
/// than the limit's own period.
#[test]
fn tim_7_clock_steps_neither_mint_nor_lock_out() {
    for quota in [gcra(1, SECOND_US, 2), window(2, SECOND_US)] {
        let timed = Timed::start();
        let take = |second: u64| timed.take(START_US + second * SECOND_US, "k", quota, 1);
        assert!(take(100).admitted && take(100).admitted);
        let back = take(89);
        assert!(!back.admitted);
        assert_eq!(back.retry_after, Span::from_secs(1));
        while take(101).admitted {}
        for _ in 0..100 {
            assert!(!take(89).admitted);
            assert!(!take(101).admitted);
        }
    }
}

/// Goal: a charge on a clock that stepped back outlives the step, so that the step forward finds
/// it.
#[test]
fn tim_7_keys_outlive_a_step_back() {
    let timed = Timed::start();
    let quota = window(2, SECOND_US);
    assert!(timed.take(START_US + 11 * SECOND_US, "k", quota, 1).admitted);
    assert!(timed.take(START_US, "k", quota, 1).admitted);
    let slack_ms = 600_000;
    let ttl_ms = timed.redis.pttl("k") - slack_ms;
    assert!((11_000..=12_000).contains(&ttl_ms), "{ttl_ms}: the step and the window");
}

/// Goal: a clock that was an hour ahead and is right again locks nobody out for that hour.
#[test]
fn tim_7_a_time_from_far_ahead_is_not_believed() {
    for quota in [gcra(2, SECOND_US, 2), window(2, SECOND_US)] {
        let timed = Timed::start();
        let take = |at: u64| timed.take(START_US + at, "k", quota, 1).admitted;
        assert!(take(0));
        assert!(take(3_600 * SECOND_US));
        assert!(!take(2 * SECOND_US), "stricter, never freer");
        assert!(!take(2 * SECOND_US));
        assert!(take(3 * SECOND_US));
        assert!(
            !timed.redis.get("k").unwrap().contains(&(START_US + 3_600 * SECOND_US).to_string())
        );
    }
}
