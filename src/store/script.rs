//! The script that decides in Redis, and the numbers that it can take.
//!
//! Lua counts in doubles, which are exact for whole numbers up to 2^53. What a quota says is
//! brought into that range here: exactly for every quota of which [`is_exact`] is true, as it is of
//! all that the configuration takes, and otherwise to a stricter one.

use super::decision::{Decision, Operation, Part, StoreCharge, Want};
use super::resp::Command;
use crate::limiter::{GcraQuota, Quota, greatest_common_divisor};

/// The text of `script.lua`, without comments and blanks.
pub const SCRIPT: &str = include_str!(concat!(env!("OUT_DIR"), "/script.lua"));

/// The script's name in the store's cache: the SHA-1 of its text, in hex.
pub const SCRIPT_SHA1: &str = "390bc8a297dfc530706458bdbd4729b74489f10c";

/// The version of the protocol between this module and the script.
const PROTOCOL: &str = "1";

/// The largest whole number up to which doubles are exact.
const MAX_EXACT: u64 = 1 << 53;

/// The most units that a level may have. One less than a cost can say, so that a cost that is cut
/// to what can be said never fits.
const MAX_UNITS: u64 = MAX_EXACT - 1;

/// The longest window or period, in microseconds: 142 years, so that a time plus a window is still
/// exact.
const MAX_SPAN_US: u64 = MAX_EXACT / 2;

/// A generic cell rate in the script's terms.
#[derive(Clone, Copy)]
struct CellRate {
    rate: u64,
    per_us: u64,
    burst: u64,
}

/// Whether the script keeps `quota` to the unit. Else it is one that no deployment can tell from a
/// smaller one: a window or period of more than 142 years, or a GCRA whose burst times its period
/// is beyond 2^53 microseconds, both divided by what rate and period have in common.
#[must_use]
pub fn is_exact(quota: &Quota) -> bool {
    match quota {
        Quota::Window(quota) => quota.window.as_micros_ceil() <= MAX_SPAN_US,
        Quota::Gcra(quota) => CellRate::of(quota).simplest().is_some(),
        Quota::InFlight(_) => false,
    }
}

/// Adds the operation to a call of the script, after its keys, and what its caller knows. A server
/// that does not have the script may not be the one that had it; a poll makes sure of it, too.
pub(super) fn push_operation(command: &mut Command, decision: &Decision, is_new: bool) {
    command.text(PROTOCOL);
    command.text(match decision.operation {
        Operation::Decide => "decide",
        Operation::Lease(_) => "lease",
        Operation::Return(_) => "return",
        Operation::Restore(_) => "restore",
        Operation::Poll => "poll",
    });
    command.number(decision.known.epoch);
    command.number(decision.known.changes);
    command.number(u64::from(is_new || decision.operation == Operation::Poll));
}

/// Adds what the operation says about the charge at `place`, after its arguments.
pub(super) fn push_extra(command: &mut Command, operation: &Operation, place: usize) {
    match operation {
        Operation::Decide | Operation::Poll => {}
        Operation::Lease(wants) => {
            let want = wants.get(place).copied().unwrap_or(Want { firm: 0, ahead: 0 });
            command.number(want.firm.min(MAX_UNITS));
            command.number(want.ahead.min(MAX_UNITS));
        }
        Operation::Return(times) => command.number(times.get(place).copied().unwrap_or(0)),
        Operation::Restore(parts) => {
            for Part { at_us, units } in parts {
                command.number((*at_us).min(MAX_EXACT));
                command.number((*units).min(MAX_UNITS));
            }
        }
    }
}

/// Adds the arguments for one key to a call of the script.
pub(super) fn push_charge(
    command: &mut Command,
    StoreCharge { quota, cost, hold, .. }: &StoreCharge,
) {
    let cost = (*cost).min(MAX_EXACT);
    match quota {
        Quota::Window(quota) => {
            command.text(if *hold { "W" } else { "w" });
            command.number(cost);
            command.number(quota.requests.min(MAX_UNITS));
            command.number(quota.window.as_micros_ceil().clamp(1, MAX_SPAN_US));
        }
        Quota::Gcra(quota) => {
            let wanted = CellRate::of(quota);
            let CellRate { rate, per_us, burst } = wanted.simplest().unwrap_or(wanted.cut());
            command.text(if *hold { "G" } else { "g" });
            command.number(cost);
            command.number(rate);
            command.number(per_us);
            command.number(burst);
        }
        // Requests in flight are counted on each node.
        Quota::InFlight(_) => {}
    }
}

