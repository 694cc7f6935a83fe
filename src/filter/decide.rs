//! Deciding a request: on the node first, then by leases, then in the store, or without it.

use std::rc::Rc;

use super::Refusal;
use super::charging_in_store::Charged;
use super::job::{Delivery, Unanswered};
use super::judgement::{Admission, Judgement, judge, to_blame};
use super::worker::{Step, Stream, Worker};
use crate::host::{Host, StreamId};
use crate::policy::{Charge, OnStoreError, Plan, Subject};
use crate::store::StoreError;
use crate::store::leases::LeaseOutcome;
use crate::store::parcel::Spend;
use crate::units::Instant;

/// A request whose global limits are being decided. It holds nothing of the node's meanwhile: what
/// it wants there is charged when it is let through, and at that time.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: Undecided,
    /// The time at which it is decided without the store.
    deadline: Instant,
    timed: bool,
    /// What the node is to charge, and whether it was asked if it could.
    node: Vec<Charge>,
    node_asked: bool,
    /// What is to be spent from leases, and what those said once it is spent.
    leased: Vec<Charge>,
    spent: Option<Vec<Spend>>,
    /// Whether some lease was running low then.
    low: bool,
    /// What the store is asked about, one group of keys after the other, and what it has charged, with
    /// the request's place among those that it was charged for.
    strict: Vec<Charge>,
    charged: Vec<(Rc<Charged>, u64)>,
    /// What it was asked about, or should have been, without an answer.
    unanswered: Vec<Charge>,
}

/// A request that is to be decided.
#[derive(Debug)]
pub(super) struct Undecided {
    pub(super) stream: StreamId,
    pub(super) grpc: bool,
    /// Slots of limits in shadow mode, which it holds already.
    pub(super) shadow_slots: Vec<Judgement>,
    /// The client to whom the answer may be a failed authentication.
    pub(super) watched: Option<Subject>,
}

/// How a request's limits ended.
pub(super) enum Settled {
    Admitted(Admission),
    Refused(Rc<Refusal>),
}

impl Waiting {
    /// Whether it is to be decided without the store by now.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.deadline <= now
    }
}

impl Worker {
    pub(super) fn decide(
        &mut self,
        host: &mut impl Host,
        request: Undecided,
        plan: Plan,
        now: Instant,
    ) -> Step {
        let Plan { node, leased, strict, .. } = plan;
        if leased.is_empty() && strict.is_empty() {
            return self.decide_on_node(host, request, &node, now);
        }
        let deadline = now.plus(self.store_timeout());
        let waiting = Waiting {
            request,
            deadline,
            timed: false,
            node,
            node_asked: false,
            leased,
            spent: None,
            low: false,
            strict,
            charged: Vec::new(),
            unanswered: Vec::new(),
        };
        self.advance(host, waiting, now).unwrap_or(Step::Pause)
    }

    /// Takes a request as far as it gets without waiting: to its end, or, where that is none, back
    /// among those that wait.
    pub(super) fn advance(
        &mut self,
        host: &mut impl Host,
        mut waiting: Waiting,
        now: Instant,
    ) -> Option<Step> {
        let stream = waiting.request.stream;
        self.unspend_late(&mut waiting, now);
        while waiting.spent.is_none() && !waiting.leased.is_empty() {
            match self.leases.decide(&waiting.leased, now) {
                LeaseOutcome::Admitted(spends, low) => {
                    (waiting.spent, waiting.low) = (Some(spends), low);
                }
                LeaseOutcome::Refused(verdicts) => {
                    let mut judgements = judge(&waiting.leased, &verdicts);
                    judgements.extend(self.known_refusals(&waiting.strict, now));
                    return Some(self.refused(host, waiting, judgements, now));
                }
                LeaseOutcome::Short(_) if waiting.deadline <= now => {
                    self.give_up(&mut waiting, Unanswered::Everything);
                }
                LeaseOutcome::Short(short) => {
                    if let Err(judgements) = self.ask_node(host, &mut waiting, now) {
                        return Some(self.refused_by_node(host, waiting, judgements, now));
                    }
                    match self.ask(host, &short, Some(stream), now) {
                        Ok(()) => return self.wait(waiting),
                        Err((group, error)) => self.not_asked(host, &mut waiting, group, error),
                    }
                }
            }
        }
        while let Some(first) = waiting.strict.first() {
            let group = self.policy.key_group(first.place);
            if let LeaseOutcome::Refused(verdicts) = self.leases.look(&waiting.strict, now) {
                let judgements = judge(&waiting.strict, &verdicts);
                return Some(self.refused(host, waiting, judgements, now));
            }
            if let Err(judgements) = self.ask_node(host, &mut waiting, now) {
                return Some(self.refused_by_node(host, waiting, judgements, now));
            }
            let policy = Rc::clone(&self.policy);
            let charges = policy.first_group(&waiting.strict);
            match self.ask_strictly(host, stream, (group, charges), (waiting.deadline, now)) {
                Ok(()) => return self.wait(waiting),
                Err(error) => self.not_asked(host, &mut waiting, group, error),
            }
        }
        Some(self.finish(host, waiting, now))
    }

