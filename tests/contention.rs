//! Many workers on one hot level, in every order that a scheduler may choose: each read and each write
//! of shared data is one turn, and whose turn is next is drawn at random. So a swap is lost wherever
//! another worker's came in between, as on a machine with as many processors as workers.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests fail by panicking"
)]

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use fairshare::limiter::{Quota, WindowQuota};
use fairshare::policy::{Charge, Level, LimitId};
use fairshare::store::node::NodeStore;
use fairshare::store::shared_data::{SharedData, SharedDataFailure, Swap, Version, Versioned};
use fairshare::units::{Instant, Span};

/// Turns that a worker takes for the rest of a request: at 2 µs each, 20 µs for all of it.
const TURNS_BETWEEN: u32 = 8;

/// What one turn of one worker takes.
const TURN: Span = Span::from_micros(2);

/// A process of several workers, one of which runs at any time.
struct Process {
    state: Mutex<State>,
    /// Tells a worker that it is its turn.
    turns: Vec<Condvar>,
}

struct State {
    data: HashMap<String, (Vec<u8>, u32)>,
    /// Versions, as the proxy numbers them: from one up, over all keys.
    last_version: u32,
    running: Vec<usize>,
    turn: usize,
    random: u64,
    turns_taken: u64,
    won: u64,
    lost: u64,
}

/// The shared data from one worker's point of view.
struct Shared {
    process: Arc<Process>,
    worker: usize,
}

/// What came of a run.
#[derive(Debug, Default)]
struct Sum {
    admitted: u64,
    refused: u64,
    gave_up: u64,
    /// Writes that succeeded, and those before which another worker came.
    won: u64,
    lost: u64,
    /// Of all workers together.
    turns: u64,
}

impl Shared {
    /// Waits for the worker's turn, takes it, and hands on.
    fn take_turn<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.process.state.lock().unwrap();
        while state.turn != self.worker {
            state = self.process.turns[self.worker].wait(state).unwrap();
        }
        let result = act(&mut state);
        state.turns_taken += 1;
        if !state.running.is_empty() {
            // Multiplier of Knuth's MMIX generator.
            state.random = state.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let next = usize::try_from(state.random >> 33).unwrap() % state.running.len();
            state.turn = state.running[next];
            self.process.turns[state.turn].notify_one();
        }
        result
    }

    fn now(&self) -> Instant {
        let state = self.process.state.lock().unwrap();
        let workers = u64::try_from(self.process.turns.len()).unwrap();
        let nanos = state.turns_taken * TURN.as_nanos() / workers;
        Instant::ORIGIN.plus(Span::from_secs(1000)).plus(Span::from_nanos(nanos))
    }
}

impl SharedData for Shared {
    fn get(&mut self, key: &str) -> Result<Versioned, SharedDataFailure> {
        self.take_turn(|state| {
            Ok(match state.data.get(key) {
                Some((bytes, version)) => {
                    Versioned { bytes: bytes.clone(), version: Version::At(*version) }
                }
                None => Versioned { bytes: Vec::new(), version: Version::Absent },
            })
        })
    }

    fn swap(&mut self, key: &str, bytes: &[u8], seen: Version) -> Result<Swap, SharedDataFailure> {
        self.take_turn(|state| {
            if state.data.get(key).is_some_and(|(_, version)| seen != Version::At(*version)) {
                state.lost += 1;
                return Ok(Swap::Lost);
            }
            state.won += 1;
            state.last_version += 1;
            let value = (bytes.to_vec(), state.last_version);
            state.data.insert(key.to_owned(), value);
            Ok(Swap::Done)
        })
    }
}

/// Runs `workers` workers that take `requests` requests each.
fn run(workers: usize, requests: u64, quota: Quota) -> Sum {
    let state = State {
        data: HashMap::new(),
        last_version: 0,
        running: (0..workers).collect(),
        turn: 0,
        random: 20_261_130,
        turns_taken: 0,
        won: 0,
        lost: 0,
    };
    let turns = (0..workers).map(|_| Condvar::new()).collect();
    let process = Arc::new(Process { state: Mutex::new(state), turns });
    let threads: Vec<_> = (0..workers)
        .map(|worker| {
            let process = Arc::clone(&process);
            thread::spawn(move || work(Shared { process, worker }, requests, quota))
        })
        .collect();
    let mut sum = Sum::default();
    for thread in threads {
        let part = thread.join().expect("a worker");
        sum.admitted += part.admitted;
        sum.refused += part.refused;
        sum.gave_up += part.gave_up;
    }
    let state = process.state.lock().unwrap();
    Sum { won: state.won, lost: state.lost, turns: state.turns_taken, ..sum }
}

fn work(mut shared: Shared, requests: u64, quota: Quota) -> Sum {
    let mut node = NodeStore::new("test", 7);
    let id = LimitId::of("dns");
    let charge = Charge { place: 0, id, level: Level::Shared, subject: None, quota, cost: 1 };
    let mut sum = Sum::default();
    for _ in 0..requests {
        let now = shared.now();
        let outcome = node.decide(&mut shared, std::slice::from_ref(&charge), now);
        match (outcome.admitted, outcome.gave_up) {
            (true, _) => sum.admitted += 1,
            (false, true) => sum.gave_up += 1,
            (false, false) => sum.refused += 1,
        }
        (0..TURNS_BETWEEN).for_each(|_| shared.take_turn(|_| ()));
    }
    shared.take_turn(|state| state.running.retain(|running| *running != shared.worker));
    sum
}

fn window(requests: u64) -> Quota {
    Quota::Window(WindowQuota { requests, window: Span::from_secs(10) })
}

/// Goal: a level of few units, which is written for each request, is used up to its last unit, and no
/// worker ever gives up, however many they are.
#[test]
fn up_to_64_workers_share_a_small_level_to_the_last_unit() {
    for workers in [2, 8, 64] {
        let sum = run(workers, 1000 / u64::try_from(workers).unwrap() + 2, window(1000));
        assert_eq!((sum.admitted, sum.gave_up), (1000, 0), "{workers} workers: {sum:?}");
        assert!(sum.lost < sum.won * 8, "{workers} workers: {sum:?}");
    }
}

/// Goal: what a request at a busy level takes does not grow with the number of workers, although all of
/// them begin at the same moment.
#[test]
fn throughput_at_a_busy_level_does_not_fall_with_workers() {
    let run = |workers: usize| {
        let sum = run(workers, 500, window(10_000_000));
        assert_eq!((sum.refused, sum.gave_up), (0, 0), "{workers} workers: {sum:?}");
        sum
    };
    let alone = run(1);
    for workers in [2, 8, 32, 64] {
        let sum = run(workers);
        let grown = sum.turns * alone.admitted * 100 / (alone.turns * sum.admitted);
        assert!(grown <= 105, "{workers} workers: {grown} % of {alone:?}: {sum:?}");
        assert!(sum.won + sum.lost < sum.admitted / 10, "{workers} workers: {sum:?}");
    }
}
