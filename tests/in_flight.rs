//! Slots of requests in flight: several workers on one process's shared data, and what they leave
//! behind when they vanish.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and they do have a clock"
)]

mod fake_host;

use std::cell::RefCell;
use std::rc::Rc;

use fairshare::limiter::{InFlightQuota, Quota, WindowQuota};
use fairshare::policy::{Charge, Digester, Level, LimitId};
use fairshare::store::StoreError;
use fairshare::store::node::NodeStore;
use fairshare::units::{Instant, Span};
use fake_host::{Machine, Outcome, Process, SharedMap};
use proptest::prelude::*;
use serde_json::{Value, json};

const SECOND: Span = Span::from_secs(1);

/// The time after which the slots of a worker that vanished count no more: its lease, rounded up.
const GONE_AFTER: Span = Span::from_secs(16);

fn slot(level: Level, tenant: u8, requests: u64) -> Charge {
    let subject = (level != Level::Shared).then(|| Digester::new(None).digest(&[tenant]));
    let quota = Quota::InFlight(InFlightQuota { requests });
    Charge { place: 0, id: LimitId::of_in_flight("dns"), level, subject, quota, cost: 1 }
}

/// A worker, and the requests that it has in flight.
struct FakeWorker {
    node: NodeStore,
    requests: Vec<Vec<Charge>>,
}

/// Workers that hold slots of a shared cap and of one for each of three tenants.
struct Model {
    machine: Rc<RefCell<Machine>>,
    map: SharedMap,
    workers: Vec<FakeWorker>,
    /// What vanished workers held, by tenant, and until when it may count.
    ghosts: Vec<(u8, Instant)>,
    now: Instant,
    shared_cap: u64,
    tenant_cap: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        worker: usize,
        tenant: u8,
    },
    /// Another worker comes in between while the first one decides.
    Race {
        worker: usize,
        other: usize,
        tenant: u8,
    },
    Release {
        worker: usize,
        request: prop::sample::Index,
    },
    Vanish {
        worker: usize,
    },
    Pass {
        seconds: u64,
    },
}

const WORKERS: usize = 4;

impl Model {
    fn new(shared_cap: u64, tenant_cap: u64) -> Self {
        let machine = Rc::new(RefCell::new(Machine::default()));
        let map = SharedMap::new(&machine);
        let workers = (0..WORKERS).map(|_| Self::worker()).collect();
        let now = Instant::from_nanos(1_000_000_000_123);
        Self { machine, map, workers, ghosts: vec![], now, shared_cap, tenant_cap }
    }

    fn worker() -> FakeWorker {
        FakeWorker { node: NodeStore::new("test", 7), requests: vec![] }
    }

    fn charges(&self, tenant: u8) -> Vec<Charge> {
        vec![slot(Level::Shared, 0, self.shared_cap), slot(Level::Tenant, tenant, self.tenant_cap)]
    }

    /// Requests in flight, of one tenant or of all.
    fn alive(&self, tenant: Option<u8>) -> u64 {
        let wanted = tenant.map(|tenant| slot(Level::Tenant, tenant, 0).subject);
        let requests = self.workers.iter().flat_map(|worker| &worker.requests);
        let count = requests.filter(|charges| wanted.is_none_or(|it| charges[1].subject == it));
        u64::try_from(count.count()).unwrap()
    }

    /// What vanished workers may still be taken to hold.
    fn ghosts(&self, tenant: Option<u8>) -> u64 {
        let counting = self.ghosts.iter().filter(|(_, until)| *until > self.now);
        let count = counting.filter(|(whose, _)| tenant.is_none_or(|tenant| *whose == tenant));
        u64::try_from(count.count()).unwrap()
    }

    fn acquire(&mut self, worker: usize, tenant: u8) {
        let charges = self.charges(tenant);
        let (all, own) = (self.alive(None), self.alive(Some(tenant)));
        let worker = &mut self.workers[worker];
        let outcome = worker.node.decide(&mut self.map, &charges, self.now);
        if outcome.admitted {
            worker.requests.push(charges);
        }
        let room = all < self.shared_cap && own < self.tenant_cap;
        assert!(room || !outcome.admitted, "{own} of {all} are in flight, and one more passes");
        let ghosts = self.ghosts(None) > 0;
        assert!(!room || outcome.admitted || ghosts, "{own} of {all} are in flight: refused");
    }

