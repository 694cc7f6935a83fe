//! Workers, their store and what is between them, at one moment.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};

use fairshare::limiter::{Quota, Verdict};
use fairshare::store::Want;
use fairshare::store::lease::{Lease, LeaseVerdict};
use fairshare::units::{Instant, Span};

use crate::protocol::{Action, Protocol};
use crate::store::ModelStore;

/// What nobody has spent for so long goes back.
pub(crate) const IDLE: Span = Span::from_secs(1);

/// A worker, and what is on its way to it and from it.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) lease: Lease,
    /// The call that is under way, and the requests that wait for it.
    pub(crate) call: Option<(u8, u8)>,
    pub(crate) calls: u8,
    pub(crate) questions: Vec<Question>,
    pub(crate) replies: Vec<Reply>,
    /// Units, and when they were granted.
    pub(crate) returns: Vec<(u64, u64)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) call: u8,
    pub(crate) want: Want,
    pub(crate) sent_at: Instant,
}

#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) call: u8,
    pub(crate) sent_at: Instant,
    pub(crate) units: u64,
    pub(crate) granted_at_us: u64,
    pub(crate) told: Verdict,
}

#[derive(Clone)]
pub(crate) struct State {
    pub(crate) now: Instant,
    /// With their texts. Workers of a node are alike, and so are nodes, so both are kept in the
    /// order of their texts.
    pub(crate) workers: Vec<(String, Worker)>,
    pub(crate) store: ModelStore,
    /// When requests were let through.
    pub(crate) admitted: Vec<Instant>,
    pub(crate) refused: bool,
    pub(crate) returned: bool,
    /// Units that were granted and neither spent nor sent back. Workers hold no more.
    pub(crate) left: i64,
    pub(crate) requests: u8,
    pub(crate) faults: u8,
    /// Steps of time that have passed.
    pub(crate) ticks: usize,
    /// All of the above, for comparison.
    pub(crate) text: String,
}

impl Worker {
    pub(crate) fn new(quota: Quota, cost: u64) -> Self {
        let lease = Lease::new(quota, cost);
        Self { lease, call: None, calls: 0, questions: vec![], replies: vec![], returns: vec![] }
    }

    pub(crate) fn text(&self) -> String {
        format!("{self:?}")
    }

    /// Forgets what makes no difference: the order of what is on its way, and numbers of calls of
    /// which nothing is.
    pub(crate) fn tidy(&mut self) {
        self.questions.sort_by_key(|question| question.call);
        self.replies.sort_by_key(|reply| (reply.call, reply.granted_at_us));
        self.returns.sort_unstable();
        let calls = self.questions.iter().map(|question| question.call);
        let calls = calls.chain(self.replies.iter().map(|reply| reply.call));
        let calls: BTreeSet<u8> = calls.chain(self.call.map(|(call, _)| call)).collect();
        let short = |call: u8| u8::try_from(calls.iter().filter(|other| **other < call).count());
        self.questions
            .iter_mut()
            .for_each(|question| question.call = short(question.call).unwrap());
        self.replies.iter_mut().for_each(|reply| reply.call = short(reply.call).unwrap());
        self.call = self.call.map(|(call, waiting)| (short(call).unwrap(), waiting));
        self.calls = u8::try_from(calls.len()).unwrap();
    }
}

impl State {
    /// Puts what is alike into one order, so that it is explored once.
    pub(crate) fn refresh(mut self, protocol: &Protocol, changed: Option<usize>) -> Self {
        if let Some(number) = changed {
            let (text, worker) = &mut self.workers[number];
            worker.tidy();
            *text = worker.text();
        }
        let nodes = self.workers.chunks_mut(protocol.workers);
        let mut nodes: Vec<Vec<(String, Worker)>> = nodes.map(|node| node.to_vec()).collect();
        for node in &mut nodes {
            node.sort_by(|(one, _), (other, _)| one.cmp(other));
        }
        let texts = |node: &[(String, Worker)]| -> Vec<String> {
            node.iter().map(|(text, _)| text.clone()).collect()
        };
        nodes.sort_by_cached_key(|node| texts(node));
        self.workers = nodes.concat();
        let Self { now, store, admitted, refused, returned, left, .. } = &self;
        let Self { requests, faults, ticks, .. } = &self;
        let mut text = format!(
            "{now:?}{store:?}{admitted:?}{refused} {returned} {left} {requests} {faults} {ticks}"
        );
        self.workers.iter().for_each(|(worker, _)| text.push_str(worker));
        self.text = text;
        self
    }

    /// Units that workers hold, whether or not they can spend them.
    pub(crate) fn held(&self) -> u64 {
        self.workers.iter().map(|(_, worker)| worker.lease.all_units()).sum()
    }

    /// Whether nothing is on its way.
    pub(crate) fn is_quiet(&self) -> bool {
        let quiet = |worker: &Worker| worker.questions.is_empty() && worker.replies.is_empty();
        self.workers.iter().all(|(_, worker)| quiet(worker))
    }

    /// The most units that were spent in one interval of this length.
    pub(crate) fn worst(&self, length: Span, cost: u64) -> u64 {
        let within = |from: &Instant| {
            let inside = self.admitted.iter().filter(|at| *at >= from && **at < from.plus(length));
            cost * u64::try_from(inside.count()).unwrap()
        };
        self.admitted.iter().map(within).max().unwrap_or(0)
    }

