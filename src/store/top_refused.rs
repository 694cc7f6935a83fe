//! Who is refused most: a bounded number of candidates in each worker, and one report of the node in
//! the host's shared data, which is told from time to time.
//!
//! The candidates are a space-saving sketch (Metwally et al. 2005): whoever is not among them takes
//! the place of the one with the fewest refusals, and its count as well. Workers' sketches are added
//! up in the report's. So a count is off by a sixteenth of all refusals at most, and whoever has a
//! larger share than that is always among them.

use std::fmt;
use std::rc::Rc;

use super::shared_data::{SharedData, Swap};
use crate::policy::{LEVELS, Level, Subject};
use crate::units::{Instant, Span};

/// Candidates that are kept, in a worker and in the report: each puts a count off by this part of all
/// refusals at most.
const CANDIDATES: usize = 32;

/// Of the candidates, those that are told.
const TOLD: usize = 10;

/// The shortest time between two reports of the node.
const PERIOD: Span = Span::from_secs(60);

/// For how long a report is gathered at least.
const GATHERING: Span = Span::from_secs(10);

/// Whom a level has refused, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The limit's name.
    pub limit: Rc<str>,
    /// The level.
    pub level: Level,
    /// The first 16 hex digits of the subject's digest, as a number.
    pub subject: u64,
    /// How often.
    pub count: u64,
}

/// A worker's candidates, and the report that it has a part in.
#[derive(Debug)]
pub struct TopRefused {
    key: String,
    own: Sketch,
    /// When the report of which this worker's refusals are a part is to be told.
    due: Option<Instant>,
}

#[derive(Clone, Debug, Default)]
struct Sketch(Vec<Refused>);

/// What stands in the shared data.
#[derive(Debug, Default)]
struct Report {
    told_at: Instant,
    since: Instant,
    refused: Sketch,
}

/// A candidate in the report: limit, letter of the level, subject, count.
type Row<'a> = (&'a str, char, u64, u64);

impl TopRefused {
    /// The refusals of filters of `namespace`.
    #[must_use]
    pub fn new(namespace: &str) -> Self {
        let key = format!("fairshare/1/{namespace}/refused");
        Self { key, own: Sketch::default(), due: None }
    }

    /// Counts a refusal. Touches this worker's memory alone.
    pub fn add(&mut self, limit: &Rc<str>, level: Level, subject: &Subject) {
        let subject = subject.0.first_chunk().copied().map_or(0, u64::from_be_bytes);
        self.own.add(Refused { limit: Rc::clone(limit), level, subject, count: 1 });
    }

    /// Adds this worker's refusals to the node's report, and returns the report, the most refused
    /// first, where it is to be told now. Does nothing where nothing was refused. What the host or
    /// another worker prevents is left for the next call.
    pub fn tell(&mut self, shared: &mut impl SharedData, now: Instant) -> Option<Vec<Refused>> {
        if self.own.0.is_empty() && self.due.is_none_or(|due| now < due) {
            return None;
        }
        let value = shared.get(&self.key).ok()?;
        let mut report = Report::decode(&value.bytes).unwrap_or_default();
        if report.refused.0.is_empty() {
            report.since = now;
        }
        self.own.0.iter().for_each(|refused| report.refused.add(refused.clone()));
        if report.refused.0.is_empty() {
            self.due = None;
            return None;
        }
        let due = report.told_at.plus(PERIOD).max(report.since.plus(GATHERING));
        let told = (due <= now).then(|| report.refused.take_top());
        if told.is_some() {
            report.told_at = now;
        }
        let Ok(Swap::Done) = shared.swap(&self.key, &report.encode(), value.version) else {
            return None;
        };
        self.own.0.clear();
        self.due = if told.is_some() { None } else { Some(due) };
        told
    }
}

impl Sketch {
    fn add(&mut self, new: Refused) {
        let same = |old: &&mut Refused| {
            old.subject == new.subject && old.level == new.level && old.limit == new.limit
        };
        if let Some(old) = self.0.iter_mut().find(same) {
            old.count = old.count.saturating_add(new.count);
        } else if self.0.len() < CANDIDATES {
            self.0.push(new);
        } else if let Some(least) = self.0.iter_mut().min_by_key(|old| old.count) {
            *least = Refused { count: least.count.saturating_add(new.count), ..new };
        }
    }

