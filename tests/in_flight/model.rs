//! Several workers that acquire, release, renew and vanish in any order, against the plain truth of
//! what is in flight.

use std::cell::RefCell;
use std::rc::Rc;

use fairshare::limiter::{InFlightQuota, Quota, Verdict};
use fairshare::policy::{Charge, Digester, Level, LimitId};
use fairshare::store::node::{NodeOutcome, NodeStore};
use fairshare::units::{Instant, Span};
use proptest::prelude::*;

use crate::fake_host::{Machine, SharedMap};

pub(crate) const SECOND: Span = Span::from_secs(1);

/// The time after which the slots of a worker that vanished count no more: its lease, rounded up.
const GONE_AFTER: Span = Span::from_secs(16);

pub(crate) fn slot(level: Level, tenant: u8, requests: u64) -> Charge {
    let subject = (level != Level::Shared).then(|| Digester::new(None).digest(&[tenant]));
    let quota = Quota::InFlight(InFlightQuota { requests });
    Charge { place: 0, id: LimitId::of_in_flight("dns"), level, subject, quota, cost: 1 }
}

/// A worker, and the requests that it has in flight.
pub(crate) struct FakeWorker {
    pub(crate) node: NodeStore,
    /// Each with what its levels said.
    pub(crate) requests: Vec<(Vec<Charge>, Vec<Verdict>)>,
}

