//! Group commit: what many requests ask goes to the store in one call.
//!
//! Requests put themselves on a list; the wake-up that follows sends all of them at once. While
//! [`CALLS_MAX`] calls are under way the list waits for one to end, so a slow store makes larger
//! calls, not more of them.

use std::collections::VecDeque;

use super::ended::Ended;
use super::job::{Asker, Delivery, Job, Ticket};
use super::key_groups::KeyGroups;
use super::pace::Pace;
use crate::host::{CallId, Host, StoreCall};
use crate::policy::StorePolicy;
use crate::store::cluster::Node;
use crate::store::epoch::Known;
use crate::store::{
    Answer, DECISIONS_MAX, Decision, PIPELINE_CHARGES_MAX, Redirections, ScriptCall, StoreError,
    decode, encode,
};
use crate::units::{Instant, Span};

/// Calls of one worker to one node that are under way at a time.
const CALLS_MAX: usize = 8;

/// For how long requests to be charged wait for the end of a call that charges others, rather than make
/// another. A store nearby has answered by then, and a call costs a proxy as much as some ten requests do.
const PATIENCE: Span = Span::from_millis(2);

/// Decisions that wait for a call. More are not taken: their limits follow `on_store_error`.
pub(super) const WAITING_MAX: usize = 16_384;

/// Time after its end at which a call that the host has not reported is given up.
const FORGOTTEN_AFTER: Span = Span::from_secs(1);

/// The shortest timeout that the host does not read as "none".
const TIMEOUT_MIN: Span = Span::from_millis(1);

/// A call that is under way. It lasts until the last of its tickets is over; requests whose own
/// deadline comes first do not wait for its end.
#[derive(Debug)]
struct Call {
    node: Option<Node>,
    tickets: Vec<Ticket>,
    decisions: Vec<Decision>,
    charges: usize,
    /// Whether requests wait to be charged by it.
    has_crowds: bool,
    script: ScriptCall,
    sent_at: Instant,
    deadline: Instant,
}

/// The jobs of one worker.
#[derive(Debug, Default)]
pub(super) struct GroupCommit {
    waiting: VecDeque<Job>,
    /// Whether a wake-up, or the end of a call that all wait for, is on its way.
    is_woken: bool,
    /// What waits for the next tick, because its keys are on their way.
    later: VecDeque<Job>,
    /// At most [`CALLS_MAX`] for each node.
    calls: Vec<(CallId, Call)>,
    ready: VecDeque<Delivery>,
    /// Calls that ended since the last look.
    ended: Ended,
    /// How often leases may be asked for.
    pub(super) pace: Pace,
    /// What is known of the store's records.
    pub(super) known: Vec<Known>,
}

impl GroupCommit {
    /// No jobs yet, and nothing known but where the records are.
    pub(super) fn new(known: Vec<Known>) -> Self {
        Self { known, ..Self::default() }
    }

    /// Whether few enough jobs wait that `more` can join them.
    pub(super) fn has_room(&self, more: usize) -> bool {
        self.waiting.len() <= more
    }

    /// Whether an answer is of the latest epoch that is known of its group of keys.
    pub(super) fn is_current(&self, answer: &Answer, group: usize) -> bool {
        let known = self.known.iter().find(|known| known.group == group);
        known.is_none_or(|known| known.state.epoch == answer.state.epoch)
    }

    /// Takes a job on.
    ///
    /// # Errors
    ///
    /// Why it is not taken on: too many wait, or the host will not call back.
    pub(super) fn add(&mut self, host: &mut impl Host, job: Job) -> Result<(), StoreError> {
        if self.waiting.len() >= WAITING_MAX {
            return Err(StoreError::Overloaded);
        }
        self.wake(host)?;
        self.waiting.push_back(job);
        Ok(())
    }

    /// Asks for a wake-up, where none is on its way.
    ///
    /// # Errors
    ///
    /// The host will not call back.
    pub(super) fn wake(&mut self, host: &mut impl Host) -> Result<(), StoreError> {
        if !self.is_woken {
            host.wake().map_err(|_| StoreError::Unreachable)?;
            self.is_woken = true;
        }
        Ok(())
    }

    /// Takes on a job that nobody needs to be woken for.
    pub(super) fn add_awake(&mut self, job: Job) {
        self.waiting.push_back(job);
    }

    /// Puts deliveries at the end of those that are ready.
    pub(super) fn add_ready(&mut self, deliveries: impl Iterator<Item = Delivery>) {
        self.ready.extend(deliveries);
    }

