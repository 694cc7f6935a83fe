//! One worker: its leases, the questions that it has under way, and what is on its way to it and from
//! it. It does what `src/filter/leasing.rs` does, without deadlines: who waits for what is lost waits
//! on.

use std::collections::BTreeSet;

use fairshare::limiter::Verdict;
use fairshare::policy::Charge;
use fairshare::store::Want;
use fairshare::store::leases::{LeaseOutcome, Leases};
use fairshare::units::{Instant, Span};

use crate::protocol::Protocol;

/// Later than everything that is explored, so that all units are over.
const LATER: Span = Span::from_secs(3600);

#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) leases: Leases,
    /// What is under way, by the levels that it is about.
    pub(crate) calls: Vec<Call>,
    /// The number of the next call.
    pub(crate) next: u8,
    pub(crate) questions: Vec<Question>,
    pub(crate) replies: Vec<Reply>,
    pub(crate) returns: Vec<Vec<Returned>>,
    /// Units of its leases by level, whether or not they can be spent.
    pub(crate) held: Vec<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) levels: Vec<usize>,
    /// None until it is sent.
    pub(crate) number: Option<u8>,
    /// The kinds of the requests that wait for it.
    pub(crate) waiting: Vec<usize>,
}

#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) call: u8,
    pub(crate) levels: Vec<usize>,
    pub(crate) wants: Vec<Want>,
    pub(crate) sent_at: Instant,
}

#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) call: u8,
    pub(crate) levels: Vec<usize>,
    pub(crate) grants: Vec<(u64, Verdict)>,
    pub(crate) sent_at: Instant,
    pub(crate) granted_at_us: u64,
}

/// Units of one level that go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Returned {
    pub(crate) level: usize,
    pub(crate) units: u64,
    pub(crate) granted_at_us: u64,
}

/// What became of requests at once.
#[derive(Default)]
pub(crate) struct Outcome {
    /// The kinds of those that were let through.
    pub(crate) admitted: Vec<usize>,
    pub(crate) refused: bool,
}

impl Worker {
    pub(crate) fn new(levels: usize) -> Self {
        Self {
            leases: Leases::new(0),
            calls: vec![],
            next: 0,
            questions: vec![],
            replies: vec![],
            returns: vec![],
            held: vec![0; levels],
        }
    }

    /// Loses its memory. What is on its way stays so, and no number of a call is used twice.
    pub(crate) fn crash(&mut self) {
        (self.leases, self.calls) = (Leases::new(0), vec![]);
    }

    /// Requests spend what there is, or wait for what is asked for.
    pub(crate) fn go_on(&mut self, protocol: &Protocol, kinds: &[usize], now: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        for kind in kinds {
            match self.decide(protocol, *kind, now) {
                LeaseOutcome::Admitted(_, low) => {
                    outcome.admitted.push(*kind);
                    let charges = protocol.charges(&protocol.kinds[*kind]);
                    let more = if low { self.leases.refillable(&charges, now) } else { vec![] };
                    if !more.is_empty() {
                        self.ask(protocol, &more, None);
                    }
                }
                LeaseOutcome::Refused(_) => outcome.refused = true,
                LeaseOutcome::Short(short) => self.ask(protocol, &short, Some(*kind)),
            }
        }
        self.send(protocol, now);
        outcome
    }

    fn decide(&mut self, protocol: &Protocol, kind: usize, now: Instant) -> LeaseOutcome {
        let charges = protocol.charges(&protocol.kinds[kind]);
        if !protocol.spends_each_level {
            return self.leases.decide(&charges, now);
        }
        let each = charges.iter().map(|charge| self.leases.decide(&[*charge], now));
        let admitted = |outcome: &LeaseOutcome| matches!(outcome, LeaseOutcome::Admitted(..));
        let outcomes: Vec<LeaseOutcome> = each.collect();
        let not = outcomes.iter().find(|outcome| !admitted(outcome));
        not.unwrap_or(&outcomes[0]).clone()
    }

    fn ask(&mut self, protocol: &Protocol, charges: &[Charge], waiting: Option<usize>) {
        let levels: Vec<usize> = charges.iter().map(|charge| protocol.number(charge)).collect();
        match self.calls.iter_mut().find(|call| call.levels == levels) {
            Some(call) => call.waiting.extend(waiting),
            None => {
                let waiting = waiting.into_iter().collect();
                self.calls.push(Call { levels, number: None, waiting });
            }
        }
    }

