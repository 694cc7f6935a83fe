//! One limit: what it applies to, and what each of its levels allows.

use crate::map::Map;
use std::fmt;
use std::rc::Rc;

use super::{Identity, Matcher, Subject};
use crate::limiter::Quota;

/// The levels in the order in which they are decided and reported.
pub const LEVELS: [Level; 4] = [Level::Shared, Level::Tenant, Level::Credential, Level::Client];

/// Whose requests a level counts together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Everyone's.
    Shared,
    /// One tenant's.
    Tenant,
    /// One credential's.
    Credential,
    /// One address's.
    Client,
}

/// A limit's number in every store: a hash of its name, so that usage survives a change of the
/// configuration's order. The configuration refuses two names with one number.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct LimitId(u32);

/// Where a limit's usage is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// This Envoy process, all its workers.
    Node,
    /// Every Envoy that shares the store.
    Global,
}

/// How a global limit is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// From units that the store has granted ahead of their spending.
    Leased,
    /// Each request in the store.
    Strict,
}

/// What a global limit does while the store is out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreError {
    /// The node enforces this many millionths of the limit by itself.
    Local {
        /// Millionths of the limit's volume, 1 to 1,000,000.
        fraction_ppm: u64,
    },
    /// The limit is not enforced.
    Allow,
    /// The request is refused with 503 `store_unavailable`.
    Deny,
}

/// What a global limit does where the store has lost usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStateLoss {
    /// The nodes tell the store what was granted to them.
    Rebuild,
    /// Nothing is granted until no lost unit can still count.
    Hold,
}

/// What each level allows; none where the limit has no such level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// For everyone together.
    pub shared: Option<Quota>,
    /// For each tenant.
    pub tenant: Option<Quota>,
    /// For each credential.
    pub credential: Option<Quota>,
    /// For each client address.
    pub client: Option<Quota>,
}

/// A limit, compiled.
#[derive(Debug)]
pub struct Limit {
    /// Its name: `[a-z0-9_-]`, at most 64 bytes.
    pub name: Rc<str>,
    /// Its number in every store.
    pub id: LimitId,
    /// The number under which the node counts while the store is out of reach.
    pub fallback_id: LimitId,
    /// The number under which requests in flight are counted.
    pub in_flight_id: LimitId,
    /// The requests to which it applies.
    pub matcher: Matcher,
    /// Where its usage is counted.
    pub scope: Scope,
    /// How it is decided, where the scope is global.
    pub consistency: Consistency,
    /// What its levels allow.
    pub levels: Levels,
    /// What replaces `levels` for some tenants; the shared level is never among it.
    pub overrides: Map<String, Levels>,
    /// Caps on requests in flight. They hold on each node, whatever the scope.
    pub in_flight: Levels,
    /// What replaces `in_flight` for some tenants; the shared level is never among it.
    pub in_flight_overrides: Map<String, Levels>,
    /// Units that one request spends. At least one.
    pub cost: u64,
    /// What happens while the store is out of reach.
    pub on_store_error: OnStoreError,
    /// What happens where the store has lost usage.
    pub on_state_loss: OnStateLoss,
    /// Evaluated by itself and only counted.
    pub shadow: bool,
}

