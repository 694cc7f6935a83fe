//! A slot of the node's slab: the usage of a few subjects in a bounded number of bytes.
//!
//! The host's shared data cannot forget a key, so there is no key per tenant. Subjects are spread
//! over a fixed number of slots, and a slot holds what fits:
//!
//! - records that no longer matter make room first;
//! - then the record that has used the smallest part of what it may is evicted (of several, the
//!   first to expire), and the slot's overflow remembers who it was and the most
//!   that anyone evicted had used;
//! - a subject that may have been evicted starts from that, not from nothing.
//!
//! So a full slot never turns a limited tenant into a fresh one, and under a flood of invented
//! tenants an honest newcomer still starts from nothing until the filter, too, is full: with all
//! slots together, at about a million subjects within one window.
//!
//! Slots of requests in flight are evicted last. Their shares stay in the overflow until they run out,
//! and their holder writes them anew within a third of that time.
//!
//! Bytes: a version, then rows of `fingerprint u64, expires_at u64, fill u8, length u32` (little
//! endian) and that many bytes of payload: a record in postcard's wire format, or an overflow.

use std::borrow::Cow;

use super::overflow::Overflow;
use super::record::Record;
use crate::units::Instant;

/// Bytes beyond which a slot evicts. Only the subject at hand and the overflow are kept beyond it,
/// so that a slot has at most [`SLOT_BYTES_MAX`].
pub const SLOT_BYTES: usize = 4096;

/// The most bytes of a slot: three records of one entry more than [`crate::policy::MAX_LIMITS`],
/// each coarsened to at most 56 bytes, and two filters. Each cap on requests in flight adds some 7 bytes for each
/// worker that holds slots of the subject, for at most [`SHARES_MAX`](crate::limiter::SHARES_MAX).
pub const SLOT_BYTES_MAX: usize = 12_200;

const VERSION: u8 = 2;
const HEADER_BYTES: usize = 21;

/// Whose row it is: a part of the subject's digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u64);

/// A slot as it stands in shared data.
#[derive(Debug, Default)]
pub struct Slot<'a> {
    rows: Vec<Row<'a>>,
}

#[derive(Debug)]
struct Row<'a> {
    fingerprint: Fingerprint,
    expires_at: Instant,
    fill: u8,
    /// The row as it is encoded: most are only carried from one version of the slot to the next.
    bytes: Cow<'a, [u8]>,
}

/// The bytes are no slot of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

impl Fingerprint {
    /// The one record of a slot that has only one.
    pub const ONLY: Self = Self(2);

    /// The overflow to which evicted records go.
    const OVERFLOW: Self = Self(0);

    /// The overflow before it.
    const OLD_OVERFLOW: Self = Self(1);

    /// The fingerprint made of `bits`.
    #[must_use]
    pub fn new(bits: u64) -> Self {
        Self(bits.max(Self::ONLY.0))
    }

    const fn is_overflow(self) -> bool {
        self.0 < Self::ONLY.0
    }
}

