//! The clock of a VM.
//!
//! The host has two that have nothing in common: one counts from its start, the other from 1970. What
//! is dated by the second would lie decades ahead of the first, so whichever answers first is the
//! clock for good. A reading that fails is the one before it again.

use std::cell::Cell;

use super::abi::{self, Clock};
use crate::units::Instant;

thread_local! {
    /// The chosen clock and what it said last.
    static LAST: Cell<Option<(Clock, u64)>> = const { Cell::new(None) };
}

/// The time now; the origin of time on a host that has never had a clock.
pub(super) fn now() -> Instant {
    let read = |clock| abi::clock_nanos(clock).map(|nanos| (clock, nanos));
    let reading = match LAST.get() {
        Some((clock, last)) => read(clock).or(Some((clock, last))),
        None => read(Clock::Monotonic).or_else(|| read(Clock::Wall)),
    };
    LAST.set(reading);
    last()
}

/// What the clock said last.
pub(super) fn last() -> Instant {
    Instant::from_nanos(LAST.get().map_or(0, |(_, nanos)| nanos))
}
