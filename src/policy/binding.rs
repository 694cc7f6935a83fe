//! Which tenant a credential belongs to.

use super::Subject;
use crate::map::{Map, seeded};

/// The most credentials that can be bound.
pub const MAX_BINDINGS: usize = 10_000;

/// Tenants by the SHA-256 of a credential that belongs to them.
#[derive(Debug)]
pub struct Bindings(Map<Subject, String>);

impl Default for Bindings {
    fn default() -> Self {
        // Outsiders can look up, but not add.
        Self(seeded(0))
    }
}

impl Bindings {
    /// Binds a credential, unless it is bound already.
    pub fn bind(&mut self, credential: Subject, tenant: &str) -> bool {
        self.0.insert(credential, tenant.to_owned()).is_none()
    }

    /// The tenant to which the credential belongs; none where it is free to name any.
    #[must_use]
    pub fn tenant_of(&self, credential: Subject) -> Option<&str> {
        self.0.get(&credential).map(String::as_str)
    }

    /// How many credentials are bound.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
