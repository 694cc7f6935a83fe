//! What a decision charges, and what it leaves alone.

use std::collections::BTreeMap;
use std::thread;

use fairshare::store::Want;

use super::*;

/// The remaining units of `keys`, of which each is a window of ten in ten seconds.
fn remaining(timed: &Timed, now_us: u64, keys: &[&str]) -> Vec<u64> {
    let look = |key: &&str| timed.take(now_us, key, window(10, 10 * SECOND_US), 0).remaining;
    keys.iter().map(look).collect()
}

#[test]
fn all_levels_are_charged_together() {
    let timed = Timed::start();
    let ten = window(10, 10 * SECOND_US);
    let answer = timed.decide(START_US, &[charge("a", ten, 1), charge("b", ten, 3)]);
    assert!(answer.admitted);
    let told: Vec<u64> = answer.levels.iter().map(|verdict| verdict.remaining).collect();
    assert_eq!(told, [9, 7]);
    assert_eq!(remaining(&timed, START_US, &["a", "b"]), told);
}

/// Goal: these texts never change while their forms are called `w1` and `g1`, because running
/// stores are full of them.
#[test]
fn values_are_pinned() {
    let timed = Timed::start();
    let (ten, rate) = (window(10, SECOND_US), gcra(60, 60 * SECOND_US, 10));
    let value_after = |at: u64, quota, key: &str| {
        assert!(timed.take(START_US + at, key, quota, 2).admitted);
        timed.redis.get(key).unwrap()
    };
    let (first, joined, second) = (START_US, START_US + 62_499, START_US + 62_500);
    // What was charged before the key was there.
    let before = format!("{}:0", START_US - 1);
    assert_eq!(value_after(0, ten, "w"), format!("w1 1000000 {first} 2 {first}:2 {before}"));
    assert_eq!(value_after(62_499, ten, "w"), format!("w1 1000000 {first} 4 {joined}:4 {before}"));
    let two = format!("w1 1000000 {second} 6 {second}:2 {before} {joined}:4");
    assert_eq!(value_after(62_500, ten, "w"), two);
    let third = START_US + SECOND_US;
    let three = format!("w1 1000000 {third} 8 {third}:2 {joined}:4 {second}:2");
    assert_eq!(value_after(SECOND_US, ten, "w"), three);
    let fourth = joined + SECOND_US;
    let pruned = format!("w1 1000000 {third} 6 {fourth}:4 {second}:2");
    assert_eq!(value_after(62_499 + SECOND_US, ten, "w"), pruned);

    assert_eq!(value_after(0, rate, "g"), format!("g1 {START_US} 120000000 60000000 60"));
    let leaked = format!("g1 {} 180000000 60000000 60", START_US + SECOND_US);
    assert_eq!(value_after(SECOND_US, rate, "g"), leaked);
}

/// Goal: no part of a cost is granted, which no request could use.
#[test]
fn units_ahead_of_need_are_whole_costs() {
    let timed = Timed::start();
    let hundred = window(100, 10 * SECOND_US);
    let lease = |now_us: u64, cost: u64, firm: u64, ahead: u64| {
        let want = Operation::Lease(vec![Want { firm, ahead }]);
        let question = (now_us, asked(want, &[charge("a", hundred, cost)]));
        timed.decide_all(&[question]).remove(0).units
    };
    assert_eq!(lease(START_US, 3, 3, 10), [3 + 9]);
    // A quarter of the 88 that are left, less than what is wanted.
    assert_eq!(lease(START_US, 5, 0, 50), [5 + 20]);
    assert_eq!(lease(START_US, 7, 7, 6), [7]);
}

#[test]
fn tim_1_refused_spends_nothing() {
    let timed = Timed::start();
    let ten = window(10, 10 * SECOND_US);
    let tight = gcra(1, 60 * SECOND_US, 2);
    let three = [charge("a", ten, 1), charge("g", tight, 1), charge("b", ten, 1)];
    let admitted: Vec<bool> = (0..5).map(|_| timed.decide(START_US, &three).admitted).collect();
    assert_eq!(admitted, [true, true, false, false, false]);
    assert_eq!(remaining(&timed, START_US, &["a", "b"]), [8, 8]);

    let refused = timed.decide(START_US, &three);
    let says: Vec<bool> = refused.levels.iter().map(|verdict| verdict.admitted).collect();
    assert_eq!(says, [true, false, true]);
    assert_eq!(refused.levels[0].remaining, 8, "as it is, not as it would have been");
    assert_eq!(refused.levels[1].retry_after, Span::from_secs(60));
}

