//! A request's headers as the host hands them over: one byte string for the whole map.
//!
//! The form is the proxy-wasm ABI's (v0.2.1, "serialized headers"): a count, that many pairs of
//! name and value lengths, then names and values, each followed by a zero byte; all numbers are
//! `u32`, little endian. Values may be any bytes. Reading allocates nothing and stops at the first
//! length that does not fit.

/// A header map in the host's serialized form.
#[derive(Clone, Copy, Debug)]
pub struct HeaderMap<'a> {
    bytes: &'a [u8],
}

/// The pairs of a [`HeaderMap`], in the order of the wire.
#[derive(Clone, Debug)]
pub struct Pairs<'a> {
    lengths: &'a [u8],
    contents: &'a [u8],
}

impl<'a> HeaderMap<'a> {
    /// Reads `bytes` as a header map.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Name and value of every header, repeated ones included.
    #[must_use]
    pub fn pairs(&self) -> Pairs<'a> {
        Pairs::read(self.bytes).unwrap_or(Pairs { lengths: &[], contents: &[] })
    }

    /// The map of `pairs` in the serialized form. Bounded by the input.
    #[must_use]
    pub fn serialize(pairs: &[(&[u8], &[u8])]) -> Vec<u8> {
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
        let mut map = u32::try_from(pairs.len()).unwrap_or(u32::MAX).to_le_bytes().to_vec();
        for (name, value) in pairs {
            map.extend_from_slice(&length(name));
            map.extend_from_slice(&length(value));
        }
        for (name, value) in pairs {
            for part in [name, value] {
                map.extend_from_slice(part);
                map.push(0);
            }
        }
        map
    }
}

impl<'a> Pairs<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (count, rest) = bytes.split_first_chunk()?;
        let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
        let (lengths, contents) = rest.split_at_checked(count.checked_mul(8)?)?;
        Some(Self { lengths, contents })
    }

    #[inline(always)]
    fn take(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        let (name_length, rest) = self.lengths.split_first_chunk()?;
        let (value_length, rest) = rest.split_first_chunk()?;
        let (name, contents) = take_string(self.contents, u32::from_le_bytes(*name_length))?;
        let (value, contents) = take_string(contents, u32::from_le_bytes(*value_length))?;
        (self.lengths, self.contents) = (rest, contents);
        Some((name, value))
    }
}

impl<'a> Iterator for Pairs<'a> {
    type Item = (&'a [u8], &'a [u8]);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let pair = self.take();
        if pair.is_none() {
            self.lengths = &[];
        }
        pair
    }
}

/// A string of `length` bytes and the zero byte behind it.
#[inline(always)]
fn take_string(bytes: &[u8], length: u32) -> Option<(&[u8], &[u8])> {
    let (string, rest) = bytes.split_at_checked(usize::try_from(length).ok()?)?;
    let (_zero, rest) = rest.split_first()?;
    Some((string, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_serialized_is_read_back() {
        let pairs: [(&[u8], &[u8]); 3] =
            [(b":path", b"/a"), (b"x-tenant-id", b"\xff\x00\xfe"), (b"x-tenant-id", b"")];
        let bytes = HeaderMap::serialize(&pairs);
        assert_eq!(HeaderMap::new(&bytes).pairs().collect::<Vec<_>>(), pairs);
    }

    #[test]
    fn a_map_that_is_cut_short_ends_early() {
        let bytes = HeaderMap::serialize(&[(b"a", b"1"), (b"b", b"2")]);
        for end in 0..bytes.len() {
            assert!(HeaderMap::new(&bytes[..end]).pairs().count() < 2);
        }
    }

    proptest::proptest! {
        #[test]
        fn idn_4_any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(0..=255u8, 0..200)) {
            let _ = HeaderMap::new(&bytes).pairs().count();
        }
    }
}