    /// The same, where the store has not answered.
    pub(super) fn advance_without(
        &mut self,
        host: &mut impl Host,
        mut waiting: Waiting,
        unanswered: Unanswered,
        now: Instant,
    ) -> Option<Step> {
        self.unspend_late(&mut waiting, now);
        self.give_up(&mut waiting, unanswered);
        self.advance(host, waiting, now)
    }

    /// Gives units back that were spent for a request, but are over by the time at which what else it
    /// waited for is there. It needs others.
    fn unspend_late(&mut self, waiting: &mut Waiting, now: Instant) {
        let is_late = |spends: &mut Vec<Spend>| spends.iter().any(|spend| spend.is_over(now));
        if let Some(spends) = waiting.spent.take_if(is_late) {
            self.leases.unspend(&waiting.leased, &spends);
        }
    }

    /// Goes on without a group about which the store cannot even be asked.
    fn not_asked(
        &self,
        host: &mut impl Host,
        waiting: &mut Waiting,
        group: usize,
        error: StoreError,
    ) {
        host.count(self.metrics.store_error(error), 1);
        self.give_up(waiting, Unanswered::Group(group));
    }

    /// Leaves what the store has not answered to each limit's `on_store_error`.
    fn give_up(&self, waiting: &mut Waiting, unanswered: Unanswered) {
        let is_meant = |charge: &Charge| match unanswered {
            Unanswered::Nothing => false,
            Unanswered::Group(group) => self.policy.key_group(charge.place) == group,
            Unanswered::Everything => true,
        };
        let mut asked = vec![&mut waiting.strict];
        if waiting.spent.is_none() {
            asked.push(&mut waiting.leased);
        }
        for charges in asked {
            for charge in std::mem::take(charges) {
                let to = if is_meant(&charge) { &mut waiting.unanswered } else { &mut *charges };
                to.push(charge);
            }
        }
    }

    fn wait(&mut self, mut waiting: Waiting) -> Option<Step> {
        if !std::mem::replace(&mut waiting.timed, true) {
            self.deadlines.push_back((waiting.deadline, waiting.request.stream));
        }
        self.streams.insert(waiting.request.stream, Stream::Waiting(Box::new(waiting)));
        None
    }

