//! What one subject has used, limit by limit, and its bytes.

use serde::{Deserialize, Serialize};

use crate::limiter::{Quota, Usage};
use crate::policy::LimitId;
use crate::units::Instant;

/// Bytes of one record beyond which its usage is kept more coarsely.
const RECORD_BYTES_FINE: usize = 1024;

/// What one subject has used of one limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    limit: LimitId,
    /// The time from which the entry no longer matters.
    expires_at: Instant,
    /// Which part of the limit was used when the entry was written, in 255ths.
    fill: u8,
    usage: Usage,
}

/// What one subject has used, by limit. At most [`crate::policy::MAX_LIMITS`] entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record(Vec<Entry>);

impl Entry {
    /// What was used of `limit`, written at `now` under `quota`.
    #[must_use]
    pub fn new(limit: LimitId, usage: Usage, quota: &Quota, now: Instant) -> Self {
        let left = u128::from(usage.peek(quota, 0, now).remaining);
        let part_left = left.saturating_mul(255).checked_div(u128::from(quota.capacity()));
        let fill = u8::MAX.saturating_sub(u8::try_from(part_left.unwrap_or(0)).unwrap_or(u8::MAX));
        Self { limit, expires_at: usage.expires_at(quota), fill, usage }
    }
}

impl Record {
    pub(super) const EMPTY: Self = Self(Vec::new());

    /// What was used of `limit`.
    #[must_use]
    pub fn usage(&self, limit: LimitId) -> Option<&Usage> {
        self.0.iter().find(|entry| entry.limit == limit).map(|entry| &entry.usage)
    }

    /// Sets what was used of the entry's limit.
    pub fn set(&mut self, entry: Entry) {
        match self.0.iter_mut().find(|old| old.limit == entry.limit) {
            Some(old) => *old = entry,
            None => self.0.push(entry),
        }
    }

    /// The time from which nothing of the record matters.
    pub(super) fn expires_at(&self) -> Instant {
        self.0.iter().map(|entry| entry.expires_at).max().unwrap_or(Instant::ORIGIN)
    }

    /// The fullest entry's fill.
    pub(super) fn fill(&self) -> u8 {
        self.0.iter().map(|entry| entry.fill).max().unwrap_or(0)
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok().map(Self)
    }

    /// The record's bytes, without the entries that no longer matter. A large record loses detail,
    /// never units.
    pub(super) fn encode(&self, now: Instant) -> Vec<u8> {
        let mut live: Vec<Entry> =
            self.0.iter().filter(|entry| entry.expires_at > now).cloned().collect();
        let bytes = postcard::to_allocvec(&live).unwrap_or_default();
        if bytes.len() <= RECORD_BYTES_FINE {
            return bytes;
        }
        live.iter_mut().for_each(|entry| entry.usage.coarsen());
        postcard::to_allocvec(&live).unwrap_or_default()
    }

    /// Merges `other`, so that this record is at least as strict as both.
    pub(super) fn envelop(&mut self, other: Self) {
        for new in other.0 {
            match self.0.iter_mut().find(|entry| entry.limit == new.limit) {
                Some(old) => {
                    old.usage = old.usage.envelope(&new.usage);
                    old.expires_at = old.expires_at.max(new.expires_at);
                    old.fill = old.fill.max(new.fill);
                }
                None => self.0.push(new),
            }
        }
        self.0.iter_mut().for_each(|entry| entry.usage.coarsen());
    }
}