impl CellRate {
    /// A period that is no whole number of microseconds is rounded up, which is stricter.
    fn of(quota: &GcraQuota) -> Self {
        Self {
            rate: quota.rate.clamp(1, MAX_EXACT),
            per_us: quota.per.as_micros_ceil().max(1),
            burst: quota.burst.min(MAX_UNITS),
        }
    }

    /// As configured where that is exact, so that people find their own numbers in the store; else
    /// with rate and period divided by what they have in common.
    fn simplest(self) -> Option<Self> {
        let common = greatest_common_divisor(self.rate, self.per_us);
        let divide = |number: u64| number.checked_div(common).unwrap_or(number);
        let reduced = Self { rate: divide(self.rate), per_us: divide(self.per_us), ..self };
        [self, reduced].into_iter().find(|candidate| candidate.is_exact())
    }

    /// The same rate with as large a burst as is exact.
    fn cut(self) -> Self {
        let per_us = self.per_us.min(MAX_SPAN_US);
        let most = MAX_EXACT.checked_div(per_us).unwrap_or(0);
        Self { per_us, burst: self.burst.min(most), ..self }
    }

    /// Whether a full bucket is exact.
    fn is_exact(&self) -> bool {
        let full = u128::from(self.burst).saturating_mul(self.per_us.into());
        self.per_us <= MAX_SPAN_US && full <= u128::from(MAX_EXACT)
    }
}

#[cfg(test)]
mod tests {
    use sha1::{Digest, Sha1};

    use super::*;
    use crate::limiter::WindowQuota;
    use crate::units::Span;

    fn arguments(quota: &Quota, cost: u64) -> Vec<String> {
        let mut command = Command::default();
        let level = crate::policy::Level::Shared;
        let charge = StoreCharge { key: String::new(), level, quota: *quota, cost, hold: false };
        push_charge(&mut command, &charge);
        let mut encoded = Vec::new();
        command.write_to(&mut encoded);
        let encoded = String::from_utf8(encoded).unwrap();
        encoded.split("\r\n").skip(2).step_by(2).map(String::from).collect()
    }

    fn gcra(rate: u64, per: Span, burst: u64) -> Quota {
        Quota::Gcra(GcraQuota { rate, per, burst })
    }

    #[test]
    fn the_scripts_name_is_the_hash_of_its_text() {
        let digest = Sha1::digest(SCRIPT.as_bytes());
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(SCRIPT_SHA1, hex);
    }

    #[test]
    fn quotas_are_sent_as_they_were_configured() {
        let window = Quota::Window(WindowQuota { requests: 5, window: Span::from_secs(1) });
        assert_eq!(arguments(&window, 2), ["w", "2", "5", "1000000"]);
        let rate = gcra(60, Span::from_secs(60), 10);
        assert_eq!(arguments(&rate, 1), ["g", "1", "60", "60000000", "10"]);
    }

    #[test]
    fn a_burst_that_is_large_for_its_period_is_sent_in_lowest_terms() {
        let daily = gcra(1_000_000, Span::from_secs(86_400), 1_000_000);
        assert!(is_exact(&daily));
        assert_eq!(arguments(&daily, 1), ["g", "1", "1", "86400", "1000000"]);
    }

    #[test]
    fn tim_6_what_is_beyond_exact_numbers_becomes_stricter() {
        let largest = u64::MAX;
        let most = (MAX_EXACT - 1).to_string();
        let window = Quota::Window(WindowQuota { requests: largest, window: Span::from_secs(1) });
        assert_eq!(arguments(&window, largest), ["w", "9007199254740992", &most, "1000000"]);

        let yearly = gcra(1, Span::from_secs(365 * 86_400), 1_000_000);
        assert!(!is_exact(&yearly));
        assert_eq!(arguments(&yearly, 1), ["g", "1", "1", "31536000000000", "285"]);

        let quick = gcra(2_000_000_000, Span::from_secs(1), 1);
        assert!(is_exact(&quick));
        let nanosecond = gcra(1, Span::from_nanos(1), 1);
        assert_eq!(arguments(&nanosecond, 1), ["g", "1", "1", "1", "1"]);
        assert!(!is_exact(&gcra(largest, Span::from_nanos(largest), largest)));
    }
}