#[test]
fn tim_1_a_tenant_over_its_limit_leaves_the_shared_window_to_others() {
    let timed = Timed::start();
    let shared = window(10, 60 * SECOND_US);
    let send = |tenant: &str, limit| {
        let tenant = charge(tenant, window(limit, 60 * SECOND_US), 1);
        timed.decide(START_US, &[charge("shared", shared, 1), tenant]).admitted
    };
    assert_eq!((0..5).filter(|_| send("acme", 3)).count(), 3);
    assert_eq!((0..8).filter(|_| send("globex", 100)).count(), 7);
}

#[test]
fn a_refused_decision_writes_nothing() {
    let timed = Timed::start();
    let charges =
        [charge("fresh", window(10, SECOND_US), 1), charge("none", window(0, SECOND_US), 1)];
    assert!(!timed.decide(START_US, &charges).admitted);
    assert!(timed.redis.keys().is_empty());
}

#[test]
fn asking_with_no_cost_spends_nothing() {
    let timed = Timed::start();
    assert!(timed.take(START_US, "a", window(1, SECOND_US), 0).admitted);
    assert!(timed.redis.keys().is_empty());
    assert!(timed.take(START_US, "a", window(0, SECOND_US), 0).admitted);
    assert!(timed.take(START_US, "a", gcra(1, SECOND_US, 0), 0).admitted);
}

#[test]
fn tim_3_no_double_burst_at_a_window_edge() {
    let timed = Timed::start();
    for start in (0..100u64).map(|step| START_US + step * 10_000) {
        let key = start.to_string();
        let burst = |at: u64| {
            let ten = ask(&[charge(&key, window(10, SECOND_US), 1)]);
            let asked: Vec<_> = (0..10).map(|_| (start + at, ten.clone())).collect();
            timed.decide_all(&asked).iter().filter(|answer| answer.admitted).count()
        };
        assert_eq!([burst(950_000), burst(1_050_000), burst(1_950_000)], [10, 0, 10]);
    }
}

#[test]
fn tim_5_a_cost_that_never_fits_is_refused_and_spends_nothing() {
    let timed = Timed::start();
    for (key, quota) in [("w", window(10, 60 * SECOND_US)), ("g", gcra(10, 60 * SECOND_US, 10))] {
        let verdict = timed.take(START_US, key, quota, 11);
        assert!(!verdict.admitted);
        assert_eq!(verdict.retry_after, Span::from_secs(60), "{key}: the whole period");
        assert!(timed.take(START_US, key, quota, 10).admitted, "{key}: all at once");
    }
}

#[test]
fn tim_6_a_limit_of_zero_refuses_everything() {
    let timed = Timed::start();
    for (key, quota) in [("w", window(0, 60 * SECOND_US)), ("g", gcra(10, 60 * SECOND_US, 0))] {
        let verdict = timed.take(START_US, key, quota, 1);
        assert!(!verdict.admitted);
        assert_eq!(verdict.remaining, 0, "{key}");
        assert_eq!(verdict.retry_after, Span::from_secs(60), "{key}");
        assert_eq!(verdict.reset_after, verdict.retry_after, "{key}: not free now");
    }
}

/// Goal: the largest numbers are kept to the unit, and are written as digits.
#[test]
fn tim_6_numbers_are_exact_up_to_the_largest() {
    let timed = Timed::start();
    let most = (1 << 53) - 1;
    let day_us = 86_400 * SECOND_US;
    let largest = window(u64::MAX, day_us);
    assert_eq!(timed.take(START_US, "w", largest, most - 2).remaining, 2);
    assert_eq!(timed.take(START_US + 1, "w", largest, 1).remaining, 1);
    assert!(!timed.take(START_US + 2, "w", largest, 2).admitted);
    assert_eq!(timed.take(START_US + 3, "w", largest, 1).remaining, 0);
    assert!(!timed.take(START_US + 4, "w", largest, u64::MAX).admitted);
    assert_eq!(
        timed.redis.get("w").unwrap(),
        format!("w1 {day_us} {START_US} {most} {}:{most} {}:0", START_US + 3, START_US - 1)
    );

    // 2^53 parts in all: a burst of 2^23 units of 2^30 parts each.
    let (per_us, burst) = (1 << 30, 1 << 23);
    let full = gcra(1, per_us, burst);
    assert_eq!(timed.take(START_US, "g", full, burst).remaining, 0);
    assert_eq!(timed.redis.get("g").unwrap(), format!("g1 {START_US} {} {per_us} 1", 1u64 << 53));
    let next = timed.take(START_US, "g", full, 1);
    assert_eq!(next.retry_after, Span::from_micros(per_us));
    assert_eq!(next.reset_after, Span::from_micros(1 << 53));
    assert!(!timed.take(START_US + per_us - 1, "g", full, 1).admitted);
    assert!(timed.take(START_US + per_us, "g", full, 1).admitted);

    let fast = gcra(2_000_000_000, SECOND_US, 1);
    assert!(timed.take(START_US, "fast", fast, 1).admitted);
    assert!(!timed.take(START_US, "fast", fast, 1).admitted);
    assert!(timed.take(START_US + 1, "fast", fast, 1).admitted);
    assert!(timed.take(START_US + 10 * day_us, "fast", fast, 1).admitted, "no overflow when idle");
}

