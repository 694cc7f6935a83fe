//! Many workers on one hot level, in every order that a scheduler may choose: what holds, and what it costs.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests fail by panicking"
)]

/// The workers, and whose turn it is.
mod turns_of_workers;

use fairshare::limiter::{GcraQuota, InFlightQuota, Quota};
use fairshare::policy::{Level, Subject};
use fairshare::units::Span;
use turns_of_workers::{Sum, burst, charge, run, shared, window};

/// What share each worker takes so that `units` are used up, and then some.
fn share_of(units: u64, workers: usize) -> u64 {
    units / u64::try_from(workers).unwrap() + 2
}

/// The turns that a request takes at the node's data, beside those that it takes anyway, are at most
/// `bound` hundredths.
fn check_turns(name: &str, workers: usize, sum: &Sum, bound: u64) {
    let hundredths = sum.node_hundredths();
    println!("{name}, {workers} workers: {hundredths} hundredths of a turn");
    assert!(hundredths <= bound, "{name}, {workers} workers: {hundredths}: {sum:?}");
}

/// Goal: a level of few units, which is written for each request, is used up to its last unit, and no
/// worker ever gives up, however many they are. A request may take more turns the more workers there are:
/// 2.2 at the node's data with two of them, 3.5 with 8, 10.5 with 64.
#[test]
fn up_to_64_workers_share_a_small_level_to_the_last_unit() {
    for (name, quota) in [("window", window(1000)), ("rate", burst(1000))] {
        for (workers, bound) in [(2, 260), (8, 420), (64, 1260)] {
            let sum = run(workers, share_of(1000, workers), shared(quota));
            assert_eq!((sum.admitted, sum.gave_up), (1000, 0), "{name}, {workers}: {sum:?}");
            check_turns(name, workers, &sum, bound);
        }
    }
}

/// Goal: where a request is charged to several levels at once, none of them admits too many, and what one
/// of them refuses is not lost to the others. It takes 3.9, 4.9 and 10.8 turns.
#[test]
fn up_to_64_workers_share_several_levels() {
    const TENANTS: usize = 4;
    for (workers, bound) in [(4, 460), (8, 590), (64, 1300)] {
        let sum = run(workers, share_of(1600, workers), |worker| {
            let tenant = Some(Subject([u8::try_from(worker % TENANTS).unwrap() + 1; 32]));
            vec![
                charge(Level::Shared, None, window(1000)),
                charge(Level::Tenant, tenant, burst(300)),
            ]
        });
        assert_eq!((sum.admitted, sum.gave_up), (1000, 0), "{workers} workers: {sum:?}");
        for tenant in 0..TENANTS {
            let of_tenant: u64 = sum.admitted_by.iter().skip(tenant).step_by(TENANTS).sum();
            assert!(of_tenant <= 300, "{workers} workers, tenant {tenant}: {of_tenant}");
        }
        check_turns("levels", workers, &sum, bound);
    }
}

/// Goal: no more requests are under way than the cap says, whichever workers have them, and slots that were
/// given back are taken again. With its end a request takes 2.6 turns to 4.4, and 25.5 where each of 64
/// workers may have one slot.
#[test]
fn up_to_64_workers_share_a_cap_on_requests_in_flight() {
    const REQUESTS: u64 = 100;
    for (cap, workers, bound) in [(1, 2, 310), (4, 8, 470), (16, 64, 530), (64, 64, 3060)] {
        let quota = Quota::InFlight(InFlightQuota { requests: cap });
        let sum = run(workers, REQUESTS, shared(quota));
        assert!(sum.under_way_max <= cap, "{cap} slots, {workers} workers: {sum:?}");
        assert!(sum.admitted > cap * 10, "{cap} slots, {workers} workers: {sum:?}");
        assert_eq!(sum.gave_up, 0, "{cap} slots, {workers} workers: {sum:?}");
        check_turns("cap", workers, &sum, bound);
    }
}

/// Goal: what a request at a busy level takes does not grow with the number of workers, although all of
/// them begin at the same moment: 0.05 turns at the node's data, and 0.11 with 64 workers.
#[test]
fn throughput_at_a_busy_level_does_not_fall_with_workers() {
    let rate = GcraQuota { rate: 1_000_000, per: Span::from_secs(1), burst: 10_000_000 };
    let cap = InFlightQuota { requests: 10_000 };
    let quotas = [
        ("window", window(10_000_000)),
        ("rate", Quota::Gcra(rate)),
        ("cap", Quota::InFlight(cap)),
    ];
    for (name, quota) in quotas {
        let run = |workers: usize| {
            let sum = run(workers, 500, shared(quota));
            assert_eq!((sum.refused, sum.gave_up), (0, 0), "{name}, {workers}: {sum:?}");
            sum
        };
        let alone = run(1);
        for workers in [2, 8, 32, 64] {
            let sum = run(workers);
            let grown = sum.turns * alone.admitted * 100 / (alone.turns * sum.admitted);
            assert!(grown <= 105, "{name}, {workers} workers: {grown} % of {alone:?}: {sum:?}");
            assert!(sum.won + sum.lost < sum.admitted / 10, "{name}, {workers}: {sum:?}");
            check_turns(name, workers, &sum, 14);
        }
    }
}
