//! Charging requests in the store before they are let through, those of one kind together.
//!
//! Whoever is to be charged to the same levels waits in one crowd, and the store is asked once for all
//! of it: as late as can be, when a call may be made. So the more come, the fewer questions there are
//! for each of them. They are admitted in the order in which they came. What else the store is asked
//! keeps no crowd from it.

use std::rc::Rc;

use super::group_commit::{WAITING_MAX, part_of_call};
use super::job::{Asker, Delivery, Unanswered};
use super::worker::{Stream, Worker};
use crate::host::{Host, StreamId};
use crate::limiter::Verdict;
use crate::map::{Map, seeded};
use crate::policy::Charge;
use crate::store::cluster::Node;
use crate::store::{Answer, Decision, StoreError};
use crate::units::{Instant, Span};

/// Requests that the store is to be asked for.
#[derive(Debug)]
pub(super) struct ChargingInStore {
    /// By what they are to be charged to.
    crowds: Map<Rc<[Charge]>, Crowd>,
    /// The same, the first to come first.
    order: Vec<Rc<[Charge]>>,
    /// All of them.
    requests: usize,
}

/// Requests of one kind, the first to come first.
#[derive(Debug)]
struct Crowd {
    streams: Vec<StreamId>,
    /// When the first one came.
    since: Instant,
    /// Of the one that can wait longest.
    deadline: Instant,
}

/// What the store has charged for requests of one kind.
#[derive(Debug)]
pub(super) struct Charged {
    pub(super) charges: Rc<[Charge]>,
    pub(super) granted_at_us: u64,
    /// For how many requests, the first ones.
    requests: u64,
    /// What it says about a further one.
    told: Vec<Verdict>,
}

impl ChargingInStore {
    /// Nobody. `seed` should be random.
    pub(super) const fn new(seed: u64) -> Self {
        Self { crowds: seeded(seed), order: Vec::new(), requests: 0 }
    }

    /// Since when a request would wait.
    fn since(&self, charges: &[Charge], now: Instant) -> Instant {
        self.crowds.get(charges).map_or(now, |crowd| crowd.since)
    }

    /// Adds a request.
    fn join(&mut self, charges: &[Charge], stream: StreamId, deadline: Instant, now: Instant) {
        self.requests = self.requests.saturating_add(1);
        if let Some(crowd) = self.crowds.get_mut(charges) {
            crowd.streams.push(stream);
            // One that has waited for something else before takes none of the others' time.
            crowd.deadline = crowd.deadline.max(deadline);
            return;
        }
        let charges: Rc<[Charge]> = charges.into();
        self.order.push(Rc::clone(&charges));
        self.crowds.insert(charges, Crowd { streams: vec![stream], since: now, deadline });
    }

    /// Leaves out requests that do not stay.
    fn retain(&mut self, mut stays: impl FnMut(StreamId) -> bool) {
        self.order.retain(|charges| {
            let Some(crowd) = self.crowds.get_mut(charges) else { return false };
            let before = crowd.streams.len();
            crowd.streams.retain(|stream| stays(*stream));
            let left = before.saturating_sub(crowd.streams.len());
            self.requests = self.requests.saturating_sub(left);
            let stays = !crowd.streams.is_empty();
            if !stays {
                self.crowds.remove(charges);
            }
            stays
        });
    }

    /// Takes out the crowds that are meant, in the order in which they came; with `in_order` none
    /// behind one that is not.
    fn take(
        &mut self,
        in_order: bool,
        mut is_meant: impl FnMut(&[Charge], Instant) -> bool,
    ) -> Vec<(Rc<[Charge]>, Crowd)> {
        let (mut taken, mut goes_on) = (Vec::new(), true);
        self.order.retain(|charges| {
            let crowd = self.crowds.get(charges).filter(|_| goes_on);
            if crowd.is_some_and(|crowd| is_meant(charges, crowd.since)) {
                taken.extend(self.crowds.remove_entry(charges));
                return false;
            }
            goes_on = goes_on && !in_order;
            true
        });
        let requests = taken.iter().map(|(_, crowd): &(_, Crowd)| crowd.streams.len());
        self.requests = requests.fold(self.requests, usize::saturating_sub);
        taken
    }
}

impl Charged {
    fn new(charges: Rc<[Charge]>, answer: Answer) -> Self {
        let requests = answer.requests(charges.iter().map(|charge| charge.cost));
        Self { charges, granted_at_us: answer.clock_us, requests, told: answer.levels }
    }

    /// Whether the request at `place` is charged.
    pub(super) const fn is_admitted(&self, place: u64) -> bool {
        place < self.requests
    }

    /// What is said about the request at `place`: where it is charged, as if it had come alone and those
    /// behind it after it.
    pub(super) fn verdicts(&self, place: u64) -> Vec<Verdict> {
        let mut verdicts = self.told.clone();
        if self.is_admitted(place) {
            let behind = self.requests.saturating_sub(place).saturating_sub(1);
            for (charge, verdict) in self.charges.iter().zip(&mut verdicts) {
                let later = behind.saturating_mul(charge.cost);
                verdict.remaining = verdict.remaining.saturating_add(later);
                (verdict.admitted, verdict.retry_after) = (true, Span::ZERO);
            }
        }
        verdicts
    }
}

