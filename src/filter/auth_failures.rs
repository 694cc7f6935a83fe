//! Clients that fail to authenticate again and again are refused for a while.
//!
//! A failure is an answer that passes the filter on its way to the client. It has happened, so it is
//! charged whether or not there is room; what it leads to is decided when the client comes again,
//! before anything else is.

use std::rc::Rc;

use super::worker::{Step, Stream, Worker};
use super::{Outcome, Refusal};
use crate::host::{Host, StreamId};
use crate::policy::{HeaderMap, Mode, RequestView, Subject};
use crate::units::Instant;

impl Worker {
    /// Answers the request of a client that has failed too often.
    pub(super) fn throttle(
        &mut self,
        host: &mut impl Host,
        request: &RequestView<'_>,
        client: Option<Subject>,
        now: Instant,
    ) -> Option<Step> {
        let policy = Rc::clone(&self.policy);
        let client = policy.watched(request, client)?;
        let rule = policy.auth_failures.as_ref()?;
        let outcome = self.node.peek(host, &[rule.charge(client)], now);
        let verdict = outcome.verdicts.first().filter(|_| !outcome.admitted && !outcome.gave_up)?;
        if self.mode.is(Mode::Shadow) {
            host.count(self.metrics.throttled(Outcome::ShadowRefused), 1);
            return None;
        }
        let refusal = Refusal::auth_throttled(rule, client, verdict.retry_after);
        Some(self.refuse(host, &refusal, request.is_grpc()))
    }

    /// Whether the answer's headers are wanted in [`on_answer`](Self::on_answer).
    #[must_use]
    pub fn watches(&self, stream: StreamId) -> bool {
        // What comes while a request waits is not an answer to what it asked.
        self.policy.auth_failures.is_some()
            && matches!(self.streams.get(&stream), Some(Stream::Admitted { watched: Some(_), .. }))
    }

    /// The headers of an answer from behind this filter have arrived.
    pub fn on_answer(
        &mut self,
        host: &mut impl Host,
        stream: StreamId,
        headers: HeaderMap<'_>,
        now: Instant,
    ) {
        let (Some(Stream::Admitted { watched, .. }), Some(rule)) =
            (self.streams.get_mut(&stream), &self.policy.auth_failures)
        else {
            return;
        };
        let Some(client) = watched.take() else { return };
        if status(headers).is_some_and(|status| rule.statuses.contains(&status)) {
            self.node.charge_regardless(host, &rule.charge(client), now);
        }
    }
}

/// The HTTP status, or the one that a gRPC status stands for: over gRPC a refusal is a 200 whose
/// headers already hold the status, and a client must not choose the one it is counted by.
fn status(headers: HeaderMap<'_>) -> Option<u16> {
    let (mut http, mut grpc) = (None, None);
    for (name, value) in headers.pairs() {
        match (name, value) {
            (b":status", _) => http = str::from_utf8(value).ok().and_then(|text| text.parse().ok()),
            (b"grpc-status", b"16") => grpc = Some(401), // UNAUTHENTICATED
            (b"grpc-status", b"7") => grpc = Some(403),  // PERMISSION_DENIED
            _ => {}
        }
    }
    grpc.or(http)
}
