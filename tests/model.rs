//! Every interleaving of the lease protocol, within bounds: two Envoys of two workers each, the
//! production leases, a store that is tied to the script, and a network that loses, delays, reorders
//! and doubles what it carries.
#![allow(dead_code, unreachable_pub, reason = "this binary uses its own part of the support")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests fail by panicking"
)]

/// The production script.
mod embedded_redis;
/// Workers and what is between them and the store.
#[path = "model/fleet.rs"]
mod fleet;
/// Leases as a transition system.
#[path = "model/protocol.rs"]
mod protocol;
/// The store of one key.
#[path = "model/store.rs"]
mod store;

/// Numbers that a seed decides.
#[path = "simulation/rng.rs"]
mod rng;
/// Questions to the script.
#[path = "model/vectors.rs"]
mod vectors;

use embedded_redis::EmbeddedRedis;
use fairshare::limiter::Verdict;
use fairshare::store::{Operation, Want};
use fairshare::units::Span;
use protocol::{CONSERVATION, INTERVAL, Protocol, START};
use rng::Rng;
use stateright::{Checker, Model};
use store::ModelStore;

/// States that a check explores at most, so that it ends.
const STATES_MAX: usize = 3_000_000;

/// What must be seen, so that the exploration is known to get anywhere.
const ALL: [&str; 4] =
    ["all that fits is used", "a request is refused", "units go back", "units are wasted"];

fn explore(protocol: &Protocol) -> impl Checker<Protocol> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = protocol.clone().checker().threads(cores);
    checker.target_state_count(STATES_MAX).spawn_bfs().join()
}

/// Explores everything: no state breaks a promise, and all of `seen` is seen in some.
fn assert_holds(protocol: &Protocol, seen: &[&'static str]) {
    let checker = explore(protocol);
    println!(
        "{} states, {} of them different",
        checker.state_count(),
        checker.unique_state_count()
    );
    assert!(checker.state_count() < STATES_MAX, "not all states were explored");
    for property in [INTERVAL, CONSERVATION] {
        checker.assert_no_discovery(property);
    }
    for property in seen {
        assert!(checker.discovery(property).is_some(), "nothing shows that {property}");
    }
}

/// Goal: a level that is leased ahead of need admits what it says, whatever is lost, doubled or late,
/// and whichever node loses its memory. Two requests would break the limit.
#[test]
fn leases_hold_in_every_interleaving_with_two_faults() {
    assert_holds(&Protocol::new(), &ALL);
}

/// Goal: the same for three requests, of which two fit, where nothing fails but everything may be
/// late.
#[test]
fn leases_hold_in_every_interleaving_of_three_requests() {
    let protocol = Protocol { cost: 6, requests: 3, faults: 0, ..Protocol::new() };
    assert_holds(&Protocol { steps: &[19, 641], ..protocol }, &ALL[..3]);
}

/// Goal: a store that does not count grants for one life longer is found out.
#[test]
fn canary_of_the_model_a_window_that_forgets_the_life_of_leases() {
    let protocol = Protocol::new();
    let protocol = Protocol { charged: protocol.quota, faults: 0, ..protocol };
    let found = explore(&protocol).discoveries().contains_key(INTERVAL);
    assert!(found, "no interleaving breaks the limit");
}

/// Goal: a worker that takes a reply twice is found out.
#[test]
fn canary_of_the_model_a_grant_that_is_heard_twice() {
    let protocol = Protocol { takes_any_reply: true, faults: 1, ..Protocol::new() };
    let checker = explore(&protocol);
    for property in [INTERVAL, CONSERVATION] {
        assert!(checker.discoveries().contains_key(property), "{property}");
    }
}

/// Goal: the small store of the model grants, refuses and takes back what the script does.
#[test]
fn the_model_of_the_store_is_the_script() {
    let policy = vectors::policy();
    let mut redis = EmbeddedRedis::new();
    for seed in 0..1000 {
        let rng = Rng::new(seed);
        redis.reset(0);
        redis.age("");
        let quota = vectors::quota(&rng);
        let mut model = ModelStore::new(quota);
        let (mut now, mut grants) = (START, vec![(0, START)]);
        for _ in 0..60 {
            now = now.plus(Span::from_millis(rng.pick(&[0, 1, 19, 20, 60, 302, 1000])));
            redis.set_clock(now.as_nanos() / 1000);
            let (units, at) = rng.pick(&grants);
            if rng.in_thousand(300) {
                let at_us = at.as_nanos() / 1000;
                vectors::ask(&mut redis, &policy, quota, units, Operation::Return(vec![at_us]));
                model.take_back(units, at, now);
                grants.retain(|grant| *grant != (units, at) || *grant == (0, START));
                continue;
            }
            let want = Want { firm: rng.within(0, 12), ahead: rng.within(0, 12) };
            let cost = rng.within(1, 7);
            let answer =
                vectors::ask(&mut redis, &policy, quota, cost, Operation::Lease(vec![want]));
            let (granted, told) = model.lease(cost, want, now);
            let said = Verdict { reset_after: Span::ZERO, ..answer.levels[0] };
            assert_eq!((answer.units, said), (vec![granted], told), "seed {seed}");
            grants.push((granted, now));
        }
    }
}
