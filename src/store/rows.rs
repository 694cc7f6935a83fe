//! The rows of a slot: `fingerprint u64, expires_at u64, fill u8, length u32` (little endian) and that many
//! bytes of payload: a record in postcard's wire format, or an overflow.

use super::slab::Fingerprint;
use crate::units::Instant;

const HEADER_BYTES: usize = 21;

/// What a slot holds of one subject, or an overflow.
#[derive(Debug)]
pub(super) struct Row<'a> {
    pub(super) fingerprint: Fingerprint,
    pub(super) expires_at: Instant,
    pub(super) fill: u8,
    /// The row as it is encoded, its header included.
    pub(super) bytes: &'a [u8],
}

/// Rows, up to the first bytes that are none.
pub(super) struct Rows<'a> {
    rest: &'a [u8],
}

impl<'a> Row<'a> {
    /// The row with which `bytes` begin.
    pub(super) fn first(bytes: &'a [u8]) -> Option<Self> {
        let (fingerprint, rest) = bytes.split_first_chunk()?;
        let (expires_at, rest) = rest.split_first_chunk()?;
        let (fill, rest) = rest.split_first()?;
        let (length, _) = rest.split_first_chunk()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        Some(Self {
            fingerprint: Fingerprint(u64::from_le_bytes(*fingerprint)),
            expires_at: Instant::from_nanos(u64::from_le_bytes(*expires_at)),
            fill: *fill,
            bytes: bytes.get(..HEADER_BYTES.checked_add(length)?)?,
        })
    }

    pub(super) fn payload(&self) -> &'a [u8] {
        self.bytes.get(HEADER_BYTES..).unwrap_or_default()
    }
}

impl<'a> Rows<'a> {
    pub(super) const fn of(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Rows<'a> {
    type Item = Row<'a>;

    fn next(&mut self) -> Option<Row<'a>> {
        let row = Row::first(self.rest)?;
        self.rest = self.rest.get(row.bytes.len()..).unwrap_or_default();
        Some(row)
    }
}

/// Appends a row to `bytes`.
pub(super) fn append(
    bytes: &mut Vec<u8>,
    Fingerprint(fingerprint): Fingerprint,
    (expires_at, fill): (Instant, u8),
    payload: &[u8],
) {
    // Records are kilobytes at most; nothing longer is ever made.
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    bytes.reserve_exact(HEADER_BYTES.saturating_add(payload.len()));
    bytes.extend_from_slice(&fingerprint.to_le_bytes());
    bytes.extend_from_slice(&expires_at.as_nanos().to_le_bytes());
    bytes.push(fill);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(payload);
}
