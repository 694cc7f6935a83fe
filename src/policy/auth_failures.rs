//! Which answers count as failed authentications, and how many of them a client may cause.

use super::{Charge, Level, LimitId, Matcher, Policy, RequestView, Subject};
use crate::limiter::{Quota, WindowQuota};

/// The rule, compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthFailures {
    /// The requests that it is about.
    pub matcher: Matcher,
    /// What one client may cause: at most this many failures within the window, and none after.
    pub per_client: WindowQuota,
    /// The statuses that say so.
    pub statuses: Vec<u16>,
}

impl Policy {
    /// The client, where the answer to its request may be a failed authentication.
    #[must_use]
    pub fn watched(&self, request: &RequestView<'_>, client: Option<Subject>) -> Option<Subject> {
        let rule = self.auth_failures.as_ref()?;
        client.filter(|_| rule.matcher.matches(request))
    }
}

impl AuthFailures {
    /// One failure of `client`. It belongs to no limit.
    #[must_use]
    pub fn charge(&self, client: Subject) -> Charge {
        Charge {
            place: usize::MAX,
            id: LimitId::of_auth_failures(),
            level: Level::Client,
            subject: Some(client),
            quota: Quota::Window(self.per_client),
            cost: 1,
        }
    }
}
