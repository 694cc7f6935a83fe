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
/// The store.
#[path = "model/store.rs"]
mod store;

/// Numbers that a seed decides.
#[path = "simulation/rng.rs"]
mod rng;
/// Questions to the script.
#[path = "model/vectors.rs"]
mod vectors;
/// One worker and its leases.
#[path = "model/worker.rs"]
mod worker;

use embedded_redis::EmbeddedRedis;
use fairshare::limiter::{Quota, Verdict};
use fairshare::store::{Operation, Want};
use fairshare::units::{Instant, Span};
use protocol::{ALL_OR_NOTHING, CONSERVATION, INTERVAL, Protocol, START};
use rng::Rng;
use stateright::{Checker, CheckerBuilder, HasDiscoveries, Model};
use store::{Asked, ModelStore};

/// States that a check explores at most, so that it ends.
const STATES_MAX: usize = 1_200_000;

/// What must be seen, so that the exploration is known to get anywhere.
const ALL: [&str; 4] =
    ["all that fits is used", "a request is refused", "units go back", "units are wasted"];

fn checker(protocol: &Protocol) -> CheckerBuilder<Protocol> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    protocol.clone().checker().threads(cores).target_state_count(STATES_MAX)
}

/// Whether some interleaving breaks `promise`.
fn breaks(protocol: &Protocol, promise: &'static str) -> bool {
    let found = HasDiscoveries::AnyOf([promise].into());
    let checker = checker(protocol).finish_when(found).spawn_bfs().join();
    println!("{} states until it is found", checker.state_count());
    checker.discovery(promise).is_some()
}

