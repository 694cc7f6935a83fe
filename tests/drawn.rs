//! What workers draw of the node's levels ahead of need: limits hold all the same, nothing is lost for
//! long, and busy levels are seldom written.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests fail by panicking"
)]

mod fake_host;

use std::cell::RefCell;
use std::rc::Rc;

use fairshare::limiter::{GcraQuota, Quota, WindowQuota};
use fairshare::policy::{Charge, Digester, Level, LimitId};
use fairshare::store::node::NodeStore;
use fairshare::units::{Instant, Span};
use fake_host::{Machine, SharedMap};
use proptest::prelude::*;

const START: Instant = Instant::from_nanos(1_000_000_000_000);
const SECOND: Span = Span::from_secs(1);

/// The units of one request, so that a level of many units takes few of them.
const COST: u64 = 8;

const WINDOW: Quota = Quota::Window(WindowQuota { requests: 2048, window: SECOND });
const GCRA: Quota = Quota::Gcra(GcraQuota { rate: 2048, per: SECOND, burst: 1024 });

/// The workers of one process, at one level.
struct Workers {
    machine: Rc<RefCell<Machine>>,
    map: SharedMap,
    nodes: Vec<NodeStore>,
    quota: Quota,
    now: Instant,
    /// When what was admitted.
    admitted: Vec<Instant>,
    refused: usize,
}

impl Workers {
    fn new(count: usize, quota: Quota) -> Self {
        let machine = Rc::new(RefCell::new(Machine::default()));
        let map = SharedMap::new(&machine);
        let nodes = (0..count).map(|_| NodeStore::new("test", 7)).collect();
        Self { machine, map, nodes, quota, now: START, admitted: Vec::new(), refused: 0 }
    }

    fn charge(&self, cost: u64) -> Charge {
        let id = LimitId::of("dns");
        Charge { place: 0, id, level: Level::Shared, subject: None, quota: self.quota, cost }
    }

    fn ask(&mut self, worker: usize) {
        let charge = self.charge(COST);
        match self.nodes[worker].decide(&mut self.map, &[charge], self.now).admitted {
            true => self.admitted.push(self.now),
            false => self.refused += 1,
        }
    }

    fn pass(&mut self, micros: u64) {
        self.now = self.now.plus(Span::from_micros(micros));
    }

    fn swaps(&self) -> u32 {
        self.machine.borrow().swaps
    }

    /// What a worker that has drawn nothing sees of the level.
    fn left(&mut self) -> u64 {
        let charge = self.charge(1);
        let outcome = NodeStore::new("test", 7).peek(&mut self.map, &[charge], self.now);
        outcome.verdicts[0].remaining
    }

    /// The first interval that holds more than `most` says of its length.
    fn broken(&self, most: impl Fn(Span) -> Option<u64>) -> Option<(Instant, Instant, u64)> {
        for (first, from) in self.admitted.iter().enumerate() {
            for (last, to) in self.admitted.iter().enumerate().skip(first) {
                let units = COST * u64::try_from(last - first + 1).unwrap();
                let Some(most) = most(to.since(*from)) else { break };
                if units > most {
                    return Some((*from, *to, units));
                }
            }
        }
        None
    }
}

/// Bursts of requests at one worker each, and the time between them in microseconds.
fn demand() -> impl Strategy<Value = Vec<(usize, u8, u64)>> {
    let pause = prop_oneof![4 => 0..3_000u64, 2 => 10_000..40_000u64, 1 => 300_000..1_100_000u64];
    prop::collection::vec((0..3usize, 1..40u8, pause), 1..60)
}

fn run(quota: Quota, demand: &[(usize, u8, u64)]) -> Workers {
    let mut workers = Workers::new(3, quota);
    for (worker, requests, pause) in demand {
        for _ in 0..*requests {
            workers.ask(*worker);
            workers.pass(50);
        }
        workers.pass(*pause);
    }
    workers
}

/// Goal: who only asks hears what a charge would, and takes nothing of what is drawn.
#[test]
fn who_only_asks_takes_nothing_of_what_is_drawn() {
    let mut workers = Workers::new(1, WINDOW);
    // Until units have just been drawn for several requests.
    for _ in 0..4 {
        let swaps = workers.swaps();
        while workers.swaps() == swaps {
            workers.ask(0);
        }
    }
    let charge = [workers.charge(COST)];
    let Workers { map, nodes, now, .. } = &mut workers;
    let asked = nodes[0].peek(map, &charge, *now);
    for _ in 0..1000 {
        assert_eq!(nodes[0].peek(map, &charge, *now), asked);
    }
    assert_eq!(nodes[0].decide(map, &charge, *now), asked);
}

