//! How a request's decision ends: counted, and answered or let through.

use std::rc::Rc;

use super::decide::{Settled, Undecided};
use super::fields::Telling;
use super::job::Asker;
use super::judgement::{Admission, Judgement, blamed, judge};
use super::worker::{Step, Stream, Worker};
use super::{Code, Outcome, Refusal};
use crate::host::Host;
use crate::policy::{RateLimitHeaders, Shadow};
use crate::store::Decision;
use crate::units::Instant;

impl Worker {
    /// Lets the request through, or refuses it.
    pub(super) fn end(
        &mut self,
        host: &mut impl Host,
        request: Undecided,
        settled: Settled,
        now: Instant,
    ) -> Step {
        match settled {
            Settled::Admitted(admission) => self.admit(host, request, admission),
            Settled::Refused(refusal) => {
                self.release(host, request.shadow_slots, || now);
                self.refuse(host, &refusal, request.grpc)
            }
        }
    }

    fn admit(&mut self, host: &mut impl Host, request: Undecided, admission: Admission) -> Step {
        let mut telling = None;
        let metric = match admission.tightest() {
            None => self.metrics.admitted_without_limit(),
            Some(tightest) => {
                let charge = &tightest.charge;
                let always = self.policy.headers.rate_limit == RateLimitHeaders::Always;
                if always && !charge.quota.is_in_flight() {
                    telling = Some(Telling::of(tightest));
                }
                self.metrics.requests(charge.place, charge.level, Outcome::Admitted)
            }
        };
        host.count(metric, 1);
        let mut slots = admission.slots;
        slots.extend(request.shadow_slots);
        let watched = request.watched;
        if telling.is_some() || !slots.is_empty() || watched.is_some() {
            self.streams.insert(request.stream, Stream::Admitted { telling, slots, watched });
        }
        Step::Continue
    }

    /// Gives back slots of requests in flight.
    pub(super) fn release(
        &mut self,
        host: &mut impl Host,
        slots: Vec<Judgement>,
        now: impl FnOnce() -> Instant,
    ) {
        let mut at_once = Vec::new();
        for Judgement { charge, verdict } in slots {
            if !self.node.refund_later(&charge, &verdict) {
                at_once.push(charge);
            }
        }
        if !at_once.is_empty() {
            self.node.release(host, &at_once, now());
        }
    }

    pub(super) fn refuse(&mut self, host: &mut impl Host, refusal: &Refusal, grpc: bool) -> Step {
        self.count_refusal(host, refusal);
        Step::Reply(Rc::new(refusal.reply(&self.policy, grpc)))
    }

    pub(super) fn count_refusal(&mut self, host: &mut impl Host, refusal: &Refusal) {
        host.count(self.metrics.refusals(refusal.code), 1);
        let level = refusal.place.zip(refusal.level);
        host.count(
            match level {
                Some((place, level)) => self.metrics.requests(place, level, Outcome::Refused),
                None if refusal.code == Code::AuthThrottled => {
                    self.metrics.throttled(Outcome::Refused)
                }
                None => self.metrics.errored(),
            },
            1,
        );
        if let (Some(level), Some(subject)) = (refusal.level, &refusal.subject) {
            match refusal.place.and_then(|place| self.policy.limits.get(place)) {
                Some(limit) => self.refused.add(&limit.name, level, subject),
                None => self.refused.add(&"none".into(), level, subject),
            }
        }
    }

    /// Tells who was refused most, where it is time.
    pub(super) fn tell_refused(&mut self, host: &mut impl Host, now: Instant) {
        if let Some(top) = self.refused.tell(host, now) {
            let top: Vec<String> = top.iter().map(ToString::to_string).collect();
            log::info!("fairshare: top refused: {}", top.join(", "));
        }
    }

    /// Evaluates a limit by itself, without any effect on the request. Returns the slots that the
    /// request holds in it.
    pub(super) fn shadow(
        &mut self,
        host: &mut impl Host,
        shadow: Shadow,
        now: Instant,
    ) -> Vec<Judgement> {
        let Shadow { node, global } = shadow;
        let mut slots = Vec::new();
        if !node.is_empty() {
            let outcome = self.node.decide(host, &node, now);
            slots = judge(&node, &outcome.verdicts);
            if !outcome.admitted {
                self.count_shadow(host, &slots);
                return Vec::new();
            }
        }
        if !global.is_empty() {
            let asker = Asker::Shadow(global.as_slice().into());
            let decision = Decision::decide(&global, &self.policy);
            let job = self.job(asker, decision, now.plus(self.store_timeout()));
            // A limit that is only watched may miss a request, but must not disturb one.
            if let Err(error) = self.add(host, job) {
                host.count(self.metrics.store_error(error), 1);
            }
        }
        slots.retain(|slot| slot.charge.quota.is_in_flight());
        slots
    }

    pub(super) fn count_shadow(&self, host: &mut impl Host, judgements: &[Judgement]) {
        if let Some(Judgement { charge, .. }) = blamed(judgements) {
            let metric = self.metrics.requests(charge.place, charge.level, Outcome::ShadowRefused);
            host.count(metric, 1);
        }
    }
}
