//! What a level of a limit allows: the compiled form of `{"requests", "window"}`, of
//! `{"rate", "per", "burst"}`, and of a cap on requests in flight.

use std::fmt;

use crate::units::Span;

/// How much one subject (everyone, a tenant, a credential) may do at one level of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quota {
    /// At most `requests` units in any interval of the window's length.
    Window(WindowQuota),
    /// At most `burst` units at an instant, and `burst + rate·t/per` in any interval `t`.
    Gcra(GcraQuota),
    /// At most so many requests at the same time.
    InFlight(InFlightQuota),
}

/// A sliding window. The window is never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowQuota {
    /// Units that any interval of the window's length may hold. Zero refuses everything.
    pub requests: u64,
    /// The window's length.
    pub window: Span,
}

/// A generic cell rate (leaky bucket as a meter; ITU-T I.371 Annex A). Neither rate nor period is
/// zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GcraQuota {
    /// Units that come back in every period.
    pub rate: u64,
    /// The period of `rate`.
    pub per: Span,
    /// Units that may be spent at one instant. Zero refuses everything.
    pub burst: u64,
}

/// A cap on requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InFlightQuota {
    /// Requests that may be under way at the same time. Zero refuses everything.
    pub requests: u64,
}

impl Quota {
    /// Whether it is a cap on requests in flight: its units are held until the request ends.
    #[must_use]
    pub const fn is_in_flight(&self) -> bool {
        matches!(self, Self::InFlight(_))
    }

    /// The most units that can be admitted at one instant.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        match self {
            Self::Window(quota) => quota.requests,
            Self::Gcra(quota) => quota.burst,
            Self::InFlight(quota) => quota.requests,
        }
    }

    /// The time after which a wholly spent level is wholly free again; of a cap on requests in
    /// flight, which no one knows, a second.
    #[must_use]
    pub fn period(&self) -> Span {
        match self {
            Self::Window(quota) => quota.window,
            Self::Gcra(quota) => quota.refill_time(),
            Self::InFlight(_) => InFlightQuota::period(),
        }
    }

    /// The quota with `numerator / denominator` of its volume. What may be spent at once is rounded
    /// down, but to no less than `cost` unless it was less before, so that a share never turns a
    /// limit into a ban.
    #[must_use]
    pub fn scaled(&self, numerator: u64, denominator: u64, cost: u64) -> Self {
        let share = |units: u64| scale(units, numerator, denominator).max(cost.min(units));
        match *self {
            Self::Window(quota) => {
                Self::Window(WindowQuota { requests: share(quota.requests), ..quota })
            }
            Self::Gcra(quota) => {
                // A longer period instead of a lower rate: nothing is rounded.
                let divisor = greatest_common_divisor(numerator, denominator).max(1);
                let part = |number: u64| number.checked_div(divisor).unwrap_or(number);
                let per = quota.per.as_nanos().saturating_mul(part(denominator));
                Self::Gcra(GcraQuota {
                    rate: quota.rate.saturating_mul(part(numerator)),
                    per: Span::from_nanos(per),
                    burst: share(quota.burst),
                })
            }
            Self::InFlight(quota) => {
                Self::InFlight(InFlightQuota { requests: share(quota.requests) })
            }
        }
    }
}

impl GcraQuota {
    /// The time in which an empty bucket of `burst` units fills up.
    #[must_use]
    pub fn refill_time(&self) -> Span {
        let nanos = u128::from(self.burst)
            .saturating_mul(u128::from(self.per.as_nanos()))
            .div_ceil(u128::from(self.rate.max(1)));
        Span::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = match self {
            Self::Window(quota) => quota.requests,
            Self::Gcra(quota) => quota.rate,
            Self::InFlight(quota) => quota.requests,
        };
        let plural = if number == 1 { "" } else { "s" };
        write!(f, "{number} request{plural} ")?;
        match self {
            Self::Window(quota) => write!(f, "in any {}", quota.window),
            Self::Gcra(quota) => write!(f, "per {}, burst {}", quota.per, quota.burst),
            Self::InFlight(_) => f.write_str("at a time"),
        }
    }
}

fn scale(units: u64, numerator: u64, denominator: u64) -> u64 {
    let scaled = u128::from(units)
        .saturating_mul(u128::from(numerator))
        .checked_div(u128::from(denominator))
        .unwrap_or(0);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Greatest common divisor (Euclid).
#[must_use]
pub fn greatest_common_divisor(one: u64, other: u64) -> u64 {
    let (mut one, mut other) = (one, other);
    while let Some(rest) = one.checked_rem(other) {
        (one, other) = (other, rest);
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_told_as_one_speaks() {
        let window = |requests| WindowQuota { requests, window: Span::from_secs(10) };
        let rate = |rate| GcraQuota { rate, per: Span::from_secs(1), burst: 9 };
        for (quota, words) in [
            (Quota::Window(window(5)), "5 requests in any 10s"),
            (Quota::Window(window(1)), "1 request in any 10s"),
            (Quota::Gcra(rate(2)), "2 requests per 1s, burst 9"),
            (Quota::Gcra(rate(1)), "1 request per 1s, burst 9"),
            (Quota::InFlight(InFlightQuota { requests: 1 }), "1 request at a time"),
        ] {
            assert_eq!(quota.to_string(), words);
        }
    }

    #[test]
    fn a_share_rounds_down_but_never_to_a_ban() {
        let quota = |requests| Quota::Window(WindowQuota { requests, window: Span::from_secs(1) });
        assert_eq!(quota(5).scaled(1, 2, 1), quota(2));
        assert_eq!(quota(1).scaled(1, 100, 1), quota(1));
        assert_eq!(quota(8).scaled(1, 4, 3), quota(3));
        assert_eq!(quota(0).scaled(1, 2, 1), quota(0));
        assert_eq!(quota(u64::MAX).scaled(1, 1, 1), quota(u64::MAX));
    }

    #[test]
    fn a_share_of_a_slow_rate_is_exact() {
        let quota =
            |per, burst| Quota::Gcra(GcraQuota { rate: 1, per: Span::from_secs(per), burst });
        assert_eq!(quota(2, 4).scaled(500_000, 1_000_000, 1), quota(4, 2));
    }

    #[test]
    fn refill_time_of_a_huge_bucket_saturates() {
        let quota = GcraQuota { rate: 1, per: Span::from_secs(86_400 * 365), burst: u64::MAX };
        assert_eq!(quota.refill_time(), Span::from_nanos(u64::MAX));
    }
}
