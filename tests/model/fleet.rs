//! Workers, their store and what is between them, at one moment.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use fairshare::limiter::Quota;
use fairshare::units::{Instant, Span};

use crate::protocol::{Action, Protocol};
use crate::store::{Asked, ModelStore};
use crate::worker::{Outcome, Question, Reply, Worker};

#[derive(Clone)]
pub(crate) struct State {
    pub(crate) now: Instant,
    /// With their texts. Workers of a node are alike, and so are nodes, so both are kept in the
    /// order of their texts. Those that do not change are shared with the state before.
    pub(crate) workers: Vec<Arc<(String, Worker)>>,
    pub(crate) store: ModelStore,
    /// When requests were let through, and their kinds.
    pub(crate) admitted: Vec<(Instant, usize)>,
    pub(crate) refused: bool,
    pub(crate) returned: bool,
    /// Units of each level that were granted and neither spent nor sent back. Workers hold no more.
    pub(crate) left: Vec<i64>,
    pub(crate) crowds: u8,
    pub(crate) faults: u8,
    /// Steps of time that have passed.
    pub(crate) ticks: usize,
    /// All of the above but the workers, for comparison.
    pub(crate) text: String,
}

impl State {
    /// Puts what is alike into one order, so that it is explored once.
    pub(crate) fn refresh(mut self, protocol: &Protocol, changed: &[usize]) -> Self {
        for number in changed {
            let (text, worker) = Arc::make_mut(&mut self.workers[*number]);
            worker.tidy(protocol, self.now);
            *text = format!("{worker:?}");
        }
        let by_text = |worker: &Arc<(String, Worker)>| worker.0.clone();
        for node in self.workers.chunks_mut(protocol.workers) {
            node.sort_by(|one, other| one.0.cmp(&other.0));
        }
        let mut nodes: Vec<_> = self.workers.chunks(protocol.workers).collect();
        nodes.sort_by_cached_key(|node| node.iter().map(by_text).collect::<Vec<_>>());
        self.workers = nodes.concat();
        self.admitted.sort_unstable();
        let Self { now, store, admitted, refused, returned, left, .. } = &self;
        let Self { crowds, faults, ticks, .. } = &self;
        self.text = format!(
            "{now:?}{store:?}{admitted:?}{refused} {returned} {left:?} {crowds} {faults} {ticks}"
        );
        self
    }

    /// Units of a level that workers hold, whether or not they can spend them.
    pub(crate) fn held(&self, level: usize) -> i64 {
        let held: u64 = self.workers.iter().map(|worker| worker.1.held[level]).sum();
        i64::try_from(held).unwrap()
    }

    /// Units of a level that are on their way to workers.
    pub(crate) fn coming(&self, level: usize) -> i64 {
        let coming: u64 = self.workers.iter().map(|worker| worker.1.coming(level)).sum();
        i64::try_from(coming).unwrap()
    }

    /// Whether nothing is on its way.
    pub(crate) fn is_quiet(&self) -> bool {
        let quiet = |worker: &Worker| worker.questions.is_empty() && worker.replies.is_empty();
        self.workers.iter().all(|worker| quiet(&worker.1))
    }

    /// When units of a level were spent, one request after the other.
    fn spends(&self, protocol: &Protocol, level: usize) -> Vec<Instant> {
        let of_level = |kind: usize| protocol.kinds[kind].contains(&level);
        let spends = self.admitted.iter().filter(|(_, kind)| of_level(*kind));
        spends.map(|(at, _)| *at).collect()
    }

    /// The most units of a level that were spent in one interval of this length.
    pub(crate) fn worst(&self, protocol: &Protocol, level: usize, length: Span) -> u64 {
        let spends = self.spends(protocol, level);
        let within = |from: &Instant| {
            let inside = spends.iter().filter(|at| *at >= from && **at < from.plus(length));
            protocol.levels[level].cost * u64::try_from(inside.count()).unwrap()
        };
        spends.iter().map(within).max().unwrap_or(0)
    }

    /// Whether every interval holds what the level's definition allows.
    pub(crate) fn obeys(&self, protocol: &Protocol, level: usize) -> bool {
        let quota = &protocol.levels[level].quota;
        let Quota::Gcra(rate) = quota else {
            return self.worst(protocol, level, quota.period()) <= quota.capacity();
        };
        let spends = self.spends(protocol, level);
        let intervals = spends.iter().flat_map(|from| spends.iter().map(move |to| (*from, *to)));
        intervals.filter(|(from, to)| from <= to).all(|(from, to)| {
            let inside = spends.iter().filter(|at| from <= **at && **at <= to).count();
            let units = u128::from(protocol.levels[level].cost) * u128::try_from(inside).unwrap();
            // In parts of a unit, so that nothing is rounded.
            let leaked = u128::from(to.since(from).as_nanos()) * u128::from(rate.rate);
            let per = u128::from(rate.per.as_nanos());
            units * per <= u128::from(rate.burst) * per + leaked
        })
    }

