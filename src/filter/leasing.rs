//! Asking the store for leases ahead of need, once for all who wait, and giving back what is left.
//!
//! A question belongs to nobody: when the request that caused it goes away, it goes on for those
//! who still wait. While one is under way, no second one is asked about the same charges.

use std::collections::VecDeque;
use std::rc::Rc;

use super::group_commit::{WAITING_MAX, part_of_call};
use super::job::{Asker, Delivery, Unanswered};
use super::worker::Worker;
use crate::host::{Host, StreamId};
use crate::map::{Map, seeded};
use crate::policy::{Charge, Policy};
use crate::store::{Answer, Decision, LeaseTerms, PIPELINE_CHARGES_MAX, StoreError};
use crate::units::Instant;

/// Questions that wait or are under way.
#[derive(Debug)]
pub(super) struct Questions {
    /// By what they are about.
    open: Map<Rc<[Charge]>, Question>,
    /// Those that are not sent, the first to come first, and some that are over.
    unsent: VecDeque<Rc<[Charge]>>,
}

/// A question for leases.
#[derive(Debug)]
struct Question {
    /// Requests that wait for its answer, the first one first.
    waiting: Vec<StreamId>,
    sent: bool,
}

/// What goes back to one group of keys.
#[derive(Default)]
struct Leftovers {
    group: usize,
    /// Their costs are what goes back, and the times when it was granted.
    charges: Vec<Charge>,
    times: Vec<u64>,
    units: u64,
}

impl Questions {
    /// None. `seed` should be random.
    pub(super) const fn new(seed: u64) -> Self {
        Self { open: seeded(seed), unsent: VecDeque::new() }
    }
}

impl Worker {
    /// Asks for leases, or joins those who have asked. Each group of keys is asked by itself, and the
    /// stream waits for the first one: then it comes back for the next, which is there already or is
    /// being asked for.
    ///
    /// # Errors
    ///
    /// The first group, and why nobody will answer about it.
    pub(super) fn ask(
        &mut self,
        host: &mut impl Host,
        charges: &[Charge],
        mut stream: Option<StreamId>,
        now: Instant,
    ) -> Result<(), (usize, StoreError)> {
        let policy = Rc::clone(&self.policy);
        let mut first = None;
        for (group, charges) in policy.by_group(charges) {
            let asked = match self.groups.is_asked(group) {
                true => self.ask_group(host, charges, stream.take(), now),
                false => Err(StoreError::GivenUp),
            };
            first.get_or_insert(asked.map_err(|error| (group, error)));
        }
        first.unwrap_or(Ok(()))
    }

    fn ask_group(
        &mut self,
        host: &mut impl Host,
        charges: &[Charge],
        stream: Option<StreamId>,
        now: Instant,
    ) -> Result<(), StoreError> {
        if let Some(question) = self.questions.open.get_mut(charges) {
            // Where an earlier group cannot be asked, the request is here again at once.
            if question.waiting.last() != stream.as_ref() {
                question.waiting.extend(stream);
            }
            return Ok(());
        }
        if self.questions.open.len() >= WAITING_MAX {
            return Err(StoreError::Overloaded);
        }
        // Where it is too early, a request, an answer or the next tick comes when it is not.
        if self.group.pace.allows(now) {
            self.group.wake(host)?;
        }
        let question = Question { waiting: stream.into_iter().collect(), sent: false };
        let charges: Rc<[Charge]> = charges.into();
        self.questions.unsent.push_back(Rc::clone(&charges));
        self.questions.open.insert(charges, question);
        Ok(())
    }

    /// Asks for more before what is there runs out. Nobody waits for it, so nothing is lost where
    /// it cannot be asked.
    pub(super) fn refill(&mut self, host: &mut impl Host, charges: &[Charge], now: Instant) {
        let refillable = self.leases.refillable(charges, now);
        if !refillable.is_empty() {
            let _ = self.ask(host, &refillable, None, now);
        }
    }

