//! Random arrivals, against a log of every admission and against the node's limiter.

use std::sync::atomic::{AtomicU64, Ordering};

use fairshare::limiter::Usage;
use fairshare::store::Want;
use fairshare::units::Instant;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;

/// An arrival: microseconds since the one before, and its cost.
type Arrival = (u64, u64);

/// Gaps of many sizes, so that bursts, window edges and idle times all occur.
fn arrivals(most: usize) -> impl Strategy<Value = Vec<Arrival>> {
    let gap = prop_oneof![Just(0u64), 1..5u64, 1..200u64, 900..1100u64, 1..5000u64];
    prop::collection::vec((gap, 1..4u64), 1..most)
}

fn window_quotas() -> impl Strategy<Value = Quota> {
    (0..40u64, 1..3000u64).prop_map(|(requests, window_us)| window(requests, window_us))
}

fn gcra_quotas() -> impl Strategy<Value = Quota> {
    (1..50u64, 1..2000u64, 0..40u64).prop_map(|(rate, per_us, burst)| gcra(rate, per_us, burst))
}

fn quotas() -> impl Strategy<Value = Quota> {
    prop_oneof![window_quotas(), gcra_quotas()]
}

/// A key that no case before has used.
fn fresh_key() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("k{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Runs `check` on random values, with one server for all of them.
fn check<S: Strategy>(strategy: S, check: impl Fn(&Timed, S::Value) -> Result<(), TestCaseError>) {
    let timed = Timed::start();
    let config = ProptestConfig { cases: 128, failure_persistence: None, ..Default::default() };
    let mut runner = TestRunner::new(config);
    runner
        .run(&strategy, |value| check(&timed, value))
        .unwrap_or_else(|failure| panic!("{failure}"));
}

/// The arrivals with their times, and what the script said to each.
fn run(timed: &Timed, quota: Quota, arrivals: &[Arrival]) -> Vec<(u64, u64, Verdict)> {
    let (key, mut now_us) = (fresh_key(), START_US);
    let mut asked = Vec::new();
    for (gap, cost) in arrivals {
        now_us += gap;
        asked.push((now_us, ask(&[charge(&key, quota, *cost)])));
    }
    let answers = timed.decide_all(&asked);
    let joined = asked.iter().zip(answers);
    joined.map(|((at, ask), answer)| (*at, ask.charges[0].cost, answer.levels[0])).collect()
}

/// Units admitted in `(now - length, now]`.
fn within(log: &[(u64, u64)], length: u64, now: u64) -> u64 {
    let recent = log.iter().filter(|(at, _)| *at <= now && at + length > now);
    recent.map(|(_, units)| units).sum()
}

/// Goal: whatever arrives, no interval of the window's length holds more than the limit, and
/// nothing is refused that would fit a window longer by a sixteenth.
#[test]
fn window_is_never_exceeded_in_any_interval() {
    check((window_quotas(), arrivals(250)), |timed, (quota, arrivals)| {
        let (limit, length) = (quota.capacity(), quota.period().as_micros_ceil());
        let mut log = Vec::new();
        for (now, cost, verdict) in run(timed, quota, &arrivals) {
            if verdict.admitted {
                log.push((now, cost));
                prop_assert!(within(&log, length, now) <= limit);
            } else {
                let longer = length + length.div_ceil(16);
                prop_assert!(within(&log, longer, now) + cost > limit, "refused although it fits");
            }
        }
        Ok(())
    });
}

/// Goal: every decision is the one of the definition, so no interval `t` ever holds more than
/// `burst + rate·t/per`, read with a clock of whole microseconds.
#[test]
fn gcra_is_never_exceeded_in_any_interval() {
    check((gcra_quotas(), arrivals(250)), |timed, (quota, arrivals)| {
        let Quota::Gcra(terms) = quota else { panic!("a GCRA quota") };
        let (rate, per, burst) = (terms.rate, terms.per.as_micros_ceil(), terms.burst);
        // What leaks within one reading of the clock is unread.
        let most = burst * per + rate.min(per) - 1;
        let mut log: Vec<(u64, u64)> = Vec::new();
        let (mut level, mut last) = (0u64, START_US);
        for (now, cost, verdict) in run(timed, quota, &arrivals) {
            level = level.saturating_sub((now - last) * rate);
            last = now;
            prop_assert_eq!(verdict.admitted, cost <= burst && level + cost * per <= most);
            if verdict.admitted {
                level += cost * per;
                log.push((now, cost));
            }
        }
        for (first, (from, _)) in log.iter().enumerate() {
            let mut units = 0;
            for (to, cost) in &log[first..] {
                units += cost * per;
                prop_assert!(units <= most + rate * (to - from));
            }
        }
        Ok(())
    });
}

/// Goal: the store and the node say the same to the same arrivals, to the unit and the tick. Their
/// ticks differ in length, not in meaning: a microsecond here is a nanosecond there.
#[test]
fn the_store_agrees_with_the_node() {
    let as_node = |quota: &Quota| match quota {
        Quota::Window(terms) => Quota::Window(WindowQuota {
            requests: terms.requests,
            window: Span::from_nanos(terms.window.as_micros_ceil()),
        }),
        Quota::Gcra(terms) => {
            Quota::Gcra(GcraQuota { per: Span::from_nanos(terms.per.as_micros_ceil()), ..*terms })
        }
        Quota::InFlight(_) => panic!("no store counts requests in flight"),
    };
    check((quotas(), arrivals(250)), |timed, (quota, arrivals)| {
        let node_quota = as_node(&quota);
        let mut usage = Usage::none(&node_quota);
        for (now, cost, store) in run(timed, quota, &arrivals) {
            let now = Instant::from_nanos(now);
            let node = usage.peek(&node_quota, cost, now);
            if node.admitted {
                usage.charge(&node_quota, cost, now);
            }
            prop_assert_eq!(store.admitted, node.admitted);
            prop_assert_eq!(store.remaining, node.remaining);
            prop_assert_eq!(store.retry_after.as_micros_ceil(), node.retry_after.as_nanos());
            if cost <= quota.capacity() {
                prop_assert_eq!(store.reset_after.as_micros_ceil(), node.reset_after.as_nanos());
            }
        }
        Ok(())
    });
}

/// Goal: with several levels, a request passes exactly when each level by itself would let it, and
/// only then has any of them changed.
#[test]
fn levels_are_decided_together() {
    let several = prop::collection::vec(quotas(), 1..5);
    check((several, arrivals(120)), |timed, (quotas, arrivals)| {
        let keys: Vec<String> = quotas.iter().map(|_| fresh_key()).collect();
        let alone: Vec<String> = quotas.iter().map(|_| fresh_key()).collect();
        let mut now_us = START_US;
        for (gap, cost) in arrivals.into_iter().take(40) {
            now_us += gap;
            let charges = |keys: &[String], cost| -> Vec<StoreCharge> {
                keys.iter().zip(&quotas).map(|(key, quota)| charge(key, *quota, cost)).collect()
            };
            // The other keys are only ever charged with what was admitted as a whole.
            let single = |charge: StoreCharge| (now_us, ask(&[charge]));
            let free: Vec<_> = charges(&alone, 0).into_iter().map(single).collect();
            let before = timed.decide_all(&free);
            let answer = timed.decide(now_us, &charges(&keys, cost));
            let all_fit = answer.levels.iter().all(|verdict| verdict.admitted);
            prop_assert_eq!(answer.admitted, all_fit);
            if answer.admitted {
                let spent: Vec<_> = charges(&alone, cost).into_iter().map(single).collect();
                prop_assert!(timed.decide_all(&spent).iter().all(|answer| answer.admitted));
            }
            for (told, before) in answer.levels.iter().zip(before) {
                let left = before.levels[0].remaining;
                let want = if answer.admitted { left.saturating_sub(cost) } else { left };
                prop_assert_eq!(told.remaining, want);
            }
        }
        Ok(())
    });
}

fn longest_wait(quota: &Quota) -> Span {
    match quota {
        Quota::Window(terms) => terms.window,
        Quota::Gcra(terms) => quota.period().max(terms.per),
        Quota::InFlight(_) => panic!("no store counts requests in flight"),
    }
}

/// Goal: whoever waits for as long as a refusal says is admitted.
#[test]
fn rsp_1_waiting_for_retry_after_is_enough() {
    check((quotas(), arrivals(40)), |timed, (quota, arrivals)| {
        let (key, mut now_us) = (fresh_key(), START_US);
        for (gap, cost) in arrivals {
            now_us += gap;
            let verdict = timed.take(now_us, &key, quota, cost);
            prop_assert!(verdict.retry_after <= longest_wait(&quota));
            if !verdict.admitted && cost <= quota.capacity() {
                let waited_us = now_us + verdict.retry_after.as_micros_ceil();
                let looked = [charge(&fresh_key(), window(0, 1), 1), charge(&key, quota, cost)];
                prop_assert!(timed.decide(waited_us, &looked).levels[1].admitted);
            }
        }
        Ok(())
    });
}

/// Goal: requests that are charged together are those that would be charged one after the other.
#[test]
fn a_crowd_is_charged_as_one_after_the_other() {
    let several = prop::collection::vec(quotas(), 1..4);
    let crowds = prop::collection::vec((0..3000u64, 1..4u64, 1..12u64), 1..30);
    check((several, crowds), |timed, (quotas, crowds)| {
        let together: Vec<String> = quotas.iter().map(|_| fresh_key()).collect();
        let apart: Vec<String> = quotas.iter().map(|_| fresh_key()).collect();
        let mut now_us = START_US;
        for (gap, cost, requests) in crowds {
            now_us += gap;
            let lease = |keys: &[String], requests: u64| {
                let charges = keys.iter().zip(&quotas);
                let charges: Vec<StoreCharge> =
                    charges.map(|(key, quota)| charge(key, *quota, cost)).collect();
                let want = Want { firm: cost * requests, ahead: 0 };
                (now_us, asked(Operation::Lease(vec![want; charges.len()]), &charges))
            };
            let one = timed.decide_all(&[lease(&together, requests)]).remove(0);
            let singly: Vec<_> = (0..requests).map(|_| lease(&apart, 1)).collect();
            let singly = timed.decide_all(&singly);
            let admitted = singly.iter().filter(|answer| answer.admitted).count();
            let costs = quotas.iter().map(|_| cost);
            prop_assert_eq!(one.requests(costs), u64::try_from(admitted).unwrap());
            prop_assert_eq!(&one.levels, &singly.last().unwrap().levels);
        }
        Ok(())
    });
}
