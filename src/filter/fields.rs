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

/// Room for one field about a limit with a name of ordinary length.
const FIELD_BYTES: usize = 64;

impl RateLimitFields {
    /// The fields' names, in lower case.
    pub const NAMES: [&'static str; 2] = ["ratelimit-policy", "ratelimit"];

    /// The fields about one level.
    pub(super) fn about(judgement: &Judgement, policy: &Policy) -> Self {
        let Judgement { charge, verdict } = judgement;
        let in_flight = charge.quota.is_in_flight();
        let mut name = String::with_capacity(FIELD_BYTES);
        name.push('"');
        push_policy_name(&mut name, policy, charge.place, charge.level, in_flight);
        name.push('"');
        let mut limit = String::with_capacity(FIELD_BYTES);
        limit.push_str(&name);
        push_number(&mut name, ";q=", verdict.capacity.min(INTEGER_MAX));
        push_number(&mut limit, ";r=", verdict.remaining.min(INTEGER_MAX));
        if in_flight {
            name.push_str(";qu=\"concurrent-requests\"");
        } else {
            push_number(&mut name, ";w=", charge.quota.period().as_secs_ceil());
            push_number(&mut limit, ";t=", verdict.reset_after.as_secs_ceil());
        }
        Self { policy: name, limit }
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
fn push_number(to: &mut String, parameter: &str, mut number: u64) {
    const DIGITS: usize = 20;
    to.push_str(parameter);
    let (mut digits, mut used) = ([0u8; DIGITS], 0usize);
    for place in digits.iter_mut().rev() {
        let [digit, ..] = number.checked_rem(10).unwrap_or(0).to_le_bytes();
        *place = digit.wrapping_add(b'0');
        number = number.checked_div(10).unwrap_or(0);
        used = used.saturating_add(1);
        if number == 0 {
            break;
        }
    }
    let shown = digits.iter().skip(DIGITS.saturating_sub(used));
    shown.for_each(|digit| to.push(char::from(*digit)));
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
