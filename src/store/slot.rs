//! The hash slots of a Redis Cluster.

/// Slots of every Redis Cluster.
const SLOTS: u16 = 16_384;

/// The slot of all keys that begin with `tag`, what is in its braces included.
#[must_use]
pub fn slot(tag: &str) -> i64 {
    let hashed = tag.strip_prefix('{').and_then(|tag| tag.strip_suffix('}')).unwrap_or(tag);
    i64::from(crc16(hashed.as_bytes()) % SLOTS)
}

/// CRC-16/XMODEM. A handful of tags is hashed once for a configuration, so no table is worth its
/// bytes.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte).rotate_left(8), |crc, _| {
            let shifted = crc.wrapping_shl(1);
            if crc.leading_zeros() == 0 { shifted ^ 0x1021 } else { shifted }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of the polynomial, and slots that `CLUSTER KEYSLOT` of Redis 7 names.
    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot("foo"), 12_182);
        assert_eq!(slot("{foo}"), 12_182);
        assert_eq!(slot("{fairshare:dns}"), 4812);
    }
}
