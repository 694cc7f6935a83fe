//! After everything is over, all that limits allow is there again: nothing stays taken, and nobody
//! is locked out.

use fairshare::limiter::{GcraQuota, Quota, WindowQuota};
use fairshare::store::LeaseTerms;
use fairshare::units::Span;

use crate::plan::{Arrival, Kind, LimitPlan, OnStateLoss, SECOND};
use crate::world::{Fate, World};

/// For how long a store may not believe its own values after its clock stood elsewhere, beyond two
/// periods of the level.
const BROKEN_CLOCK: u64 = 61 * SECOND;

/// Lets every period pass, sends as many requests at once as all limits have room for, and says how
/// many of them were not let through.
pub fn check(world: &mut World<'_>) -> Vec<String> {
    let longest = world.plan.limits.iter().map(counted_for).max().unwrap_or(0);
    world.sleep(3 * longest + if world.plan.faults.store_clock { BROKEN_CLOCK } else { 0 });
    world.run_until(world.now + SECOND);
    if world.plan.shards > 0 {
        // A worker that was idle hears from its first question that a server is gone.
        send(world, 1);
        world.run_until(world.now + SECOND);
        world.sleep(2 * longest);
    }
    if world.plan.limits.iter().any(|limit| limit.on_state_loss == OnStateLoss::Hold) {
        // A loss may have been noticed only now, and costs the pause of a whole period.
        world.run_until(world.now + longest);
    }
    let room = world.plan.limits.iter().map(room).min().unwrap_or(0);
    let first = world.requests.len();
    send(world, room);
    world.run_until(world.now + 3 * SECOND);
    let is_refused = |fate: &Fate| *fate != Fate::Admitted;
    let refused = world.requests[first..].iter().filter(|request| is_refused(&request.fate));
    match refused.count() {
        0 => vec![],
        count => vec![format!("{count} of {room} requests are refused when all is over")],
    }
}

/// So many requests come at once, to one worker.
fn send(world: &mut World<'_>, count: u64) {
    for _ in 0..count {
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
}

/// For how long a unit counts in the store. Rates that are leased give units back more slowly, where
/// their periods are short.
fn counted_for(limit: &LimitPlan) -> u64 {
    match charged(limit, limit.tenant.min(limit.shared)) {
        Quota::Gcra(terms) => Quota::Gcra(terms).period().max(terms.per).as_nanos(),
        quota => quota.period().as_nanos(),
    }
}

/// What is enforced on a level of so many units.
fn charged(limit: &LimitPlan, units: u64) -> Quota {
    let period = Span::from_millis(limit.period_ms);
    let quota = match limit.window_form {
        true => Quota::Window(WindowQuota { requests: units, window: period }),
        false => Quota::Gcra(GcraQuota { rate: units, per: period, burst: units }),
    };
    match limit.kind {
        Kind::Leased => *LeaseTerms::of(&quota, limit.cost).charged(),
        Kind::Node | Kind::Strict => quota,
    }
}

/// Requests at once that a limit has room for where nothing is used.
fn room(limit: &LimitPlan) -> u64 {
    // What leaks within one life of a lease is kept back, of each level by itself.
    let levels = [limit.tenant, limit.shared, limit.shared * 3 / 4 + 1];
    let capacity = levels.map(|units| charged(limit, units).capacity()).into_iter().min().unwrap();
    let requests = capacity / limit.cost;
    limit.in_flight.map_or(requests, |cap| requests.min(cap))
}
