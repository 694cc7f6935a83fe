//! Epochs: what a worker knows of the store's states, so that a loss of state is noticed.
//!
//! The script keeps a record beside the usage, and begins a new epoch where the record is gone, or is
//! older than what a caller has seen. Every call says what its caller knows, and every reply what the
//! record says. `docs/state-loss.md` tells what follows.

use super::Answer;
use super::shared_data::{SharedData, Swap};
use crate::units::{Instant, Span};

/// A worker that could lose something wants to have heard of the store within this time.
pub const PATIENCE: Span = Span::from_millis(150);

/// And any other within this one, so that what follows a loss is over when traffic comes.
pub const PATIENCE_IDLE: Span = Span::from_secs(1);

/// How much older than it is what a worker has heard may look to the others.
const NEWS: Span = Span::from_millis(75);

/// A state of the store. A later one is greater; the default is known to nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    /// The epoch's number.
    pub epoch: u64,
    /// Changes in it.
    pub changes: u64,
}

/// What a worker knows of one record.
#[derive(Debug)]
pub struct Known {
    /// The group of keys whose record it is.
    pub group: usize,
    /// The record's key in the store.
    pub record: String,
    /// The key in shared data under which the node's workers tell each other about it: the latest
    /// epoch, and when the store was last heard, or asked.
    shared_key: String,
    /// The latest state seen.
    pub state: State,
    /// Why its epoch began, as a code of the script.
    why: u64,
    heard_at: Instant,
    /// Whether a new epoch was seen, so that what was granted before is lost, and not dealt with yet.
    pub lost: bool,
}

/// What came of telling the node's other workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Whether this worker is to ask the store: nobody on the node has heard of it for long.
    pub ask: bool,
    /// Whether it was the first to tell of an epoch that is not the process's first.
    pub first: bool,
}

impl State {
    /// Nothing is known.
    pub const NONE: Self = Self { epoch: 0, changes: 0 };
}

impl Known {
    /// Knows nothing of the `record` of a group, and shares what it learns with filters of `namespace`.
    #[must_use]
    pub fn new(namespace: &str, group: usize, record: String) -> Self {
        Self {
            group,
            shared_key: format!("fairshare/1/{namespace}/epoch/{record}"),
            record,
            state: State::NONE,
            why: 0,
            heard_at: Instant::ORIGIN,
            lost: false,
        }
    }

    /// Takes what a reply says. Replies may come in any order.
    pub fn learn(&mut self, answer: &Answer, now: Instant) {
        self.lost |= self.state.epoch != 0 && answer.state.epoch > self.state.epoch;
        if answer.state > self.state {
            self.state = answer.state;
            self.why = answer.why;
        }
        self.heard_at = now;
    }

    /// Why the epoch began.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self.why {
            1 => "its record is gone: a flush, or an eviction",
            2 => "writes are lost: a fail-over, or an older copy",
            _ => "another server, or a restart, which may have lost writes",
        }
    }

    /// Tells the node's other workers, and learns from them. A worker with `patience` is told to ask
    /// where nobody has heard of the store for so long; then it is the only one for as long.
    pub fn exchange(
        &mut self,
        shared: &mut impl SharedData,
        patience: Option<Span>,
        now: Instant,
    ) -> Told {
        let is_due = |heard: Instant| patience.is_some_and(|time| now.since(heard) >= time);
        let alone = Told { ask: is_due(self.heard_at), first: false };
        let Ok(seen) = shared.get(&self.shared_key) else { return alone };
        let (words, _) = seen.bytes.as_chunks();
        let word = |place: usize| u64::from_le_bytes(words.get(place).copied().unwrap_or_default());
        let (epoch, told_at) = (word(0), Instant::from_nanos(word(1)));
        let latest = told_at.max(self.heard_at);
        let ask = is_due(latest);
        let tell_at = if ask { now } else { latest };
        let is_new = self.state.epoch > epoch;
        if is_new || ask || tell_at.since(told_at) >= NEWS {
            let news = [epoch.max(self.state.epoch), tell_at.as_nanos()].map(u64::to_le_bytes);
            // Where another worker is first, it tells the same story.
            match shared.swap(&self.shared_key, &news.concat(), seen.version) {
                Ok(Swap::Done) => {}
                Ok(Swap::Lost) => return Told { ask: false, first: false },
                Err(_) => return alone,
            }
        }
        if epoch > self.state.epoch {
            self.lost |= self.state.epoch != 0;
            self.state = State { epoch, changes: 0 };
        }
        Told { ask, first: is_new && epoch != 0 }
    }
}