impl<'a> Slot<'a> {
    /// Reads a slot.
    ///
    /// # Errors
    ///
    /// [`Unreadable`] where the bytes are not what [`encode`](Self::encode) writes.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Unreadable> {
        let Some((version, mut rest)) = bytes.split_first() else { return Ok(Self::default()) };
        if *version != VERSION {
            return Err(Unreadable);
        }
        let mut rows = Vec::new();
        while !rest.is_empty() {
            let (row, after) = Row::decode(rest).ok_or(Unreadable)?;
            rows.push(row);
            rest = after;
        }
        Ok(Self { rows })
    }

    /// The slot's bytes; at most [`SLOT_BYTES_MAX`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.size());
        bytes.push(VERSION);
        for row in &self.rows {
            bytes.extend_from_slice(&row.bytes);
        }
        bytes
    }

    /// What the subject has used: its record, or else what it must be taken to have used because
    /// its record may have been evicted.
    #[must_use]
    pub fn record(&self, fingerprint: Fingerprint, now: Instant) -> Record {
        if let Some(row) = self.row(fingerprint) {
            let record = Record::decode(row.payload()).filter(|_| row.expires_at > now);
            return record.unwrap_or_default();
        }
        let mut inherited = Record::default();
        for overflow in [Fingerprint::OLD_OVERFLOW, Fingerprint::OVERFLOW] {
            let row = self.row(overflow).filter(|row| row.expires_at > now);
            let known = row.and_then(|row| Overflow::decode(row.payload())?.of(fingerprint.0));
            if let Some(record) = known {
                inherited.envelop(record);
            }
        }
        inherited
    }

    /// Puts the subject's record in the place of its old one, and makes room. Returns how many
    /// records of other subjects were evicted while they still mattered.
    pub fn put(&mut self, fingerprint: Fingerprint, record: &Record, now: Instant) -> usize {
        self.rows.retain(|row| row.fingerprint != fingerprint && row.expires_at > now);
        self.rows.push(Row::new(
            fingerprint,
            (record.expires_at(), record.fill()),
            &record.encode(now),
        ));
        let mut evicted = 0;
        while self.size() > SLOT_BYTES && self.evict_one(fingerprint, now) {
            evicted = usize::saturating_add(evicted, 1);
        }
        evicted
    }

    /// Moves the least filled record into the overflow; not the one of `kept`.
    fn evict_one(&mut self, kept: Fingerprint, now: Instant) -> bool {
        let candidates = self
            .rows
            .iter()
            .enumerate()
            .filter(|(_, row)| row.fingerprint != kept && !row.fingerprint.is_overflow());
        let Some((victim, _)) = candidates.min_by_key(|(_, row)| (row.fill, row.expires_at)) else {
            return false;
        };
        let victim = self.rows.swap_remove(victim);
        let record = Record::decode(victim.payload()).unwrap_or_default();
        let mut overflow = self.take_overflow();
        overflow.add(victim.fingerprint.0, record);
        let (bytes, envelope) = (overflow.encode(now), overflow.envelope());
        self.rows.push(Row::new(
            Fingerprint::OVERFLOW,
            (envelope.expires_at(), envelope.fill()),
            &bytes,
        ));
        true
    }

    /// The overflow to add to. A full one becomes the old one where there is no old one any more.
    fn take_overflow(&mut self) -> Overflow {
        let position = self.rows.iter().position(|row| row.fingerprint == Fingerprint::OVERFLOW);
        let Some(position) = position else { return Overflow::new() };
        let row = self.rows.swap_remove(position);
        let overflow = Overflow::decode(row.payload()).unwrap_or_else(Overflow::new);
        if overflow.is_full() && self.row(Fingerprint::OLD_OVERFLOW).is_none() {
            self.rows.push(Row::new(
                Fingerprint::OLD_OVERFLOW,
                (row.expires_at, row.fill),
                row.payload(),
            ));
            return Overflow::new();
        }
        overflow
    }

    fn row(&self, fingerprint: Fingerprint) -> Option<&Row<'a>> {
        self.rows.iter().find(|row| row.fingerprint == fingerprint)
    }

    fn size(&self) -> usize {
        self.rows.iter().fold(1, |sum, row| sum.saturating_add(row.bytes.len()))
    }
}

impl<'a> Row<'a> {
    /// A row with a record's, or an overflow's, `payload`, which matters until then and is so full.
    fn new(fingerprint: Fingerprint, (expires_at, fill): (Instant, u8), payload: &[u8]) -> Self {
        // Records are kilobytes at most; nothing longer is ever made.
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(HEADER_BYTES.saturating_add(payload.len()));
        bytes.extend_from_slice(&fingerprint.0.to_le_bytes());
        bytes.extend_from_slice(&expires_at.as_nanos().to_le_bytes());
        bytes.push(fill);
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(payload);
        Self { fingerprint, expires_at, fill, bytes: Cow::Owned(bytes) }
    }

    fn decode(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (fingerprint, rest) = bytes.split_first_chunk()?;
        let (expires_at, rest) = rest.split_first_chunk()?;
        let (fill, rest) = rest.split_first()?;
        let (length, _) = rest.split_first_chunk()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let (row, rest) = bytes.split_at_checked(HEADER_BYTES.checked_add(length)?)?;
        let row = Self {
            fingerprint: Fingerprint(u64::from_le_bytes(*fingerprint)),
            expires_at: Instant::from_nanos(u64::from_le_bytes(*expires_at)),
            fill: *fill,
            bytes: Cow::Borrowed(row),
        };
        Some((row, rest))
    }

