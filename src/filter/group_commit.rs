//! Group commit: decisions of many requests go to the store in one call.
//!
//! Requests put themselves on a list; the wake-up that follows sends all of them at once. While
//! [`CALLS_MAX`] calls are under way the list waits for one to end, so a slow store makes larger
//! calls, not more of them.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::host::{CallId, Host, StoreCall, StreamId};
use crate::policy::{Charge, StorePolicy};
use crate::store::{
    Answer, DECISIONS_MAX, Decision, PIPELINE_CHARGES_MAX, ScriptCall, StoreError, decode, encode,
};
use crate::units::{Instant, Span};

/// Calls of one worker that are under way at a time.
const CALLS_MAX: usize = 8;

/// Decisions that wait for a call. More are not taken: their limits follow `on_store_error`.
const WAITING_MAX: usize = 16_384;

/// Requests resumed or answered in one callback. The host runs each of them nested in the one
/// before, on one stack.
const DELIVERIES_MAX: usize = 64;

/// Time after its end at which a call that the host has not reported is given up.
const FORGOTTEN_AFTER: Span = Span::from_secs(1);

/// The shortest timeout that the host does not read as "none".
const TIMEOUT_MIN: Span = Span::from_millis(1);

/// Who wants to know a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// A paused request, and what it is to be charged to.
    Stream(StreamId, Rc<[Charge]>),
    /// Nobody waits: these are the charges of a limit in shadow mode.
    Shadow(Rc<[Charge]>),
    /// The leases of these charges, asked for at this time.
    Lease(Rc<[Charge]>, Instant),
    /// Nobody waits: so many units go back.
    Return(u64),
    /// Nobody waits: does the store answer?
    Probe,
}

/// A decision that is wanted from the store.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) ticket: Ticket,
    pub(super) decision: Decision,
}

/// Who wants a decision, and until when.
#[derive(Clone, Debug)]
pub(super) struct Ticket {
    pub(super) asker: Asker,
    pub(super) deadline: Instant,
    /// Whether the script was already sent for it; then it is not sent again.
    pub(super) reloaded: bool,
}

/// A call that is under way. It lasts until the last of its tickets is over; requests whose own
/// deadline comes first do not wait for its end.
#[derive(Debug)]
struct Call {
    tickets: Vec<Ticket>,
    decisions: Vec<Decision>,
    script: ScriptCall,
    sent_at: Instant,
    deadline: Instant,
}

/// How a call ended: answered, or why not, and after how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) result: Result<(), StoreError>,
    pub(super) time: Span,
}

/// What someone is to hear.
#[derive(Debug)]
pub(super) enum Delivery {
    /// What the store, or its absence, said.
    Answer(Asker, Result<Answer, StoreError>),
    /// To a request: its leases may be there now, or it is to be decided without the store.
    GoOn(StreamId, Option<StoreError>),
}

/// The jobs of one worker.
#[derive(Debug, Default)]
pub(super) struct GroupCommit {
    waiting: VecDeque<Job>,
    /// At most [`CALLS_MAX`].
    calls: Vec<(CallId, Call)>,
    ready: VecDeque<Delivery>,
    /// Calls that ended since the last look.
    ended: Vec<Ended>,
}

impl GroupCommit {
    /// Takes a job on.
    ///
    /// # Errors
    ///
    /// Why it is not taken on: too many wait, or the host will not call back.
    pub(super) fn add(&mut self, host: &mut impl Host, job: Job) -> Result<(), StoreError> {
        if self.waiting.len() >= WAITING_MAX {
            return Err(StoreError::Overloaded);
        }
        // Where others wait, a wake-up or the end of a call is already on its way.
        if self.waiting.is_empty() {
            host.wake().map_err(|_| StoreError::Unreachable)?;
        }
        self.waiting.push_back(job);
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
        now: Instant,
        wanted: impl Fn(&Asker) -> bool,
    ) {
        while self.calls.len() < CALLS_MAX {
            let call = self.next_call(now, &wanted);
            if call.tickets.is_empty() {
                return;
            }
            let body = encode(store, &call.decisions, call.script);
            let timeout = call.deadline.since(now).max(TIMEOUT_MIN);
            match host.call_store(&StoreCall { cluster: &store.cluster, body: &body, timeout }) {
                Ok(id) => self.calls.push((id, call)),
                Err(error) => self.fail_call(&call.tickets, error, Span::ZERO),
            }
        }
    }

