//! Digests of identities that came before, so that a busy tenant is hashed once.
//!
//! Two digests are more than a third of what a request takes in the core. What is remembered beside a
//! digest is no identity, but a tag: 128 bits of SipHash-2-4 (Aumasson and Bernstein, 2012) under a key
//! of the worker's own. So no secret outlives its request here, and nobody outside can find two
//! identities with one tag.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};

use super::{Digester, Subject};
use crate::map::{Map, seeded};

/// Digests that are kept in each of two generations: at most some 220 KiB for both.
const GENERATION_MAX: usize = 2048;

/// What tells two keys from one seed apart.
const SECOND_KEY: u64 = 0x9e37_79b9_7f4a_7c15;

/// Digests by their tags. Where the young ones are too many they are the old ones, and what was old and
/// not asked for meanwhile is forgotten.
#[derive(Debug)]
pub struct KnownDigests {
    keys: (u64, u64),
    young: Map<u128, Subject>,
    old: Map<u128, Subject>,
}

impl KnownDigests {
    /// Knows none. `seed` should be random.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        let keys = (seed, seed.rotate_left(32) ^ SECOND_KEY);
        Self { keys, young: seeded(seed), old: seeded(seed) }
    }

    /// What stands for the bytes of all `parts`, one after the other, by always the same `digester`.
    pub fn digest(&mut self, digester: &Digester, parts: &[&[u8]]) -> Subject {
        let mut tag = SipHasher24::new_with_keys(self.keys.0, self.keys.1);
        parts.iter().for_each(|part| tag.write(part));
        let tag = tag.finish128().as_u128();
        if let Some(known) = self.young.get(&tag) {
            return *known;
        }
        let digest = self.old.get(&tag).copied().unwrap_or_else(|| digester.digest_parts(parts));
        if self.young.len() >= GENERATION_MAX {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(tag, digest);
        digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_same_however_often_and_after_however_many_others() {
        let digester = Digester::new(Some(b"0123456789abcdef"));
        let mut known = KnownDigests::new(7);
        for round in 0..3 {
            for number in 0..3 * GENERATION_MAX {
                let name = number.to_string();
                let parts = [b"bearer".as_slice(), b" ", name.as_bytes()];
                let expected = digester.digest_parts(&parts);
                assert_eq!(known.digest(&digester, &parts), expected, "{name} in round {round}");
            }
            assert!(known.young.len() <= GENERATION_MAX && known.old.len() <= GENERATION_MAX);
        }
    }

    #[test]
    fn one_that_is_asked_for_again_and_again_is_not_hashed_again() {
        let (first, other) = (Digester::new(None), Digester::new(Some(b"another key")));
        let mut known = KnownDigests::new(7);
        let digest = known.digest(&first, &[b"busy"]);
        for number in 0..10 * GENERATION_MAX {
            known.digest(&first, &[number.to_string().as_bytes()]);
            // Another digester would say something else, so it is not asked.
            assert_eq!(known.digest(&other, &[b"busy"]), digest);
        }
    }

    #[test]
    fn no_secret_is_kept() {
        let mut known = KnownDigests::new(7);
        known.digest(&Digester::new(None), &[b"geheim-geheim"]);
        assert!(!format!("{known:?}").contains("geheim"));
    }
}
