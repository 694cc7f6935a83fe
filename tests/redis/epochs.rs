//! What the script notices of a loss, and what it does until the nodes have reported.

use fairshare::store::{PARTS_MAX, Part, Want};
use proptest::prelude::*;

use super::*;

const PAUSE_US: u64 = 500_000;

const MINUTE_US: u64 = 60 * SECOND_US;

/// A caller that knows `known`.
fn knowing(known: State, operation: Operation, charges: &[StoreCharge]) -> Decision {
    Decision { known, ..asked(operation, charges) }
}

fn holding(charge: StoreCharge) -> StoreCharge {
    StoreCharge { hold: true, ..charge }
}

fn answer(timed: &Timed, at: u64, decision: Decision) -> Answer {
    timed.decide_all(&[(at, decision)]).remove(0)
}

fn poll(timed: &Timed, at: u64, known: State) -> Answer {
    answer(timed, at, knowing(known, Operation::Poll, &[]))
}

/// Tells the store of units that were charged at these times.
fn report(timed: &Timed, at: u64, charge: &StoreCharge, units: &[(u64, u64)]) -> Answer {
    let mut parts = [Part::default(); PARTS_MAX];
    for (part, (at_us, units)) in parts.iter_mut().zip(units) {
        *part = Part { at_us: *at_us, units: *units };
    }
    answer(timed, at, asked(Operation::Restore(parts), std::slice::from_ref(charge)))
}

#[test]
fn a_store_without_a_record_pauses_once() {
    let timed = Timed::fresh();
    let charges = [charge("k", window(5, MINUTE_US), 1)];
    let first = timed.decide(START_US, &charges);
    assert!(!first.admitted);
    assert_eq!((first.why, first.levels[0].retry_after), (1, Span::from_millis(500)));
    let later = timed.decide(START_US + PAUSE_US - 1, &charges);
    assert_eq!(later.levels[0].retry_after, Span::from_micros(1));
    let ready = timed.decide(START_US + PAUSE_US, &charges);
    assert!(ready.admitted);
    assert_eq!((ready.state.epoch, ready.state.changes), (first.state.epoch, 1));
    assert!(timed.redis.pttl("{f}:1:epoch") > 30 * 86_400_000);
}

#[test]
fn a_store_that_was_flushed_begins_an_epoch_that_is_new_to_everyone() {
    let timed = Timed::start();
    let five = [charge("k", window(5, MINUTE_US), 1)];
    let before = timed.decide(START_US, &five).state;
    timed.redis.run(&["FLUSHALL"]);
    timed.redis.run(&["SCRIPT", "LOAD", &timed.script]);
    let after = poll(&timed, START_US + 1, State::NONE);
    assert!(after.state.epoch > before.epoch, "also where the caller knew nothing");
    assert_eq!(poll(&timed, START_US + 2, before).state, after.state, "and only one");
}

/// Goal: a copy that lacks what a caller has seen is found out, and what is in it counts for nothing,
/// because nobody knows what is missing.
#[test]
fn an_older_copy_begins_an_epoch() {
    let timed = Timed::start();
    let five = [charge("k", window(5, MINUTE_US), 1)];
    timed.decide(START_US, &five);
    let texts = ["{f}:1:epoch", "k"].map(|key| (key, timed.redis.get(key).unwrap()));
    let seen = timed.decide(START_US + 1, &five).state;
    for (key, text) in &texts {
        timed.redis.run(&["SET", key, text, "EX", "600"]);
    }
    let older = State { changes: seen.changes - 1, ..seen };
    assert_eq!(poll(&timed, START_US + 2, older).state, older, "nothing that this caller knew of");
    let lost = answer(&timed, START_US + 3, knowing(seen, Operation::Decide, &five));
    assert_eq!((lost.admitted, lost.why), (false, 2));
    assert!(lost.state.epoch > seen.epoch);
    let after = timed.decide(START_US + 3 + PAUSE_US, &five);
    assert_eq!(after.levels[0].remaining, 4, "of the new epoch alone");
}

