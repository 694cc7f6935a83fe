//! The store of one key, small and exact. `the_model_of_the_store_is_the_script` ties it to the
//! script.

use fairshare::limiter::{Quota, Usage, Verdict};
use fairshare::store::Want;
use fairshare::units::{Instant, Span};

#[derive(Clone, Debug)]
pub(crate) struct ModelStore {
    quota: Quota,
    usage: Usage,
}

impl ModelStore {
    pub(crate) fn new(quota: Quota) -> Self {
        Self { quota, usage: Usage::none(&quota) }
    }

    /// Grants what there is room for, if the cost fits. Returns the units and what a further request
    /// would hear.
    pub(crate) fn lease(&mut self, cost: u64, want: Want, now: Instant) -> (u64, Verdict) {
        let room = self.usage.peek(&self.quota, 0, now).remaining;
        let mut units = 0;
        if self.usage.peek(&self.quota, cost, now).admitted {
            let firm = cost * (room.min(want.firm) / cost).max(1);
            units = firm + want.ahead.min(room.saturating_sub(firm) / 4);
            self.usage.charge(&self.quota, units, now);
        }
        let remaining = self.usage.peek(&self.quota, 0, now).remaining;
        let told = self.usage.peek(&self.quota, cost, now);
        (units, Verdict { remaining, reset_after: Span::ZERO, ..told })
    }

    /// Takes back units of a grant.
    pub(crate) fn take_back(&mut self, units: u64, granted_at: Instant, now: Instant) {
        self.usage.refund(&self.quota, units, granted_at, now);
    }
}