    /// Sends what waits, as far as calls may be made. Jobs for which `wanted` is false are dropped.
    pub(super) fn send(
        &mut self,
        host: &mut impl Host,
        store: &StorePolicy,
        groups: &KeyGroups,
        now: Instant,
        wanted: impl Fn(&Asker) -> bool,
    ) {
        let mut made: Vec<Call> = Vec::new();
        let mut left = VecDeque::new();
        while let Some(mut job) = self.waiting.pop_front() {
            let node = job.ticket.detour.clone().or_else(|| groups.node(job.decision.group));
            let joins = made.iter().rposition(|call| call.takes(&job, node.as_ref()));
            if joins.is_none() && !self.may_call(node.as_ref(), &made) {
                if !groups.are_spread() {
                    self.waiting.push_front(job);
                    break;
                }
                // One node that is busy keeps nobody from the others.
                left.push_back(job);
                continue;
            }
            if !wanted(&job.ticket.asker) {
                continue;
            }
            if job.ticket.deadline <= now {
                self.fail(job.ticket, StoreError::Timeout);
                continue;
            }
            if let Some(known) = self.known.iter().find(|known| known.group == job.decision.group) {
                job.decision.known = known.state;
            }
            match joins.and_then(|place| made.get_mut(place)) {
                Some(call) => call.push(job),
                None => made.push(Call::new(node, job, now)),
            }
        }
        self.waiting.append(&mut left);
        self.is_woken = !groups.are_spread() && !self.waiting.is_empty();
        for call in made {
            self.make(host, store, call, now);
        }
    }

    /// Whether a node may be asked to charge requests, the first of which came at `since`. They wait for
    /// others like them that are being charged, and for no other call. Where it may not be asked, a
    /// call is under way that will end.
    pub(super) fn may_charge(&self, node: Option<&Node>, since: Instant, now: Instant) -> bool {
        let is_young = |call: &Call| {
            call.has_crowds && call.node.as_ref() == node && now.since(call.sent_at) < PATIENCE
        };
        let is_patient = now.since(since) < PATIENCE;
        self.may_call(node, &[])
            && !(is_patient && self.calls.iter().any(|(_, call)| is_young(call)))
    }

    /// The parts of calls that are free for crowds that are to be charged by a node, and not for jobs that
    /// wait already.
    pub(super) fn room(&self, groups: &KeyGroups, node: Option<&Node>) -> usize {
        let under_way = self.calls.iter().filter(|(_, call)| call.node.as_ref() == node).count();
        let calls = CALLS_MAX.saturating_sub(under_way).saturating_mul(PIPELINE_CHARGES_MAX);
        let waits = |job: &&Job| {
            let is_crowd = matches!(job.ticket.asker, Asker::Streams(..));
            is_crowd && groups.node(job.decision.group).as_ref() == node
        };
        let waiting = self.waiting.iter().filter(waits);
        let parts = waiting.map(|job| part_of_call(job.decision.charges.len()));
        parts.fold(calls, usize::saturating_sub)
    }

    fn may_call(&self, node: Option<&Node>, made: &[Call]) -> bool {
        let under_way = self.calls.iter().map(|(_, call)| call).chain(made);
        under_way.filter(|call| call.node.as_ref() == node).count() < CALLS_MAX
    }

    fn make(&mut self, host: &mut impl Host, store: &StorePolicy, call: Call, now: Instant) {
        let request = StoreCall {
            cluster: &store.cluster,
            node: call.node.as_deref(),
            body: &encode(store, &call.decisions, call.script),
            timeout: call.deadline.since(now).max(TIMEOUT_MIN),
        };
        match host.call_store(&request) {
            Ok(id) => self.calls.push((id, call)),
            Err(error) => self.fail_call(call, error, Span::ZERO),
        }
    }

    /// Takes a call's result. A script that the store forgot is sent once more, and redirections of a
    /// Redis Cluster are followed.
    pub(super) fn receive(
        &mut self,
        store: &StorePolicy,
        groups: &mut KeyGroups,
        id: CallId,
        body: Result<&[u8], StoreError>,
        now: Instant,
    ) {
        let Some(place) = self.calls.iter().position(|(call, _)| *call == id) else { return };
        let (_, call) = self.calls.swap_remove(place);
        let time = now.since(call.sent_at);
        let body = match body {
            Ok(body) => body,
            // The tunnel has answered before the store does, so the host's timeout breaks it off.
            Err(StoreError::Reset) if call.deadline.since(now) < TIMEOUT_MIN => {
                return self.fail_call(call, StoreError::Timeout, time);
            }
            Err(error) => return self.fail_call(call, error, time),
        };
        let Call { tickets, decisions, script, .. } = call;
        let answers = decode(store, &decisions, script, body);
        let is_elsewhere = |answer: &_| matches!(answer, Err(StoreError::Moved | StoreError::Ask));
        let mut elsewhere =
            (answers.iter().any(is_elsewhere)).then(|| Redirections::new(store, script, body));
        let from = self.ended.begin(time);
        for ((mut ticket, decision), answer) in tickets.into_iter().zip(decisions).zip(answers) {
            let redirection = elsewhere.as_mut().and_then(Redirections::take);
            let goes_on = match answer {
                Err(StoreError::NoScript) if !ticket.reloaded => {
                    ticket.reloaded = true;
                    true
                }
                Err(error) if ticket.may_go_on(groups, error, redirection) => {
                    self.ended.followed.push(error);
                    true
                }
                _ => false,
            };
            if goes_on {
                let later = matches!(answer, Err(StoreError::TryAgain));
                let queue = if later { &mut self.later } else { &mut self.waiting };
                queue.push_back(Job { ticket, decision });
            } else {
                let result = answer.as_ref().map(drop).map_err(|error| *error);
                self.ended.note(from, decision.group, result);
                let known = self.known.iter_mut().find(|known| known.group == decision.group);
                if let (Some(known), Ok(answer)) = (known, &answer) {
                    known.learn(answer, now);
                }
                self.ready.push_back(Delivery::Answer(ticket.asker, answer, decision.group));
            }
        }
    }

