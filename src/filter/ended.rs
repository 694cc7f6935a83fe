//! How calls to the store ended, for the breakers and the metrics.

use crate::store::StoreError;
use crate::units::Span;

/// How calls ended.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// How long each took.
    pub(super) times: Vec<Span>,
    /// For each call and each group of keys that it was about: answered, or why not.
    pub(super) results: Vec<(usize, Result<(), StoreError>)>,
    /// The redirections that were followed.
    pub(super) followed: Vec<StoreError>,
}

impl Ended {
    /// Begins to note the results of a call. Returns where they begin.
    pub(super) fn begin(&mut self, time: Span) -> usize {
        self.times.push(time);
        self.results.len()
    }

    /// Notes a result for a group. Where there is an answer among them, the group was answered.
    pub(super) fn note(&mut self, from: usize, group: usize, result: Result<(), StoreError>) {
        match self.results.iter_mut().skip(from).find(|(noted, _)| *noted == group) {
            Some((_, noted)) if result.is_ok() => *noted = result,
            Some(_) => {}
            None => self.results.push((group, result)),
        }
    }
}
