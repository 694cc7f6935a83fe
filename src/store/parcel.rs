//! Units that the store granted together, and those of them that a request spent.

use crate::limiter::Verdict;
use crate::units::Instant;

/// Units that were granted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parcel {
    /// Units not yet spent.
    pub units: u64,
    /// When the store granted them, on its own clock in microseconds.
    pub granted_at_us: u64,
    /// The time from which they may not be spent any more.
    pub(super) expires_at: Instant,
}

/// Units that a request spent, the parcel that they came from, and what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spend {
    pub(super) granted_at_us: u64,
    pub(super) units: u64,
    /// The time from which they may not be spent any more.
    pub(super) expires_at: Instant,
    /// When somebody spent units of that lease for the last time before.
    pub(super) unused_since: Instant,
    /// When these were spent.
    pub(super) spent_at: Instant,
    /// What the level says to the request.
    pub verdict: Verdict,
}

impl Parcel {
    /// Whether it has units for a request.
    pub(super) fn pays(&self, cost: u64, now: Instant) -> bool {
        self.units >= cost && self.expires_at > now
    }

    /// Both as one: granted and over as early as either, which frees nothing too early.
    pub(super) fn with(self, other: Self) -> Self {
        Self {
            units: self.units.saturating_add(other.units),
            granted_at_us: self.granted_at_us.min(other.granted_at_us),
            expires_at: self.expires_at.min(other.expires_at),
        }
    }
}

impl Spend {
    /// Whether it is too late to let the request through with it.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> bool {
        self.expires_at <= now
    }
}
