//! What a request is charged to: the levels of the limits that match it and apply to its identity.

use super::{
    Consistency, Identity, LEVELS, Level, Limit, LimitId, Mode, Policy, RequestView, Scope, Subject,
};
use crate::limiter::Quota;

/// One level of one limit to which a request is charged.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// By themselves, only to be counted: one limit each, with where it is decided.
    pub shadows: Vec<(Scope, Vec<Charge>)>,
}

impl Policy {
    /// What a request of `identity` is to be decided by.
    #[must_use]
    pub fn plan(&self, request: &RequestView<'_>, identity: &Identity<'_>) -> Plan {
        let mut plan = Plan::default();
        let matching = self.limits.iter().enumerate().filter(|(_, l)| l.matcher.matches(request));
        for (place, limit) in matching {
            let charges = self.charges(place, limit, identity);
            match (limit.shadow || self.mode == Mode::Shadow, limit.scope) {
                _ if charges.is_empty() => {}
                (true, scope) => plan.shadows.push((scope, charges)),
                (false, Scope::Node) => plan.node.extend(charges),
                (false, Scope::Global) => match limit.consistency {
                    Consistency::Leased => plan.leased.extend(charges),
                    Consistency::Strict => plan.strict.extend(charges),
                },
            }
        }
        plan
    }

    /// The charges of the limit at `place`.
    fn charges(&self, place: usize, limit: &Limit, identity: &Identity<'_>) -> Vec<Charge> {
        let levels = limit.levels_for(identity.tenant_name);
        let charge = |level: Level| {
            let subject = match level {
                Level::Shared => None,
                Level::Tenant => Some(identity.tenant?),
                Level::Credential => Some(identity.credential?),
                Level::Client => Some(identity.client?),
            };
            let applies = subject.is_none() || self.fair_share;
            let quota = levels.get(level).filter(|_| applies)?;
            Some(Charge { place, id: limit.id, level, subject, quota, cost: limit.cost })
        };
        LEVELS.into_iter().filter_map(charge).collect()
    }
}