#[test]
fn tim_9_traffic_at_exactly_the_rate_is_never_refused() {
    let timed = Timed::start();
    let all = |key: &str, quota, times: Vec<u64>| {
        let ask_at = |at: &u64| (START_US + at, ask(&[charge(key, quota, 1)]));
        let asked: Vec<_> = times.iter().map(ask_at).collect();
        let refused = timed.decide_all(&asked).iter().filter(|answer| !answer.admitted).count();
        assert_eq!(refused, 0, "{key}");
    };
    let every = |count: u64, per: u64| (0..count).map(|k| (k * SECOND_US).div_ceil(per)).collect();
    all("gcra 600/s", gcra(600, SECOND_US, 400), every(6_000, 600));
    let slow = (0..420).map(|k: u64| (k * 60 * SECOND_US).div_ceil(7)).collect();
    all("gcra 7/min", gcra(7, 60 * SECOND_US, 1), slow);
    all("window 1/10s", window(1, 10 * SECOND_US), vec![0, 10 * SECOND_US, 20 * SECOND_US]);
    for limit in 1..=16 {
        all(&format!("window {limit}/s"), window(limit, SECOND_US), every(100, limit));
    }
}

/// Goal: many clients at once, on Redis's own clock, get exactly what there is.
#[test]
fn concurrent_clients_share_one_budget() {
    let redis = aged();
    let charges = [charge("shared", window(100, 600 * SECOND_US), 1)];
    let batch = vec![ask(&charges); 8];
    let admitted = |_| {
        let answers = (0..10).flat_map(|_| decide(&redis, &batch));
        answers.filter(|answer| answer.as_ref().expect("an answer").admitted).count()
    };
    let total: usize = thread::scope(|scope| {
        let clients: Vec<_> = (0..8).map(|client| scope.spawn(move || admitted(client))).collect();
        clients.into_iter().map(|client| client.join().expect("a client")).sum()
    });
    assert_eq!(total, 100);
}

/// How often Redis has run each command that this connection did not ask for by itself.
fn commands_run(redis: &Redis) -> BTreeMap<String, u64> {
    let calls = redis.calls().into_iter();
    calls.filter(|(name, _)| !name.starts_with("config")).collect()
}

/// D9: the tenant level costs a grant one read and one write of a key more, in the same call of the script.
#[test]
fn d_9_the_tenant_level_costs_one_read_and_one_write() {
    let redis = aged();
    let levels = ["shared", "tenant"].map(|key| charge(key, window(100, 60 * SECOND_US), 1));
    let cost = |operation: &Operation, charges: &[StoreCharge]| {
        redis.run(&["CONFIG", "RESETSTAT"]);
        let decisions = [asked(operation.clone(), charges)];
        let body = redis.exchange(&encode(&policy(), &decisions, ScriptCall::Cached));
        let answers = decode(&policy(), &decisions, ScriptCall::Cached, &body);
        assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.admitted)));
        commands_run(&redis)
    };
    let lease = |levels| Operation::Lease(vec![Want { firm: 1, ahead: 2 }; levels]);
    assert!(decide_one(&redis, &levels).is_ok(), "the script is there");
    for [one, both] in [[Operation::Decide, Operation::Decide], [lease(1), lease(2)]] {
        let (mut alone, together) = (cost(&one, &levels[..1]), cost(&both, &levels));
        assert_eq!(alone.get("evalsha"), Some(&1));
        for name in ["get", "set"] {
            *alone.entry(name.to_owned()).or_default() += 1;
        }
        assert_eq!(together, alone, "{one:?}");
    }
}
