//! A fleet of Envoys, its store and its clients in a simulated time of their own: the production
//! filter on the tests' host, the production script in a Lua of the tests' own. One number, the
//! seed, decides everything that happens, so that a failure can be seen again:
//!
//! ```sh
//! FAIRSHARE_SEED=123 cargo test --test simulation replay -- --nocapture
//! ```
//!
//! `FAIRSHARE_SEEDS=10000` chooses how many seeds `fixed_seeds_hold` tries.
#![allow(dead_code, unreachable_pub, reason = "this binary uses its own part of the support")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::arithmetic_side_effects,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and they do have a clock and an environment"
)]

/// What each level promises.
#[path = "simulation/bounds.rs"]
mod bounds;
/// Planted faults that must be found.
#[path = "simulation/canaries.rs"]
mod canaries;
/// Planted faults that only one kind of trouble reveals.
#[path = "simulation/canaries_of_trouble.rs"]
mod canaries_of_trouble;
/// What must hold at the end of a run.
#[path = "simulation/checks.rs"]
mod checks;
/// Clocks that are wrong.
#[path = "simulation/clock.rs"]
mod clock;
/// The store of the simulation against a real one.
#[path = "simulation/embedded.rs"]
mod embedded;
/// The store of the simulation.
mod embedded_redis;
/// What stands in store calls.
#[path = "simulation/exchanges.rs"]
mod exchanges;
/// A host of the tests' own.
mod fake_host;
/// What can go wrong.
#[path = "simulation/faults.rs"]
mod faults;
/// Envoys and their workers.
#[path = "simulation/fleet.rs"]
mod fleet;
/// What a store that lost its state may grant once more.
#[path = "simulation/forgotten.rs"]
mod forgotten;
/// What becomes of store calls.
#[path = "simulation/network.rs"]
mod network;
/// What a seed decides.
#[path = "simulation/plan.rs"]
mod plan;
/// A real server and its client, and what they are made of.
#[path = "support/process.rs"]
mod process;
/// That nothing stays taken.
#[path = "simulation/recovery.rs"]
mod recovery;
#[path = "support/redis.rs"]
mod redis;
/// Numbers that a seed decides.
#[path = "simulation/rng.rs"]
mod rng;
/// The store's servers.
#[path = "simulation/shards.rs"]
mod shards;
/// Calls and faults on their way.
#[path = "simulation/striking.rs"]
mod striking;
/// What many runs did.
#[path = "simulation/tally.rs"]
mod tally;
#[path = "support/tools.rs"]
mod tools;
/// What happens, one thing after the other.
#[path = "simulation/world.rs"]
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use embedded_redis::EmbeddedRedis;
use fairshare::store::SCRIPT;
use plan::{Plan, SECOND};
use shards::SHARDS_MAX;
use tally::Tally;
use world::World;

/// Seeds that are tried where nobody says how many.
const SEEDS: u64 = 2_000;

/// So many seeds that fail are enough to look at.
const REPORTS_MAX: usize = 8;

/// The store's servers, with this script.
fn servers(script: &str) -> Vec<EmbeddedRedis> {
    (0..SHARDS_MAX).map(|_| EmbeddedRedis::with_script(script)).collect()
}

/// Runs what a seed decides, and says all that is wrong with it, and what it did.
fn run(seed: u64, servers: &mut [EmbeddedRedis]) -> (Vec<String>, Tally) {
    run_plan(seed, &Plan::of(seed), servers)
}

/// The same for another plan.
fn run_plan(seed: u64, plan: &Plan, servers: &mut [EmbeddedRedis]) -> (Vec<String>, Tally) {
    let mut world = World::new(seed, plan, servers);
    finish(&mut world);
    let mut wrong = checks::check(&world);
    let tally = Tally::of(&world);
    wrong.extend(recovery::check(&mut world));
    (wrong, tally)
}

/// Lets everything happen, then lets the fleet come to rest.
fn finish(world: &mut World<'_>) {
    let plan = world.plan;
    let last = plan.arrivals.last().map_or(0, |arrival| arrival.at);
    let last = plan.events.iter().map(|(at, _)| *at).chain([last]).max().unwrap_or(0);
    world.run_until(last + plan.timeout + SECOND / 2);
    world.heal();
    let aftermath = checks::aftermath(world);
    world.run_until(world.now + aftermath);
}

/// What is wrong with a seed, and how to see it again.
fn report(seed: u64, wrong: &[String]) -> String {
    let command = "cargo test --test simulation replay -- --nocapture";
    format!("seed {seed}:\n{}\nsee it again: FAIRSHARE_SEED={seed} {command}", wrong.join("\n"))
}

fn assert_holds(seed: u64) {
    let (wrong, tally) = run(seed, &mut servers(SCRIPT));
    println!("{tally}");
    assert!(wrong.is_empty(), "{}", report(seed, &wrong));
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no whole number")))
}

/// Goal: whatever the fixed seeds do to a fleet, every promise holds.
#[test]
fn fixed_seeds_hold() {
    let count = number_from("FAIRSHARE_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    let (reports, total) = (Mutex::new(Vec::new()), Mutex::new(Tally::default()));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                let mut servers = servers(SCRIPT);
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= count || reports.lock().unwrap().len() >= REPORTS_MAX {
                        return;
                    }
                    let (wrong, tally) = run(seed, &mut servers);
                    total.lock().unwrap().add(&tally);
                    if !wrong.is_empty() {
                        reports.lock().unwrap().push(report(seed, &wrong));
                    }
                }
            });
        }
    });
    let total = total.into_inner().unwrap();
    println!("{total}");
    let reports = reports.into_inner().unwrap();
    assert!(reports.is_empty(), "{}", reports.join("\n"));
    assert!(total.admitted > 20 * count && total.refused > 10 * count, "{total}");
}

/// Goal: the same for a seed that nobody has tried. A failure names it.
#[test]
fn a_fresh_seed_holds() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock");
    let seed = u64::try_from(now.as_nanos() % (1 << 62)).unwrap();
    println!("the fresh seed is {seed}");
    assert_holds(seed);
}

/// Runs the seed of `FAIRSHARE_SEED` alone, and shows its plan.
#[test]
fn replay() {
    let Some(seed) = number_from("FAIRSHARE_SEED") else { return };
    println!("{:#?}", Plan::of(seed));
    assert_holds(seed);
}
