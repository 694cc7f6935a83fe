//! What a store that has lost its state may grant once more: what was granted to workers who could not
//! tell it in time.

use std::collections::BTreeMap;

use crate::exchanges::{Answered, tag_of};
use crate::network::Call;
use crate::plan::SECOND;

/// How long a call that went wrong may keep a worker from asking: until it is given up and the store is
/// probed.
const GIVEN_UP: u64 = 3 * SECOND / 2;

/// The epoch of a store that is in use.
const FIRST_EPOCH: u64 = 1;

/// All that the store granted, lost and was told again, in its order.
#[derive(Default)]
pub struct Books {
    entries: Vec<Entry>,
    /// The epoch that each record is in.
    epochs: BTreeMap<String, u64>,
    /// When workers heard of their calls, by worker and call.
    heard: BTreeMap<(usize, u32), u64>,
    /// From when to when calls of a node go wrong.
    troubles: Vec<(usize, u64, u64)>,
    /// When workers were lost or replaced.
    gone: BTreeMap<usize, u64>,
}

struct Entry {
    at: u64,
    what: What,
}

enum What {
    /// The record began an epoch.
    Loss {
        record: String,
    },
    /// One key was lost alone, which is noticed only by those who were granted its units.
    Eviction {
        key: String,
    },
    Grant {
        key: String,
        units: u64,
        to: Caller,
    },
    Report {
        key: String,
        by: Caller,
    },
}

/// Whose call it was.
struct Caller {
    member: usize,
    node: usize,
    call: u32,
    sent_at: u64,
}

/// Units that may be granted once more, and when they were granted first.
pub type Forgotten = Vec<(u64, u64)>;

impl Books {
    /// How often state was lost.
    pub fn losses(&self) -> u64 {
        let is_loss = |what: &What| matches!(what, What::Loss { .. } | What::Eviction { .. });
        u64::try_from(self.entries.iter().filter(|entry| is_loss(&entry.what)).count()).unwrap()
    }

    /// The store has lost one key.
    pub fn lose_key(&mut self, key: &str, now: u64) {
        self.entries.push(Entry { at: now, what: What::Eviction { key: key.to_owned() } });
    }

    /// The store has answered a call. Nobody will hear the answer to one that is doubled.
    pub fn note(&mut self, call: &Call, answers: &[Answered], is_doubled: bool, now: u64) {
        let caller = || Caller {
            member: call.member,
            node: call.node,
            call: if is_doubled { u32::MAX } else { call.id.0 },
            sent_at: call.sent_at,
        };
        for answer in answers {
            let Answered { record, epoch, .. } = answer;
            // The store is in use from the beginning.
            if self.epochs.insert(record.clone(), *epoch).unwrap_or(FIRST_EPOCH) != *epoch {
                self.entries.push(Entry { at: now, what: What::Loss { record: record.clone() } });
            }
            for (key, units) in &answer.grants {
                let key = key.clone();
                let what = match (answer.operation.as_slice(), *units) {
                    (b"restore", _) => What::Report { key, by: caller() },
                    (_, 0) => continue,
                    (_, units) => What::Grant { key, units, to: caller() },
                };
                self.entries.push(Entry { at: now, what });
            }
        }
    }

    pub fn heard(&mut self, call: &Call, now: u64) {
        self.heard.insert((call.member, call.id.0), now);
    }

    /// Calls of a node go wrong.
    pub fn trouble(&mut self, node: usize, from: u64, to: u64) {
        self.troubles.push((node, from, to + GIVEN_UP));
    }

    /// Calls of all nodes go wrong.
    pub fn trouble_all(&mut self, nodes: usize, from: u64, to: u64) {
        (0..nodes).for_each(|node| self.trouble(node, from, to));
    }

    /// A worker is no more, or is one of an earlier configuration.
    pub fn gone(&mut self, member: usize, now: u64) {
        self.gone.entry(member).or_insert(now);
    }

    /// What of a key's units, which count for `period`, may be granted once more. A level that `holds`
    /// forgets only what is lost with a single key.
    pub fn forgotten(&self, key: &str, period: u64, holds: bool) -> Forgotten {
        let is_about = |entry: &&Entry| match &entry.what {
            What::Loss { record } => !holds && tag_of(record) == tag_of(key),
            What::Grant { key: of, .. }
            | What::Report { key: of, .. }
            | What::Eviction { key: of } => of == key,
        };
        let entries: Vec<&Entry> = self.entries.iter().filter(is_about).collect();
        let mut forgotten = Vec::new();
        for (place, entry) in entries.iter().enumerate() {
            let What::Grant { units, to, .. } = &entry.what else { continue };
            let Some(heard_at) = self.heard.get(&(to.member, to.call)) else { continue };
            let later = (place..entries.len()).map(|later| &entries[later..]);
            let mut later = later.take_while(|later| later[0].at < entry.at + period);
            if later.any(|later| self.is_forgotten(later, to, *heard_at)) {
                forgotten.push((entry.at, *units));
            }
        }
        forgotten
    }

    /// Whether units need not be known when the store grants anything after the loss that `after`
    /// begins with: they were not told, and could not be.
    fn is_forgotten(&self, after: &[&Entry], to: &Caller, heard_at: u64) -> bool {
        match after[0].what {
            What::Loss { .. } => {}
            What::Eviction { .. } => return true,
            What::Grant { .. } | What::Report { .. } => return false,
        }
        let is_grant = |entry: &&Entry| matches!(entry.what, What::Grant { .. });
        let Some(end) = after.iter().position(is_grant) else { return false };
        let told = |entry: &&Entry| match &entry.what {
            What::Report { by, .. } => by.member == to.member && by.sent_at >= heard_at,
            _ => false,
        };
        let (lost_at, granted_at) = (after[0].at, after[end].at);
        let troubled = |(node, from, until): &(usize, u64, u64)| {
            *node == to.node && *from <= granted_at && lost_at <= *until
        };
        let gone = self.gone.get(&to.member).is_some_and(|at| *at <= granted_at);
        (gone || self.troubles.iter().any(troubled)) && !after[..end].iter().any(told)
    }
}
