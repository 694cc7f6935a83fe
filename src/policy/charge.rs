//! What a request is charged to: the levels of the limits that match it and apply to its identity.

use super::{
    Consistency, Identity, LEVELS, Level, Levels, LimitId, Mode, Policy, RequestView, Scope,
    Subject,
};
use crate::limiter::Quota;

/// One level of one limit to which a request is charged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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

impl Policy {
    /// What a request of `identity` is to be decided by while `mode` is in force.
    #[must_use]
    pub fn plan(&self, request: &RequestView<'_>, identity: &Identity<'_>, mode: Mode) -> Plan {
        let mut plan = Plan::default();
        let matching = self.limits.iter().enumerate().filter(|(_, l)| l.matcher.matches(request));
        for (place, limit) in matching {
            let rates = limit.levels_for(identity.tenant_name);
            let counted = Identity { credential: limit.credential_of(identity), ..*identity };
            let rates = self.charges(place, limit.id, limit.cost, &rates, &counted);
            let slots = limit.in_flight_for(identity.tenant_name);
            let slots = self.charges(place, limit.in_flight_id, 1, &slots, identity);
            if limit.shadow || mode == Mode::Shadow {
                let mut shadow = Shadow::default();
                match limit.scope {
                    Scope::Node => shadow.node.extend(rates),
                    Scope::Global => shadow.global.extend(rates),
                }
                shadow.node.extend(slots);
                plan.shadows.push(shadow);
                continue;
            }
            match (limit.scope, limit.consistency) {
                (Scope::Node, _) => plan.node.extend(rates),
                (Scope::Global, Consistency::Leased) => plan.leased.extend(rates),
                (Scope::Global, Consistency::Strict) => plan.strict.extend(rates),
            }
            plan.node.extend(slots);
        }
        plan
    }

    /// The charges of the limit at `place` for `levels`, which are counted under `id`.
    fn charges(
        &self,
        place: usize,
        id: LimitId,
        cost: u64,
        levels: &Levels,
        identity: &Identity<'_>,
    ) -> impl Iterator<Item = Charge> {
        let charge = move |level: Level| {
            let subject = match level {
                Level::Shared => None,
                Level::Tenant => Some(identity.tenant?),
                Level::Credential => Some(identity.credential?),
                Level::Client => Some(identity.client?),
            };
            let applies = subject.is_none() || self.fair_share;
            let quota = levels.get(level).filter(|_| applies)?;
            Some(Charge { place, id, level, subject, quota, cost })
        };
        LEVELS.into_iter().filter_map(charge)
    }
}
