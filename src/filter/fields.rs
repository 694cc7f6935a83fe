//! The `RateLimit` and `RateLimit-Policy` fields (draft-ietf-httpapi-ratelimit-headers-11).

use super::judgement::Judgement;
use crate::policy::{Level, Policy};

/// The largest integer of a structured field (RFC 9651, 3.3.1).
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// The two fields' values, about one level of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitFields {
    /// `RateLimit-Policy`: what the level allows. `w` is the window, or the time in which an empty
    /// GCRA bucket fills up, in whole seconds rounded up. A cap on requests in flight has a unit
    /// instead, and no time.
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
        let in_flight = charge.quota.is_in_flight();
        let name = format!("\"{}\"", policy_name(policy, charge.place, charge.level, in_flight));
        let quota = verdict.capacity.min(INTEGER_MAX);
        let left = verdict.remaining.min(INTEGER_MAX);
        if in_flight {
            return Self {
                policy: format!("{name};q={quota};qu=\"concurrent-requests\""),
                limit: format!("{name};r={left}"),
            };
        }
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

/// What a level is called in the fields and in `violated-policies`: as its path in the configuration,
/// beginning with the limit's name.
pub(super) fn policy_name(policy: &Policy, place: usize, level: Level, in_flight: bool) -> String {
    let limit = policy.limits.get(place).map_or("", |limit| &limit.name);
    let part = if in_flight { "in_flight." } else { "" };
    format!("{limit}.{part}{level}")
}
