//! Sending what waits for the store, and delivering what came of it.

use super::decide::Settled;
use super::group_commit::{Asker, Delivery, Job, Ticket};
use super::judgement::judge;
use super::worker::{Step, Stream, Worker};
use crate::host::{Host, StreamId};
use crate::policy::Charge;
use crate::store::{Answer, Decision, StoreError};
use crate::units::{Instant, Span};

impl Worker {
    pub(super) fn send(&mut self, host: &mut impl Host, now: Instant) {
        let Some(store) = &self.policy.store else { return };
        let streams = &self.streams;
        self.group.send(host, store, now, |asker| match asker {
            Asker::Stream(stream) => streams.contains_key(stream),
            Asker::Shadow(_) => true,
        });
    }

    pub(super) fn deliver(&mut self, host: &mut impl Host, now: Instant) {
        for Delivery { asker, result } in self.group.take_ready() {
            host.count(
                match &result {
                    Ok(_) => self.metrics.store_ok(),
                    Err(error) => self.metrics.store_error(*error),
                },
                1,
            );
            match asker {
                Asker::Stream(stream) => self.deliver_to(host, stream, result, now),
                Asker::Shadow(charges) => {
                    let verdicts = result.map(|answer| answer.verdicts()).unwrap_or_default();
                    self.count_shadow(host, &judge(&charges, &verdicts));
                }
            }
        }
        if self.group.has_ready() && host.wake().is_err() {
            log::error!("the host refuses wake-ups; the next tick goes on");
        }
    }

    fn deliver_to(
        &mut self,
        host: &mut impl Host,
        stream: StreamId,
        result: Result<Answer, StoreError>,
        now: Instant,
    ) {
        let Some(Stream::Waiting(waiting)) = self.streams.remove(&stream) else { return };
        let grpc = waiting.grpc;
        let step = match self.settle(host, *waiting, result, now) {
            Settled::Admitted(judgements) => self.admit(host, stream, &judgements),
            Settled::Refused(refusal) => self.refuse(host, &refusal, grpc),
        };
        match step {
            Step::Reply(reply) => host.reply(stream, &reply),
            Step::Continue | Step::Pause => host.resume(stream),
        }
    }

    pub(super) fn job(&self, asker: Asker, charges: &[Charge], now: Instant) -> Job {
        let timeout = self.policy.store.as_ref().map_or(Span::ZERO, |store| store.timeout);
        let ticket = Ticket { asker, deadline: now.plus(timeout), reloaded: false };
        Job { ticket, decision: Decision::new(charges, &self.policy) }
    }
}
