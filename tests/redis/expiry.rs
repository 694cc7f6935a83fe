//! That no key stays behind, and none leaves too early.

use fairshare::store::Want;

use super::*;

/// What a key lives beyond its use, at most.
const SLACK_MS: i64 = 1_000;

fn assert_every_key_expires(redis: &Redis) {
    for key in redis.keys() {
        assert!(redis.pttl(&key) > 0, "{key} never expires");
    }
}

/// Goal: wherever the exchange breaks off, no key is left that never expires.
#[test]
fn red_1_no_key_is_left_without_expiry() {
    let redis = aged();
    let charges =
        [charge("w", window(5, 60 * SECOND_US), 1), charge("g", gcra(5, 60 * SECOND_US, 5), 1)];
    let lease = Operation::Lease(vec![Want { firm: 2, ahead: 1 }; 2]);
    let decisions = [
        ask(&charges),
        asked(lease, &charges),
        asked(Operation::Return(vec![START_US; 2]), &charges),
    ];
    assert!(decide(&redis, &decisions).iter().all(Result::is_ok));
    let pipeline = encode(&policy(), &decisions, ScriptCall::Cached);
    for end in 0..pipeline.len() {
        redis.exchange(&pipeline[..end]);
        assert_every_key_expires(&redis);
    }
    assert_eq!(redis.keys().len(), 2);
}

/// Goal: a value without expiry, whoever wrote it, neither grants anything nor blocks for ever.
#[test]
fn red_1_a_key_without_expiry_heals() {
    let redis = aged();
    let ours = format!("w1 60000000 {START_US} 5 {START_US}:5");
    for text in ["5", "", "garbage", "w1 1 2", "w1 60000000 x 5 1:5", "g1 1 2 0 4", "g1 1e3 2 3 4"]
    {
        redis.run(&["SET", "k", text]);
        let five = [charge("k", window(5, SECOND_US), 1)];
        let (answer, ttl_ms) = decide_and_read_ttl(&redis, &five, "k");
        assert!(!answer.admitted, "{text:?} is no grant");
        assert_eq!(answer.levels[0].retry_after, Span::from_secs(1), "{text:?}");
        assert!((1_000..=1_000 + SLACK_MS).contains(&ttl_ms), "{text:?}: {ttl_ms} ms");
    }
    // Our own form, too: its usage is long past, so the key only needs an end.
    redis.run(&["SET", "old", &ours]);
    let never = [charge("old", window(5, SECOND_US), 1), charge("no", window(0, SECOND_US), 1)];
    let (answer, ttl_ms) = decide_and_read_ttl(&redis, &never, "old");
    assert!(!answer.admitted);
    assert!((1..=SLACK_MS).contains(&ttl_ms), "{ttl_ms} ms");
}

#[test]
fn red_1_what_is_not_ours_heals_within_one_window() {
    let timed = Timed::start();
    for (key, quota) in [("w", window(5, SECOND_US)), ("g", gcra(5, SECOND_US, 5))] {
        timed.redis.run(&["SET", key, "foreign"]);
        assert!(!timed.take(START_US, key, quota, 1).admitted);
        assert!(!timed.take(START_US + 1, key, quota, 5).admitted);
        assert!(timed.take(START_US + SECOND_US, key, quota, 5).admitted);
    }
}

/// Goal: a value that begins like ours is not believed where its buckets are none, or do not add
/// up.
#[test]
fn red_1_what_only_looks_like_ours_heals_too() {
    let timed = Timed::start();
    let past = START_US - 2 * SECOND_US;
    for (units, buckets) in [(2, " junk"), (2, ":1"), (1, " 1:x"), (1, &format!(" {past}:5"))] {
        let text = format!("w1 {SECOND_US} {START_US} {units} {START_US}:1{buckets}");
        timed.redis.run(&["SET", "k", &text]);
        let verdict = timed.take(START_US, "k", window(5, SECOND_US), 1);
        assert!(!verdict.admitted, "{text}");
        let healed = format!("w1 {SECOND_US} {START_US} 5 {START_US}:5");
        assert_eq!(timed.redis.get("k").unwrap(), healed, "{text}");
    }
}

