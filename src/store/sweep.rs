//! When a full table is looked through for what is over.

use crate::units::{Instant, Span};

/// The time between two sweeps of one table.
const EVERY: Span = Span::from_millis(5);

/// When a table that is full may be looked through for what is over. That takes as long as the table is
/// large, and a flood of newcomers finds it full each time; so it is done now and then, and not for each
/// of them.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    last: Instant,
}

impl Sweep {
    /// Whether to sweep at `now`. If so, the next time is later.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        // A clock that goes back keeps nobody waiting.
        let is_due = now < self.last || now.since(self.last) >= EVERY;
        if is_due {
            self.last = now;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_sweeps_now_and_then() {
        let (mut sweep, mut sweeps) = (Sweep::default(), 0);
        let start = Instant::ORIGIN.plus(Span::from_secs(1000));
        for micros in 0..100_000 {
            sweeps += u32::from(sweep.is_due(start.plus(Span::from_micros(micros))));
        }
        assert_eq!(sweeps, 20, "in a tenth of a second");
        assert!(sweep.is_due(start), "the clock has gone back");
    }
}
