//! The `RateLimit` and `RateLimit-Policy` fields (draft-ietf-httpapi-ratelimit-headers-11).

use super::judgement::Judgement;
use crate::policy::Policy;

/// The largest integer of a structured field (RFC 9651, 3.3.1).
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// The two fields' values, about one level of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitFields {
    /// `RateLimit-Policy`: what the level allows. `w` is the window, or the time in which an empty
    /// GCRA bucket fills up, in whole seconds rounded up.
    pub policy: String,
    /// `RateLimit`: what is left of it, and the seconds after which all of it is free again.
    pub limit: String,
}

impl RateLimitFields {
    /// The fields' names, in lower case.
    pub const NAMES: [&'static str; 2] = ["ratelimit-policy", "ratelimit"];

    /// The fields about one level.
    pub(super) fn about(judgement: &Judgement, policy: &Policy) -> Self {
        let Judgement { charge, verdict } = judgement;
        let limit = policy.limits.get(charge.place).map_or("", |limit| &limit.name);
        let name = format!("\"{limit}.{}\"", charge.level);
        let quota = verdict.capacity.min(INTEGER_MAX);
        let left = verdict.remaining.min(INTEGER_MAX);
        Self {
            policy: format!("{name};q={quota};w={}", charge.quota.period().as_secs_ceil()),
            limit: format!("{name};r={left};t={}", verdict.reset_after.as_secs_ceil()),
        }
    }

    /// Both fields, by name.
    #[must_use]
    pub fn pairs(&self) -> [(&'static str, &str); 2] {
        let [policy, limit] = Self::NAMES;
        [(policy, &self.policy), (limit, &self.limit)]
    }
}