#[test]
fn red_1_five_in_each_window_whatever_comes() {
    let timed = Timed::start();
    let quota = window(5, 60 * SECOND_US);
    let asked: Vec<_> = (0..180u64)
        .map(|second| (START_US + second * SECOND_US, ask(&[charge("k", quota, 1)])))
        .collect();
    let admitted: Vec<bool> =
        timed.decide_all(&asked).iter().map(|answer| answer.admitted).collect();
    for start in 0..120 {
        assert!(admitted[start..start + 60].iter().filter(|admitted| **admitted).count() <= 5);
    }
    assert!(admitted.iter().filter(|admitted| **admitted).count() >= 14);
    assert_expiry_within(&timed, "k", 1, 120_000);
}

/// Goal: a key's life covers its window from the first charge and from the last one; and under even
/// demand of three times the limit no interval holds more, and none is left empty.
#[test]
fn red_2_thirty_calls_a_minute_for_five_minutes() {
    let timed = Timed::start();
    let quota = window(10, 60 * SECOND_US);
    assert!(timed.take(START_US, "k", quota, 1).admitted);
    assert_expiry_within(&timed, "k", 60_000 - SLACK_MS, 60_000);
    assert!(timed.take(START_US + 59 * SECOND_US, "k", quota, 1).admitted);
    assert_expiry_within(&timed, "k", 60_000 - SLACK_MS, 60_000);

    let asked: Vec<_> = (0..150u64)
        .map(|call| (START_US + call * 2 * SECOND_US, ask(&[charge("even", quota, 1)])))
        .collect();
    let admitted: Vec<bool> =
        timed.decide_all(&asked).iter().map(|answer| answer.admitted).collect();
    for (call, minute) in admitted.windows(30).enumerate() {
        let count = minute.iter().filter(|admitted| **admitted).count();
        assert!((8..=10).contains(&count), "{count} in the minute from call {call}");
    }
}

/// How long the key lives beyond what the tests' own clock adds, in milliseconds.
fn assert_expiry_within(timed: &Timed, key: &str, least: i64, most: i64) {
    let millis = timed.redis.pttl(key) - TIMED_SLACK_MS;
    assert!((least..=most).contains(&millis), "{key}: {millis} ms");
}

/// Goal: a key lives for as long as its usage counts, and little longer.
#[test]
fn red_2_keys_live_as_long_as_they_matter() {
    let redis = aged();
    let cases = [
        ("window", window(10, 60 * SECOND_US), 1, 60_000),
        ("short window", window(10, 1_000), 1, 1),
        ("long window", window(10, 365 * 86_400 * SECOND_US), 1, 365 * 86_400_000),
        ("gcra", gcra(10, 60 * SECOND_US, 10), 1, 6_000),
        ("gcra in full", gcra(10, 60 * SECOND_US, 10), 10, 60_000),
        ("gcra, fast", gcra(2_000_000_000, SECOND_US, 1), 1, 1),
    ];
    for (key, quota, cost, needed_ms) in cases {
        let (answer, ttl_ms) = decide_and_read_ttl(&redis, &[charge(key, quota, cost)], key);
        assert!(answer.admitted);
        assert!((needed_ms..=needed_ms + SLACK_MS).contains(&ttl_ms), "{key}: {ttl_ms} ms");
    }
}

#[test]
fn red_2_an_idle_key_is_gone() {
    let redis = aged();
    assert!(decide_one(&redis, &[charge("k", window(1, 10_000), 1)]).unwrap().admitted);
    let gone = || redis.keys().is_empty().then_some(());
    let patience = std::time::Duration::from_secs(10);
    assert!(process::poll_until(patience, gone).is_some());
}

/// Goal: nothing that a key forgets when it expires is granted once more.
#[test]
fn red_2_usage_never_vanishes_while_it_counts() {
    let redis = aged();
    let quota = window(2, 200_000);
    let now_us = || {
        let Value::List(time) = redis.run(&["TIME"]) else { panic!("TIME gives a list") };
        let part = |at: usize| match &time[at] {
            Value::Text(text) => text.parse::<u64>().unwrap(),
            other => panic!("{other:?}"),
        };
        part(0) * SECOND_US + part(1)
    };
    let mut admitted: Vec<(u64, u64)> = Vec::new();
    let end = now_us() + 3 * SECOND_US;
    loop {
        let before = now_us();
        if before > end {
            break;
        }
        if decide_one(&redis, &[charge("k", quota, 1)]).unwrap().admitted {
            admitted.push((before, now_us()));
        }
    }
    assert!(admitted.len() >= 10);
    for three in admitted.windows(3) {
        // The first was charged before its end was read, the third after its begin was.
        assert!(three[2].1 - three[0].0 >= 200_000, "three in one window: {three:?}");
    }
}
