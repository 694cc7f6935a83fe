//! The board on which a node's workers read the store's word about the mode: one value in the host's
//! shared data. One worker at a time asks the store, and writes down for all what it hears.

use super::mode::{TEXT_BYTES_MAX, Word};
use super::shared_data::{SharedData, Swap, Version};
use crate::policy::{Mode, StorePolicy};
use crate::units::{Instant, Span};

/// Time between two questions to the store. An answer may be lost twice, and every worker follows
/// within ten seconds all the same.
const ASK_EVERY: Span = Span::from_secs(3);

/// Time after which a turn that nobody has taken is said to be neglected.
const NEGLECT: Span = Span::from_millis(500);

/// Two times come before the text.
const TIMES_BYTES: usize = 16;

/// The node's board.
#[derive(Debug)]
pub struct ModeBoard {
    key: String,
}

/// What a worker sees there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The mode that the store has set, while that stands.
    pub mode: Option<Mode>,
    /// Whether this worker is to ask the store now: nobody else does.
    pub ask: bool,
    /// Whether a turn is due for long, and nobody takes it.
    pub is_neglected: bool,
    /// Whether a word's time has run out, and this worker is the one to tell.
    pub ended: bool,
}

struct Notes {
    ask_at: Instant,
    /// Until when the word stands; the origin where it never expires.
    until: Instant,
    /// What stands in the store's key, cut off behind what is too long.
    text: Vec<u8>,
    version: Version,
}

impl ModeBoard {
    /// The board of all filters of the process that share `store` and its prefix.
    #[must_use]
    pub fn new(store: &StorePolicy) -> Self {
        Self { key: format!("fairshare/1/mode/{}/{}", store.cluster, store.key_prefix) }
    }

    /// What stands on the board. Where the shared data fails, nothing does. A question to the store that
    /// is due is this worker's, if it `claims` turns.
    pub fn look(&self, shared: &mut impl SharedData, claims: bool, now: Instant) -> Look {
        let Some(mut notes) = self.read(shared) else { return Look::default() };
        let (mut mode, mut ended) = (None, false);
        if let Word::Set(set, _) = notes.word() {
            ended = notes.until <= now;
            mode = Some(set).filter(|_| !ended);
        }
        // A time that is further away was written before the clock went back.
        let soon = notes.ask_at <= now.plus(ASK_EVERY);
        let is_due = |for_long| !soon || notes.ask_at.plus(for_long) <= now;
        let is_neglected = is_due(NEGLECT);
        if !claims || !is_due(Span::ZERO) {
            return Look { mode, is_neglected, ..Look::default() };
        }
        if ended {
            notes.text.clear();
        }
        notes.ask_at = now.plus(ASK_EVERY);
        let ask = self.write(shared, &notes);
        Look { mode, ask, is_neglected, ended: ask && ended }
    }

    /// Writes down what the store's key holds, which stands for `left`, or for ever where that is
    /// zero. Returns what it says, if that is news. Where another worker writes at the same time, the
    /// next answer will do.
    pub fn note<'a>(
        &self,
        shared: &mut impl SharedData,
        text: &'a [u8],
        left: Span,
        now: Instant,
    ) -> Option<Word<'a>> {
        let mut notes = self.read(shared)?;
        let text = text.get(..=TEXT_BYTES_MAX).unwrap_or(text);
        let word = Word::read(text, !left.is_zero());
        let news = word != notes.word();
        notes.until = if left.is_zero() { Instant::ORIGIN } else { now.plus(left) };
        notes.text = text.to_vec();
        (self.write(shared, &notes) && news).then_some(word)
    }

    /// Leaves the question to whoever looks after `pause`.
    pub fn hand_over(&self, shared: &mut impl SharedData, pause: Span, now: Instant) {
        if let Some(notes) = self.read(shared) {
            self.write(shared, &Notes { ask_at: now.plus(pause), ..notes });
        }
    }

    /// Bytes that are no notes say nothing.
    fn read(&self, shared: &mut impl SharedData) -> Option<Notes> {
        let value = shared.get(&self.key).ok()?;
        let (times, text) = value.bytes.split_at_checked(TIMES_BYTES).unwrap_or_default();
        let (times, _) = times.as_chunks();
        let time = |place: usize| {
            let bytes = times.get(place).copied().unwrap_or_default();
            Instant::from_nanos(u64::from_le_bytes(bytes))
        };
        let (ask_at, until) = (time(0), time(1));
        Some(Notes { ask_at, until, text: text.to_vec(), version: value.version })
    }

    fn write(&self, shared: &mut impl SharedData, notes: &Notes) -> bool {
        let mut bytes =
            [notes.ask_at, notes.until].map(|time| time.as_nanos().to_le_bytes()).concat();
        bytes.extend_from_slice(&notes.text);
        shared.swap(&self.key, &bytes, notes.version) == Ok(Swap::Done)
    }
}

impl Notes {
    fn word(&self) -> Word<'_> {
        Word::read(&self.text, self.until != Instant::ORIGIN)
    }
}
