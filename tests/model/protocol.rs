//! Leases of the levels of one limit between several workers and their store, as a transition system.
//! What a worker spends, asks for and gives back is decided by the production [`Leases`]; between it
//! and the store lies a network that may lose, delay, reorder and double.
//!
//! [`Leases`]: fairshare::store::leases::Leases

use std::sync::Arc;

use fairshare::limiter::{GcraQuota, Quota, WindowQuota};
use fairshare::policy::{Charge, Level, LimitId, Subject};
use fairshare::store::LeaseTerms;
use fairshare::units::{Instant, Span};
use stateright::{Model, Property};

use crate::fleet::State;
use crate::store::ModelStore;
use crate::worker::Worker;

/// What is explored.
#[derive(Clone, Debug)]
pub(crate) struct Protocol {
    pub(crate) nodes: usize,
    pub(crate) workers: usize,
    /// What there is to spend, with what each request costs.
    pub(crate) levels: Vec<Charge>,
    /// What the store enforces on each.
    pub(crate) charged: Vec<Quota>,
    /// The levels that a request of each kind is charged to: one kind for each tenant.
    pub(crate) kinds: Vec<Vec<usize>>,
    /// How many requests come at once to one worker, how often, and how many things go wrong.
    pub(crate) crowd: usize,
    pub(crate) crowds: u8,
    pub(crate) faults: u8,
    /// By how much time passes, one after the other, in milliseconds.
    pub(crate) steps: &'static [u64],
    /// Whether a worker takes the reply to a call that it has not under way.
    pub(crate) takes_any_reply: bool,
    /// Whether a worker spends at each level by itself.
    pub(crate) spends_each_level: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// Requests of one kind come to a worker.
    Crowd {
        worker: usize,
        kind: usize,
    },
    /// A worker's question arrives at the store, and may arrive again.
    Arrive {
        worker: usize,
        place: usize,
        again: bool,
    },
    /// What a worker gives back arrives at the store. Unlike a question it must not come twice.
    Return {
        worker: usize,
        place: usize,
    },
    /// A worker hears a reply, and may hear it again.
    Hear {
        worker: usize,
        place: usize,
        again: bool,
    },
    LoseQuestion {
        worker: usize,
        place: usize,
    },
    LoseReply {
        worker: usize,
        place: usize,
    },
    LoseReturn {
        worker: usize,
        place: usize,
    },
    /// All workers of a node lose their memory.
    Crash(usize),
    /// Time passes, by so many milliseconds; then it may be time for chores.
    Pass {
        millis: u64,
        chores: bool,
    },
}

pub(crate) const INTERVAL: &str = "no interval holds more than the limit";
pub(crate) const CONSERVATION: &str = "units are conserved";
pub(crate) const ALL_OR_NOTHING: &str = "a request that is not let through spends nothing";

pub(crate) const START: Instant = Instant::from_nanos(1_000_000_000_000);

impl Protocol {
    fn new(levels: Vec<Charge>, kinds: Vec<Vec<usize>>) -> Self {
        let charged = |level: &Charge| *LeaseTerms::of(&level.quota, level.cost).charged();
        Self {
            nodes: 2,
            workers: 2,
            charged: levels.iter().map(charged).collect(),
            levels,
            kinds,
            crowd: 9,
            crowds: 2,
            faults: 2,
            steps: &[],
            takes_any_reply: false,
            spends_each_level: false,
        }
    }

    /// A window of 16 requests in 640 ms: the smallest that is leased ahead of need. A lease lives for
    /// 20 ms, so units that are granted at 0 are spent at 19 at the latest, and others may be granted
    /// from 660 on.
    pub(crate) fn window() -> Self {
        let levels = vec![shared(window(16, 640))];
        Self { steps: &[19, 622, 19], ..Self::new(levels, vec![vec![0]]) }
    }

    /// One level that refills by `rate` a second.
    pub(crate) fn rate(rate: u64, burst: u64, steps: &'static [u64]) -> Self {
        let quota = Quota::Gcra(GcraQuota { rate, per: Span::from_secs(1), burst });
        Self { steps, ..Self::new(vec![shared(quota)], vec![vec![0]]) }
    }

    /// A window of 16 that two tenants share, each of which has one of 12. The latter are granted only
    /// what is waited for, and such units live for 60 ms.
    pub(crate) fn tenants() -> Self {
        let of_tenant = |number| Charge {
            level: Level::Tenant,
            subject: Some(Subject([number; 32])),
            ..shared(window(12, 640))
        };
        let levels = vec![shared(window(16, 640)), of_tenant(1), of_tenant(2)];
        let kinds = vec![vec![0, 1], vec![0, 2]];
        Self { steps: &[19, 622, 59], faults: 0, ..Self::new(levels, kinds) }
    }

    pub(crate) fn charges(&self, levels: &[usize]) -> Vec<Charge> {
        levels.iter().map(|level| self.levels[*level]).collect()
    }

