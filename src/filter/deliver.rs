//! Sending what waits for the store, and delivering what came of it.

use super::decide::Waiting;
use super::job::{Asker, Delivery, Job, Ticket};
use super::judgement::judge;
use super::worker::{Step, Stream, Worker};
use crate::host::{Host, StreamId};
use crate::store::{Answer, Decision, StoreError};
use crate::units::{Instant, Span};

/// Requests resumed or answered in one callback. The host runs each of them nested in the one
/// before, on one stack.
const DELIVERIES_MAX: usize = 64;

impl Worker {
    pub(super) fn send(&mut self, host: &mut impl Host, now: Instant) {
        self.queue_questions(now);
        self.queue_charging(now);
        let Some(store) = &self.policy.store else { return };
        let streams = &self.streams;
        self.group.send(host, store, &self.groups, now, |asker| match asker {
            Asker::Streams(asking, _) => asking.iter().any(|stream| streams.contains_key(stream)),
            _ => true,
        });
    }

    pub(super) fn deliver(&mut self, host: &mut impl Host, now: Instant) {
        self.note_calls(host, now);
        for _ in 0..DELIVERIES_MAX {
            match self.group.take_ready() {
                None => break,
                Some(delivery) => self.deliver_one(host, delivery, now),
            }
        }
        if self.group.has_ready() && host.wake().is_err() {
            log::error!("the host refuses wake-ups; the next tick goes on");
        }
    }

    fn deliver_one(&mut self, host: &mut impl Host, delivery: Delivery, now: Instant) {
        match delivery {
            Delivery::Answer(asker, result, group) => {
                let metric = match &result {
                    Ok(_) => self.metrics.store_ok(),
                    Err(error) => self.metrics.store_error(*error),
                };
                if asker != Asker::Poll {
                    host.count(metric, 1);
                }
                let is_current = match &result {
                    Ok(answer) => self.group.is_current(answer, group),
                    Err(_) => false,
                };
                self.deliver_answer(host, asker, (result, is_current), now);
            }
            Delivery::Charged(stream, charged, place) if self.waits(stream) => {
                self.deliver_to(host, stream, |worker, host, waiting| {
                    worker.settle(host, waiting, charged, place, now)
                });
            }
            // Charged for a request that is gone, or was decided without the store.
            Delivery::Charged(_, charged, place) => {
                if charged.is_admitted(place) {
                    self.give_back_strict(host, &charged.charges, charged.granted_at_us, now);
                }
            }
            Delivery::GoOn(stream, unanswered) => {
                self.deliver_to(host, stream, |worker, host, waiting| {
                    worker.advance_without(host, waiting, unanswered, now)
                });
            }
        }
    }

    fn deliver_answer<H: Host>(
        &mut self,
        host: &mut H,
        asker: Asker,
        (result, is_current): (Result<Answer, StoreError>, bool),
        now: Instant,
    ) {
        match asker {
            Asker::Streams(streams, charges) => {
                self.on_charged(host, streams, charges, (result, is_current), now);
            }
            Asker::Shadow(charges) => {
                let verdicts = result.map(|answer| answer.levels).unwrap_or_default();
                self.count_shadow(host, &judge(&charges, &verdicts));
            }
            Asker::Lease(charges, sent_at) => {
                self.on_leases(host, &charges, sent_at, (result, is_current), now);
            }
            Asker::Report(charges) => self.on_report(&charges, &result, is_current),
            Asker::Poll => {}
            Asker::Return(units) => self.leases.returned(units, result.is_ok()),
            Asker::Probe(group) => {
                // What is wrong with a key alone is an answer of a store that works.
                let answered = !result.is_err_and(StoreError::is_about_the_store);
                self.on_probe(host, group, answered, now);
            }
        }
    }

    /// Goes on with a request that waits, if it still does.
    fn deliver_to<H: Host>(
        &mut self,
        host: &mut H,
        stream: StreamId,
        go_on: impl FnOnce(&mut Self, &mut H, Waiting) -> Option<Step>,
    ) {
        // An answer may come late, for a request that has been let through without it.
        if !self.waits(stream) {
            return;
        }
        let Some(Stream::Waiting(waiting)) = self.streams.remove(&stream) else { return };
        match go_on(self, host, *waiting) {
            None | Some(Step::Pause) => {}
            Some(Step::Continue) => host.resume(stream),
            Some(Step::Reply(reply)) => host.reply(stream, &reply),
        }
    }

    pub(super) fn waits(&self, stream: StreamId) -> bool {
        matches!(self.streams.get(&stream), Some(Stream::Waiting(_)))
    }

    /// The longest time for which the store may delay a request.
    pub(super) fn store_timeout(&self) -> Span {
        self.policy.store.as_ref().map_or(Span::ZERO, |store| store.timeout)
    }

    pub(super) fn job(&self, asker: Asker, decision: Decision, deadline: Instant) -> Job {
        let ticket = Ticket { asker, deadline, reloaded: false, detours: 0, detour: None };
        Job { ticket, decision }
    }
}
