//! A request's question to the store, and its answer, as data.

use super::keys::{key, tag};
use super::lease::LeaseTerms;
use crate::limiter::{Quota, Verdict};
use crate::policy::{Charge, Level, Levels, Limit, Policy};

/// The most charges that one decision may hold; the script refuses more.
pub const CHARGES_MAX: usize = 256;

/// One question to the store: all levels that it is about are decided together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The group of keys ([`Policy::key_group`]) that all charges belong to.
    pub group: usize,
    /// What is to be done with the charges.
    pub operation: Operation,
    /// At least one and at most [`CHARGES_MAX`], no two with the same key.
    pub charges: Vec<StoreCharge>,
}

/// What the store is to do with charges. Lists are in the order of the charges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Charge each its cost if every one has room; else none.
    Decide,
    /// Where each has room for its cost, grant units ahead of their spending; else none.
    Lease(Vec<Want>),
    /// Take back the costs, which were granted at these times of the store's clock, in
    /// microseconds.
    Return(Vec<u64>),
}

/// Units to be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Units that requests wait for: granted as far as there is room.
    pub firm: u64,
    /// Units ahead of need: granted out of a quarter of what is then left.
    pub ahead: u64,
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
    /// `remaining` and `reset_after` describe usage without it, at every level. After a lease, the
    /// verdict is the one that a further request would get.
    pub levels: Vec<Verdict>,
    /// What a lease granted.
    pub grants: Option<Grants>,
}

/// What a lease granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grants {
    /// When, on the store's clock in microseconds.
    pub clock_us: u64,
    /// Units by charge.
    pub units: Vec<u64>,
}

impl Decision {
    /// The question whether `charges`, which `policy` made and which are of one group, fit together.
    #[must_use]
    pub fn decide(charges: &[Charge], policy: &Policy) -> Self {
        Self::about(charges, policy, Operation::Decide, |quota| *quota)
    }

    /// The question how full the limit at `place` is, which charges nothing. None for a limit without
    /// levels.
    #[must_use]
    pub fn look(limit: &Limit, place: usize, policy: &Policy) -> Option<Self> {
        let Levels { shared, tenant, credential, client } = limit.levels;
        let charge = StoreCharge {
            key: key(&tag_of(policy, &limit.name), &limit.name, Level::Shared, None),
            level: Level::Shared,
            quota: shared.or(tenant).or(credential).or(client)?,
            cost: 0,
        };
        let group = policy.key_group(place);
        Some(Self { group, operation: Operation::Decide, charges: vec![charge] })
    }

    /// The question for units ahead of their spending.
    #[must_use]
    pub fn lease(charges: &[Charge], wants: Vec<Want>, policy: &Policy) -> Self {
        let charged = |quota: &Quota| *LeaseTerms::of(quota).charged();
        Self::about(charges, policy, Operation::Lease(wants), charged)
    }

    /// The question that charges one request, if all levels have room for it.
    #[must_use]
    pub fn strict(charges: &[Charge], policy: &Policy) -> Self {
        let only = |charge: &Charge| Want { firm: charge.cost, ahead: 0 };
        let wants = charges.iter().map(only).collect();
        Self::about(charges, policy, Operation::Lease(wants), |quota| *quota)
    }

    /// The message that the costs of `charges`, granted at `granted_at_us`, are not needed.
    #[must_use]
    pub fn give_back(charges: &[Charge], granted_at_us: u64, policy: &Policy) -> Self {
        let times = vec![granted_at_us; charges.len()];
        Self::about(charges, policy, Operation::Return(times), |quota| *quota)
    }

    fn about(
        charges: &[Charge],
        policy: &Policy,
        operation: Operation,
        charged: impl Fn(&Quota) -> Quota,
    ) -> Self {
        let keyed = |charge: &Charge| {
            let limit = policy.limits.get(charge.place).map_or("", |limit| &limit.name);
            StoreCharge {
                key: key(&tag_of(policy, limit), limit, charge.level, charge.subject.as_ref()),
                level: charge.level,
                quota: charged(&charge.quota),
                cost: charge.cost,
            }
        };
        let group = charges.first().map_or(0, |charge| policy.key_group(charge.place));
        Self { group, operation, charges: charges.iter().map(keyed).collect() }
    }
}

fn tag_of(policy: &Policy, limit: &str) -> String {
    policy.store.as_ref().map(|store| tag(store, limit)).unwrap_or_default()
}
