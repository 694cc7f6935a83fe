//! How often a worker calls the store for leases, whatever the traffic.
//!
//! Each key that nobody has asked about yet is a question, and outsiders can invent keys. So the calls
//! that such questions make have a pace: some at once, so that nobody waits in quiet times, and then
//! one in each [`EVERY`], which has all questions of the meantime.

use crate::units::{Instant, Span};

/// Time between two calls on average: 500 in a second.
const EVERY: Span = Span::from_millis(2);

/// How far calls may be ahead of that: eight of them at once.
const AHEAD_MAX: Span = Span::from_millis(14);

/// Nobody is further ahead: the clock has gone back.
const BELIEVED_MAX: Span = Span::from_millis(16);

/// The calls of one worker.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The time at which the next call would be due, had all come one in each [`EVERY`].
    due: Instant,
}

impl Pace {
    /// Whether another call may be made.
    pub(super) fn allows(&self, now: Instant) -> bool {
        self.ahead(now) <= AHEAD_MAX
    }

    /// Notes that a call is made.
    pub(super) fn note(&mut self, now: Instant) {
        self.due = now.plus(self.ahead(now)).plus(EVERY);
    }

    fn ahead(&self, now: Instant) -> Span {
        let ahead = self.due.since(now);
        if ahead > BELIEVED_MAX { Span::ZERO } else { ahead }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Instant = Instant::from_nanos(1_000_000_000_000);

    /// Calls of somebody who makes as many as are allowed, looking once in `step`, for a second.
    fn calls(pace: &mut Pace, step: Span) -> usize {
        let (mut now, mut calls) = (T, 0_usize);
        while now < T.plus(Span::from_secs(1)) {
            while pace.allows(now) {
                pace.note(now);
                calls = calls.saturating_add(1);
            }
            now = now.plus(step);
        }
        calls
    }

    #[test]
    fn eight_go_at_once_and_then_one_in_two_milliseconds() {
        assert_eq!(calls(&mut Pace::default(), Span::from_secs(1)), 8);
        for step in [50, 2_000, 10_000] {
            let calls = calls(&mut Pace::default(), Span::from_micros(step));
            assert!((490..=507).contains(&calls), "{calls} with a look in each {step} us");
        }
    }

    /// TIM-7: a clock that goes back stops nobody for long.
    #[test]
    fn tim_7_a_clock_that_goes_back_stops_nobody() {
        let mut pace = Pace::default();
        pace.note(T.plus(Span::from_secs(3600)));
        assert_eq!(calls(&mut pace, Span::from_secs(1)), 8);
    }
}