proptest! {
    #[test]
    fn no_interval_holds_more_than_a_window_however_workers_draw(demand in demand()) {
        let workers = run(WINDOW, &demand);
        let most = |span: Span| (span < SECOND).then_some(2048);
        prop_assert_eq!(workers.broken(most), None);
    }

    #[test]
    fn no_interval_holds_more_than_a_rate_however_workers_draw(demand in demand()) {
        let workers = run(GCRA, &demand);
        // A nanosecond's leak: the clock is read in whole ones.
        let leaked = |span: Span| u64::try_from(u128::from(span.as_nanos() + 1) * 2048 / 1_000_000_000);
        let most = |span: Span| Some(1024 + leaked(span).unwrap() + 1);
        prop_assert_eq!(workers.broken(most), None);
    }
}

/// Goal: what one worker draws is not missing where another one needs it.
#[test]
fn demand_below_the_limit_is_never_refused() {
    for quota in [WINDOW, GCRA] {
        let mut workers = Workers::new(4, quota);
        // Nine tenths of what there is, all of it at one worker for a while, then at another.
        for step in 0..2_000usize {
            workers.ask((step / 300) % 4);
            workers.pass(4_400);
        }
        assert_eq!(workers.refused, 0, "{quota}");
    }
}

/// Goal: under demand that never lets up nearly everything is admitted: of a window 16/17, and a
/// sixty-fourth less.
#[test]
fn nearly_all_of_a_limit_is_used() {
    let mut workers = Workers::new(4, WINDOW);
    for step in 0..50_000usize {
        workers.ask(step % 4);
        workers.pass(200);
    }
    let units = COST * u64::try_from(workers.admitted.len()).unwrap();
    let part = units * 100 / (10 * 2048);
    assert!(part >= 90, "{part} % of ten windows");
}

#[test]
fn what_is_drawn_and_not_spent_goes_back() {
    let mut workers = Workers::new(2, WINDOW);
    (0..12).for_each(|_| workers.ask(0));
    let spent = 12 * COST;
    assert!(workers.left() < 2048 - spent - 1, "nothing was drawn");
    workers.pass(100_000);
    workers.nodes[0].renew(&mut workers.map, workers.now);
    assert_eq!(workers.left(), 2048 - spent - 1);
}

/// Goal: a worker that vanishes takes what it has drawn along, and nobody else spends it.
#[test]
fn what_a_vanished_worker_has_drawn_is_spent() {
    let mut workers = Workers::new(1, WINDOW);
    (0..12).for_each(|_| workers.ask(0));
    let left = workers.left();
    workers.nodes[0] = NodeStore::new("test", 7);
    assert_eq!(workers.left(), left);
    workers.pass(1_100_000);
    assert_eq!(workers.left(), 2047);
}

#[test]
fn a_busy_level_is_seldom_written() {
    let mut workers =
        Workers::new(1, Quota::Window(WindowQuota { requests: 1_000_000, window: SECOND }));
    for _ in 0..10_000 {
        workers.ask(0);
        workers.pass(50);
    }
    assert_eq!(workers.refused, 0);
    assert!(workers.swaps() < 200, "{} writes for 10,000 requests", workers.swaps());
}

/// Goal: a subject that comes for the first time costs its own level's write, while what has been drawn
/// covers the level that all share.
#[test]
fn a_newcomer_writes_its_own_level_alone() {
    let mut workers =
        Workers::new(1, Quota::Window(WindowQuota { requests: 1_000_000, window: SECOND }));
    let own = |tenant: u32| Charge {
        level: Level::Tenant,
        subject: Some(Digester::new(None).digest(&tenant.to_le_bytes())),
        quota: Quota::Window(WindowQuota { requests: 1, window: SECOND }),
        ..workers.charge(1)
    };
    let (shared, newcomers): (Charge, Vec<Charge>) =
        (workers.charge(1), (0..2000).map(own).collect());
    let charged = |workers: &mut Workers, newcomer: &Charge| {
        workers.pass(50);
        workers.nodes[0].decide(&mut workers.map, &[shared, *newcomer], workers.now).admitted
    };
    newcomers.iter().for_each(|newcomer| assert!(charged(&mut workers, newcomer)));
    let (own_levels, all) = (2000, workers.swaps());
    assert!(all < own_levels + 100, "{all} writes for {own_levels} newcomers");
    // Whom its own level refuses spends nothing of what was drawn.
    assert!(newcomers.iter().take(10).all(|newcomer| !charged(&mut workers, newcomer)));
    workers.pass(100_000);
    workers.nodes[0].renew(&mut workers.map, workers.now);
    assert_eq!(workers.left(), 1_000_000 - 2000 - 1);
}

/// Goal: small limits are charged one request at a time, so that all of them is there for everyone.
#[test]
fn a_small_level_is_never_drawn_from() {
    let mut workers =
        Workers::new(2, Quota::Window(WindowQuota { requests: 1000, window: SECOND }));
    for _ in 0..100 {
        workers.ask(0);
    }
    assert_eq!(workers.left(), 1000 - 100 * COST - 1);
    (0..25).for_each(|_| workers.ask(1));
    assert_eq!((workers.admitted.len(), workers.refused), (125, 0));
}