impl Level {
    /// The name in configuration, metrics and answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Tenant => "tenant",
            Self::Credential => "credential",
            Self::Client => "client",
        }
    }

    /// A number by which hash maps look up this level of `subject`: one instead of each part by itself,
    /// because requests look up several.
    #[must_use]
    pub fn hash_of(self, subject: Option<&Subject>) -> u64 {
        let subject = subject.map_or(0, |subject| subject.halves().0);
        subject ^ u64::from(u32::from(self.letter()))
    }

    /// The letter that stands for the level in keys: for a client the one of "address".
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Shared => 's',
            Self::Tenant => 't',
            Self::Credential => 'c',
            Self::Client => 'a',
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl LimitId {
    /// The number itself.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The number of the limit called `name` (FNV-1a, 32 bits).
    #[must_use]
    pub fn of(name: &str) -> Self {
        Self(fnv1a(name.as_bytes()))
    }

    /// The number under which the node counts for the limit called `name` while the store is out
    /// of reach. The separator is no letter of a name, so no limit's own number is meant by it.
    #[must_use]
    pub fn of_fallback(name: &str) -> Self {
        Self(fnv1a(format!("{name}!local").as_bytes()))
    }

    /// The number under which failed authentications are counted.
    #[must_use]
    pub fn of_auth_failures() -> Self {
        Self(fnv1a(b"!auth_failures"))
    }

    /// The number under which the node counts requests in flight for the limit called `name`.
    #[must_use]
    pub fn of_in_flight(name: &str) -> Self {
        Self(fnv1a(format!("{name}!in_flight").as_bytes()))
    }
}

impl Limit {
    /// What the limit's levels allow the tenant called `name`.
    #[must_use]
    pub fn levels_for(&self, name: Option<&str>) -> Levels {
        replaced(&self.levels, &self.overrides, name)
    }

    /// Whose credential level a request's rates are charged to. A tenant whose override has that level
    /// counts its credentials by itself: under another window what they have used would mean
    /// something else, and a request as one tenant would free what was used as the other.
    #[must_use]
    pub fn credential_of(&self, identity: &Identity<'_>) -> Option<Subject> {
        let credential = identity.credential?;
        let replacing = identity.tenant_name.and_then(|name| self.overrides.get(name));
        match replacing.is_some_and(|levels| levels.credential.is_some()) {
            true => Some(credential.within(identity.tenant)),
            false => Some(credential),
        }
    }

    /// Whether it has this level, for rates or for requests in flight, where no override adds it.
    #[must_use]
    pub const fn has(&self, level: Level) -> bool {
        self.levels.get(level).is_some() || self.in_flight.get(level).is_some()
    }

    /// Whether it caps requests in flight, if only for some tenants.
    #[must_use]
    pub fn caps_in_flight(&self) -> bool {
        !self.in_flight.is_empty() || !self.in_flight_overrides.is_empty()
    }

    /// How many requests the tenant called `name` may have in flight.
    #[must_use]
    pub fn in_flight_for(&self, name: Option<&str>) -> Levels {
        replaced(&self.in_flight, &self.in_flight_overrides, name)
    }
}

impl Levels {
    /// What `quota` gives for each level.
    pub fn from_fn(quota: impl Fn(Level) -> Option<Quota>) -> Self {
        Self {
            shared: quota(Level::Shared),
            tenant: quota(Level::Tenant),
            credential: quota(Level::Credential),
            client: quota(Level::Client),
        }
    }

    /// Whether there is no level.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        LEVELS.into_iter().all(|level| self.get(level).is_none())
    }

    /// What `level` allows, if the limit has it.
    #[must_use]
    pub const fn get(&self, level: Level) -> Option<Quota> {
        match level {
            Level::Shared => self.shared,
            Level::Tenant => self.tenant,
            Level::Credential => self.credential,
            Level::Client => self.client,
        }
    }

    /// These levels, each replaced by the one of `other` where it has one.
    #[must_use]
    pub const fn replaced_by(&self, other: &Self) -> Self {
        const fn either(new: Option<Quota>, old: Option<Quota>) -> Option<Quota> {
            if new.is_some() { new } else { old }
        }
        Self {
            shared: either(other.shared, self.shared),
            tenant: either(other.tenant, self.tenant),
            credential: either(other.credential, self.credential),
            client: either(other.client, self.client),
        }
    }
}

fn replaced(levels: &Levels, overrides: &Map<String, Levels>, tenant: Option<&str>) -> Levels {
    match tenant.and_then(|tenant| overrides.get(tenant)) {
        Some(replacing) => levels.replaced_by(replacing),
        None => *levels,
    }
}

fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
