//! A slot of the node's slab: the usage of a few subjects in a bounded number of bytes.
//!
//! The host's shared data cannot forget a key, so there is no key per tenant. Subjects are spread
//! over a fixed number of slots, and a slot holds what fits:
//!
//! - records that no longer matter make room first;
//! - then the records that have used the smallest part of what they may are evicted (of several, those
//!   that were charged longest ago), and the slot's overflow remembers who they were and the most that
//!   anyone evicted had used;
//! - a subject that may have been evicted starts from that, not from nothing.
//!
//! So a full slot never turns a limited tenant into a fresh one, and under a flood of invented
//! tenants an honest newcomer still starts from nothing until the filter, too, is full: with all
//! slots together, at about a million subjects within one window.
//!
//! Slots of requests in flight are evicted last where they are more than a few of their cap. Their shares
//! stay in the overflow until they run out, and their holder writes them anew within a third of that time.
//!
//! Bytes: a version, then rows (`src/store/rows.rs`).

use std::ops::Range;

use super::overflow::Overflow;
use super::record::Record;
use super::rows::{self, Row, Rows};
use crate::units::Instant;

/// Bytes beyond which a slot evicts. Only the subject at hand and the overflow are kept beyond it,
/// so that a slot has at most [`SLOT_BYTES_MAX`].
pub const SLOT_BYTES: usize = 4096;

/// The most bytes of a slot: three records of one entry more than [`crate::policy::MAX_LIMITS`],
/// each coarsened to at most 56 bytes, and two filters. Each cap on requests in flight adds some 7 bytes for each
/// worker that holds slots of the subject, for at most [`SHARES_MAX`](crate::limiter::SHARES_MAX).
pub const SLOT_BYTES_MAX: usize = 12_200;

/// Bytes that an eviction frees where that many are no fuller than the least full, so that a flood of
/// newcomers rewrites the overflow for one in a dozen and not for each.
const EVICTED_BYTES: usize = SLOT_BYTES / 8;

const VERSION: u8 = 2;
const VERSION_BYTES: usize = 1;

/// Whose row it is: a part of the subject's digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub(super) u64);

/// A slot as it stands in shared data, changed in place: of its rows all but one are only carried from
/// one version of the slot to the next. Bytes after the last whole row are none, and go with the next
/// change.
#[derive(Debug, Default)]
pub struct Slot {
    /// Empty, or the version and the rows, the one written last at the end.
    bytes: Vec<u8>,
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

impl Slot {
    /// Reads a slot; no bytes are an empty one.
    ///
    /// # Errors
    ///
    /// [`Unreadable`] where the bytes are of another version.
    pub fn decode(bytes: Vec<u8>) -> Result<Self, Unreadable> {
        match bytes.first() {
            None | Some(&VERSION) => Ok(Self { bytes }),
            Some(_) => Err(Unreadable),
        }
    }

    /// The slot's bytes; at most [`SLOT_BYTES_MAX`].
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What the subject has used: its record, or else what it must be taken to have used because
    /// its record may have been evicted.
    #[must_use]
    pub fn record(&self, fingerprint: Fingerprint, now: Instant) -> Record {
        let (mut old_overflow, mut overflow) = (None, None);
        for row in self.rows() {
            match row.fingerprint {
                own if own == fingerprint => {
                    let record = Record::decode(row.payload()).filter(|_| row.expires_at > now);
                    return record.unwrap_or_default();
                }
                Fingerprint::OLD_OVERFLOW => old_overflow = Some(row),
                Fingerprint::OVERFLOW => overflow = Some(row),
                _ => {}
            }
        }
        let mut inherited = Record::default();
        for row in [old_overflow, overflow].into_iter().flatten() {
            let lives = row.expires_at > now;
            let known = lives.then(|| Overflow::inherited(row.payload(), fingerprint.0)).flatten();
            known.into_iter().for_each(|record| inherited.envelop(record));
        }
        inherited
    }

    /// Puts the subject's record in the place of its old one, and makes room. Returns how many
    /// records of other subjects were evicted while they still mattered.
    pub fn put(&mut self, fingerprint: Fingerprint, record: &Record, now: Instant) -> usize {
        self.keep(|row| row.fingerprint != fingerprint && row.expires_at > now);
        self.push(fingerprint, (record.expires_at(), record.fill()), &record.encode(now));
        let mut evicted = 0;
        while self.bytes.len() > SLOT_BYTES {
            match self.evict(fingerprint, now) {
                0 => break,
                more => evicted = usize::saturating_add(evicted, more),
            }
        }
        evicted
    }

