//! The `RateLimit` and `RateLimit-Policy` fields (draft-ietf-httpapi-ratelimit-headers-11).

use super::judgement::Judgement;
use crate::limiter::{Quota, Verdict};
use crate::policy::{Charge, Level, Policy};

/// The largest integer of a structured field (RFC 9651, 3.3.1).
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// The two fields' values, about one level of one limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimitFields {
    /// `RateLimit-Policy`: what the level allows. `w` is the window, or the time in which an empty
    /// GCRA bucket fills up, in whole seconds rounded up. A cap on requests in flight has a unit
    /// instead, and no time.
    pub policy: String,
    /// `RateLimit`: what is left of it, and the seconds after which all of it is free again.
    pub limit: String,
}

/// What the fields tell, from when it is decided until the answer comes to which they are added.
#[derive(Clone, Copy, Debug)]
pub(super) struct Telling {
    place: usize,
    level: Level,
    quota: Quota,
    verdict: Verdict,
}

impl Telling {
    pub(super) const fn of(Judgement { charge, verdict }: &Judgement) -> Self {
        let Charge { place, level, quota, .. } = *charge;
        Self { place, level, quota, verdict: *verdict }
    }
}

impl RateLimitFields {
    /// The fields' names, in lower case.
    pub const NAMES: [&'static str; 2] = ["ratelimit-policy", "ratelimit"];

    /// The fields about one level.
    pub(super) fn about(judgement: &Judgement, policy: &Policy) -> Self {
        let mut fields = Self::default();
        fields.write(&Telling::of(judgement), policy);
        fields
    }

    /// Writes other fields in the place of these.
    pub(super) fn write(&mut self, telling: &Telling, policy: &Policy) {
        let Telling { place, level, quota, verdict } = telling;
        let Self { policy: name, limit } = self;
        let in_flight = quota.is_in_flight();
        name.clear();
        name.push('"');
        push_policy_name(name, policy, *place, *level, in_flight);
        name.push('"');
        limit.clear();
        limit.push_str(name);
        push_number(name, ";q=", verdict.capacity.min(INTEGER_MAX));
        push_number(limit, ";r=", verdict.remaining.min(INTEGER_MAX));
        if in_flight {
            name.push_str(";qu=\"concurrent-requests\"");
        } else {
            push_number(name, ";w=", quota.period().as_secs_ceil());
            push_number(limit, ";t=", verdict.reset_after.as_secs_ceil());
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
    let mut name = String::new();
    push_policy_name(&mut name, policy, place, level, in_flight);
    name
}

fn push_policy_name(to: &mut String, policy: &Policy, place: usize, level: Level, in_flight: bool) {
    to.push_str(policy.limits.get(place).map_or("", |limit| &limit.name));
    to.push_str(if in_flight { ".in_flight." } else { "." });
    to.push_str(level.name());
}

/// Appends a parameter whose value is a whole number. The fields are written for every request; the
/// standard library's formatting would take a fifth of all that a request takes in the core.
fn push_number(to: &mut String, parameter: &str, number: u64) {
    to.push_str(parameter);
    to.push_str(itoa::Buffer::new().format(number));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_full() {
        for number in [0, 1, 9, 10, 999, 1_000_000, INTEGER_MAX, u64::MAX] {
            let mut field = String::from("x");
            push_number(&mut field, ";q=", number);
            assert_eq!(field, format!("x;q={number}"));
        }
    }
}