/// Goal: a record that only looks like ours wedges nothing: its numbers are too large to be counted on from.
#[test]
fn a_record_that_cannot_be_counted_on_begins_an_epoch() {
    let timed = Timed::start();
    let five = [charge("k", window(5, MINUTE_US), 1)];
    let largest = 1_u64 << 53;
    for (number, seq) in [(largest, 0), (largest - 1, 7), (1, largest), (1, largest - 1)] {
        let before = timed.decide(START_US, &five).state;
        let text = format!("e1 {number} {seq} 0 0 0 0 -");
        timed.redis.run(&["SET", "{f}:1:epoch", &text, "EX", "600"]);
        let after = answer(&timed, START_US, knowing(before, Operation::Poll, &[]));
        assert_eq!(after.why, 1, "{text}");
        assert!(after.state.epoch > before.epoch && after.state.epoch < largest / 2, "{text}");
        let ready =
            answer(&timed, START_US + PAUSE_US, knowing(after.state, Operation::Decide, &five));
        assert!(ready.admitted, "{text}");
        timed.redis.run(&["DEL", "k"]);
    }
}

#[test]
fn another_server_begins_an_epoch_and_a_lost_script_does_not() {
    let redis = aged();
    let five = [charge("k", window(5, MINUTE_US), 1)];
    let load = || decide_one(&redis, &five).unwrap();
    let first = load();
    redis.run(&["SCRIPT", "FLUSH"]);
    assert_eq!(load().state.epoch, first.state.epoch, "the same server");
    let record = redis.get("{f}:1:epoch").unwrap();
    let run = record.rsplit(' ').next().unwrap();
    assert_eq!(run.len(), 40, "{record}");
    let other = record.replace(run, "0123456789012345678901234567890123456789");
    redis.run(&["SET", "{f}:1:epoch", &other, "EX", "600"]);
    let cached = encode(&policy(), &[ask(&five)], ScriptCall::Cached);
    let cached = decode(&policy(), &[ask(&five)], ScriptCall::Cached, &redis.exchange(&cached));
    assert_eq!(cached[0].as_ref().unwrap().state.epoch, first.state.epoch, "nobody looked");
    let moved = load();
    assert_eq!((moved.admitted, moved.why), (false, 3));
}

/// Goal: who gives back what was charged before a loss takes nothing out of what others have reported,
/// whether or not it knows of the loss. What was charged since goes back as ever.
#[test]
fn what_was_charged_before_a_loss_is_not_taken_from_what_others_report() {
    for (key, quota) in [("w", window(5, MINUTE_US)), ("g", gcra(5, MINUTE_US, 5))] {
        let timed = Timed::start();
        let one = [charge(key, quota, 1)];
        let before = timed.decide(START_US, &one).state;
        timed.redis.run(&["FLUSHALL"]);
        timed.redis.run(&["SCRIPT", "LOAD", &timed.script]);
        let after = poll(&timed, START_US + 1, before).state;
        report(&timed, START_US + 2, &one[0], &[(START_US, 3)]);
        for (at, known) in [(3, before), (4, after)] {
            let back = knowing(known, Operation::Return(vec![START_US]), &one);
            assert_eq!(answer(&timed, START_US + at, back).levels[0].remaining, 2, "{key}");
        }
        let charged_at = START_US + 2 * PAUSE_US;
        let charged = timed.decide(charged_at, &one);
        assert_eq!((charged.admitted, charged.levels[0].remaining), (true, 1), "{key}");
        let back = knowing(charged.state, Operation::Return(vec![charged_at]), &one);
        assert_eq!(answer(&timed, charged_at, back).levels[0].remaining, 2, "{key}");
    }
}

/// Goal: a bucket that was never empty counts what it held at the loss, though some report so late that
/// what they were granted is older than a period by then.
#[test]
fn a_rate_that_is_reported_late_counts_what_it_held() {
    let timed = Timed::start();
    let rate = charge("k", gcra(600, MINUTE_US, 600), 600);
    let later = |seconds| START_US + seconds * SECOND_US;
    assert!(timed.decide(START_US, std::slice::from_ref(&rate)).admitted);
    let some = [StoreCharge { cost: 450, ..rate.clone() }];
    let before = timed.decide(later(45), &some);
    assert_eq!((before.admitted, before.levels[0].remaining), (true, 0));
    timed.redis.run(&["FLUSHALL"]);
    timed.redis.run(&["SCRIPT", "LOAD", &timed.script]);
    poll(&timed, later(59), before.state);
    report(&timed, later(59), &rate, &[(later(45), 450)]);
    let told = report(&timed, later(61), &rate, &[(START_US, 600)]);
    assert!(told.levels[0].remaining <= 160, "{:?}, and ten a second came back", told.levels[0]);
}

