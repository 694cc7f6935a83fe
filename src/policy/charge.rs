//! What a request is charged to: the levels of the limits that match it and apply to its identity.

use std::hash::{Hash, Hasher};

use super::{
    Consistency, Identity, LEVELS, Level, Levels, Limit, LimitId, Mode, Policy, RequestView, Scope,
    Subject,
};
use crate::limiter::Quota;

/// One level of one limit to which a request is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The limit's place in the policy.
    pub place: usize,
    /// The number under which usage is kept.
    pub id: LimitId,
    /// The level.
    pub level: Level,
    /// Whose level; none for the shared one.
    pub subject: Option<Subject>,
    /// What the level allows this subject.
    pub quota: Quota,
    /// Units.
    pub cost: u64,
}

/// Whose level of which limit: by this a worker finds in its memory what it knows of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelKey {
    /// The number under which usage is kept.
    pub id: LimitId,
    /// The level.
    pub level: Level,
    /// Whose level; none for the shared one.
    pub subject: Option<Subject>,
}

/// Room for the charges of one limit, rates and slots, without a second allocation.
const USUAL_CHARGES: usize = 2 * LEVELS.len();

/// The charges of a request, by how they are decided.
#[derive(Debug, Default)]
pub struct Plan {
    /// On the node, together.
    pub node: Vec<Charge>,
    /// From leases of the store's units, together.
    pub leased: Vec<Charge>,
    /// In the store, together.
    pub strict: Vec<Charge>,
    /// By themselves, only to be counted.
    pub shadows: Vec<Shadow>,
}

/// The charges of a limit in shadow mode, by how they are decided.
#[derive(Debug, Default)]
pub struct Shadow {
    /// On the node, together.
    pub node: Vec<Charge>,
    /// In the store, together, where the node has room.
    pub global: Vec<Charge>,
}

impl LevelKey {
    /// Of a charge.
    #[must_use]
    pub const fn of(charge: &Charge) -> Self {
        Self { id: charge.id, level: charge.level, subject: charge.subject }
    }
}

impl Hash for LevelKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let limit = u64::from(self.id.number()) << 8;
        state.write_u64(self.level.hash_of(self.subject.as_ref()) ^ limit);
    }
}

impl Hash for Charge {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The same level has the same quota as a rule, but callers may choose what a request costs.
        LevelKey::of(self).hash(state);
        state.write_u64(self.cost);
    }
}

impl Policy {
    /// What a request of `identity` is to be decided by while `mode` is in force.
    #[must_use]
    pub fn plan(&self, request: &RequestView<'_>, identity: &Identity<'_>, mode: Mode) -> Plan {
        let mut plan = Plan { node: Vec::with_capacity(USUAL_CHARGES), ..Plan::default() };
        let matching = self.limits.iter().enumerate().filter(|(_, l)| l.matcher.matches(request));
        for (place, limit) in matching {
            let Plan { node, leased, strict, shadows } = &mut plan;
            let mut shadow = Shadow::default();
            let is_shadow = limit.shadow || mode == Mode::Shadow;
            let (rates, slots) = match (is_shadow, limit.scope, limit.consistency) {
                (true, Scope::Node, _) => (None, &mut shadow.node),
                (true, Scope::Global, _) => (Some(&mut shadow.global), &mut shadow.node),
                (false, Scope::Node, _) => (None, node),
                (false, Scope::Global, Consistency::Leased) => (Some(leased), node),
                (false, Scope::Global, Consistency::Strict) => (Some(strict), node),
            };
            self.charge(limit, place, identity, (rates, slots));
            if is_shadow {
                shadows.push(shadow);
            }
        }
        plan
    }

    /// Adds what `identity` is charged by the limit at `place`: slots of requests in flight to the
    /// second list, and rates to the first one, or to the second where there is none.
    fn charge(
        &self,
        limit: &Limit,
        place: usize,
        identity: &Identity<'_>,
        (rates, slots): (Option<&mut Vec<Charge>>, &mut Vec<Charge>),
    ) {
        let name = identity.tenant_name;
        let counted = Identity { credential: limit.credential_of(identity), ..*identity };
        let levels = limit.levels_for(name);
        let to = rates.unwrap_or(&mut *slots);
        self.charge_levels(to, (place, limit.id, limit.cost), &levels, &counted);
        let caps = limit.in_flight_for(name);
        self.charge_levels(slots, (place, limit.in_flight_id, 1), &caps, identity);
    }

    /// Adds charges of `cost` for `levels` of the limit at `place`, which are counted under `id`.
    fn charge_levels(
        &self,
        to: &mut Vec<Charge>,
        (place, id, cost): (usize, LimitId, u64),
        levels: &Levels,
        identity: &Identity<'_>,
    ) {
        to.reserve(LEVELS.len());
        for level in LEVELS {
            let Some(quota) = levels.get(level) else { continue };
            let subject = match level {
                Level::Shared => None,
                Level::Tenant => identity.tenant,
                Level::Credential => identity.credential,
                Level::Client => identity.client,
            };
            let applies = subject.is_some() && self.fair_share;
            if applies || level == Level::Shared {
                to.push(Charge { place, id, level, subject, quota, cost });
            }
        }
    }
}
