//! Workers of one process in turns: each read and each write of shared data is one turn, and whose turn is
//! next is drawn at random. So a swap is lost wherever another worker's came in between, as on a machine with
//! as many processors as workers.
#![allow(dead_code, reason = "each binary uses its own part of this")]

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use fairshare::limiter::{GcraQuota, Quota, WindowQuota};
use fairshare::policy::{Charge, Level, LimitId, Subject};
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
    /// Requests that are under way, and the most at any time.
    under_way: u64,
    under_way_max: u64,
}

/// The shared data from one worker's point of view.
struct Shared {
    process: Arc<Process>,
    worker: usize,
}

/// What came of a run.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    pub(crate) admitted: u64,
    pub(crate) refused: u64,
    pub(crate) gave_up: u64,
    /// Writes that succeeded, and those before which another worker came.
    pub(crate) won: u64,
    pub(crate) lost: u64,
    /// Of all workers together.
    pub(crate) turns: u64,
    pub(crate) under_way_max: u64,
    /// By worker.
    pub(crate) admitted_by: Vec<u64>,
}

impl Sum {
    /// Hundredths of a turn that a request took at the node's data, beside those that it takes anyway.
    pub(crate) fn node_hundredths(&self) -> u64 {
        let requests = self.admitted + self.refused + self.gave_up;
        (self.turns * 100).div_ceil(requests) - u64::from(TURNS_BETWEEN) * 100
    }
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

    /// Counts what is under way. It is no turn: nobody else runs until the next one.
    fn note_under_way(&self, change: impl FnOnce(u64) -> u64) {
        let mut state = self.process.state.lock().unwrap();
        state.under_way = change(state.under_way);
        state.under_way_max = state.under_way_max.max(state.under_way);
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

/// Runs `workers` workers that take `requests` requests each. All of a worker's are charged alike.
pub(crate) fn run(workers: usize, requests: u64, charges: impl Fn(usize) -> Vec<Charge>) -> Sum {
    let state = State {
        data: HashMap::new(),
        last_version: 0,
        running: (0..workers).collect(),
        turn: 0,
        random: 20_261_130,
        turns_taken: 0,
        won: 0,
        lost: 0,
        under_way: 0,
        under_way_max: 0,
    };
    let turns = (0..workers).map(|_| Condvar::new()).collect();
    let process = Arc::new(Process { state: Mutex::new(state), turns });
    let threads: Vec<_> = (0..workers)
        .map(|worker| {
            let (process, charges) = (Arc::clone(&process), charges(worker));
            thread::spawn(move || work(Shared { process, worker }, requests, &charges))
        })
        .collect();
    let mut sum = Sum::default();
    for thread in threads {
        let part = thread.join().expect("a worker");
        sum.admitted += part.admitted;
        sum.refused += part.refused;
        sum.gave_up += part.gave_up;
        sum.admitted_by.push(part.admitted);
    }
    let state = process.state.lock().unwrap();
    let (won, lost, turns) = (state.won, state.lost, state.turns_taken);
    Sum { won, lost, turns, under_way_max: state.under_way_max, ..sum }
}

fn work(mut shared: Shared, requests: u64, charges: &[Charge]) -> Sum {
    let mut node = NodeStore::new("test", 7);
    let slots: Vec<_> =
        charges.iter().filter(|charge| charge.quota.is_in_flight()).copied().collect();
    let mut sum = Sum::default();
    for _ in 0..requests {
        let now = shared.now();
        let outcome = node.decide(&mut shared, charges, now);
        match (outcome.admitted, outcome.gave_up) {
            (true, _) => sum.admitted += 1,
            (false, true) => sum.gave_up += 1,
            (false, false) => sum.refused += 1,
        }
        shared.note_under_way(|under_way| under_way + u64::from(outcome.admitted));
        (0..TURNS_BETWEEN).for_each(|_| shared.take_turn(|_| ()));
        shared.note_under_way(|under_way| under_way - u64::from(outcome.admitted));
        if outcome.admitted && !slots.is_empty() {
            let now = shared.now();
            // As a worker does: what is not told at once is told by the next renewal.
            let is_later = |(slot, told)| node.refund_later(slot, told);
            if !slots.iter().zip(&outcome.verdicts).all(is_later) {
                node.release(&mut shared, &slots, now);
            }
        }
    }
    shared.take_turn(|state| state.running.retain(|running| *running != shared.worker));
    sum
}

pub(crate) fn charge(level: Level, subject: Option<Subject>, quota: Quota) -> Charge {
    Charge { place: 0, id: LimitId::of("dns"), level, subject, quota, cost: 1 }
}

/// The same for all workers, at the shared level.
pub(crate) fn shared(quota: Quota) -> impl Fn(usize) -> Vec<Charge> {
    move |_| vec![charge(Level::Shared, None, quota)]
}

pub(crate) fn window(requests: u64) -> Quota {
    Quota::Window(WindowQuota { requests, window: Span::from_secs(10) })
}

/// A rate that leaks nothing while a test runs.
pub(crate) fn burst(burst: u64) -> Quota {
    Quota::Gcra(GcraQuota { rate: 1, per: Span::from_secs(3600), burst })
}
