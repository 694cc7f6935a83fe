//! The names of keys in the store.
//!
//! `<tag>:1:<limit>:<level letter>`, and for a tenant, credential or client `:` and the first half of
//! its digest in hex. The 1 is the layout's version. The tag is `{<prefix>}` where one node holds all
//! keys, and `{<prefix>:<limit>}` in a Redis Cluster. Its braces make it the part that a Redis Cluster
//! hashes, so all keys of one decision lie in one slot. The configuration keeps braces out of prefixes,
//! and colons out of names of limits, so no two (limit, level, subject) share a key. A key is bounded
//! because each of its parts is. `<tag>:1:epoch` is the record of the store's epochs.

use crate::policy::{Level, StorePolicy, Subject, Topology};

/// Bytes of a subject's digest that its key holds. No two subjects will ever share 128 bits of a
/// cryptographic hash.
const SUBJECT_BYTES: usize = 16;

/// What the keys of the limit called `limit` begin with. Those that begin alike lie in one slot.
#[must_use]
pub fn tag(store: &StorePolicy, limit: &str) -> String {
    let [colon, limit] = match store.topology {
        Topology::Single => [""; 2],
        Topology::Cluster => [":", limit],
    };
    ["{", &store.key_prefix, colon, limit, "}"].concat()
}

/// The key of the record of the store's epochs for keys that begin with `tag`. It is no limit's key,
/// because all of those have a level.
#[must_use]
pub fn record_key(tag: &str) -> String {
    [tag, ":1:epoch"].concat()
}

/// The key of one level of the limit called `limit`.
#[must_use]
pub fn key(tag: &str, limit: &str, level: Level, subject: Option<&Subject>) -> String {
    let mut key = format!("{tag}:1:{limit}:{}", level.letter());
    if let Some(Subject(digest)) = subject {
        key.push(':');
        for byte in digest.iter().take(SUBJECT_BYTES) {
            key.extend([byte >> 4, byte & 0xf].map(hex_digit));
        }
    }
    key
}

fn hex_digit(nibble: u8) -> char {
    char::from_digit(nibble.into(), 16).unwrap_or('0')
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::policy::{LEVELS, Secret};
    use crate::units::Span;

    fn store(topology: Topology, prefix: &str) -> StorePolicy {
        StorePolicy {
            cluster: "redis".to_owned(),
            timeout: Span::from_millis(50),
            key_prefix: prefix.to_owned(),
            username: String::new(),
            password: Secret::default(),
            topology,
        }
    }

    /// Goal: these bytes never change while the layout's version is 1, because usage in running
    /// stores is found by them.
    #[test]
    fn keys_are_pinned() {
        let subject = Subject(std::array::from_fn(|i| u8::try_from(i * 17 % 256).unwrap()));
        assert_eq!(
            key(&tag(&store(Topology::Single, "fairshare"), "dns"), "dns", Level::Shared, None),
            "{fairshare}:1:dns:s"
        );
        assert_eq!(
            key("{fairshare}", "dns", Level::Tenant, Some(&subject)),
            "{fairshare}:1:dns:t:00112233445566778899aabbccddeeff"
        );
        assert_eq!(
            key("{f}", "a-b_9", Level::Credential, Some(&Subject([0xff; 32]))),
            "{f}:1:a-b_9:c:ffffffffffffffffffffffffffffffff"
        );
        assert_eq!(tag(&store(Topology::Cluster, "fairshare"), "dns"), "{fairshare:dns}");
    }

    #[test]
    fn no_two_levels_share_a_letter() {
        let letters: BTreeSet<char> = LEVELS.map(Level::letter).into_iter().collect();
        assert_eq!(letters.len(), LEVELS.len());
    }

    #[test]
    fn idn_6_keys_are_bounded() {
        let (prefix, limit) = ("p".repeat(64), "l".repeat(64));
        let longest = |topology| {
            let tag = tag(&store(topology, &prefix), &limit);
            key(&tag, &limit, Level::Tenant, Some(&Subject([0; 32]))).len()
        };
        assert_eq!([Topology::Single, Topology::Cluster].map(longest), [168, 233]);
    }
}