    /// A worker goes on with those who wait: it spends what it has, or asks for more.
    pub(crate) fn go_on(&mut self, protocol: &Protocol, number: usize, waiting: u8) {
        let (now, cost) = (self.now, protocol.cost);
        let worker = &mut self.workers[number].1;
        let (mut short, mut spent) = (0, false);
        for _ in 0..waiting {
            match worker.lease.peek(cost, now) {
                LeaseVerdict::Admitted(_) => {
                    worker.lease.spend(cost, now);
                    self.admitted.push(now);
                    self.left -= i64::try_from(cost).unwrap();
                    spent = true;
                }
                LeaseVerdict::Refused(_) => self.refused = true,
                LeaseVerdict::Short => short += 1,
            }
        }
        if worker.call.is_none() && (short > 0 || (spent && worker.lease.is_low(now))) {
            let want = worker.lease.ask(cost * u64::from(short), now);
            let call = worker.calls;
            worker.calls += 1;
            worker.call = Some((call, short));
            worker.questions.push(Question { call, want, sent_at: now });
        } else if let Some((_, waiting)) = &mut worker.call {
            *waiting += short;
        }
    }

    pub(crate) fn arrive(&mut self, protocol: &Protocol, number: usize, question: &Question) {
        let Question { call, want, sent_at } = *question;
        let (units, told) = self.store.lease(protocol.cost, want, self.now);
        self.left += i64::try_from(units).unwrap();
        let granted_at_us = self.now.as_nanos() / 1000;
        let reply = Reply { call, sent_at, units, granted_at_us, told };
        self.workers[number].1.replies.push(reply);
    }

    pub(crate) fn hear(&mut self, protocol: &Protocol, number: usize, reply: &Reply) {
        let worker = &mut self.workers[number].1;
        let expected = worker.call.filter(|(call, _)| *call == reply.call);
        if expected.is_none() && !protocol.takes_any_reply {
            return;
        }
        let Reply { units, granted_at_us, told, sent_at, .. } = *reply;
        worker.lease.take(units, granted_at_us, told, sent_at, self.now);
        if let Some((_, waiting)) = expected {
            worker.call = None;
            self.go_on(protocol, number, waiting);
        }
    }

    /// All workers send back what they do not need.
    pub(crate) fn give_back(&mut self) {
        for (text, worker) in &mut self.workers {
            let over = worker.lease.leftovers(IDLE, self.now);
            self.returned |= over.is_some();
            if let Some(parcel) = over {
                worker.returns.push((parcel.units, parcel.granted_at_us));
                self.left -= i64::try_from(parcel.units).unwrap();
            }
            *text = worker.text();
        }
    }

    /// Does what `action` says. Returns the worker that it changed, and whether it is a fault.
    pub(crate) fn apply(&mut self, protocol: &Protocol, action: &Action) -> (Option<usize>, bool) {
        let now = self.now;
        match *action {
            Action::Request(number) => {
                self.requests += 1;
                self.go_on(protocol, number, 1);
                (Some(number), false)
            }
            Action::Arrive { worker, place, again } => {
                let question = taken(&mut self.workers[worker].1.questions, place, again);
                self.arrive(protocol, worker, &question);
                (Some(worker), again)
            }
            Action::Return { worker, place } => {
                let (units, at_us) = self.workers[worker].1.returns.remove(place);
                self.store.take_back(units, Instant::from_nanos(at_us * 1000), now);
                (Some(worker), false)
            }
            Action::Hear { worker, place, again } => {
                let reply = taken(&mut self.workers[worker].1.replies, place, again);
                self.hear(protocol, worker, &reply);
                (Some(worker), again)
            }
            Action::LoseQuestion { worker, place } => {
                self.workers[worker].1.questions.remove(place);
                (Some(worker), true)
            }
            Action::LoseReply { worker, place } => {
                self.workers[worker].1.replies.remove(place);
                (Some(worker), true)
            }
            Action::LoseReturn { worker, place } => {
                self.workers[worker].1.returns.remove(place);
                (Some(worker), true)
            }
            Action::Crash(node) => {
                for (text, worker) in
                    &mut self.workers[node * protocol.workers..][..protocol.workers]
                {
                    // What is on its way stays so, and no number of a call is used twice.
                    (worker.lease, worker.call) = (Lease::new(protocol.quota, protocol.cost), None);
                    worker.tidy();
                    *text = worker.text();
                }
                (None, true)
            }
            Action::Pass { millis, chores } => {
                self.now = now.plus(Span::from_millis(millis));
                self.ticks += 1;
                let window = protocol.quota.period();
                self.admitted.retain(|at| at.plus(window) > self.now);
                if chores {
                    self.give_back();
                }
                (None, false)
            }
        }
    }
}

/// Takes what is at `place`, or where it will come again, leaves it there.
fn taken<T: Clone>(list: &mut Vec<T>, place: usize, again: bool) -> T {
    if again { list[place].clone() } else { list.remove(place) }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for State {}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.text.hash(hasher);
    }
}
