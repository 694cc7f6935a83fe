//! The compiled configuration: what a request is checked against, with everything precomputed that
//! the configuration fixes. [`crate::config`] builds it, [`crate::filter`] reads it.

mod attributes;
mod auth_failures;
mod binding;
mod charge;
mod client;
mod digest;
mod header_map;
mod identity;
mod known_digests;
mod limit;
mod matcher;
mod request;

pub use attributes::{Attributes, Wanted};
pub use auth_failures::AuthFailures;
pub use binding::{Bindings, MAX_BINDINGS};
pub use charge::{Charge, LevelKey, Plan, Shadow};
pub use client::{Client, ClientPolicy};
pub use digest::{Digester, Subject};
pub use header_map::{HeaderMap, Pairs};
pub use identity::{
    CredentialPolicy, CredentialSource, Identity, IdentityPart, IdentityPolicy, IdentityRefusal,
    Missing, MissingCredential, TenantPolicy, TenantSource,
};
pub use known_digests::KnownDigests;
pub use limit::{
    Consistency, LEVELS, Level, Levels, Limit, LimitId, OnStateLoss, OnStoreError, Scope,
};
pub use matcher::Matcher;
pub use request::{RequestView, Values};

use crate::units::Span;

/// The most limits one configuration may hold.
pub const MAX_LIMITS: usize = 64;

/// A whole configuration, compiled.
#[derive(Debug)]
pub struct Policy {
    /// The kill switch.
    pub mode: Mode,
    /// Off: only the shared level of each limit is enforced.
    pub fair_share: bool,
    /// Filters of one process whose namespace is the same share their usage on the node.
    pub namespace: String,
    /// Who a request belongs to.
    pub identity: IdentityPolicy,
    /// Requests that are never counted and never refused.
    pub exempt: Vec<Matcher>,
    /// What is done about failed authentications.
    pub auth_failures: Option<AuthFailures>,
    /// The limits, in the order of the document. At most [`MAX_LIMITS`].
    pub limits: Vec<Limit>,
    /// The store behind limits of global scope.
    pub store: Option<StorePolicy>,
    /// Which response headers are written.
    pub headers: HeaderPolicy,
    /// What the host is asked of each request.
    pub wanted: Wanted,
}

impl Policy {
    /// The group of keys that the limit at `place` belongs to. Keys of one group lie in one hash slot
    /// of the store, so one script decides about them together.
    #[must_use]
    pub fn key_group(&self, place: usize) -> usize {
        match &self.store {
            Some(StorePolicy { topology: Topology::Cluster, .. }) => place,
            _ => 0,
        }
    }

    /// The group of keys of charges that all belong to one.
    #[must_use]
    pub fn group_of(&self, charges: &[Charge]) -> usize {
        charges.first().map_or(0, |charge| self.key_group(charge.place))
    }

    /// The first charges, as far as they belong to one group of keys.
    #[must_use]
    pub fn first_group<'a>(&self, charges: &'a [Charge]) -> &'a [Charge] {
        self.by_group(charges).next().map_or(&[], |(_, charges)| charges)
    }

    /// Charges in the order of their limits, by the groups of their keys.
    pub fn by_group<'a>(
        &self,
        charges: &'a [Charge],
    ) -> impl Iterator<Item = (usize, &'a [Charge])> {
        let group = |charge: &Charge| self.key_group(charge.place);
        let together = move |one: &Charge, next: &Charge| group(one) == group(next);
        let charges = charges.chunk_by(together);
        charges.map(|part| (self.group_of(part), part))
    }
}

/// How far the filter takes part in traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Requests over a limit are refused.
    Enforce,
    /// Requests over a limit are counted as such and let through.
    Shadow,
    /// Nothing is counted and nothing is refused.
    Off,
}

/// The store behind limits of global scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePolicy {
    /// The Envoy cluster that leads to the store.
    pub cluster: String,
    /// The longest time for which the store may delay a request. At least one millisecond, because
    /// the host reads a shorter one as no timeout at all.
    pub timeout: Span,
    /// First part of every key in the store.
    pub key_prefix: String,
    /// User of the store's access control list; empty for the default user.
    pub username: String,
    /// Password; empty for none.
    pub password: Secret,
    /// How many nodes hold the keys.
    pub topology: Topology,
}

/// How many nodes of the store hold the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One, which the Envoy cluster leads to.
    Single,
    /// Those of a Redis Cluster, each some of them.
    Cluster,
}

/// Text that no log and no error may show.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Which response headers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderPolicy {
    /// On which answers `RateLimit` and `RateLimit-Policy` stand.
    pub rate_limit: RateLimitHeaders,
    /// Whether a refusal carries `x-envoy-ratelimited: true`.
    pub envoy_ratelimited: bool,
}

/// On which answers `RateLimit` and `RateLimit-Policy` stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateLimitHeaders {
    /// On admitted and refused answers.
    Always,
    /// On refusals alone.
    Refused,
    /// Nowhere.
    Never,
}
