//! Counts that the host is told of together.
//!
//! To tell the host of each request by itself would be a fifteenth of what the filter costs a proxy. So
//! a count waits for [`LAG`] at most while others come, and else for the next tick; what is counted
//! when nothing was told for as long is told at once. Where a VM traps, what waits is lost.

use super::abi;
use crate::units::{Instant, Span};

/// How often a busy worker tells the host.
const LAG: Span = Span::from_millis(10);

/// A worker's counters.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// The host's number of each metric, and what it is still to be told.
    metrics: Vec<(Option<u32>, i64)>,
    /// Places of those that have something to tell.
    waiting: Vec<usize>,
    told_at: Instant,
}

impl Counters {
    /// With the host's numbers of all metrics.
    pub(super) fn new(numbers: impl Iterator<Item = Option<u32>>) -> Self {
        let metrics = numbers.map(|number| (number, 0)).collect();
        Self { metrics, waiting: Vec::new(), told_at: Instant::ORIGIN }
    }

    /// The host's number of a metric.
    pub(super) fn number(&self, place: usize) -> Option<u32> {
        self.metrics.get(place).and_then(|(number, _)| *number)
    }

    /// Adds to a counter.
    pub(super) fn add(&mut self, place: usize, by: u64, now: Instant) {
        let (Some((Some(_), waiting)), Ok(by @ 1..)) =
            (self.metrics.get_mut(place), i64::try_from(by))
        else {
            return;
        };
        if *waiting == 0 {
            self.waiting.push(place);
        }
        *waiting = waiting.saturating_add(by);
        if now.since(self.told_at) >= LAG {
            self.tell(now);
        }
    }

    /// Tells the host of everything.
    pub(super) fn tell(&mut self, now: Instant) {
        self.told_at = now;
        for place in self.waiting.drain(..) {
            if let Some((Some(number), by)) = self.metrics.get_mut(place) {
                let _ = abi::increment(*number, std::mem::take(by));
            }
        }
    }
}
