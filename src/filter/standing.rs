//! Who of a node's workers asks the store for all of them.
//!
//! Three questions are asked once for the node: does a store that was given up answer again, which
//! state is it in, which mode have operators set. Whoever finds one due claims the turn in shared data,
//! for a bounded time. Two rules keep the turns from those who would only waste them:
//!
//! - A worker that the store has never answered claims none. Not every VM of a host can call the store:
//!   the one of Envoy's main thread never can.
//! - Who failed leaves the next turn to others ([`sits_out`]).
//!
//! So that a node of newcomers gets its first answer, each of them asks for itself where nobody takes
//! the turns, or where it has given the store up.

use crate::units::{Instant, Span};

/// Time between two questions that a worker asks for itself alone.
const TRY_EVERY: Span = Span::from_millis(500);

/// One worker's standing among those of its node.
#[derive(Debug, Default)]
pub(super) struct Standing {
    is_answered: bool,
    try_at: Instant,
}

impl Standing {
    /// Notes that the store has said something to this worker.
    pub(super) const fn note_answer(&mut self) {
        self.is_answered = true;
    }

    /// Whether the worker may claim turns.
    pub(super) const fn may_claim(&self) -> bool {
        self.is_answered
    }

    /// Whether a worker that may claim nothing is to ask for itself now. `under_way` is the time that
    /// its last question may still take.
    pub(super) fn tries_alone(&mut self, under_way: Span, now: Instant) -> bool {
        if self.is_answered || self.try_at.plus(under_way) > now {
            return false;
        }
        self.try_at = now.plus(TRY_EVERY);
        true
    }
}

/// How long a worker leaves turns to others after its own failed, where the next one is due after
/// `pause`: all others look in between.
pub(super) const fn sits_out(pause: Span) -> Span {
    pause.plus(pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Instant = Instant::from_nanos(1_000_000_000);

    #[test]
    fn a_newcomer_claims_nothing_and_tries_now_and_then() {
        let mut standing = Standing::default();
        assert!(!standing.may_claim());
        assert!(standing.tries_alone(Span::ZERO, T));
        assert!(!standing.tries_alone(Span::ZERO, T));
        let later = T.plus(TRY_EVERY);
        assert!(!standing.tries_alone(Span::from_millis(1), later), "the last one is under way");
        assert!(standing.tries_alone(Span::ZERO, later));
        standing.note_answer();
        assert!(standing.may_claim());
        assert!(!standing.tries_alone(Span::ZERO, later.plus(TRY_EVERY)));
    }
}