/// Explores everything: no state breaks a promise, and all of `seen` is seen in some.
fn assert_holds(protocol: &Protocol, seen: &[&'static str]) {
    let checker = checker(protocol).spawn_bfs().join();
    println!(
        "{} states, {} of them different",
        checker.state_count(),
        checker.unique_state_count()
    );
    assert!(checker.state_count() < STATES_MAX, "not all states were explored");
    for property in [INTERVAL, CONSERVATION, ALL_OR_NOTHING] {
        checker.assert_no_discovery(property);
    }
    for property in seen {
        assert!(checker.discovery(property).is_some(), "nothing shows that {property}");
    }
}

/// Whether some interleaving breaks the limit where the store counts this level's grants as if they
/// were spent at once.
fn breaks_where_lives_are_forgotten(protocol: Protocol, level: usize) -> bool {
    let mut protocol = Protocol { faults: 0, ..protocol };
    protocol.charged[level] = protocol.levels[level].quota;
    breaks(&protocol, INTERVAL)
}

/// Goal: a level that is leased ahead of need admits what it says, whatever is lost, doubled or late,
/// and whichever node loses its memory. Two crowds would break the limit.
#[test]
fn leases_hold_in_every_interleaving_with_a_fault() {
    let protocol = Protocol { faults: 1, ..Protocol::window() };
    assert_holds(&Protocol { steps: &[19, 622], ..protocol }, &ALL);
}

/// Goal: the same for three crowds, of which two fit, where nothing fails but everything may be late.
#[test]
fn leases_hold_in_every_interleaving_of_three_crowds() {
    let protocol = Protocol { crowd: 6, crowds: 3, faults: 0, ..Protocol::window() };
    assert_holds(&Protocol { steps: &[19, 622], ..protocol }, &ALL[..3]);
}

/// Goal: the same for rates, in each way in which the store makes up for delays: a reserve, of levels
/// that are leased ahead of need and of others, or a slower refill.
#[test]
fn leases_of_rates_hold_in_every_interleaving() {
    let rate = |rate, burst, steps, crowd, faults| {
        let protocol = Protocol { crowd, faults, ..Protocol::rate(rate, burst, steps) };
        assert_holds(&protocol, if faults > 0 { &ALL } else { &ALL[..3] });
    };
    rate(25, 16, &[19, 21, 40], 9, 0);
    rate(25, 16, &[19, 21, 40], 13, 0);
    rate(50, 15, &[59, 1, 40], 12, 1);
    // One at a time, and the next 26.7 ms later.
    let slower = Protocol { crowd: 1, crowds: 3, faults: 0, ..Protocol::rate(50, 3, &[]) };
    assert_holds(&Protocol { steps: &[27, 27, 5, 22, 1], ..slower }, &ALL[..3]);
}

/// Goal: the same where two tenants share a level and each has one of its own.
#[test]
fn leases_of_several_levels_hold_in_every_interleaving() {
    assert_holds(&Protocol::tenants(), &ALL[..3]);
    let protocol = Protocol { workers: 1, faults: 1, ..Protocol::tenants() };
    assert_holds(&Protocol { steps: &[19, 681], ..protocol }, &ALL);
}

/// Goal: a store that does not count grants of a window for one life longer is found out.
#[test]
fn canary_of_the_model_a_window_that_forgets_the_life_of_leases() {
    assert!(breaks_where_lives_are_forgotten(Protocol::window(), 0));
}

/// Goal: a store that keeps nothing of a rate in reserve, and does not refill it more slowly, is found
/// out.
#[test]
fn canary_of_the_model_a_rate_that_forgets_the_life_of_leases() {
    let rate = |rate, burst, steps, crowd| {
        let protocol = Protocol { crowd, ..Protocol::rate(rate, burst, steps) };
        assert!(breaks_where_lives_are_forgotten(protocol, 0), "{rate} a second, {burst} at once");
    };
    rate(25, 16, &[19, 21, 40], 13);
    rate(50, 15, &[59, 1, 40], 12);
    rate(50, 3, &[59, 21, 60], 3);
}

/// Goal: one level that forgets the life of its leases is found out beside others that do not.
#[test]
fn canary_of_the_model_one_of_several_levels_that_forgets_the_life_of_leases() {
    for level in [0, 1] {
        assert!(breaks_where_lives_are_forgotten(Protocol::tenants(), level), "level {level}");
    }
}

/// Goal: a worker that spends at one level what another refuses is found out.
#[test]
fn canary_of_the_model_a_worker_that_spends_at_each_level() {
    let protocol = Protocol { spends_each_level: true, faults: 0, ..Protocol::tenants() };
    assert!(breaks(&protocol, ALL_OR_NOTHING), "no interleaving spends in part");
}

/// Goal: a worker that takes a reply twice is found out.
#[test]
fn canary_of_the_model_a_grant_that_is_heard_twice() {
    let protocol = Protocol { takes_any_reply: true, faults: 1, ..Protocol::window() };
    for promise in [INTERVAL, CONSERVATION] {
        assert!(breaks(&protocol, promise), "{promise}");
    }
}

/// What the script and the model of it are asked about, and the grants of each level.
struct Compared {
    redis: EmbeddedRedis,
    model: ModelStore,
    quotas: Vec<Quota>,
    grants: Vec<Vec<(u64, Instant)>>,
}

impl Compared {
    fn new(rng: &Rng) -> Self {
        let quotas: Vec<Quota> = (0..rng.within(1, 3)).map(|_| vectors::quota(rng)).collect();
        let (mut redis, model) = (EmbeddedRedis::new(), ModelStore::new(&quotas));
        redis.age("");
        Self { redis, model, grants: vec![vec![(0, START)]; quotas.len()], quotas }
    }

    /// Some of the levels, or all.
    fn some_levels(&self, rng: &Rng) -> Vec<usize> {
        let first = usize::try_from(rng.within(0, 2)).unwrap();
        (0..self.quotas.len()).filter(|level| level % 2 == 0 || *level == first).collect()
    }

    fn lease(&mut self, rng: &Rng, now: Instant, seed: u64) {
        let asked = |level| Asked {
            level,
            cost: rng.within(1, 7),
            want: Want { firm: rng.within(0, 12), ahead: rng.within(0, 12) },
        };
        let asked: Vec<Asked> = self.some_levels(rng).into_iter().map(asked).collect();
        let of_level = |asked: &Asked| (asked.level, self.quotas[asked.level], asked.cost);
        let levels: Vec<vectors::Part> = asked.iter().map(of_level).collect();
        let wants = asked.iter().map(|asked| asked.want).collect();
        let policy = vectors::policy();
        let answer = vectors::ask(&mut self.redis, &policy, &levels, Operation::Lease(wants));
        let told = answer.levels.iter().map(|told| Verdict { reset_after: Span::ZERO, ..*told });
        let said: Vec<(u64, Verdict)> = answer.units.iter().copied().zip(told).collect();
        assert_eq!(said, self.model.lease(&asked, now), "seed {seed}");
        for (asked, (units, _)) in asked.iter().zip(said) {
            self.grants[asked.level].push((units, now));
        }
    }

    fn take_back(&mut self, rng: &Rng, now: Instant) {
        let (mut levels, mut times) = (vec![], vec![]);
        for level in self.some_levels(rng) {
            let (units, at) = rng.pick(&self.grants[level]);
            self.grants[level].retain(|grant| *grant != (units, at) || *grant == (0, START));
            self.model.take_back(level, units, at, now);
            levels.push((level, self.quotas[level], units));
            times.push(at.as_nanos() / 1000);
        }
        vectors::ask(&mut self.redis, &vectors::policy(), &levels, Operation::Return(times));
    }
}

/// Goal: the small store of the model grants, refuses and takes back what the script does, at several
/// levels together.
#[test]
fn the_model_of_the_store_is_the_script() {
    for seed in 0..1000 {
        let rng = Rng::new(seed);
        let (mut compared, mut now) = (Compared::new(&rng), START);
        for _ in 0..60 {
            now = now.plus(Span::from_millis(rng.pick(&[0, 1, 19, 20, 60, 302, 1000])));
            compared.redis.set_clock(now.as_nanos() / 1000);
            match rng.in_thousand(300) {
                true => compared.take_back(&rng, now),
                false => compared.lease(&rng, now, seed),
            }
        }
    }
}