    fn worker(&mut self, number: usize) -> &mut Worker {
        &mut Arc::make_mut(&mut self.workers[number]).1
    }

    /// Notes what became of requests.
    fn note(&mut self, protocol: &Protocol, outcome: &Outcome) {
        self.refused |= outcome.refused;
        for kind in &outcome.admitted {
            self.admitted.push((self.now, *kind));
            for level in &protocol.kinds[*kind] {
                self.left[*level] -= i64::try_from(protocol.levels[*level].cost).unwrap();
            }
        }
    }

    fn arrive(&mut self, protocol: &Protocol, number: usize, question: Question) {
        let Question { call, levels, wants, sent_at } = question;
        let asked = levels.iter().zip(wants).map(|(level, want)| Asked {
            level: *level,
            cost: protocol.levels[*level].cost,
            want,
        });
        let grants = self.store.lease(&asked.collect::<Vec<_>>(), self.now);
        for (level, (units, _)) in levels.iter().zip(&grants) {
            self.left[*level] += i64::try_from(*units).unwrap();
        }
        let granted_at_us = self.now.as_nanos() / 1000;
        let reply = Reply { call, levels, grants, sent_at, granted_at_us };
        self.worker(number).replies.push(reply);
    }

    /// All workers send back what they do not need.
    fn give_back(&mut self, protocol: &Protocol) {
        for worker in &mut self.workers {
            for over in Arc::make_mut(worker).1.give_back(protocol, self.now) {
                self.returned = true;
                self.left[over.level] -= i64::try_from(over.units).unwrap();
            }
        }
    }

    /// Does what `action` says. Returns the workers that it changed, and whether it is a fault.
    pub(crate) fn apply(&mut self, protocol: &Protocol, action: &Action) -> (Vec<usize>, bool) {
        let now = self.now;
        match *action {
            Action::Crowd { worker, kind } => {
                self.crowds += 1;
                let kinds = vec![kind; protocol.crowd];
                let outcome = self.worker(worker).go_on(protocol, &kinds, now);
                self.note(protocol, &outcome);
                (vec![worker], false)
            }
            Action::Arrive { worker, place, again } => {
                let question = taken(&mut self.worker(worker).questions, place, again);
                self.arrive(protocol, worker, question);
                (vec![worker], again)
            }
            Action::Return { worker, place } => {
                for back in self.worker(worker).returns.remove(place) {
                    let at = Instant::from_nanos(back.granted_at_us * 1000);
                    self.store.take_back(back.level, back.units, at, now);
                }
                (vec![worker], false)
            }
            Action::Hear { worker, place, again } => {
                let reply = taken(&mut self.worker(worker).replies, place, again);
                let outcome = self.worker(worker).hear(protocol, &reply, now);
                self.note(protocol, &outcome);
                (vec![worker], again)
            }
            Action::LoseQuestion { worker, place } => {
                self.worker(worker).questions.remove(place);
                (vec![worker], true)
            }
            Action::LoseReply { worker, place } => {
                self.worker(worker).replies.remove(place);
                (vec![worker], true)
            }
            Action::LoseReturn { worker, place } => {
                self.worker(worker).returns.remove(place);
                (vec![worker], true)
            }
            Action::Crash(node) => {
                let workers = node * protocol.workers..(node + 1) * protocol.workers;
                workers.clone().for_each(|number| self.worker(number).crash());
                (workers.collect(), true)
            }
            Action::Pass { millis, chores } => {
                self.now = now.plus(Span::from_millis(millis));
                self.ticks += 1;
                let counts = protocol.counts_for();
                self.admitted.retain(|(at, _)| at.plus(counts) > self.now);
                if !chores {
                    return (vec![], false);
                }
                self.give_back(protocol);
                ((0..self.workers.len()).collect(), false)
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
        f.write_str(&self.text)?;
        self.workers.iter().try_for_each(|worker| f.write_str(&worker.0))
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        let mut workers = self.workers.iter().zip(&other.workers);
        self.text == other.text && workers.all(|(one, other)| one.0 == other.0)
    }
}

impl Eq for State {}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
        self.workers.iter().for_each(|worker| worker.0.hash(state));
    }
}
