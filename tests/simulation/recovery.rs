//! After everything is over, all that limits allow is there again: nothing stays taken, and nobody
//! is locked out.

use crate::plan::{Arrival, Kind, LimitPlan, MILLI, SECOND};
use crate::world::{Fate, World};

/// For how long a store may not believe its own values after its clock stood elsewhere, beyond two
/// periods of the level.
const BROKEN_CLOCK: u64 = 61 * SECOND;

/// Lets every period pass, sends as many requests at once as all limits have room for, and says how
/// many of them were not let through.
pub fn check(world: &mut World<'_>) -> Vec<String> {
    let periods = world.plan.limits.iter().map(|limit| limit.period_ms * MILLI);
    let longest = periods.max().unwrap_or(0);
    world.sleep(3 * longest + if world.plan.faults.store_clock { BROKEN_CLOCK } else { 0 });
    world.run_until(world.now + SECOND);
    let room = world.plan.limits.iter().map(room).min().unwrap_or(0);
    let first = world.requests.len();
    for _ in 0..room {
        world.add(Arrival {
            at: world.now,
            node: 0,
            worker: 0,
            tenant: 0,
            patience: 3600 * SECOND,
            lasts: SECOND,
            answered: true,
        });
    }
    world.run_until(world.now + 3 * SECOND);
    let is_refused = |fate: &Fate| *fate != Fate::Admitted;
    let refused = world.requests[first..].iter().filter(|request| is_refused(&request.fate));
    match refused.count() {
        0 => vec![],
        count => vec![format!("{count} of {room} requests are refused when all is over")],
    }
}

/// Requests at once that a limit has room for where nothing is used.
fn room(limit: &LimitPlan) -> u64 {
    let capacity = limit.tenant.min(limit.shared.min(limit.shared * 3 / 4 + 1));
    let reserved = match limit.kind {
        // What leaks within one life of a lease is kept back.
        Kind::Leased if !limit.window_form => (capacity / 16 + 2).max(capacity / 4),
        _ => 0,
    };
    let requests = capacity.saturating_sub(reserved) / limit.cost;
    limit.in_flight.map_or(requests, |cap| requests.min(cap))
}