/// Workers that hold slots of a shared cap and of one for each of three tenants.
pub(crate) struct Model {
    pub(crate) machine: Rc<RefCell<Machine>>,
    pub(crate) map: SharedMap,
    pub(crate) workers: Vec<FakeWorker>,
    /// What vanished workers held, by tenant, and until when it may count.
    ghosts: Vec<(u8, Instant)>,
    pub(crate) now: Instant,
    shared_cap: u64,
    tenant_cap: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Acquire {
        worker: usize,
        tenant: u8,
        times: usize,
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
    pub(crate) fn new(shared_cap: u64, tenant_cap: u64) -> Self {
        let machine = Rc::new(RefCell::new(Machine::default()));
        let map = SharedMap::new(&machine);
        let workers = (0..WORKERS).map(|_| Self::worker()).collect();
        let now = Instant::from_nanos(1_000_000_000_123);
        Self { machine, map, workers, ghosts: vec![], now, shared_cap, tenant_cap }
    }

    fn worker() -> FakeWorker {
        FakeWorker { node: NodeStore::new("test", 7), requests: vec![] }
    }

    pub(crate) fn charges(&self, tenant: u8) -> Vec<Charge> {
        vec![slot(Level::Shared, 0, self.shared_cap), slot(Level::Tenant, tenant, self.tenant_cap)]
    }

    /// Requests in flight, of one tenant or of all.
    pub(crate) fn alive(&self, tenant: Option<u8>) -> u64 {
        let wanted = tenant.map(|tenant| slot(Level::Tenant, tenant, 0).subject);
        let requests = self.workers.iter().flat_map(|worker| &worker.requests);
        let count = requests.filter(|(slots, _)| wanted.is_none_or(|it| slots[1].subject == it));
        u64::try_from(count.count()).unwrap()
    }

    /// What vanished workers may still be taken to hold.
    fn ghosts(&self, tenant: Option<u8>) -> u64 {
        let counting = self.ghosts.iter().filter(|(_, until)| *until > self.now);
        let count = counting.filter(|(whose, _)| tenant.is_none_or(|tenant| *whose == tenant));
        u64::try_from(count.count()).unwrap()
    }

    pub(crate) fn acquire(&mut self, worker: usize, tenant: u8) {
        let charges = self.charges(tenant);
        let (all, own) = (self.alive(None), self.alive(Some(tenant)));
        let worker = &mut self.workers[worker];
        let outcome = worker.node.decide(&mut self.map, &charges, self.now);
        if outcome.admitted {
            worker.requests.push((charges, outcome.verdicts));
        }
        let room = all < self.shared_cap && own < self.tenant_cap;
        assert!(room || !outcome.admitted, "{own} of {all} are in flight, and one more passes");
        let ghosts = self.ghosts(None) > 0;
        // A sixteenth may not have been given back yet.
        let room = all < self.shared_cap - self.shared_cap / 16
            && own < self.tenant_cap - self.tenant_cap / 16;
        assert!(!room || outcome.admitted || ghosts, "{own} of {all} are in flight: refused");
    }

    pub(crate) fn race(&mut self, worker: usize, other: usize, tenant: u8) {
        if worker == other {
            return;
        }
        let (charges, now) = (self.charges(tenant), self.now);
        let node = std::mem::replace(&mut self.workers[other].node, NodeStore::new("test", 7));
        let interloper = Rc::new(RefCell::new((node, NodeOutcome::default())));
        let (theirs, rival) = (charges.clone(), Rc::clone(&interloper));
        self.machine.borrow_mut().before_swap = Some(Box::new(move |map: &mut SharedMap| {
            let (node, outcome) = &mut *rival.borrow_mut();
            *outcome = node.decide(map, &theirs, now);
        }));
        let outcome = self.workers[worker].node.decide(&mut self.map, &charges, now);
        self.machine.borrow_mut().before_swap = None;
        if outcome.admitted {
            self.workers[worker].requests.push((charges.clone(), outcome.verdicts));
        }
        let (node, theirs) =
            interloper.replace((NodeStore::new("test", 7), NodeOutcome::default()));
        self.workers[other].node = node;
        if theirs.admitted {
            self.workers[other].requests.push((charges, theirs.verdicts));
        }
        assert!(self.alive(None) <= self.shared_cap);
        assert!(self.alive(Some(tenant)) <= self.tenant_cap);
    }

    pub(crate) fn step(&mut self, step: Step) {
        match step {
            Step::Acquire { worker, tenant, times } => {
                (0..times).for_each(|_| self.acquire(worker, tenant));
            }
            Step::Race { worker, other, tenant } => self.race(worker, other, tenant),
            Step::Release { worker, request } => {
                let FakeWorker { node, requests } = &mut self.workers[worker];
                if !requests.is_empty() {
                    let (charges, verdicts) = requests.swap_remove(request.index(requests.len()));
                    // As the filter does.
                    let slots = charges.into_iter().zip(verdicts);
                    let at_once = slots.filter(|(c, verdict)| !node.refund_later(c, verdict));
                    let at_once: Vec<Charge> = at_once.map(|(charge, _)| charge).collect();
                    node.release(&mut self.map, &at_once, self.now);
                }
            }
            Step::Vanish { worker } => {
                let gone = std::mem::replace(&mut self.workers[worker], Self::worker());
                let until = self.now.plus(GONE_AFTER);
                for (charges, _) in gone.requests {
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
        6 => (worker.clone(), tenant.clone(), prop_oneof![3 => Just(1), 1 => 1..20usize])
            .prop_map(|(worker, tenant, times)| Step::Acquire { worker, tenant, times }),
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
        steps in prop::collection::vec(step(), 1..80),
        shared_cap in prop_oneof![0..9u64, 16..60u64],
        tenant_cap in prop_oneof![0..5u64, 16..40u64],
    ) {
        let mut model = Model::new(shared_cap, tenant_cap);
        steps.into_iter().for_each(|step| model.step(step));
        model.step(Step::Pass { seconds: 17 });
        prop_assert_eq!(model.ghosts(None), 0);
        let left = shared_cap - model.alive(None);
        let free = left.min(tenant_cap - model.alive(Some(0)));
        let charges = model.charges(0);
        for _ in 0..free {
            let FakeWorker { node, .. } = &mut model.workers[0];
            prop_assert!(node.decide(&mut model.map, &charges, model.now).admitted);
        }
        let FakeWorker { node, .. } = &mut model.workers[1];
        prop_assert!(!node.decide(&mut model.map, &charges, model.now).admitted);
    }
}
