//! What the node's workers tell each other about a store that is out of reach: who probes it, and
//! when it last answered a probe. Two numbers in the host's shared data.

use super::shared_data::{SharedData, SharedDataFailure, Swap};
use crate::units::{Instant, Span};

/// The node's view of the store's health.
#[derive(Debug)]
pub struct StoreHealth {
    key: String,
}

/// What a worker that has given the store up is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Another worker's probe was answered: trust the store again.
    Trust,
    /// Probe it: nobody else does for as long as was asked for.
    Probe,
    /// Another worker probes it: wait.
    Wait,
}

#[derive(Clone, Copy)]
struct Notes {
    probe_until: Instant,
    answered_at: Instant,
}

impl StoreHealth {
    /// The health that filters of `namespace` share: of all of the store, or of the part that has the
    /// keys of the limit called `limit`.
    #[must_use]
    pub fn new(namespace: &str, limit: &str) -> Self {
        let slash = if limit.is_empty() { "" } else { "/" };
        Self { key: format!("fairshare/1/{namespace}/health{slash}{limit}") }
    }

    /// What to do for a worker that gave the store up at `since`. Who is told to probe has `time`
    /// for it; who has none is not. Where the shared data fails, a worker is on its own and probes.
    pub fn advise(
        &self,
        shared: &mut impl SharedData,
        since: Instant,
        time: Option<Span>,
        now: Instant,
    ) -> Advice {
        let claim = |notes: Notes| match time {
            _ if notes.answered_at > since => Err(Advice::Trust),
            Some(time) if notes.probe_until <= now => {
                Ok(Notes { probe_until: now.plus(time), ..notes })
            }
            _ => Err(Advice::Wait),
        };
        match self.update(shared, claim) {
            Ok(Ok(Swap::Done)) => Advice::Probe,
            Err(SharedDataFailure) if time.is_some() => Advice::Probe,
            Ok(Ok(Swap::Lost)) | Err(SharedDataFailure) => Advice::Wait,
            Ok(Err(advice)) => advice,
        }
    }

    /// Notes that a probe was answered, so that all workers trust the store again; or that it was
    /// not, so that nobody probes for another `pause`.
    pub fn probed(&self, shared: &mut impl SharedData, answered: bool, pause: Span, now: Instant) {
        let note = |notes: Notes| -> Result<Notes, Advice> {
            Ok(match answered {
                // Its turn is over: where the store is given up again, the next probe waits for nothing.
                true => Notes { answered_at: now, probe_until: now },
                false => Notes { probe_until: now.plus(pause), ..notes },
            })
        };
        // Where another worker writes at the same time, it tells the same story.
        let _ = self.update(shared, note);
    }

    fn update(
        &self,
        shared: &mut impl SharedData,
        change: impl FnOnce(Notes) -> Result<Notes, Advice>,
    ) -> Result<Result<Swap, Advice>, SharedDataFailure> {
        let value = shared.get(&self.key)?;
        match change(Notes::decode(&value.bytes)) {
            Ok(notes) => shared.swap(&self.key, &notes.encode(), value.version).map(Ok),
            Err(advice) => Ok(Err(advice)),
        }
    }
}

impl Notes {
    /// Bytes that are no notes say nothing.
    fn decode(bytes: &[u8]) -> Self {
        let (words, _) = bytes.as_chunks();
        let word = |place: usize| {
            let bytes = words.get(place).copied().unwrap_or_default();
            Instant::from_nanos(u64::from_le_bytes(bytes))
        };
        Self { probe_until: word(0), answered_at: word(1) }
    }

    fn encode(self) -> Vec<u8> {
        [self.probe_until, self.answered_at].map(|time| time.as_nanos().to_le_bytes()).concat()
    }
}
