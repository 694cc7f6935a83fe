//! What a slot remembers of the subjects that it evicted: who they may be, and the most that any
//! of them had used.
//!
//! The "who" is a Bloom filter (Bloom 1970), so a subject that was evicted is always known, and one
//! that never was is taken for one rarely: with the 400 evictions for which the filter is sized, one
//! in a hundred.

use super::record::Record;
use crate::units::Instant;

const COUNT_BYTES: usize = 2;
const FILTER_BYTES: usize = 512;
const FILTER_BITS: u64 = 4096;

/// Bits that stand for one subject.
const HASHES: u32 = 4;

/// Evictions after which a new generation is begun, as soon as the one before no longer matters.
const EVICTIONS_SIZED_FOR: u16 = 400;

/// Subjects that were evicted within one stretch of time.
#[derive(Debug)]
pub(super) struct Overflow {
    evictions: u16,
    filter: [u8; FILTER_BYTES],
    /// The maximum of what they had used.
    envelope: Record,
}

impl Overflow {
    pub(super) const fn new() -> Self {
        Self { evictions: 0, filter: [0; FILTER_BYTES], envelope: Record::EMPTY }
    }

    pub(super) fn add(&mut self, fingerprint: u64, record: Record) {
        self.evictions = self.evictions.saturating_add(1);
        for (byte, mask) in places(fingerprint) {
            if let Some(byte) = self.filter.get_mut(byte) {
                *byte |= mask;
            }
        }
        self.envelope.envelop(record);
    }

    /// What the subject must be taken to have used, by an overflow's bytes, if it may have been evicted.
    pub(super) fn inherited(bytes: &[u8], fingerprint: u64) -> Option<Record> {
        let (filter, envelope) = bytes.get(COUNT_BYTES..)?.split_at_checked(FILTER_BYTES)?;
        let known = |(byte, mask)| filter.get(byte).is_some_and(|bits: &u8| bits & mask != 0);
        places(fingerprint).all(known).then(|| Record::decode(envelope))?
    }

    /// Whether more evictions would take many for evicted that never were.
    pub(super) const fn is_full(&self) -> bool {
        self.evictions >= EVICTIONS_SIZED_FOR
    }

    pub(super) const fn envelope(&self) -> &Record {
        &self.envelope
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (evictions, rest) = bytes.split_first_chunk::<COUNT_BYTES>()?;
        let (filter, rest) = rest.split_first_chunk()?;
        let envelope = Record::decode(rest)?;
        Some(Self { evictions: u16::from_le_bytes(*evictions), filter: *filter, envelope })
    }

    pub(super) fn encode(&self, now: Instant) -> Vec<u8> {
        let envelope = self.envelope.encode(now);
        let length = COUNT_BYTES.saturating_add(FILTER_BYTES).saturating_add(envelope.len());
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(&self.evictions.to_le_bytes());
        bytes.extend_from_slice(&self.filter);
        bytes.extend_from_slice(&envelope);
        bytes
    }
}

/// The bits of a fingerprint, as byte and mask; a fingerprint is already as good as random.
fn places(fingerprint: u64) -> impl Iterator<Item = (usize, u8)> {
    (0..HASHES).map(move |hash| {
        let bit = fingerprint.rotate_right(hash.saturating_mul(13)) % FILTER_BITS;
        let byte = usize::try_from(bit / 8).unwrap_or(usize::MAX);
        (byte, 1u8.rotate_left(u32::try_from(bit % 8).unwrap_or(0)))
    })
}
