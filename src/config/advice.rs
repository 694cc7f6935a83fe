//! What a limit is advised to be instead: it holds as it is, but there is a better way.

use std::fmt;

use crate::limiter::Quota;
use crate::policy::{Consistency, LEVELS, Levels, Limit, Scope};
use crate::store::LeaseTerms;

/// A level of which leases can admit less, in hundredths, is better decided strictly.
const POOR_LEASE_PERCENT: u64 = 90;

/// A level of which leases leave much unused.
#[derive(Clone, Copy, Debug)]
pub struct PoorLease {
    quota: Quota,
    /// Less than so much of it can be admitted, in hundredths.
    below_percent: u64,
}

/// The levels of a limit of which leases leave much unused, its own before those of overrides.
#[must_use]
pub fn poor_leases(limit: &Limit) -> Vec<PoorLease> {
    let mut poor = Vec::new();
    if limit.scope == Scope::Global && limit.consistency == Consistency::Leased {
        add_poor(&limit.levels, limit.cost, &mut poor);
        limit.overrides.values().for_each(|levels| add_poor(levels, limit.cost, &mut poor));
    }
    poor
}

// Inlined twice it would take a kilobyte more of the module.
#[inline(never)]
fn add_poor(levels: &Levels, cost: u64, poor: &mut Vec<PoorLease>) {
    for level in LEVELS {
        let Some(quota) = levels.get(level) else { continue };
        let share_ppm = LeaseTerms::of(&quota, cost).share_ppm(&quota);
        let below_percent = share_ppm.checked_div(10_000).unwrap_or(0).saturating_add(1);
        if below_percent <= POOR_LEASE_PERCENT {
            poor.push(PoorLease { quota, below_percent });
        }
    }
}

impl fmt::Display for PoorLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "of {}, leases admit less than {}%; \"consistency\": \"strict\" admits all",
            self.quota, self.below_percent
        )
    }
}
