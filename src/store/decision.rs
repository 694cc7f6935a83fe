//! A request's question to the store, and its answer, as data.

use super::epoch::{Known, State};
use super::keys::{key, record_key, tag};
use super::lease_terms::LeaseTerms;
use crate::limiter::{Quota, Verdict};
use crate::policy::{Charge, Level, OnStateLoss, Policy};

/// The most charges that one decision may hold; the script refuses more.
pub const CHARGES_MAX: usize = 256;

/// Pairs of time and units in a report about one key; the script knows this number.
pub const PARTS_MAX: usize = 5;

/// One question to the store: all levels that it is about are decided together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The group of keys ([`Policy::key_group`]) that all charges belong to.
    pub group: usize,
    /// What is to be done with the charges.
    pub operation: Operation,
    /// At least one, but for [`Operation::Poll`], and at most [`CHARGES_MAX`], no two with the same
    /// key.
    pub charges: Vec<StoreCharge>,
    /// The key of the record of the store's epochs, in the same hash slot as all others.
    pub record: String,
    /// What the worker knows of it.
    pub known: State,
}

/// What the store is to do with charges. Lists are in the order of the charges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Charge each its cost if every one has room; else none.
    Decide,
    /// Where each has room for its cost, grant units, for as many requests as every one has room for;
    /// else none.
    Lease(Vec<Want>),
    /// Take back the costs, which were granted at these times of the store's clock, in
    /// microseconds.
    Return(Vec<u64>),
    /// Count what the store has lost of the one charge.
    Restore([Part; PARTS_MAX]),
    /// Say which state the store is in.
    Poll,
}

/// Units to be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Units that requests wait for: granted for as many of them as every charge has room for.
    pub firm: u64,
    /// Units ahead of need: granted out of a quarter of what is then left, in whole costs.
    pub ahead: u64,
}

/// Units that were charged together, or at times that do not matter apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The time of the last of them, on the store's clock in microseconds.
    pub at_us: u64,
    /// Units.
    pub units: u64,
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
    /// Whether usage that is lost counts as all that there may be.
    pub hold: bool,
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
    /// Units charged, in the order of the charges.
    pub units: Vec<u64>,
    /// When, on the store's clock in microseconds.
    pub clock_us: u64,
    /// The state that the store is in.
    pub state: State,
    /// Why its epoch began, as a code of the script.
    pub why: u64,
}

impl Decision {
    /// The question whether `charges`, which `policy` made and which are of one group, fit together.
    #[must_use]
    pub fn decide(charges: &[Charge], policy: &Policy) -> Self {
        Self::about(charges, policy, Operation::Decide, |charge| charge.quota)
    }

    /// The question which state the store is in, as far as the record of one group tells.
    #[must_use]
    pub fn poll(known: &Known) -> Self {
        Self {
            group: known.group,
            operation: Operation::Poll,
            charges: Vec::new(),
            record: known.record.clone(),
            known: known.state,
        }
    }

    /// The question for units ahead of their spending.
    #[must_use]
    pub fn lease(charges: &[Charge], wants: Vec<Want>, policy: &Policy) -> Self {
        let charged = |charge: &Charge| *LeaseTerms::of(&charge.quota, charge.cost).charged();
        Self::about(charges, policy, Operation::Lease(wants), charged)
    }

    /// The question that charges so many requests, or as many of them as all levels have room for.
    #[must_use]
    pub fn strict(charges: &[Charge], requests: u64, policy: &Policy) -> Self {
        let only = |charge: &Charge| Want { firm: charge.cost.saturating_mul(requests), ahead: 0 };
        let wants = charges.iter().map(only).collect();
        Self::about(charges, policy, Operation::Lease(wants), |charge| charge.quota)
    }

    /// The message that the costs of `charges`, granted at `times` of the store's clock, are not needed.
    #[must_use]
    pub fn give_back(charges: &[Charge], times: Vec<u64>, policy: &Policy) -> Self {
        Self::about(charges, policy, Operation::Return(times), |charge| charge.quota)
    }

    /// The message that these units are charged to `charge`, whose quota is what the store enforces.
    #[must_use]
    pub fn restore(charge: &Charge, parts: [Part; PARTS_MAX], policy: &Policy) -> Self {
        let charges = std::slice::from_ref(charge);
        Self::about(charges, policy, Operation::Restore(parts), |charge| charge.quota)
    }

    fn about(
        charges: &[Charge],
        policy: &Policy,
        operation: Operation,
        charged: impl Fn(&Charge) -> Quota,
    ) -> Self {
        let keyed = |charge: &Charge| {
            let limit = policy.limits.get(charge.place);
            let name = limit.map_or("", |limit| &limit.name);
            StoreCharge {
                key: key(&tag_of(policy, name), name, charge.level, charge.subject.as_ref()),
                level: charge.level,
                quota: charged(charge),
                cost: charge.cost,
                hold: limit.is_some_and(|limit| limit.on_state_loss == OnStateLoss::Hold),
            }
        };
        let place = charges.first().map_or(0, |charge| charge.place);
        let name = policy.limits.get(place).map_or("", |limit| &limit.name);
        Self {
            group: policy.key_group(place),
            operation,
            charges: charges.iter().map(keyed).collect(),
            record: record_key(&tag_of(policy, name)),
            known: State::NONE,
        }
    }
}

impl Answer {
    /// How many requests of these costs, in the order of the charges, every level has been charged for.
    #[must_use]
    pub fn requests(&self, costs: impl Iterator<Item = u64>) -> u64 {
        let times =
            self.units.iter().zip(costs).filter_map(|(units, cost)| units.checked_div(cost));
        times.min().unwrap_or(0)
    }
}

fn tag_of(policy: &Policy, limit: &str) -> String {
    policy.store.as_ref().map(|store| tag(store, limit)).unwrap_or_default()
}