/// Goal: a level that holds grants nothing until nothing that was lost can count, and is not paused
/// beyond that.
#[test]
fn what_a_level_that_holds_has_lost_counts_as_wholly_used() {
    for (key, quota) in [("w", window(4, MINUTE_US)), ("g", gcra(4, MINUTE_US, 4))] {
        let timed = Timed::fresh();
        let take = |at: u64, cost: u64| {
            timed.decide(START_US + at, &[holding(charge(key, quota, cost))]).admitted
        };
        assert!(!take(0, 1));
        assert!(!take(MINUTE_US / 4 - 1, 1), "{key}");
        assert_eq!(take(MINUTE_US / 4, 1), key == "g", "a rate comes back as it leaks");
        assert!(!take(MINUTE_US - 1, 3), "{key}");
        assert_eq!(take(MINUTE_US, 4), key == "w", "{key}");
        assert_eq!(take(MINUTE_US, 3), key == "g", "{key}");
    }
}

/// Goal: where the store fails over to a copy whose clock is behind, what the copy says counts for no
/// less than what may be missing in it.
#[test]
fn a_level_that_holds_believes_no_copy_from_ahead_of_the_clock() {
    for (key, quota) in [("w", window(4, MINUTE_US)), ("g", gcra(4, MINUTE_US, 4))] {
        let timed = Timed::start();
        let one = [holding(charge(key, quota, 1))];
        timed.decide(START_US, &one);
        let texts = ["{f}:1:epoch", key].map(|key| (key, timed.redis.get(key).unwrap()));
        let seen = timed.decide(START_US + 1, &one).state;
        for (key, text) in &texts {
            timed.redis.run(&["SET", key, text, "EX", "600"]);
        }
        let behind = START_US - SECOND_US;
        let lost = answer(&timed, behind, knowing(seen, Operation::Decide, &one));
        assert_eq!((lost.admitted, lost.why), (false, 2), "{key}");
        assert!(!timed.decide(START_US + SECOND_US, &one).admitted, "{key}");
        assert!(timed.decide(behind + MINUTE_US, &one).admitted, "{key}");
    }
}

#[test]
fn a_single_key_that_a_level_holds_for_counts_as_wholly_used_from_then_on() {
    let timed = Timed::start();
    let four = holding(charge("k", window(4, MINUTE_US), 1));
    assert!(timed.decide(START_US, std::slice::from_ref(&four)).admitted);
    timed.redis.run(&["DEL", "k"]);
    report(&timed, START_US + 5, &four, &[(START_US, 1)]);
    assert!(!timed.decide(START_US + MINUTE_US, std::slice::from_ref(&four)).admitted);
    assert!(timed.decide(START_US + 5 + MINUTE_US, &[four]).admitted);
}

/// Goal: where a key alone is lost, what comes back of it frees nothing that was charged since, whether
/// somebody has told of the key or not.
#[test]
fn what_comes_back_of_a_lost_key_frees_nothing_else() {
    let timed = Timed::start();
    let four = charge("k", window(4, MINUTE_US), 1);
    let known = poll(&timed, START_US, State::NONE).state;
    let give_back = |at, of| {
        let back = Operation::Return(vec![of]);
        answer(&timed, at, knowing(known, back, std::slice::from_ref(&four)));
    };
    let left = |at| timed.take(at, "k", window(4, MINUTE_US), 0).remaining;
    for told in [false, true] {
        timed.redis.run(&["DEL", "k"]);
        let granted = START_US + 10;
        assert!(timed.take(granted, "k", window(4, MINUTE_US), 3).admitted);
        timed.redis.run(&["DEL", "k"]);
        if told {
            report(&timed, granted + 5, &four, &[(START_US, 1)]);
        }
        let rest = 4 - u64::from(told);
        assert!(timed.take(granted + 10, "k", window(4, MINUTE_US), rest).admitted);
        give_back(granted + 20, granted);
        assert_eq!(left(granted + 20), 0, "told: {told}");
        give_back(granted + 20, granted + 10);
        assert_eq!(left(granted + 20), 1, "told: {told}");
    }
}

#[test]
fn reports_make_the_pause_longer_up_to_a_bound() {
    let timed = Timed::fresh();
    let five = charge("k", window(5, MINUTE_US), 1);
    poll(&timed, START_US, State::NONE);
    let mut at = START_US + PAUSE_US - 1;
    for _ in 0..40 {
        report(&timed, at, &five, &[(START_US - 1, 1)]);
        at += 150_000;
    }
    let waits = |at| timed.decide(at, &[charge("other", window(5, MINUTE_US), 1)]).levels[0];
    assert!(!waits(START_US + 5 * SECOND_US - 1).admitted);
    assert!(waits(START_US + 5 * SECOND_US).admitted);
    // A report that comes later than that still counts, and pauses nobody.
    let late = report(&timed, START_US + 6 * SECOND_US, &five, &[(START_US, 5)]);
    assert_eq!(late.levels[0].remaining, 0);
    assert!(waits(START_US + 6 * SECOND_US).admitted);
}

