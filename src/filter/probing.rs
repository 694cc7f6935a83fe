//! A worker's part in giving the store up and probing it.

use super::breaker::PAUSE;
use super::ended::Ended;
use super::job::{Asker, Delivery, Job, Unanswered};
use super::standing::sits_out;
use super::worker::Worker;
use crate::host::Host;
use crate::store::health::Advice;
use crate::store::{Decision, StoreError};
use crate::units::{Instant, Span};

/// Time that a probe has beyond the store's timeout, before another worker may try.
const PROBE_SLACK: Span = Span::from_millis(200);

impl Worker {
    /// Takes a job on, unless the store is given up.
    ///
    /// # Errors
    ///
    /// Why it is not taken on.
    pub(super) fn add(&mut self, host: &mut impl Host, job: Job) -> Result<(), StoreError> {
        match self.groups.is_asked(job.decision.group) {
            true => self.group.add(host, job),
            false => Err(StoreError::GivenUp),
        }
    }

    /// Learns from how calls ended.
    pub(super) fn note_calls(&mut self, host: &mut impl Host, now: Instant) {
        let Ended { times, results, followed } = self.group.take_ended();
        for time in times {
            host.record(self.metrics.store_time(), time.as_millis_ceil());
        }
        for error in followed {
            host.count(self.metrics.store_error(error), 1);
        }
        for (group, result) in results {
            if self.groups.on_call(group, result, now) {
                let why = result.err().map_or("", StoreError::name);
                log::warn!(
                    "fairshare: the store is given up ({why}); limits follow on_store_error"
                );
                self.give_up_group(host, group);
            }
        }
    }

    /// Lets everybody go who waits to ask about a group of keys that is given up. Only those wait on for
    /// whom it is being charged: what it charges must be given back.
    fn give_up_group(&mut self, host: &mut impl Host, group: usize) {
        let (mut unasked, asked) = self.take_from_questions(group);
        unasked.append(&mut self.take_crowds(group));
        if !unasked.is_empty() {
            let count = u64::try_from(unasked.len()).unwrap_or(u64::MAX);
            host.count(self.metrics.store_error(StoreError::GivenUp), count);
        }
        let go_on = |stream| Delivery::GoOn(stream, Unanswered::Group(group));
        self.group.add_ready(asked.into_iter().chain(unasked).map(go_on));
        self.group.give_up(group);
    }

    /// Looks after what was given up: trusts it again where another worker's probe was answered, or
    /// probes it where nobody else does.
    pub(super) fn look_after_store(&mut self, host: &mut impl Host, now: Instant) {
        let timeout = self.store_timeout();
        let time = self.standing.may_claim().then_some(timeout.plus(PROBE_SLACK));
        for number in 0..self.groups.len() {
            let Some(group) = self.groups.get_mut(number) else { continue };
            let Some(since) = group.breaker.due(now) else { continue };
            match group.health.advise(host, since, time, now) {
                Advice::Trust => group.trust(),
                Advice::Wait => {}
                Advice::Probe => {
                    group.breaker.wait(now.plus(PAUSE));
                    let known = self.group.known.iter().find(|known| known.group == number);
                    if let Some(decision) = known.map(Decision::poll) {
                        let job = self.job(Asker::Probe(number), decision, now.plus(timeout));
                        self.group.add_awake(job);
                    }
                }
            }
        }
    }

    /// Tells the node's other workers what came of a probe.
    pub(super) fn on_probe(
        &mut self,
        host: &mut impl Host,
        group: usize,
        answered: bool,
        now: Instant,
    ) {
        if let Some(group) = self.groups.get_mut(group) {
            group.health.probed(host, answered, PAUSE, now);
            match answered {
                true => group.trust(),
                false => group.breaker.wait(now.plus(sits_out(PAUSE))),
            }
        }
    }
}