    fn payload(&self) -> &[u8] {
        self.bytes.get(HEADER_BYTES..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{Quota, Usage, WindowQuota};
    use crate::policy::LimitId;
    use crate::store::record::Entry;
    use crate::units::Span;

    const MINUTE: Span = Span::from_secs(60);

    fn quota(requests: u64) -> Quota {
        Quota::Window(WindowQuota { requests, window: MINUTE })
    }

    /// Admits and charges one unit for the subject, as the node does.
    fn take(bytes: &mut Vec<u8>, subject: u64, quota: &Quota, now: Instant) -> bool {
        let (fingerprint, limit) = (Fingerprint::new(subject), LimitId::of("dns"));
        let mut slot = Slot::decode(bytes).unwrap();
        let mut record = slot.record(fingerprint, now);
        let mut usage = record.usage(limit).cloned().unwrap_or_else(|| Usage::none(quota));
        if !usage.peek(quota, 1, now).admitted {
            return false;
        }
        usage.charge(quota, 1, now);
        record.set(Entry::new(limit, usage, quota, now));
        slot.put(fingerprint, &record, now);
        *bytes = slot.encode();
        true
    }

    /// A fingerprint as good as random (Steele et al., SplitMix64).
    fn random(seed: u64) -> u64 {
        let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Goal: a flood of invented tenants keeps the slot bounded, never frees a tenant that is
    /// limited, and hardly ever costs a newcomer anything.
    #[test]
    fn idn_7_a_flood_of_tenants_neither_grows_the_slot_nor_frees_anyone() {
        let (mut bytes, quota) = (Vec::new(), quota(5));
        for _ in 0..5 {
            assert!(take(&mut bytes, 7, &quota, Instant::ORIGIN));
        }
        let newcomers = |bytes: &mut Vec<u8>, range: std::ops::Range<u64>| {
            range.filter(|seed| take(bytes, random(*seed), &quota, Instant::ORIGIN)).count()
        };
        assert_eq!(newcomers(&mut bytes, 1000..1450), 450);
        assert!(bytes.len() <= SLOT_BYTES, "{}", bytes.len());
        assert!(!take(&mut bytes, 7, &quota, Instant::ORIGIN), "the limited tenant was freed");
        // Beyond what the filters are sized for, newcomers may be refused, but nobody is freed.
        newcomers(&mut bytes, 10_000..60_000);
        assert!(bytes.len() <= SLOT_BYTES, "{}", bytes.len());
        assert!(!take(&mut bytes, 7, &quota, Instant::ORIGIN), "the limited tenant was freed");
    }

    /// Goal: whoever was evicted and comes back is never freer than it was.
    #[test]
    fn nobody_is_freed_by_being_evicted() {
        let (mut bytes, quota) = (Vec::new(), quota(1));
        let mut admitted = std::collections::BTreeSet::new();
        for round in 0..3 {
            for seed in 1000..2000 {
                if take(&mut bytes, random(seed), &quota, Instant::ORIGIN) {
                    assert!(admitted.insert(seed), "round {round} admits {seed} again");
                }
            }
        }
    }

    #[test]
    fn idle_subjects_leave_nothing_behind() {
        let (mut bytes, quota) = (Vec::new(), quota(5));
        for stranger in 1000..2000 {
            take(&mut bytes, stranger, &quota, Instant::ORIGIN);
        }
        let later = Instant::ORIGIN.plus(MINUTE);
        assert!(take(&mut bytes, 1, &quota, later));
        assert!(bytes.len() < 64, "{}", bytes.len());
    }

    /// Goal: with the most limits there may be, each with the largest numbers, a slot still stays
    /// below its stated maximum.
    #[test]
    fn a_slot_of_the_largest_records_stays_below_its_maximum() {
        let largest = crate::limiter::GcraQuota {
            rate: 1,
            per: Span::from_nanos(u64::MAX / 2),
            burst: u64::MAX,
        };
        let (quota, now) = (Quota::Gcra(largest), Instant::from_nanos(u64::MAX / 4));
        let mut slot = Slot::default();
        for subject in 1..200 {
            let mut record = slot.record(Fingerprint::new(subject), now);
            for limit in 0..crate::policy::MAX_LIMITS {
                let mut usage = Usage::none(&quota);
                usage.charge(&quota, u64::MAX, now);
                record.set(Entry::new(LimitId::of(&format!("limit-{limit}")), usage, &quota, now));
            }
            slot.put(Fingerprint::new(subject), &record, now);
            assert!(slot.encode().len() <= SLOT_BYTES_MAX, "{}", slot.encode().len());
        }
    }

    #[test]
    fn foreign_bytes_are_unreadable_and_never_a_panic() {
        assert!(Slot::decode(b"").unwrap().rows.is_empty());
        assert_eq!(Slot::decode(b"\x07whatever").unwrap_err(), Unreadable);
        assert_eq!(Slot::decode(b"\x02short").unwrap_err(), Unreadable);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_decode_or_are_unreadable(bytes in proptest::collection::vec(0..=255u8, 0..300)) {
            let mut versioned = vec![VERSION];
            versioned.extend_from_slice(&bytes);
            if let Ok(mut slot) = Slot::decode(&versioned) {
                let record = slot.record(Fingerprint::ONLY, Instant::ORIGIN);
                slot.put(Fingerprint::new(9), &record, Instant::ORIGIN);
                let _ = slot.encode();
            }
        }
    }
}