    /// Hands questions that are new to the next calls, as many as may be made now, the first to come first.
    pub(super) fn queue_questions(&mut self, now: Instant) {
        let deadline = now.plus(self.store_timeout());
        let mut room = 0_usize;
        while let Some(charges) = self.questions.unsent.front().map(Rc::clone) {
            let part = part_of_call(charges.len());
            if room < part {
                if !self.group.pace.allows(now) {
                    return;
                }
                self.group.pace.note(now);
                room = PIPELINE_CHARGES_MAX;
            }
            self.questions.unsent.pop_front();
            let unsent = self.questions.open.get_mut(&charges).filter(|question| !question.sent);
            let Some(question) = unsent else { continue };
            question.sent = true;
            room = room.saturating_sub(part);
            let waiting = u64::try_from(question.waiting.len()).unwrap_or(u64::MAX);
            let wants = self.leases.ask(&charges, waiting, now);
            let decision = Decision::lease(&charges, wants, &self.policy);
            let job = self.job(Asker::Lease(charges, now), decision, deadline);
            self.group.add_awake(job);
        }
    }

    /// Takes out the requests that wait for leases of a group of keys: those whose question is new, and
    /// those whose question is under way. That goes on without them, and fills the leases if it is
    /// answered.
    pub(super) fn take_from_questions(&mut self, group: usize) -> (Vec<StreamId>, Vec<StreamId>) {
        let (mut unasked, mut asked) = (Vec::new(), Vec::new());
        let policy = &self.policy;
        self.questions.open.retain(|charges, question| {
            if policy.group_of(charges) != group {
                return true;
            }
            let taken = if question.sent { &mut asked } else { &mut unasked };
            taken.append(&mut question.waiting);
            question.sent
        });
        (unasked, asked)
    }

    /// Takes what the store granted, and lets those who waited try again.
    pub(super) fn on_leases(
        &mut self,
        host: &mut impl Host,
        charges: &[Charge],
        sent_at: Instant,
        (result, is_current): (Result<Answer, StoreError>, bool),
        now: Instant,
    ) {
        self.leases.answered(charges);
        let group = self.policy.group_of(charges);
        let unanswered = match result {
            Ok(answer) => {
                let charged: Vec<Charge> = charges.iter().map(as_charged).collect();
                self.note_granted(host, &charged, &answer, is_current, now);
                let Answer { levels, units, clock_us, .. } = answer;
                for ((charge, units), told) in charges.iter().zip(units).zip(levels) {
                    self.leases.take(charge, (units, clock_us), told, sent_at, now);
                }
                Unanswered::Nothing
            }
            _ => Unanswered::Group(group),
        };
        let question = self.questions.open.remove(charges);
        let waiting = question.into_iter().flat_map(|question| question.waiting);
        self.group.add_ready(waiting.map(|stream| Delivery::GoOn(stream, unanswered)));
    }

    /// Adds what happened to leases since the last time to the metrics.
    pub(super) fn count_lease_events(&mut self, host: &mut impl Host) {
        for (metric, units) in self.metrics.lease_units(&self.leases.take_events()) {
            if units > 0 {
                host.count(metric, units);
            }
        }
    }

    /// Sends back what nobody needs, in one message for each group of keys.
    pub(super) fn return_leftovers(&mut self, now: Instant) {
        let policy: Rc<Policy> = Rc::clone(&self.policy);
        let deadline = now.plus(self.store_timeout());
        let groups = &self.groups;
        let is_asked = |charge: &Charge| groups.is_asked(policy.key_group(charge.place));
        let mut messages: Vec<Leftovers> = Vec::new();
        for (charge, parcel) in self.leases.leftovers(now, is_asked) {
            let charge = Charge { cost: parcel.units, ..as_charged(&charge) };
            self.ledger.given_back(&charge, parcel.units, parcel.granted_at_us);
            let group = policy.key_group(charge.place);
            let known = messages.iter().position(|message| message.group == group);
            let place = known.unwrap_or(messages.len());
            if known.is_none() {
                messages.push(Leftovers { group, ..Leftovers::default() });
            }
            if let Some(message) = messages.get_mut(place) {
                message.units = message.units.saturating_add(parcel.units);
                message.times.push(parcel.granted_at_us);
                message.charges.push(charge);
            }
        }
        for Leftovers { charges, times, units, .. } in messages {
            let decision = Decision::give_back(&charges, times, &policy);
            let job = self.job(Asker::Return(units), decision, deadline);
            self.group.add_awake(job);
        }
    }
}

/// The charge in the terms of the store.
fn as_charged(charge: &Charge) -> Charge {
    let quota = *LeaseTerms::of(&charge.quota, charge.cost).charged();
    Charge { quota, ..*charge }
}