    fn send(&mut self, protocol: &Protocol, now: Instant) {
        for call in self.calls.iter_mut().filter(|call| call.number.is_none()) {
            let waiting = u64::try_from(call.waiting.len()).unwrap();
            let levels = call.levels.clone();
            let wants = self.leases.ask(&protocol.charges(&levels), waiting, now);
            call.number = Some(self.next);
            self.questions.push(Question { call: self.next, levels, wants, sent_at: now });
            self.next += 1;
        }
    }

    pub(crate) fn hear(&mut self, protocol: &Protocol, reply: &Reply, now: Instant) -> Outcome {
        let expected = self.calls.iter().position(|call| call.number == Some(reply.call));
        if expected.is_none() && !protocol.takes_any_reply {
            return Outcome::default();
        }
        let charges = protocol.charges(&reply.levels);
        let call = expected.map(|place| self.calls.remove(place));
        if call.is_some() {
            self.leases.answered(&charges);
        }
        for (charge, (units, told)) in charges.iter().zip(&reply.grants) {
            let grant = (*units, reply.granted_at_us);
            self.leases.take(charge, grant, *told, reply.sent_at, now);
        }
        self.go_on(protocol, &call.map_or(vec![], |call| call.waiting), now)
    }

    /// Sends back what it does not need. Returns that.
    pub(crate) fn give_back(&mut self, protocol: &Protocol, now: Instant) -> Vec<Returned> {
        let over = leftovers(&mut self.leases, protocol, now);
        self.returns.extend((!over.is_empty()).then(|| over.clone()));
        over
    }

    /// Whether there is anything to give back.
    pub(crate) fn has_leftovers(&self, protocol: &Protocol, now: Instant) -> bool {
        self.held.iter().any(|units| *units > 0)
            && !leftovers(&mut self.leases.clone(), protocol, now).is_empty()
    }

    /// Units of one level that were granted to it and are on their way.
    pub(crate) fn coming(&self, level: usize) -> u64 {
        let of_level = |reply: &Reply| -> u64 {
            let levels = reply.levels.iter().zip(&reply.grants);
            levels.filter(|(number, _)| **number == level).map(|(_, (units, _))| units).sum()
        };
        self.replies.iter().map(of_level).sum()
    }

    /// Forgets what makes no difference: what has been counted, the order of what is on its way, and
    /// numbers of calls of which nothing is.
    pub(crate) fn tidy(&mut self, protocol: &Protocol, now: Instant) {
        self.leases.take_events();
        self.held = vec![0; protocol.levels.len()];
        let mut leases = self.leases.clone();
        // Those that have had their turn to give back come with the second go.
        let goes = [(); 2].map(|()| leftovers(&mut leases, protocol, now.plus(LATER)));
        for over in goes.iter().flatten() {
            self.held[over.level] += over.units;
        }
        self.calls.sort_by(|one, other| one.levels.cmp(&other.levels));
        self.calls.iter_mut().for_each(|call| call.waiting.sort_unstable());
        self.questions.sort_by_key(|question| question.call);
        self.replies.sort_by_key(|reply| (reply.call, reply.granted_at_us));
        self.returns.sort();
        let numbers = self.questions.iter().map(|question| question.call);
        let numbers = numbers.chain(self.replies.iter().map(|reply| reply.call));
        let numbers = numbers.chain(self.calls.iter().filter_map(|call| call.number));
        let numbers: BTreeSet<u8> = numbers.collect();
        let short =
            |call: u8| u8::try_from(numbers.iter().filter(|other| **other < call).count()).unwrap();
        self.questions.iter_mut().for_each(|question| question.call = short(question.call));
        self.replies.iter_mut().for_each(|reply| reply.call = short(reply.call));
        self.calls.iter_mut().for_each(|call| call.number = call.number.map(short));
        self.next = u8::try_from(numbers.len()).unwrap();
    }
}

fn leftovers(leases: &mut Leases, protocol: &Protocol, now: Instant) -> Vec<Returned> {
    let over = leases.leftovers(now, |_| true).into_iter().map(|(charge, parcel)| Returned {
        level: protocol.number(&charge),
        units: parcel.units,
        granted_at_us: parcel.granted_at_us,
    });
    let mut over: Vec<Returned> = over.collect();
    over.sort_unstable();
    over
}