    fn fail_call(&mut self, call: Call, error: StoreError, time: Span) {
        let from = self.ended.begin(time);
        for (ticket, decision) in call.tickets.into_iter().zip(call.decisions) {
            self.ended.note(from, decision.group, Err(error));
            self.fail(ticket, error);
        }
    }

    fn fail(&mut self, ticket: Ticket, error: StoreError) {
        self.ready.push_back(Delivery::Answer(ticket.asker, Err(error), 0));
    }

    /// Takes up again what was to wait for a tick.
    pub(super) fn try_again(&mut self) {
        self.waiting.append(&mut self.later);
    }

    /// Drops what waits to be asked about a group of keys that is given up, but for probes.
    pub(super) fn give_up(&mut self, group: usize) {
        for queue in [&mut self.waiting, &mut self.later] {
            for job in std::mem::take(queue) {
                if job.decision.group != group || matches!(job.ticket.asker, Asker::Probe(_)) {
                    queue.push_back(job);
                    continue;
                }
                let result = Err(StoreError::GivenUp);
                self.ready.push_back(Delivery::Answer(job.ticket.asker, result, group));
            }
        }
    }

    /// Gives up calls that should have ended long ago: the host has forgotten them.
    pub(super) fn forget(&mut self, now: Instant) {
        let calls = std::mem::take(&mut self.calls);
        for (id, call) in calls {
            match call.deadline.plus(FORGOTTEN_AFTER) <= now {
                true => {
                    let time = now.since(call.sent_at);
                    self.fail_call(call, StoreError::Timeout, time);
                }
                false => self.calls.push((id, call)),
            }
        }
    }

    /// Calls that ended since the last look.
    pub(super) fn take_ended(&mut self) -> Ended {
        std::mem::take(&mut self.ended)
    }

    /// The next delivery.
    pub(super) fn take_ready(&mut self) -> Option<Delivery> {
        self.ready.pop_front()
    }

    /// Whether deliveries are left for another callback.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }
}

/// What a question with so many charges takes of a call, which has [`PIPELINE_CHARGES_MAX`] parts.
pub(super) fn part_of_call(charges: usize) -> usize {
    charges.max(PIPELINE_CHARGES_MAX / DECISIONS_MAX)
}

impl Call {
    fn new(node: Option<Node>, job: Job, now: Instant) -> Self {
        let script = match job.ticket.detour {
            Some(_) => ScriptCall::Asking,
            None => ScriptCall::Cached,
        };
        let (tickets, decisions) = (Vec::new(), Vec::new());
        let mut call = Self {
            node,
            tickets,
            decisions,
            charges: 0,
            has_crowds: false,
            script,
            sent_at: now,
            deadline: now,
        };
        call.push(job);
        call
    }

    /// Whether a job for `node` may join it.
    fn takes(&self, job: &Job, node: Option<&Node>) -> bool {
        self.node.as_ref() == node
            && job.ticket.detour.is_some() == (self.script == ScriptCall::Asking)
            && self.tickets.len() < DECISIONS_MAX
            && self.charges.saturating_add(job.decision.charges.len()) <= PIPELINE_CHARGES_MAX
    }

    fn push(&mut self, Job { ticket, decision }: Job) {
        if ticket.reloaded && self.script == ScriptCall::Cached {
            self.script = ScriptCall::Load;
        }
        self.charges = self.charges.saturating_add(decision.charges.len());
        self.has_crowds |= matches!(ticket.asker, Asker::Streams(..));
        self.deadline = self.deadline.max(ticket.deadline);
        self.tickets.push(ticket);
        self.decisions.push(decision);
    }
}
