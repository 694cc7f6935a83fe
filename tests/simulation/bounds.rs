use crate::checks::without_store;
use crate::forgotten::Forgotten;
use crate::plan::{Kind, MILLI, OnStateLoss, OnStoreError, SECOND};
use crate::world::{Fate, World};

/// Parts of a million by which a clock may run fast or slow, twice over.
const DRIFT: u64 = 500;

/// How long a leased unit may be spent, at least and at most.
const LIFE_MIN: u64 = 60 * MILLI;
const LIFE_MAX: u64 = 5 * SECOND;

/// The slack of a delivery that waits for its turn.
const TURN: u64 = 5 * MILLI;

/// What the limit promises at one level, as seen from outside. Times in nanoseconds.
#[derive(Debug)]
pub struct Bound {
    /// Units: of a window, or the burst.
    units: u64,
    /// Whether it is a window of this length, or a rate per this time.
    window_form: bool,
    period: u64,
    /// Units that come back in each period.
    rate: u64,
    /// By how much admissions may lie later than their charges.
    shift: u64,
    /// What the store may have granted twice, and for how long a unit may be spent.
    forgotten: Forgotten,
    life: u64,
}

impl Bound {
    /// `process` is the one on which the limit counts, or none where the fleet does.
    pub fn of(
        world: &World<'_>,
        place: usize,
        tenant: Option<usize>,
        process: Option<usize>,
    ) -> Self {
        let limit = &world.plan.limits[place];
        let faults = &world.plan.faults;
        let largest = if faults.updates { limit.shared * 3 / 4 + 1 } else { limit.shared };
        let shared = limit.shared.max(largest);
        let capacity = if tenant.is_some() { limit.tenant.min(shared) } else { shared };
        let mut bound = Self {
            units: capacity,
            window_form: limit.window_form,
            period: limit.period_ms * MILLI,
            rate: capacity,
            shift: 0,
            forgotten: vec![],
            life: 0,
        };
        let drifts = faults.node_clocks || (process.is_none() && faults.store_clock);
        if drifts {
            bound.shift += bound.period * 2 * DRIFT / 1_000_000 + MILLI / 10;
        }
        if let Some(process) = process {
            bound.units *= 1 + world.jumps[process];
            return bound;
        }
        // Each time that the store's clock jumps, one limit more may pass.
        bound.units *= 1 + world.network.clock.jumps;
        bound.life = (bound.period / 32).clamp(LIFE_MIN, LIFE_MAX);
        let holds = limit.on_state_loss == OnStateLoss::Hold;
        let (key, period) = (world.fleet.key(place, tenant), bound.period + bound.life);
        bound.forgotten = world.network.books.forgotten(&key, period, holds);
        bound.shift += world.fleet.nodes.iter().map(|node| node.clock.back).sum::<u64>();
        bound.shift += match limit.kind {
            Kind::Leased => 0,
            // One limit after the other is asked about, and sent on to where it is.
            _ if world.plan.shards > 0 => longest_wait(world),
            Kind::Strict | Kind::Node => world.network.longest_reply + TURN,
        };
        if limit.on_store_error == OnStoreError::Local && without_store(world) {
            let part = capacity.div_ceil(4).max(limit.cost.min(capacity));
            let times: u64 = world.jumps.iter().map(|jumps| 1 + jumps).sum();
            bound.units += part * times;
            bound.rate += part * times;
        }
        bound
    }

    /// Units that were granted from one time to another, and may be again.
    fn granted_twice(&self, from: u64, to: u64) -> u64 {
        let twice = self.forgotten.iter().filter(|(at, _)| (from..=to).contains(at));
        twice.map(|(_, units)| units).sum()
    }

    /// Where admissions at these times, in their order, at this cost each, break it.
    pub fn broken(&self, log: &[u64], cost: u64) -> Option<String> {
        match self.window_form {
            true => self.broken_window(log, cost),
            false => self.broken_rate(log, cost),
        }
    }

    fn broken_window(&self, log: &[u64], cost: u64) -> Option<String> {
        let window = self.period.saturating_sub(self.shift);
        if window == 0 {
            return None;
        }
        let mut first = 0;
        for (last, at) in log.iter().enumerate() {
            while log[first] + window <= *at {
                first += 1;
            }
            let units = cost * u64::try_from(last + 1 - first).unwrap();
            let from = log[first].saturating_sub(self.life);
            if units > self.units + self.granted_twice(from, *at) {
                return Some(format!(
                    "{units} units within {} us at {} us",
                    (at - log[first]) / 1000,
                    at / 1000
                ));
            }
        }
        None
    }

    /// A bucket that leaks `rate` units in each period never holds more than its units.
    fn broken_rate(&self, log: &[u64], cost: u64) -> Option<String> {
        let (rate, period) = (u128::from(self.rate), u128::from(self.period));
        // Times are read in whole microseconds.
        let unread = rate.min(period) * 1000;
        let full = u128::from(self.units) * period + rate * u128::from(self.shift) + unread;
        let (mut held, mut before) = (0u128, 0);
        for at in log {
            let leaked =
                u128::from(at - before) * rate * (1_000_000 + u128::from(2 * DRIFT)) / 1_000_000;
            held = held.saturating_sub(leaked) + u128::from(cost) * period;
            before = *at;
            let twice = u128::from(self.granted_twice(0, *at)) * period;
            if held > full + twice {
                return Some(format!("{} units in the bucket at {} us", held / period, at / 1000));
            }
        }
        None
    }
}

/// The longest time from a request's arrival to its decision.
fn longest_wait(world: &World<'_>) -> u64 {
    let decided = world.requests.iter().filter(|request| request.fate == Fate::Admitted);
    decided.map(|request| request.decided_at - request.arrived_at).max().unwrap_or(0)
}
