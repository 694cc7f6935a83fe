//! What stands for an identity beyond its request: a hash.

use std::hash::{Hash, Hasher};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// What stands for a tenant, credential or client everywhere beyond the request: its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject(pub [u8; 32]);

/// Hashes identities: SHA-256, or HMAC-SHA-256 (RFC 2104) with the configured key.
#[derive(Clone)]
pub struct Digester(Option<Hmac<Sha256>>);

/// A part of a digest is as good a hash as all of it.
impl Hash for Subject {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.halves().0);
    }
}

impl Subject {
    /// This subject as a part of `other`, or of the tenant that has no level of its own: a digest as
    /// good as any, because both are.
    #[must_use]
    pub fn within(&self, other: Option<Self>) -> Self {
        let other = other.map_or([0xff; 32], |other| other.0);
        let mut mixed = self.0;
        mixed.iter_mut().zip(other).for_each(|(byte, other)| *byte ^= other);
        Self(mixed)
    }

    /// Two independent parts of the digest.
    #[must_use]
    pub fn halves(&self) -> (u64, u64) {
        let part = |bytes: Option<&[u8; 8]>| u64::from_le_bytes(bytes.copied().unwrap_or_default());
        let (first, rest) = self.0.split_at(8);
        (part(first.first_chunk()), part(rest.first_chunk()))
    }
}

impl Digester {
    /// Hashes with `key`, or without one where it is none.
    #[must_use]
    pub fn new(key: Option<&[u8]>) -> Self {
        // HMAC takes a key of any length, so this never fails.
        Self(key.and_then(|key| Hmac::new_from_slice(key).ok()))
    }

    /// Whether it hashes with a key.
    #[must_use]
    pub const fn is_keyed(&self) -> bool {
        self.0.is_some()
    }

    /// What stands for `bytes`.
    #[must_use]
    pub fn digest(&self, bytes: &[u8]) -> Subject {
        self.digest_parts(&[bytes])
    }

    /// What stands for the bytes of all `parts`, one after the other.
    #[must_use]
    pub fn digest_parts(&self, parts: &[&[u8]]) -> Subject {
        match &self.0 {
            Some(keyed) => {
                let mut mac = keyed.clone();
                parts.iter().for_each(|part| mac.update(part));
                Subject(mac.finalize().into_bytes().into())
            }
            None => {
                let mut hash = Sha256::new();
                parts.iter().for_each(|part| hash.update(part));
                Subject(hash.finalize().into())
            }
        }
    }
}

impl std::fmt::Debug for Digester {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Digester(keyed)" } else { "Digester(plain)" })
    }
}
