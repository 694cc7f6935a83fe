//! How a request's decision ends: counted, and answered or let through.

use super::group_commit::Asker;
use super::judgement::{Judgement, blamed, judge, tightest};
use super::worker::{Step, Stream, Worker};
use super::{Outcome, RateLimitFields, Refusal};
use crate::host::{Host, StreamId};
use crate::policy::{Charge, RateLimitHeaders, Scope};
use crate::store::Decision;
use crate::units::Instant;

impl Worker {
    pub(super) fn admit(
        &mut self,
        host: &mut impl Host,
        stream: StreamId,
        judgements: &[Judgement],
    ) -> Step {
        let Some(tightest) = tightest(judgements) else {
            host.count(self.metrics.admitted_without_limit(), 1);
            return Step::Continue;
        };
        let charge = &tightest.charge;
        host.count(self.metrics.requests(charge.place, charge.level, Outcome::Admitted), 1);
        if self.policy.headers.rate_limit == RateLimitHeaders::Always {
            let fields = RateLimitFields::about(tightest, &self.policy);
            self.streams.insert(stream, Stream::Admitted(fields));
        }
        Step::Continue
    }

    pub(super) fn refuse(&mut self, host: &mut impl Host, refusal: &Refusal, grpc: bool) -> Step {
        host.count(self.metrics.refusals(refusal.code), 1);
        let level = refusal.place.zip(refusal.level);
        host.count(
            match level {
                Some((place, level)) => self.metrics.requests(place, level, Outcome::Refused),
                None => self.metrics.errored(),
            },
            1,
        );
        Step::Reply(Box::new(refusal.reply(&self.policy, grpc)))
    }

    /// Evaluates a limit by itself, without any effect on the request.
    pub(super) fn shadow(
        &mut self,
        host: &mut impl Host,
        scope: Scope,
        charges: Vec<Charge>,
        now: Instant,
    ) {
        if charges.is_empty() {
            return;
        }
        match scope {
            Scope::Node => {
                let outcome = self.node.decide(host, &charges, now);
                self.count_shadow(host, &judge(&charges, &outcome.verdicts));
            }
            Scope::Global => {
                let asker = Asker::Shadow(charges.as_slice().into());
                let decision = Decision::decide(&charges, &self.policy);
                let job = self.job(asker, decision, now.plus(self.store_timeout()));
                // A limit that is only watched may miss a request, but must not disturb one.
                if let Err(error) = self.add(host, job) {
                    host.count(self.metrics.store_error(error), 1);
                }
            }
        }
    }

    pub(super) fn count_shadow(&self, host: &mut impl Host, judgements: &[Judgement]) {
        if let Some(Judgement { charge, .. }) = blamed(judgements) {
            let metric = self.metrics.requests(charge.place, charge.level, Outcome::ShadowRefused);
            host.count(metric, 1);
        }
    }
}
