//! Giving up a store that does not answer, and noticing when it does again.
//!
//! After [`FAILURES_MAX`] calls in a row without a usable answer a worker asks no more: no request
//! waits for the store, each limit follows its `on_store_error`. Every [`PAUSE`] one worker of the
//! node sends a probe of its own, on which no request waits; its answer closes every worker's
//! breaker.

use crate::store::StoreError;
use crate::units::{Instant, Span};

/// Calls in a row without a usable answer after which the store is given up.
const FAILURES_MAX: u32 = 3;

/// Time between probes of a store that was given up.
pub(super) const PAUSE: Span = Span::from_millis(200);

/// One worker's breaker.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: u32,
    open: Option<Open>,
}

/// The store is given up.
#[derive(Clone, Copy, Debug)]
struct Open {
    since: Instant,
    look_at: Instant,
}

impl Breaker {
    /// Whether the store may be asked.
    pub(super) const fn is_closed(&self) -> bool {
        self.open.is_none()
    }

    /// When the store was given up, if it is time to look after it.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        self.open.filter(|open| open.look_at <= now).map(|open| open.since)
    }

    /// Leaves it to others to look after the store until then.
    pub(super) const fn wait(&mut self, until: Instant) {
        if let Some(open) = &mut self.open {
            open.look_at = until;
        }
    }

    /// The store can be trusted again.
    pub(super) const fn close(&mut self) {
        self.failures = 0;
        self.open = None;
    }

    /// Takes the result of a call. Returns whether the store is given up because of it.
    pub(super) fn on_call(&mut self, result: Result<(), StoreError>, now: Instant) -> bool {
        match result {
            // Even while the store is given up, an answer that was under way counts.
            Ok(()) => self.close(),
            Err(error) if error.is_about_the_store() => {
                self.failures = self.failures.saturating_add(1);
                if self.failures >= FAILURES_MAX && self.open.is_none() {
                    self.open = Some(Open { since: now, look_at: now.plus(PAUSE) });
                    return true;
                }
            }
            Err(_) => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Instant = Instant::from_nanos(1_000_000_000);

    #[test]
    fn three_failures_in_a_row_open_it_and_an_answer_closes_it() {
        let mut breaker = Breaker::default();
        for result in
            [Err(StoreError::Timeout), Ok(()), Err(StoreError::Timeout), Err(StoreError::Reset)]
        {
            assert!(!breaker.on_call(result, T));
            assert!(breaker.is_closed());
        }
        assert!(breaker.on_call(Err(StoreError::Timeout), T));
        assert!(!breaker.is_closed());
        assert_eq!(breaker.due(T), None);
        let later = T.plus(PAUSE);
        assert_eq!(breaker.due(later), Some(T));
        breaker.wait(later.plus(PAUSE));
        assert_eq!(breaker.due(later), None);
        breaker.on_call(Ok(()), later);
        assert!(breaker.is_closed());
    }

    #[test]
    fn an_error_about_one_key_or_this_node_does_not_open_it() {
        let mut breaker = Breaker::default();
        for _ in 0..10 {
            breaker.on_call(Err(StoreError::WrongType), T);
            breaker.on_call(Err(StoreError::Overloaded), T);
        }
        assert!(breaker.is_closed());
    }
}
