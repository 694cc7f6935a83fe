//! The store, small and exact. `the_model_of_the_store_is_the_script` ties it to the script.

use fairshare::limiter::{Quota, Usage, Verdict};
use fairshare::store::Want;
use fairshare::units::{Instant, Span};

/// What one level of a question asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// Its number in the store.
    pub(crate) level: usize,
    pub(crate) cost: u64,
    pub(crate) want: Want,
}

#[derive(Clone, Debug)]
pub(crate) struct ModelStore {
    levels: Vec<Level>,
}

#[derive(Clone, Debug)]
struct Level {
    quota: Quota,
    usage: Usage,
}

impl ModelStore {
    pub(crate) fn new(quotas: &[Quota]) -> Self {
        let level = |quota: &Quota| Level { quota: *quota, usage: Usage::none(quota) };
        Self { levels: quotas.iter().map(level).collect() }
    }

    /// Where every cost fits, grants as often as all levels have room for it. Returns the units of
    /// each and what a further request would hear.
    pub(crate) fn lease(&mut self, asked: &[Asked], now: Instant) -> Vec<(u64, Verdict)> {
        let times = asked.iter().map(|asked| self.levels[asked.level].fitting(asked, now)).min();
        let times = times.unwrap_or(0);
        asked.iter().map(|asked| self.levels[asked.level].grant(asked, times, now)).collect()
    }

    /// Takes back units of a grant.
    pub(crate) fn take_back(
        &mut self,
        level: usize,
        units: u64,
        granted_at: Instant,
        now: Instant,
    ) {
        let Level { quota, usage } = &mut self.levels[level];
        usage.refund(quota, units, granted_at, now);
    }
}

impl Level {
    fn room(&self, now: Instant) -> u64 {
        self.usage.peek(&self.quota, 0, now).remaining
    }

    /// How many requests of those that wait fit, but one at least is tried.
    fn fitting(&self, asked: &Asked, now: Instant) -> u64 {
        let fits = self.usage.peek(&self.quota, asked.cost, now).admitted;
        let wanted = self.room(now).min(asked.want.firm) / asked.cost;
        if fits { wanted.max(1) } else { 0 }
    }

    fn grant(&mut self, asked: &Asked, times: u64, now: Instant) -> (u64, Verdict) {
        let (cost, room) = (asked.cost, self.room(now));
        let mut units = 0;
        if times > 0 {
            let firm = cost * times;
            let ahead = asked.want.ahead.min(room.saturating_sub(firm) / 4);
            units = firm + ahead / cost * cost;
            self.usage.charge(&self.quota, units, now);
        }
        let told = self.usage.peek(&self.quota, cost, now);
        (units, Verdict { remaining: self.room(now), reset_after: Span::ZERO, ..told })
    }
}
