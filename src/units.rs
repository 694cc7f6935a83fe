//! Newtypes with units: points in time and spans of time in nanoseconds.
//!
//! All arithmetic saturates. A clock that is wrong can therefore make a limit stricter or a wait
//! longer, but can never wrap around into a negative span or panic.

use std::fmt;

use serde::{Deserialize, Serialize};

const NANOS_PER_SECOND: u64 = 1_000_000_000;
const NANOS_PER_MILLI: u64 = 1_000_000;
const NANOS_PER_MICRO: u64 = 1_000;

/// A point in time, in nanoseconds since an origin that the host fixes (its monotonic clock).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Instant(u64);

/// A span of time in nanoseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Span(u64);

impl Instant {
    /// The clock's origin.
    pub const ORIGIN: Self = Self(0);

    /// The point `nanos` nanoseconds after the clock's origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The span from `earlier` to `self`, or zero where `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// The point `span` later.
    #[must_use]
    pub const fn plus(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A span of `nanos` nanoseconds.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A span of `micros` microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(NANOS_PER_MICRO))
    }

    /// A span of `millis` milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(NANOS_PER_MILLI))
    }

    /// A span of `seconds` seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(NANOS_PER_SECOND))
    }

    /// The span in nanoseconds.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The span in whole microseconds, rounded up.
    #[must_use]
    pub const fn as_micros_ceil(self) -> u64 {
        self.0.div_ceil(NANOS_PER_MICRO)
    }

    /// The span in whole milliseconds, rounded up.
    #[must_use]
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(NANOS_PER_MILLI)
    }

    /// The span in whole seconds, rounded up, so that whoever waits that long has waited enough.
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(NANOS_PER_SECOND)
    }

    /// Whether the span is empty.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The span longer by `other`.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The span shorter by `other`, or zero.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// Writes the span in the largest unit that is exact, in the form the configuration takes.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 7] = [
            (86_400 * NANOS_PER_SECOND, "d"),
            (3_600 * NANOS_PER_SECOND, "h"),
            (60 * NANOS_PER_SECOND, "m"),
            (NANOS_PER_SECOND, "s"),
            (NANOS_PER_MILLI, "ms"),
            (NANOS_PER_MICRO, "us"),
            (1, "ns"),
        ];
        if self.is_zero() {
            return f.write_str("0s");
        }
        for (size, unit) in UNITS {
            if self.0.is_multiple_of(size) {
                return write!(f, "{}{unit}", self.0.checked_div(size).unwrap_or(self.0));
            }
        }
        write!(f, "{}ns", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_round_up_so_that_a_wait_is_never_too_short() {
        assert_eq!(Span::from_nanos(1).as_secs_ceil(), 1);
        assert_eq!(Span::from_millis(12_001).as_secs_ceil(), 13);
        assert_eq!(Span::from_secs(5).as_secs_ceil(), 5);
        assert_eq!(Span::from_nanos(1).as_micros_ceil(), 1);
    }

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let late = Instant::from_nanos(u64::MAX);
        assert_eq!(late.plus(Span::from_secs(1)), late);
        assert_eq!(Instant::ORIGIN.since(late), Span::ZERO);
        assert_eq!(Span::from_secs(u64::MAX).as_nanos(), u64::MAX);
    }

    #[test]
    fn spans_print_in_the_largest_exact_unit() {
        assert_eq!(Span::from_secs(86_400).to_string(), "1d");
        assert_eq!(Span::from_secs(90).to_string(), "90s");
        assert_eq!(Span::from_millis(250).to_string(), "250ms");
        assert_eq!(Span::ZERO.to_string(), "0s");
    }
}
