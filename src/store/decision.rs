//! A request's question to the store, and its answer, as data.

use super::keys::key;
use crate::limiter::{Quota, Verdict};
use crate::policy::{Charge, Level, Policy};

/// The most charges that one decision may hold; the script refuses more.
pub const CHARGES_MAX: usize = 192;

/// All levels of all global limits of one request. They are decided together, and charged together
/// only when every one has room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// At least one and at most [`CHARGES_MAX`], no two with the same key.
    pub charges: Vec<StoreCharge>,
}

/// What a request would spend under one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreCharge {
    /// The key that holds the usage.
    pub key: String,
    /// The level whose usage it is.
    pub level: Level,
    /// What the level allows.
    pub quota: Quota,
    /// Units to spend. Zero asks without spending.
    pub cost: u64,
}

/// What the store says to one [`Decision`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether every level had room; if so, all are charged, and if not, none is.
    pub admitted: bool,
    /// What each level says by itself, in the order of the charges. Where the decision is refused,
    /// `remaining` and `reset_after` describe usage without it, at every level.
    pub levels: Vec<LevelAnswer>,
}

/// What one level says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelAnswer {
    /// The level.
    pub level: Level,
    /// What it says.
    pub verdict: Verdict,
}

impl Decision {
    /// The decision about `charges`, which `policy` made.
    #[must_use]
    pub fn new(charges: &[Charge], policy: &Policy) -> Self {
        let prefix = policy.store.as_ref().map_or("", |store| &store.key_prefix);
        let keyed = |charge: &Charge| {
            let limit = policy.limits.get(charge.place).map_or("", |limit| &limit.name);
            StoreCharge {
                key: key(prefix, limit, charge.level, charge.subject.as_ref()),
                level: charge.level,
                quota: charge.quota,
                cost: charge.cost,
            }
        };
        Self { charges: charges.iter().map(keyed).collect() }
    }
}

impl Answer {
    /// The verdicts alone, in the order of the charges.
    #[must_use]
    pub fn verdicts(&self) -> Vec<Verdict> {
        self.levels.iter().map(|level| level.verdict).collect()
    }

    /// The refusing level that has room last, if any refuses.
    #[must_use]
    pub fn refusing_level(&self) -> Option<Level> {
        let refusing = self.levels.iter().filter(|level| !level.verdict.admitted);
        refusing.max_by_key(|level| level.verdict.retry_after).map(|level| level.level)
    }
}