#[test]
fn a_rate_counts_what_is_reported_as_if_nothing_had_leaked() {
    let timed = Timed::fresh();
    let ten = charge("g", gcra(10, MINUTE_US, 10), 1);
    poll(&timed, START_US, State::NONE);
    report(&timed, START_US + 1, &ten, &[(START_US - MINUTE_US / 2, 3), (START_US, 4)]);
    let at = START_US + SECOND_US;
    let left = |at| timed.take(at, "g", gcra(10, MINUTE_US, 10), 0).remaining;
    assert_eq!(left(at), 3);
    let full = report(&timed, at, &ten, &[(START_US, 100)]);
    assert_eq!(full.levels[0].remaining, 0, "at most all that there may be");
    assert_eq!(left(at + MINUTE_US), 10);
    let past = report(&timed, at + MINUTE_US, &ten, &[(START_US, 10)]);
    assert_eq!(past.levels[0].remaining, 10, "long leaked");
}

/// Goal: what is granted and what is reported, in any order, counts for as long as it must and for at
/// most a sixteenth longer; and what comes back is taken out of what was reported.
#[test]
fn what_is_reported_to_a_window_counts_as_it_did() {
    let parts = prop::collection::vec((0..1200u64, 1..20u64), 0..PARTS_MAX);
    let reports = prop::collection::vec((0..400u64, parts, 0..3u64), 1..4);
    let timed = Timed::start();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 96,
        failure_persistence: None,
        ..Default::default()
    });
    let key = std::sync::atomic::AtomicU64::new(0);
    runner
        .run(&reports, |reports| {
            const PERIOD_US: u64 = 1_000;
            let name = format!("r{}", key.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
            let quota = window(1_000, PERIOD_US);
            let level = charge(&name, quota, 1);
            let (mut now, mut log) = (START_US + 10_000, Vec::new());
            let held = |now: u64| 1_000 - timed.take(now, &name, quota, 0).remaining;
            for (gap, parts, grant) in reports {
                now += gap;
                let parts: Vec<_> = parts.iter().map(|(ago, units)| (now - ago, *units)).collect();
                report(&timed, now, &level, &parts);
                log.extend(&parts);
                let want = vec![Want { firm: grant, ahead: 0 }];
                let lease = Operation::Lease(want);
                let granted = answer(&timed, now, asked(lease, &[charge(&name, quota, 0)]));
                log.push((now, granted.units[0]));
            }
            for later in [0, 1, 137, 500, 937, 999, 1_000, 1_062, 1_063] {
                let at = now + later;
                let counts = |length: u64| -> u64 {
                    log.iter().filter(|(from, _)| from + length > at).map(|(_, units)| units).sum()
                };
                let held = held(at);
                prop_assert!(held >= counts(PERIOD_US), "{held} at {later}: {log:?}");
                prop_assert!(held <= counts(PERIOD_US + 2 * 63), "{held} at {later}: {log:?}");
            }
            Ok(())
        })
        .unwrap();
}

/// Goal: a clock that steps back frees nothing of an epoch that began before the step.
#[test]
fn tim_7_an_epoch_is_never_ahead_of_its_values() {
    let timed = Timed::fresh();
    poll(&timed, START_US, State::NONE);
    let take = |at: u64| timed.take(at, "k", window(2, SECOND_US), 1).admitted;
    assert!(!take(START_US - 10 * SECOND_US), "time stands still");
    assert!(take(START_US + PAUSE_US) && !take(START_US - 9 * SECOND_US + PAUSE_US));
    assert!(take(START_US + PAUSE_US + 1) && !take(START_US + PAUSE_US + 2));
    // A record from far ahead is not believed, and nobody is locked out for that long.
    let far = format!("e1 7 1 {} 0 9007199254740991 1 -", START_US + 3_600 * SECOND_US);
    timed.redis.run(&["SET", "{f}:1:epoch", &far, "EX", "600"]);
    let healed = poll(&timed, START_US + 2 * SECOND_US, State { epoch: 7, changes: 1 });
    assert_eq!(healed.why, 1);
    assert!(healed.state.epoch > 7);
    assert!(take(START_US + 3 * SECOND_US));
}