    /// Takes everything out, and returns the most refused in their order.
    fn take_top(&mut self) -> Vec<Refused> {
        let mut top = Vec::new();
        while let Some((place, _)) = self.0.iter().enumerate().max_by_key(|(_, old)| old.count) {
            let most = self.0.swap_remove(place);
            if top.len() < TOLD {
                top.push(most);
            }
        }
        top
    }
}

impl Report {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (told_at, since, rows): (Instant, Instant, Vec<Row<'_>>) =
            postcard::from_bytes(bytes).ok()?;
        let refused = |(limit, letter, subject, count): Row<'_>| {
            let level = LEVELS.into_iter().find(|level| level.letter() == letter)?;
            Some(Refused { limit: limit.into(), level, subject, count })
        };
        let refused = rows.into_iter().take(CANDIDATES).filter_map(refused).collect();
        Some(Self { told_at, since, refused: Sketch(refused) })
    }

    fn encode(&self) -> Vec<u8> {
        let row = |refused: &'_ Refused| -> (String, char, u64, u64) {
            let Refused { limit, level, subject, count } = refused;
            (limit.to_string(), level.letter(), *subject, *count)
        };
        let rows: Vec<_> = self.refused.0.iter().map(row).collect();
        postcard::to_extend(&(self.told_at, self.since, rows), Vec::new()).unwrap_or_default()
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, level, subject, count } = self;
        write!(f, "limit={limit} level={level} subject={subject:016x} refused={count}")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn refused(subject: u64, count: u64) -> Refused {
        Refused { limit: "dns".into(), level: Level::Tenant, subject, count }
    }

    #[test]
    fn a_candidate_is_written_for_people_and_machines() {
        let line = refused(0x0123_4567_89ab_cdef, 42).to_string();
        assert_eq!(line, "limit=dns level=tenant subject=0123456789abcdef refused=42");
    }

    #[test]
    fn a_report_is_read_as_it_was_written_and_bounded() {
        let mut report = Report { told_at: Instant::from_nanos(7), ..Report::default() };
        for subject in 0..1000 {
            let limit = "l".repeat(64).into();
            report.refused.add(Refused { limit, ..refused(u64::MAX - subject, u64::MAX) });
        }
        let bytes = report.encode();
        assert!(bytes.len() < 4096, "{}", bytes.len());
        let read = Report::decode(&bytes).unwrap();
        assert_eq!((read.told_at, read.refused.0), (report.told_at, report.refused.0));
    }

    proptest! {
        /// Goal: no count is off by more than a sixteenth of all refusals, and nobody with a larger
        /// share is missing, also when sketches are added up.
        #[test]
        fn the_most_refused_are_always_told(
            workers in prop::collection::vec(prop::collection::vec(0..80_u64, 0..300), 1..4),
        ) {
            let mut whole = Sketch::default();
            let mut counts = BTreeMap::<u64, u64>::new();
            for worker in &workers {
                let mut own = Sketch::default();
                for subject in worker {
                    // Small numbers come far more often.
                    own.add(refused(subject * subject / 80, 1));
                    *counts.entry(subject * subject / 80).or_default() += 1;
                }
                own.0.into_iter().for_each(|candidate| whole.add(candidate));
            }
            let all: u64 = counts.values().sum();
            let error = all.div_ceil(16);
            for candidate in &whole.0 {
                let real = counts.get(&candidate.subject).copied().unwrap_or(0);
                prop_assert!(candidate.count.abs_diff(real) <= error);
            }
            for (subject, count) in counts {
                let told = whole.0.iter().any(|candidate| candidate.subject == subject);
                prop_assert!(told || count <= error, "{subject}: {count} of {all}");
            }
        }

        #[test]
        fn any_bytes_are_a_report_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(report) = Report::decode(&bytes) {
                Report::decode(&report.encode()).unwrap();
            }
        }
    }
}