    /// The number of the level that `charge` is about.
    pub(crate) fn number(&self, charge: &Charge) -> usize {
        let same = |level: &Charge| level.subject == charge.subject;
        self.levels.iter().position(same).unwrap()
    }

    fn all_levels(&self, holds: impl Fn(usize) -> bool) -> bool {
        (0..self.levels.len()).all(holds)
    }

    /// For how long a request that was let through makes a difference: all the time, to a rate.
    pub(crate) fn counts_for(&self) -> Span {
        let of_level = |level: &Charge| match level.quota {
            Quota::Window(quota) => quota.window,
            Quota::Gcra(_) | Quota::InFlight(_) => Span::from_secs(3600),
        };
        self.levels.iter().map(of_level).max().unwrap()
    }
}

fn window(requests: u64, millis: u64) -> Quota {
    Quota::Window(WindowQuota { requests, window: Span::from_millis(millis) })
}

fn shared(quota: Quota) -> Charge {
    let id = LimitId::of("fleet");
    Charge { place: 0, id, level: Level::Shared, subject: None, quota, cost: 1 }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let worker = Arc::new((String::new(), Worker::new(self.levels.len())));
        let workers = self.nodes * self.workers;
        let state = State {
            now: START,
            workers: vec![worker; workers],
            store: ModelStore::new(&self.charged),
            admitted: vec![],
            refused: false,
            returned: false,
            left: vec![0; self.levels.len()],
            crowds: 0,
            faults: 0,
            ticks: 0,
            text: String::new(),
        };
        vec![state.refresh(self, &(0..workers).collect::<Vec<_>>())]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let may_fail = state.faults < self.faults;
        for (number, worker) in state.workers.iter().enumerate() {
            let (text, worker) = &**worker;
            // Of workers that are alike, only the first is tried.
            let twin = number % self.workers > 0 && state.workers[number - 1].0 == *text;
            if twin {
                continue;
            }
            if state.crowds < self.crowds {
                // Tenants are alike, so the first one to come is the first one.
                let kinds = self.kinds.len().min(usize::from(state.crowds) + 1);
                actions.extend((0..kinds).map(|kind| Action::Crowd { worker: number, kind }));
            }
            actions.extend(on_their_way(number, worker, may_fail));
        }
        if may_fail && state.crowds > 0 {
            actions.extend((0..self.nodes).map(Action::Crash));
        }
        if let Some(millis) = self.steps.get(state.ticks).copied().filter(|_| state.crowds > 0) {
            let later = state.now.plus(Span::from_millis(millis));
            let over = |worker: &Worker| worker.has_leftovers(self, later);
            let chores = state.workers.iter().any(|worker| over(&worker.1));
            actions.push(Action::Pass { millis, chores: false });
            actions.extend(chores.then_some(Action::Pass { millis, chores: true }));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let (changed, is_fault) = state.apply(self, &action);
        state.faults += u8::from(is_fault);
        Some(state.refresh(self, &changed))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(INTERVAL, |protocol: &Self, state: &State| {
                protocol.all_levels(|level| state.obeys(protocol, level))
            }),
            Property::always(CONSERVATION, |protocol: &Self, state: &State| {
                protocol.all_levels(|level| state.held(level) <= state.left[level])
            }),
            Property::always(ALL_OR_NOTHING, |protocol: &Self, state: &State| {
                let known = |level| state.held(level) + state.coming(level);
                state.faults > 0 || protocol.all_levels(|level| known(level) == state.left[level])
            }),
            Property::sometimes("all that fits is used", |protocol: &Self, state: &State| {
                let quota = &protocol.levels[0].quota;
                state.worst(protocol, 0, quota.period()) >= protocol.charged[0].capacity()
            }),
            Property::sometimes("a request is refused", |_, state: &State| state.refused),
            Property::sometimes("units go back", |_, state: &State| state.returned),
            Property::sometimes("units are wasted", |_, state: &State| {
                state.is_quiet() && state.held(0) < state.left[0]
            }),
        ]
    }
}

/// What may happen to what is on its way from and to a worker.
fn on_their_way(number: usize, on_its: &Worker, may_fail: bool) -> Vec<Action> {
    let worker = number;
    let mut actions = Vec::new();
    for place in 0..on_its.questions.len() {
        actions.push(Action::Arrive { worker, place, again: false });
        if may_fail {
            actions.push(Action::Arrive { worker, place, again: true });
            actions.push(Action::LoseQuestion { worker, place });
        }
    }
    for place in 0..on_its.replies.len() {
        actions.push(Action::Hear { worker, place, again: false });
        if may_fail {
            actions.push(Action::Hear { worker, place, again: true });
            actions.push(Action::LoseReply { worker, place });
        }
    }
    for place in 0..on_its.returns.len() {
        actions.push(Action::Return { worker, place });
        actions.extend(may_fail.then_some(Action::LoseReturn { worker, place }));
    }
    actions
}