    fn next_call(&mut self, now: Instant, wanted: impl Fn(&Asker) -> bool) -> Call {
        let mut call = Call {
            tickets: Vec::new(),
            decisions: Vec::new(),
            script: ScriptCall::Cached,
            sent_at: now,
            deadline: now,
        };
        let mut charges_left = PIPELINE_CHARGES_MAX;
        while call.tickets.len() < DECISIONS_MAX {
            let Some(Job { ticket, decision }) = self.waiting.pop_front() else { break };
            if !wanted(&ticket.asker) {
                continue;
            }
            let Some(left) = charges_left.checked_sub(decision.charges.len()) else {
                self.waiting.push_front(Job { ticket, decision });
                break;
            };
            charges_left = left;
            if ticket.deadline.since(now) < TIMEOUT_MIN {
                self.fail(&[ticket], StoreError::Timeout);
                continue;
            }
            if ticket.reloaded {
                call.script = ScriptCall::Load;
            }
            call.deadline = call.deadline.max(ticket.deadline);
            call.tickets.push(ticket);
            call.decisions.push(decision);
        }
        call
    }

    /// Takes a call's result. A script that the store forgot is sent once more.
    pub(super) fn receive(
        &mut self,
        store: &StorePolicy,
        id: CallId,
        body: Result<&[u8], StoreError>,
        now: Instant,
    ) {
        let Some(place) = self.calls.iter().position(|(call, _)| *call == id) else { return };
        let (_, call) = self.calls.swap_remove(place);
        let Call { tickets, decisions, script, sent_at, deadline } = call;
        let time = now.since(sent_at);
        let body = match body {
            Ok(body) => body,
            // The tunnel has answered before the store does, so the host's timeout breaks it off.
            Err(StoreError::Reset) if deadline.since(now) < TIMEOUT_MIN => {
                return self.fail_call(&tickets, StoreError::Timeout, time);
            }
            Err(error) => return self.fail_call(&tickets, error, time),
        };
        let results = decode(store, &decisions, script, body);
        let first = results.iter().find_map(|result| result.as_ref().err().copied());
        let answered = results.iter().any(Result::is_ok);
        let result = match first {
            Some(error) if !answered => Err(error),
            _ => Ok(()),
        };
        self.ended.push(Ended { result, time });
        for ((mut ticket, decision), result) in tickets.into_iter().zip(decisions).zip(results) {
            if matches!(result, Err(StoreError::NoScript)) && !ticket.reloaded {
                ticket.reloaded = true;
                self.waiting.push_back(Job { ticket, decision });
            } else {
                self.ready.push_back(Delivery::Answer(ticket.asker, result));
            }
        }
    }

    fn fail_call(&mut self, tickets: &[Ticket], error: StoreError, time: Span) {
        self.ended.push(Ended { result: Err(error), time });
        self.fail(tickets, error);
    }

    fn fail(&mut self, tickets: &[Ticket], error: StoreError) {
        let failed = |ticket: &Ticket| Delivery::Answer(ticket.asker.clone(), Err(error));
        self.ready.extend(tickets.iter().map(failed));
    }

    /// Gives up calls that should have ended long ago: the host has forgotten them.
    pub(super) fn forget(&mut self, now: Instant) {
        let calls = std::mem::take(&mut self.calls);
        for (id, call) in calls {
            match call.deadline.plus(FORGOTTEN_AFTER) <= now {
                true => {
                    let time = now.since(call.sent_at);
                    self.fail_call(&call.tickets, StoreError::Timeout, time);
                }
                false => self.calls.push((id, call)),
            }
        }
    }

    /// Calls that ended since the last look.
    pub(super) fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    /// The deliveries of one callback.
    pub(super) fn take_ready(&mut self) -> Vec<Delivery> {
        let count = self.ready.len().min(DELIVERIES_MAX);
        self.ready.drain(..count).collect()
    }

    /// Whether deliveries are left for another callback.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }
}