impl Worker {
    /// Asks the store to charge a request, all of whose charges are of one group of keys.
    ///
    /// # Errors
    ///
    /// Why nobody will answer.
    pub(super) fn ask_strictly(
        &mut self,
        host: &mut impl Host,
        stream: StreamId,
        (group, charges): (usize, &[Charge]),
        (deadline, now): (Instant, Instant),
    ) -> Result<(), StoreError> {
        if !self.groups.is_asked(group) {
            return Err(StoreError::GivenUp);
        }
        if self.charging.requests >= WAITING_MAX {
            return Err(StoreError::Overloaded);
        }
        let since = self.charging.since(charges, now);
        if self.group.may_charge(self.groups.node(group).as_ref(), since, now) {
            self.group.wake(host)?;
        }
        self.charging.join(charges, stream, deadline, now);
        Ok(())
    }

    /// Hands the crowds about which a call may be made to the next ones, as many as those can take. The
    /// others wait for the end of a call, and grow meanwhile.
    pub(super) fn queue_charging(&mut self, now: Instant) {
        let (policy, group, groups) = (Rc::clone(&self.policy), &self.group, &self.groups);
        let mut rooms: Vec<(Option<Node>, usize)> = Vec::new();
        let may_ask = |charges: &[Charge], since| {
            let node = groups.node(policy.group_of(charges));
            let place = rooms.iter().position(|(known, _)| *known == node).unwrap_or_else(|| {
                rooms.push((node.clone(), group.room(groups, node.as_ref())));
                rooms.len().saturating_sub(1)
            });
            let may_charge = group.may_charge(node.as_ref(), since, now);
            let Some((_, room)) = rooms.get_mut(place) else { return false };
            match room.checked_sub(part_of_call(charges.len())) {
                Some(left) if may_charge => {
                    *room = left;
                    true
                }
                _ => false,
            }
        };
        for (charges, mut crowd) in self.charging.take(!groups.are_spread(), may_ask) {
            crowd.streams.retain(|stream| self.waits(*stream));
            let requests = u64::try_from(crowd.streams.len()).unwrap_or(u64::MAX);
            if requests > 0 {
                let decision = Decision::strict(&charges, requests, &policy);
                let asker = Asker::Streams(crowd.streams, charges);
                let job = self.job(asker, decision, crowd.deadline);
                self.group.add_awake(job);
            }
        }
    }

    /// Leaves out requests that are gone, and counts those whose time is over before the store could be
    /// asked for them.
    pub(super) fn leave_crowds(&mut self, host: &mut impl Host, now: Instant) {
        let (streams, mut late) = (&self.streams, 0_u64);
        self.charging.retain(|stream| match streams.get(&stream) {
            Some(Stream::Waiting(waiting)) if waiting.is_over(now) => {
                late = late.saturating_add(1);
                false
            }
            Some(Stream::Waiting(_)) => true,
            _ => false,
        });
        if late > 0 {
            host.count(self.metrics.store_error(StoreError::Timeout), late);
        }
    }

    /// Takes out the requests that the store would have been asked for about a group of keys.
    pub(super) fn take_crowds(&mut self, group: usize) -> Vec<StreamId> {
        let policy = Rc::clone(&self.policy);
        let is_meant = |charges: &[Charge], _| policy.group_of(charges) == group;
        let crowds = self.charging.take(false, is_meant).into_iter();
        crowds.flat_map(|(_, crowd)| crowd.streams).collect()
    }

    /// Takes the store's decision about requests of one kind, or its absence.
    pub(super) fn on_charged(
        &mut self,
        host: &mut impl Host,
        streams: Vec<StreamId>,
        charges: Rc<[Charge]>,
        (result, is_current): (Result<Answer, StoreError>, bool),
        now: Instant,
    ) {
        let Ok(answer) = result else {
            let group = self.policy.group_of(&charges);
            let go_on = |stream| Delivery::GoOn(stream, Unanswered::Group(group));
            return self.group.add_ready(streams.into_iter().map(go_on));
        };
        self.note_granted(host, &charges, &answer, is_current, now);
        // After a grant as after a refusal, the store says whether a further request would fit.
        for (charge, told) in charges.iter().zip(&answer.levels) {
            self.leases.remember(charge, *told, now);
        }
        let charged = Rc::new(Charged::new(charges, answer));
        let told = |(stream, place)| Delivery::Charged(stream, Rc::clone(&charged), place);
        self.group.add_ready(streams.into_iter().zip(0..).map(told));
    }

    /// Sends back what was charged for a request, and noted as granted.
    pub(super) fn give_back_strict(
        &mut self,
        host: &mut impl Host,
        charges: &[Charge],
        granted_at_us: u64,
        now: Instant,
    ) {
        for charge in charges {
            self.ledger.given_back(charge, charge.cost, granted_at_us);
        }
        self.return_strict(host, charges, granted_at_us, now);
    }

    /// Sends back what the store has charged for a request that is not let through after all. Where
    /// it cannot be sent, the units stay spent.
    fn return_strict(
        &mut self,
        host: &mut impl Host,
        charges: &[Charge],
        granted_at_us: u64,
        now: Instant,
    ) {
        // All of them were granted together, so they are of one group.
        let times = vec![granted_at_us; charges.len()];
        let decision = Decision::give_back(charges, times, &self.policy);
        let job = self.job(Asker::Return(0), decision, now.plus(self.store_timeout()));
        let _ = self.add(host, job);
    }
}