    /// Lets go of requests whose time is over. Deadlines come in their order, because all requests
    /// have the same time.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some((deadline, stream)) = self.deadlines.front().copied() {
            if deadline > now {
                return;
            }
            self.deadlines.pop_front();
            let waits = |stream: &Stream| matches!(stream, Stream::Waiting(waiting) if waiting.is_over(now));
            if self.streams.get(&stream).is_some_and(waits) {
                let go_on = Delivery::GoOn(stream, Unanswered::Everything);
                self.group.add_ready(std::iter::once(go_on));
            }
        }
    }

    /// Takes what the store has charged for those that a request waited with, and goes on.
    pub(super) fn settle(
        &mut self,
        host: &mut impl Host,
        mut waiting: Waiting,
        charged: Rc<Charged>,
        place: u64,
        now: Instant,
    ) -> Option<Step> {
        let group = self.policy.group_of(&charged.charges);
        waiting.strict.retain(|charge| self.policy.key_group(charge.place) != group);
        if !charged.is_admitted(place) {
            let mut judgements = judge(&charged.charges, &charged.verdicts(place));
            judgements.extend(self.known_refusals(&waiting.strict, now));
            return Some(self.refused(host, waiting, judgements, now));
        }
        waiting.charged.push((charged, place));
        self.advance(host, waiting, now)
    }

    /// Asks the node, once, whether it would have room, before a request waits for anyone else.
    fn ask_node(
        &mut self,
        host: &mut impl Host,
        waiting: &mut Waiting,
        now: Instant,
    ) -> Result<(), Vec<Judgement>> {
        if std::mem::replace(&mut waiting.node_asked, true) || waiting.node.is_empty() {
            return Ok(());
        }
        let outcome = self.node.peek(host, &waiting.node, now);
        self.judge_node(host, &waiting.node, &outcome)
    }

    /// Gives back what a request has taken from leases, and what the store has charged for it.
    pub(super) fn give_back(&mut self, host: &mut impl Host, waiting: &Waiting, now: Instant) {
        if let Some(spends) = &waiting.spent {
            self.leases.unspend(&waiting.leased, spends);
        }
        for (charged, _) in &waiting.charged {
            self.give_back_strict(host, &charged.charges, charged.granted_at_us, now);
        }
    }

    /// Refuses a request because of what leases or the store said. What the node would say as well
    /// counts too, so that nobody comes back too early.
    fn refused(
        &mut self,
        host: &mut impl Host,
        waiting: Waiting,
        mut judgements: Vec<Judgement>,
        now: Instant,
    ) -> Step {
        if !waiting.node.is_empty() {
            let outcome = self.node.peek(host, &waiting.node, now);
            judgements.extend(judge(&waiting.node, &outcome.verdicts));
        }
        self.refuse_for_room(host, waiting, &judgements, now)
    }

    /// Refuses a request because of what the node said. What the store is known to say counts too.
    fn refused_by_node(
        &mut self,
        host: &mut impl Host,
        waiting: Waiting,
        mut judgements: Vec<Judgement>,
        now: Instant,
    ) -> Step {
        judgements.extend(self.known_refusals(&waiting.leased, now));
        judgements.extend(self.known_refusals(&waiting.strict, now));
        self.refuse_for_room(host, waiting, &judgements, now)
    }

    /// What the store is known to refuse of these, also where it would be asked again.
    fn known_refusals(&self, charges: &[Charge], now: Instant) -> impl Iterator<Item = Judgement> {
        charges.iter().filter_map(move |charge| {
            let verdict = self.leases.refusal(charge, now)?;
            Some(Judgement { charge: *charge, verdict })
        })
    }

    fn refuse_for_room(
        &mut self,
        host: &mut impl Host,
        waiting: Waiting,
        judgements: &[Judgement],
        now: Instant,
    ) -> Step {
        match to_blame(judgements) {
            Some(blamed) => {
                let refusal = Refusal::no_room(blamed, &self.policy);
                self.refuse_waiting(host, waiting, refusal, now)
            }
            None => self.end(host, waiting.request, Settled::Admitted(Admission::default()), now),
        }
    }

    fn refuse_waiting(
        &mut self,
        host: &mut impl Host,
        waiting: Waiting,
        refusal: Refusal,
        now: Instant,
    ) -> Step {
        self.give_back(host, &waiting, now);
        self.end(host, waiting.request, Settled::Refused(Rc::new(refusal)), now)
    }

    /// Decides a request of which nothing is left to be asked of leases or the store: on the node, and
    /// by each limit's `on_store_error` where the store has not answered.
    fn finish(&mut self, host: &mut impl Host, mut waiting: Waiting, now: Instant) -> Step {
        let policy = Rc::clone(&self.policy);
        let mut charges = std::mem::take(&mut waiting.node);
        for charge in &waiting.unanswered {
            let Some(limit) = policy.limits.get(charge.place) else { continue };
            match limit.on_store_error {
                OnStoreError::Allow => {}
                OnStoreError::Deny => {
                    let refusal = Refusal::store_unavailable(charge.place, &policy);
                    return self.refuse_waiting(host, waiting, refusal, now);
                }
                OnStoreError::Local { fraction_ppm } => charges.push(Charge {
                    id: limit.fallback_id,
                    quota: charge.quota.scaled(fraction_ppm, 1_000_000, charge.cost),
                    ..*charge
                }),
            }
        }
        match self.charge_node(host, &charges, now) {
            Ok(node) => self.admitted(host, waiting, node, now),
            Err(judgements) => self.refused_by_node(host, waiting, judgements, now),
        }
    }

    /// Ends a request that every level admits, with what all of them said.
    fn admitted(
        &mut self,
        host: &mut impl Host,
        waiting: Waiting,
        mut admission: Admission,
        now: Instant,
    ) -> Step {
        if let Some(spends) = &waiting.spent {
            self.leases.used(&waiting.leased);
            // A request that is refused after all leaves what it wanted to others.
            if waiting.low {
                self.refill(host, &waiting.leased, now);
            }
            admission.add(&waiting.leased, spends.iter().map(|spend| &spend.verdict));
        }
        for (charged, place) in &waiting.charged {
            admission.add(&charged.charges, &charged.verdicts(*place));
        }
        self.end(host, waiting.request, Settled::Admitted(admission), now)
    }
}
