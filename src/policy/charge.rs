//! What a request is charged to: the levels of a limit that apply to its identity.

use super::{Identity, LEVELS, Level, Limit, LimitId, Policy, Subject};
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

impl Policy {
    /// The charges of the limit at `place` for a request of `identity`.
    #[must_use]
    pub fn charges(&self, place: usize, limit: &Limit, identity: &Identity<'_>) -> Vec<Charge> {
        let levels = limit.levels_for(identity.tenant_name);
        let charge = |level: Level| {
            let subject = match level {
                Level::Shared => None,
                Level::Tenant => Some(identity.tenant?),
                Level::Credential => Some(identity.credential?),
            };
            let applies = subject.is_none() || self.fair_share;
            let quota = levels.get(level).filter(|_| applies)?;
            Some(Charge { place, id: limit.id, level, subject, quota, cost: limit.cost })
        };
        LEVELS.into_iter().filter_map(charge).collect()
    }
}
