//! Leases of one level between several workers and their store, as a transition system. What a
//! worker does is the production [`Lease`]; between it and the store lies a network that may lose,
//! delay, reorder and double.

use fairshare::limiter::{Quota, WindowQuota};
use fairshare::store::LeaseTerms;
use fairshare::units::{Instant, Span};
use stateright::{Model, Property};

use crate::fleet::{IDLE, State, Worker};
use crate::store::ModelStore;

/// What is explored.
#[derive(Clone, Debug)]
pub(crate) struct Protocol {
    pub(crate) nodes: usize,
    pub(crate) workers: usize,
    pub(crate) quota: Quota,
    /// What the store enforces.
    pub(crate) charged: Quota,
    /// What a request costs.
    pub(crate) cost: u64,
    /// How many requests come, and how many things go wrong.
    pub(crate) requests: u8,
    pub(crate) faults: u8,
    /// By how much time passes, one after the other, in milliseconds.
    pub(crate) steps: &'static [u64],
    /// Whether a worker takes the reply to a call that it has not under way.
    pub(crate) takes_any_reply: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// A request comes to a worker.
    Request(usize),
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

pub(crate) const START: Instant = Instant::from_nanos(1_000_000_000_000);

impl Protocol {
    /// The protocol as it is, for a window of 16 requests in 640 ms: the smallest that is leased ahead
    /// of need. A lease lives for 20 ms, so units that are granted at 0 are spent at 19 at the
    /// latest, and others may be granted from 660 on.
    pub(crate) fn new() -> Self {
        let window = Span::from_millis(640);
        let quota = Quota::Window(WindowQuota { requests: 16, window });
        Self {
            nodes: 2,
            workers: 2,
            quota,
            charged: *LeaseTerms::of(&quota, 9).charged(),
            cost: 9,
            requests: 2,
            faults: 2,
            steps: &[19, 622, 19],
            takes_any_reply: false,
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let worker = Worker::new(self.quota, self.cost);
        let state = State {
            now: START,
            workers: vec![(format!("{worker:?}"), worker); self.nodes * self.workers],
            store: ModelStore::new(self.charged),
            admitted: vec![],
            refused: false,
            returned: false,
            left: 0,
            requests: 0,
            faults: 0,
            ticks: 0,
            text: String::new(),
        };
        vec![state.refresh(self, None)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let may_fail = state.faults < self.faults;
        for (number, (text, worker)) in state.workers.iter().enumerate() {
            // Of workers that are alike, only the first is tried.
            let twin = number % self.workers > 0 && state.workers[number - 1].0 == *text;
            if twin {
                continue;
            }
            if state.requests < self.requests {
                actions.push(Action::Request(number));
            }
            actions.extend(on_their_way(number, worker, may_fail));
        }
        if may_fail && state.requests > 0 {
            actions.extend((0..self.nodes).map(Action::Crash));
        }
        if let Some(millis) = self.steps.get(state.ticks).copied().filter(|_| state.requests > 0) {
            let later = state.now.plus(Span::from_millis(millis));
            let over = |worker: &Worker| worker.lease.clone().leftovers(IDLE, later).is_some();
            let chores = state.workers.iter().any(|(_, worker)| over(worker));
            actions.push(Action::Pass { millis, chores: false });
            actions.extend(chores.then_some(Action::Pass { millis, chores: true }));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let (changed, is_fault) = state.apply(self, &action);
        state.faults += u8::from(is_fault);
        Some(state.refresh(self, changed))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(INTERVAL, |protocol: &Self, state: &State| {
                let window = protocol.quota.period();
                state.worst(window, protocol.cost) <= protocol.quota.capacity()
            }),
            Property::always(CONSERVATION, |_, state: &State| {
                i64::try_from(state.held()).unwrap() <= state.left
            }),
            Property::sometimes("all that fits is used", |protocol: &Self, state: &State| {
                let window = protocol.quota.period();
                state.worst(window, protocol.cost) + protocol.cost > protocol.quota.capacity()
            }),
            Property::sometimes("a request is refused", |_, state: &State| state.refused),
            Property::sometimes("units go back", |_, state: &State| state.returned),
            Property::sometimes("units are wasted", |_, state: &State| {
                state.is_quiet() && i64::try_from(state.held()).unwrap() < state.left
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