    fn race(&mut self, worker: usize, other: usize, tenant: u8) {
        if worker == other {
            return;
        }
        let (charges, now) = (self.charges(tenant), self.now);
        let node = std::mem::replace(&mut self.workers[other].node, NodeStore::new("test", 7));
        let interloper = Rc::new(RefCell::new((node, false)));
        let (theirs, rival) = (charges.clone(), Rc::clone(&interloper));
        self.machine.borrow_mut().before_swap = Some(Box::new(move |map: &mut SharedMap| {
            let (node, admitted) = &mut *rival.borrow_mut();
            *admitted = node.decide(map, &theirs, now).admitted;
        }));
        let outcome = self.workers[worker].node.decide(&mut self.map, &charges, now);
        self.machine.borrow_mut().before_swap = None;
        if outcome.admitted {
            self.workers[worker].requests.push(charges.clone());
        }
        let (node, admitted) = interloper.replace((NodeStore::new("test", 7), false));
        self.workers[other].node = node;
        if admitted {
            self.workers[other].requests.push(charges);
        }
        assert!(self.alive(None) <= self.shared_cap);
        assert!(self.alive(Some(tenant)) <= self.tenant_cap);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Acquire { worker, tenant } => self.acquire(worker, tenant),
            Step::Race { worker, other, tenant } => self.race(worker, other, tenant),
            Step::Release { worker, request } => {
                let FakeWorker { node, requests } = &mut self.workers[worker];
                if !requests.is_empty() {
                    let charges = requests.swap_remove(request.index(requests.len()));
                    node.refund(&mut self.map, &charges, &[], self.now);
                }
            }
            Step::Vanish { worker } => {
                let gone = std::mem::replace(&mut self.workers[worker], Self::worker());
                let until = self.now.plus(GONE_AFTER);
                for charges in gone.requests {
                    let tenant = (0..3).find(|tenant| {
                        slot(Level::Tenant, *tenant, 0).subject == charges[1].subject
                    });
                    self.ghosts.push((tenant.unwrap(), until));
                }
            }
            Step::Pass { seconds } => {
                for _ in 0..seconds {
                    self.now = self.now.plus(SECOND);
                    for worker in &mut self.workers {
                        worker.node.renew(&mut self.map, self.now);
                    }
                }
            }
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let (worker, tenant) = (0..WORKERS, 0..3u8);
    prop_oneof![
        6 => (worker.clone(), tenant.clone())
            .prop_map(|(worker, tenant)| Step::Acquire { worker, tenant }),
        3 => (worker.clone(), worker.clone(), tenant)
            .prop_map(|(worker, other, tenant)| Step::Race { worker, other, tenant }),
        5 => (worker.clone(), any::<prop::sample::Index>())
            .prop_map(|(worker, request)| Step::Release { worker, request }),
        1 => worker.prop_map(|worker| Step::Vanish { worker }),
        2 => (1..9u64).prop_map(|seconds| Step::Pass { seconds }),
    ]
}

proptest! {
    /// Goal: whatever workers acquire, release and renew, at once and in any order, never more are
    /// in flight than the caps say; what is refused has no room, or a worker has vanished; and once
    /// its lease is over, all room is there again.
    #[test]
    fn caps_hold_whoever_comes_goes_or_vanishes(
        steps in prop::collection::vec(step(), 1..80), shared_cap in 0..9u64, tenant_cap in 0..5u64,
    ) {
        let mut model = Model::new(shared_cap, tenant_cap);
        steps.into_iter().for_each(|step| model.step(step));
        model.step(Step::Pass { seconds: 17 });
        prop_assert_eq!(model.ghosts(None), 0);
        let left = shared_cap - model.alive(None);
        let free = left.min(tenant_cap - model.alive(Some(0)));
        (0..free).for_each(|_| model.acquire(0, 0));
        model.acquire(1, 0);
    }
}

/// Goal: where shared data fail at the wrong moment, a slot is given back later, not never.
#[test]
fn a_release_that_was_lost_is_told_again() {
    let mut model = Model::new(1, 1);
    model.acquire(0, 0);
    model.machine.borrow_mut().broken = true;
    let charges = model.workers[0].requests.pop().unwrap();
    model.workers[0].node.refund(&mut model.map, &charges, &[], model.now);
    model.machine.borrow_mut().broken = false;
    let now = model.now;
    assert!(!model.workers[1].node.decide(&mut model.map, &charges, now).admitted);
    model.step(Step::Pass { seconds: 5 });
    model.acquire(1, 0);
    assert_eq!(model.alive(None), 1);
}

/// Goal: a request that is refused at its second level leaves no slot at its first, even where that
/// could not be written at once.
#[test]
fn a_refused_request_leaves_no_slot_behind() {
    let mut model = Model::new(5, 1);
    model.acquire(0, 0);
    for _ in 0..9 {
        model.acquire(1, 0);
        model.race(2, 3, 0);
    }
    (1..3).for_each(|tenant| model.acquire(1, tenant));
    assert_eq!(model.alive(None), 3);
}

fn caps(caps: Value) -> Value {
    json!({"limits": [{"name": "dns", "in_flight": caps}]})
}

fn start(process: &mut Process) -> Outcome {
    process.start(&[(b":method", b"GET"), (b":path", b"/"), (b"x-tenant-id", b"acme")]).1
}

fn is_admitted(outcome: &Outcome) -> bool {
    *outcome == Outcome::Passed(None)
}

/// VMX-1: what was in flight when the VMs trapped counts until its lease ends, and no longer.
#[test]
fn in_flight_survives_a_trap_for_one_lease() {
    let mut process = Process::new(&caps(json!({"tenant": 3})).to_string(), 2).unwrap();
    assert!((0..3).all(|_| is_admitted(&start(&mut process))));
    process.pass(SECOND);
    assert_eq!(process.metric("fairshare_in_flight"), 3);
    process.trap();
    process.pass(Span::from_secs(9));
    assert!(!is_admitted(&start(&mut process)));
    assert_eq!(process.metric("fairshare_in_flight"), 3);
    process.pass(Span::from_secs(8));
    assert_eq!(process.metric("fairshare_in_flight"), 0);
    assert!((0..3).all(|_| is_admitted(&start(&mut process))));
    assert!(!is_admitted(&start(&mut process)));
}

/// Goal: slots of requests that last are renewed for as long as they last.
#[test]
fn long_requests_hold_their_slots() {
    let mut process =
        Process::new(&caps(json!({"shared": 9, "tenant": 2})).to_string(), 3).unwrap();
    assert!((0..2).all(|_| is_admitted(&start(&mut process))));
    for _ in 0..20 {
        process.pass(Span::from_secs(7));
        assert!(!is_admitted(&start(&mut process)));
        assert_eq!(process.metric("fairshare_in_flight"), 2);
    }
}

/// INF-1 c: a request that waits for the store holds slots of limits in shadow mode alone, a client
/// that goes away meanwhile gives them back, and its stream is never resumed.
#[test]
fn inf_1_a_request_that_ends_while_it_waits_leaves_no_slot_behind() {
    let limit = |mode: &str, caps: Value| {
        json!({"name": mode, "mode": mode, "scope": "global", "consistency": "strict", "in_flight": caps,
               "shared": {"requests": 1000, "window": "1m"}})
    };
    let limits = [limit("enforce", json!({"tenant": 2})), limit("shadow", json!({"tenant": 2}))];
    let plugin = json!({"limits": limits, "store": {"cluster": "redis", "timeout": "10s"}});
    let mut process = Process::new(&plugin.to_string(), 2).unwrap();
    let pairs: [(&[u8], &[u8]); 1] = [(b"x-tenant-id", b"acme")];
    for _ in 0..4 {
        let waiting = [(); 3].map(|()| process.start(&pairs));
        assert!(waiting.iter().all(|(_, outcome)| *outcome == Outcome::Waits));
        process.pass(SECOND);
        assert_eq!(process.metric("fairshare_in_flight"), 2);
        waiting.into_iter().for_each(|(stream, _)| process.end(stream));
        process.pass(SECOND);
        assert_eq!(process.metric("fairshare_in_flight"), 0);
    }
    assert_eq!(process.run(&mut |_| Err(StoreError::Unreachable)), [], "nobody is there any more");
    let name = "fairshare_requests.limit=shadow.level=tenant.outcome=shadow_refused";
    assert_eq!(process.metric(name), 4);
}

/// Goal: two filters of one process show one number, whatever their namespaces.
#[test]
fn the_gauge_is_the_whole_processes() {
    let charge = slot(Level::Shared, 0, 9);
    let machine = Rc::new(RefCell::new(Machine::default()));
    let mut map = SharedMap::new(&machine);
    let (mut one, mut other) = (NodeStore::new("one", 7), NodeStore::new("other", 7));
    let mut at = Instant::ORIGIN.plus(SECOND);
    assert_eq!(one.tally(&mut map, 0, at), Some(0));
    for node in [&mut one, &mut other] {
        assert!(node.decide(&mut map, std::slice::from_ref(&charge), at).admitted);
    }
    assert_eq!((one.tally(&mut map, 1, at), other.tally(&mut map, 2, at)), (Some(1), Some(3)));
    for _ in 0..9 {
        at = at.plus(Span::from_secs(5));
        assert_eq!(one.tally(&mut map, 1, at), Some(3));
        assert_eq!(other.tally(&mut map, 2, at), Some(3));
    }
    assert_eq!(one.tally(&mut map, 0, at), Some(2));
    assert_eq!(other.tally(&mut map, 0, at), Some(0));
}

/// Goal: rates and slots of one request are decided together, also where they lie in one record.
#[test]
fn rates_and_slots_are_charged_together_or_not_at_all() {
    let window = Quota::Window(WindowQuota { requests: 2, window: Span::from_secs(60) });
    let both = [
        Charge { quota: window, id: LimitId::of("dns"), ..slot(Level::Tenant, 1, 0) },
        slot(Level::Tenant, 1, 1),
    ];
    let mut model = Model::new(0, 0);
    let node = &mut model.workers[0].node;
    let mut decide = |node: &mut NodeStore| node.decide(&mut model.map, &both, model.now).admitted;
    assert_eq!([decide(node), decide(node), decide(node)], [true, false, false]);
    node.refund(&mut model.map, &both[1..], &[], model.now);
    let mut decide = |node: &mut NodeStore| node.decide(&mut model.map, &both, model.now).admitted;
    assert!(decide(node));
    node.refund(&mut model.map, &both[1..], &[], model.now);
    let mut decide = |node: &mut NodeStore| node.decide(&mut model.map, &both, model.now).admitted;
    assert!(!decide(node), "the window holds two");
}