    /// Moves records into the overflow that are no fuller than the least full, the ones written longest
    /// ago first; not the one of `spared`. Returns how many.
    fn evict(&mut self, spared: Fingerprint, now: Instant) -> usize {
        let may_go = |row: &Row<'_>| row.fingerprint != spared && !row.fingerprint.is_overflow();
        let Some(least) = self.rows().filter(may_go).map(|row| row.fill).min() else { return 0 };
        let mut overflow = self.take_overflow();
        let (mut evicted, mut freed) = (0_usize, 0_usize);
        self.keep(|row| {
            if freed >= EVICTED_BYTES || row.fill != least || !may_go(row) {
                return true;
            }
            overflow.add(row.fingerprint.0, Record::decode(row.payload()).unwrap_or_default());
            freed = freed.saturating_add(row.bytes.len());
            evicted = evicted.saturating_add(1);
            false
        });
        let envelope = overflow.envelope();
        let (expires_at, fill) = (envelope.expires_at(), envelope.fill());
        self.push(Fingerprint::OVERFLOW, (expires_at, fill), &overflow.encode(now));
        evicted
    }

    /// The overflow to add to. A full one becomes the old one where there is no old one any more.
    fn take_overflow(&mut self) -> Overflow {
        let mut taken = None;
        let mut has_old = false;
        self.keep(|row| {
            has_old |= row.fingerprint == Fingerprint::OLD_OVERFLOW;
            let keeps = row.fingerprint != Fingerprint::OVERFLOW;
            if !keeps {
                taken = Some((row.expires_at, row.fill, row.payload().to_vec()));
            }
            keeps
        });
        let Some((expires_at, fill, payload)) = taken else { return Overflow::new() };
        let overflow = Overflow::decode(&payload).unwrap_or_else(Overflow::new);
        if overflow.is_full() && !has_old {
            self.push(Fingerprint::OLD_OVERFLOW, (expires_at, fill), &payload);
            return Overflow::new();
        }
        overflow
    }

    fn rows(&self) -> Rows<'_> {
        Rows::of(self.bytes.get(VERSION_BYTES..).unwrap_or_default())
    }

    /// Drops the rows that are not `wanted`, and what is no row.
    fn keep(&mut self, mut wanted: impl FnMut(&Row<'_>) -> bool) {
        let (mut end, mut run, mut at) = (VERSION_BYTES, VERSION_BYTES, VERSION_BYTES);
        while let Some(row) = self.bytes.get(at..).and_then(Row::first) {
            let after = at.saturating_add(row.bytes.len());
            if !wanted(&row) {
                end = self.move_down(run..at, end);
                run = after;
            }
            at = after;
        }
        end = self.move_down(run..at, end);
        self.bytes.truncate(end);
    }

    /// Moves a run of rows down to `to`. Returns where it ends then.
    fn move_down(&mut self, run: Range<usize>, to: usize) -> usize {
        let end = to.saturating_add(run.len());
        if run.start > to && run.end <= self.bytes.len() {
            self.bytes.copy_within(run, to);
        }
        end
    }

    /// Appends a row with a record's, or an overflow's, `payload`, which matters until then and is so full.
    fn push(&mut self, owner: Fingerprint, until_and_fill: (Instant, u8), payload: &[u8]) {
        if self.bytes.is_empty() {
            self.bytes.push(VERSION);
        }
        rows::append(&mut self.bytes, owner, until_and_fill, payload);
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
        let mut slot = Slot::decode(std::mem::take(bytes)).unwrap();
        let mut record = slot.record(fingerprint, now);
        let mut usage = record.usage(limit).cloned().unwrap_or_else(|| Usage::none(quota));
        let admitted = usage.peek(quota, 1, now).admitted;
        if admitted {
            usage.charge(quota, 1, now);
            record.set(Entry::new(limit, usage, quota, now));
            slot.put(fingerprint, &record, now);
        }
        *bytes = slot.bytes;
        admitted
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
            assert!(slot.bytes.len() <= SLOT_BYTES_MAX, "{}", slot.bytes.len());
        }
    }

    #[test]
    fn foreign_bytes_are_unreadable_and_never_a_panic() {
        assert!(Slot::decode(Vec::new()).unwrap().rows().next().is_none());
        assert_eq!(Slot::decode(b"\x07whatever".to_vec()).unwrap_err(), Unreadable);
        assert!(Slot::decode(b"\x02short".to_vec()).unwrap().rows().next().is_none());
    }

    /// Goal: bytes that were cut lose the row that was cut, and no other.
    #[test]
    fn rows_before_a_cut_are_kept() {
        let (mut bytes, quota) = (Vec::new(), quota(1));
        for subject in 11..14 {
            assert!(take(&mut bytes, subject, &quota, Instant::ORIGIN));
        }
        bytes.pop();
        assert!(take(&mut bytes, 13, &quota, Instant::ORIGIN), "the row that was cut");
        for subject in 11..14 {
            assert!(!take(&mut bytes, subject, &quota, Instant::ORIGIN), "{subject} was freed");
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_was_read_is_written_as_whole_rows(bytes in proptest::collection::vec(0..=255u8, 0..300)) {
            let mut versioned = vec![VERSION];
            versioned.extend_from_slice(&bytes);
            let mut slot = Slot::decode(versioned).unwrap();
            let record = slot.record(Fingerprint::ONLY, Instant::ORIGIN);
            slot.put(Fingerprint::new(9), &record, Instant::ORIGIN);
            let whole: usize = slot.rows().map(|row| row.bytes.len()).sum();
            proptest::prop_assert_eq!(VERSION_BYTES + whole, slot.bytes.len());
        }
    }
}
