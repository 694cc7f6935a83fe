//! A worker's part in giving the store up and probing it.

use super::breaker::PAUSE;
use super::group_commit::{Asker, Ended, Job};
use super::worker::Worker;
use crate::host::Host;
use crate::policy::Scope;
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
        match self.breaker.is_closed() {
            true => self.group.add(host, job),
            false => Err(StoreError::GivenUp),
        }
    }

    /// Learns from how calls ended.
    pub(super) fn note_calls(&mut self, host: &mut impl Host, now: Instant) {
        for Ended { result, time } in self.group.take_ended() {
            host.record(self.metrics.store_time(), time.as_millis_ceil());
            if self.breaker.on_call(result, now) {
                let why = result.err().map_or("", StoreError::name);
                log::warn!(
                    "fairshare: the store is given up ({why}); limits follow on_store_error"
                );
            }
        }
    }

    /// Looks after a store that was given up: trusts it again where another worker's probe was
    /// answered, or probes it where nobody else does.
    pub(super) fn look_after_store(&mut self, host: &mut impl Host, now: Instant) {
        let Some(since) = self.breaker.due(now) else { return };
        let timeout = self.store_timeout();
        match self.health.advise(host, since, timeout.plus(PROBE_SLACK), now) {
            Advice::Trust => self.trust_store(),
            Advice::Wait => {}
            Advice::Probe => {
                if let Some(decision) = self.probe() {
                    let job = self.job(Asker::Probe, decision, now.plus(timeout));
                    self.group.add_awake(job);
                }
            }
        }
    }

    /// Tells the node's other workers what came of a probe.
    pub(super) fn on_probe(&mut self, host: &mut impl Host, answered: bool, now: Instant) {
        self.health.probed(host, answered, PAUSE, now);
        if answered {
            self.trust_store();
        }
    }

    fn trust_store(&mut self) {
        self.breaker.close();
        log::info!("fairshare: the store answers again");
    }

    /// A question that charges nothing: how full the first global limit is.
    fn probe(&self) -> Option<Decision> {
        let mut global = self.policy.limits.iter().filter(|limit| limit.scope == Scope::Global);
        global.find_map(|limit| Decision::look(limit, &self.policy))
    }
}
