use serde_json::{Value, json};

use crate::exchanges::{leased_for_the_first_time, limit_of};
use crate::faults::{Fault, Faults};
use crate::rng::Rng;
use crate::shards::SHARDS_MAX;

pub const MILLI: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MILLI;

/// All that is decided before a run begins.
#[derive(Debug)]
pub struct Plan {
    pub nodes: usize,
    pub workers: usize,
    pub limits: Vec<LimitPlan>,
    /// Shards of a Redis Cluster; none where the store is one server.
    pub shards: usize,
    /// How long the store may delay a request.
    pub timeout: u64,
    pub password: bool,
    pub arrivals: Vec<Arrival>,
    pub faults: Faults,
    /// What happens beside the requests, and when.
    pub events: Vec<(u64, Fault)>,
}

#[derive(Clone, Debug)]
pub struct LimitPlan {
    pub kind: Kind,
    pub window_form: bool,
    /// The window or period, in milliseconds.
    pub period_ms: u64,
    /// Requests or burst, shared and of a tenant.
    pub shared: u64,
    pub tenant: u64,
    /// Requests in flight, shared.
    pub in_flight: Option<u64>,
    pub cost: u64,
    pub on_store_error: OnStoreError,
    pub on_state_loss: OnStateLoss,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Node,
    Leased,
    Strict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreError {
    Deny,
    Allow,
    Local,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStateLoss {
    Rebuild,
    Hold,
}

/// A request that comes.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub at: u64,
    pub node: usize,
    pub worker: usize,
    pub tenant: usize,
    /// How long the client waits for a decision.
    pub patience: u64,
    /// How long the request is in flight once it is let through.
    pub lasts: u64,
    /// Whether the answer's headers come before the end.
    pub answered: bool,
}

impl Plan {
    pub fn of(seed: u64) -> Self {
        let rng = Rng::new(seed);
        let faults = Faults::of(&rng);
        let shards = rng.pick(&[0, 0, 2, SHARDS_MAX]);
        let nodes = rng.pick(&[1, 2, 2, 3]);
        let workers = rng.pick(&[1, 2, 2, 3]);
        let timeout = rng.pick(&[20, 50, 100, 300]) * MILLI;
        let period_ms = rng.pick(&[100, 200, 640, 800, 1000, 2000]);
        let limits: Vec<LimitPlan> =
            (0..rng.pick(&[1, 1, 1, 2, 3])).map(|_| LimitPlan::of(&rng, period_ms)).collect();
        let duration = (rng.within(2, 6) * period_ms * MILLI).max(600 * MILLI);
        let arrivals = arrivals(&rng, &limits, (nodes, workers), duration, &faults);
        let events = faults.events(&rng, duration, (nodes, workers), period_ms * MILLI);
        let password = rng.in_thousand(300);
        let mut plan =
            Self { nodes, workers, limits, shards, timeout, password, arrivals, faults, events };
        if rng.in_thousand(100) {
            plan.invent_tenants(&rng, duration);
        }
        if nodes > 1 && rng.in_thousand(300) {
            plan.move_demand(&rng, duration);
        }
        plan
    }

    /// All come to one node, and from some time on to another. Where the store forgets, it does so at about that
    /// time, so that whoever has something to tell it is idle.
    fn move_demand(&mut self, rng: &Rng, duration: u64) {
        let at = rng.within(duration / 3, duration * 2 / 3);
        for arrival in &mut self.arrivals {
            arrival.node = usize::from(arrival.at >= at);
        }
        if self.faults.losses {
            self.events.push((at + rng.within(0, 100 * MILLI), Fault::Flush));
        }
    }

    /// Somebody comes to one worker as tenants that nobody has seen before: as a hundred within some 15 ms, or
    /// as more than a call takes at once.
    fn invent_tenants(&mut self, rng: &Rng, duration: u64) {
        let (node, worker) = (rng.place(self.nodes), rng.place(self.workers));
        let known = self.arrivals.iter().map(|arrival| arrival.tenant).max().unwrap_or(0);
        let mut at = rng.within(10 * MILLI, duration);
        let (count, step) = if rng.in_thousand(300) { (300, 1) } else { (100, 300_000) };
        for tenant in known + 1..=known + count {
            let (patience, lasts, answered) = (3600 * SECOND, 0, true);
            self.arrivals.push(Arrival { at, node, worker, tenant, patience, lasts, answered });
            at += rng.within(0, step);
        }
        self.arrivals.sort_by_key(|arrival| arrival.at);
    }

    /// Whether a call asks for leases, and not once more because the store had lost the script.
    pub fn asks_for_leases(&self, body: &[u8]) -> bool {
        leased_for_the_first_time(body).iter().any(|key| {
            let place: usize = limit_of(key)[1..].parse().unwrap();
            self.limits[place].kind == Kind::Leased
        })
    }

    /// The plugin JSON. In a later `edition` the limits' numbers are others.
    pub fn plugin(&self, edition: usize) -> String {
        let limits: Vec<Value> = self
            .limits
            .iter()
            .enumerate()
            .map(|(place, limit)| limit.edition(edition).json(place))
            .collect();
        let mut plugin = json!({"limits": limits});
        if self.limits.iter().any(|limit| limit.kind != Kind::Node) {
            let timeout = format!("{}ms", self.timeout / MILLI);
            plugin["store"] = json!({"cluster": "redis", "timeout": timeout});
            if self.shards > 0 {
                plugin["store"]["topology"] = json!("cluster");
            }
            if self.password {
                plugin["store"]["password"] = json!("secret");
            }
        }
        plugin.to_string()
    }
}

impl LimitPlan {
    fn of(rng: &Rng, period_ms: u64) -> Self {
        let kind = rng.pick(&[Kind::Node, Kind::Leased, Kind::Leased, Kind::Strict]);
        let shared = rng.pick(&[4, 12, 20, 40, 80]);
        let period_ms = if rng.in_thousand(200) { rng.pick(&[50, 300, 640]) } else { period_ms };
        Self {
            kind,
            window_form: rng.in_thousand(650),
            period_ms,
            shared,
            tenant: (shared * rng.pick(&[1, 2, 3, 4]) / 4).max(1),
            in_flight: rng.in_thousand(200).then(|| rng.pick(&[3, 10, 40])),
            cost: if shared >= 12 && rng.in_thousand(200) { rng.within(1, 4) } else { 1 },
            on_store_error: rng.pick(&[
                OnStoreError::Deny,
                OnStoreError::Deny,
                OnStoreError::Allow,
                OnStoreError::Local,
            ]),
            on_state_loss: match rng.in_thousand(400) {
                true => OnStateLoss::Hold,
                false => OnStateLoss::Rebuild,
            },
        }
    }

    /// Whether a level of this capacity is leased ahead of need.
    pub const fn asks_ahead(&self, capacity: u64) -> bool {
        capacity >= 16 && self.period_ms >= 640
    }

    /// The limit as a later configuration has it.
    fn edition(&self, edition: usize) -> Self {
        match edition % 2 {
            0 => self.clone(),
            _ => Self { shared: self.shared * 3 / 4 + 1, ..self.clone() },
        }
    }

    fn json(&self, place: usize) -> Value {
        let tenant = self.tenant.min(self.shared);
        let level = |units: u64| match self.window_form {
            true => json!({"requests": units, "window": format!("{}ms", self.period_ms)}),
            false => {
                json!({"rate": units, "per": format!("{}ms", self.period_ms), "burst": units})
            }
        };
        let mut limit = json!({"name": format!("l{place}"), "cost": self.cost});
        limit["shared"] = level(self.shared);
        limit["tenant"] = level(tenant);
        if let Some(cap) = self.in_flight {
            limit["in_flight"] = json!({"shared": cap});
        }
        if self.kind == Kind::Node {
            limit["scope"] = json!("node");
            return limit;
        }
        limit["scope"] = json!("global");
        limit["consistency"] = json!(if self.kind == Kind::Leased { "leased" } else { "strict" });
        limit["on_store_error"] = match self.on_store_error {
            OnStoreError::Deny => json!("deny"),
            OnStoreError::Allow => json!("allow"),
            OnStoreError::Local => json!("local"),
        };
        limit["on_state_loss"] = match self.on_state_loss {
            OnStateLoss::Rebuild => json!("rebuild"),
            OnStateLoss::Hold => json!("hold"),
        };
        if self.on_store_error == OnStoreError::Local {
            limit["local_fraction"] = json!(0.25);
        }
        limit
    }
}

/// Demand of up to three times the tightest limit, in bursts and in a stream; or crowds, which come to
/// one worker at once, when units of a lease are about to expire and when others are about to be free.
fn arrivals(
    rng: &Rng,
    limits: &[LimitPlan],
    (nodes, workers): (usize, usize),
    duration: u64,
    faults: &Faults,
) -> Vec<Arrival> {
    let per_second = |limit: &LimitPlan| limit.shared * 1000 / limit.period_ms / limit.cost;
    let slowest = limits.iter().map(per_second).min().unwrap_or(1).max(5);
    let rate = slowest * rng.within(5, 31) / 10;
    let count = (rate * (duration / MILLI) / 1000).clamp(10, 500);
    let tenants = rng.pick(&[1, 2, 3, 5]);
    let arrival = |at, (node, worker, tenant)| {
        let leaves = faults.leaving && rng.in_thousand(150);
        Arrival {
            at,
            node,
            worker,
            tenant,
            patience: if leaves { rng.within(0, 30 * MILLI) } else { 3600 * SECOND },
            lasts: if rng.in_thousand(500) { 0 } else { rng.within(0, 200 * MILLI) },
            answered: !(faults.leaving && rng.in_thousand(200)),
        }
    };
    let anyone = || (rng.place(nodes), rng.place(workers), rng.place(tenants));
    let mut at = 10 * MILLI;
    let mut list = Vec::new();
    if rng.in_thousand(300) {
        let period = limits[0].period_ms * MILLI;
        let life = (period / 32).max(60 * MILLI).min(period / 2);
        let pauses = [MILLI, life / 3, life * 15 / 16, life, period - life, period - life / 2];
        while at < duration && list.len() < 500 {
            let who = anyone();
            let size = rng.within(1, limits[0].tenant / limits[0].cost + 2);
            list.extend((0..size).map(|_| arrival(at, who)));
            at += rng.pick(&pauses) + rng.within(0, 4 * MILLI);
        }
        return list;
    }
    for _ in 0..count {
        at += match rng.within(0, 10) {
            0..4 => 0,
            4..9 => rng.within(0, 3 * duration / count),
            _ => rng.within(0, 8 * duration / count),
        };
        list.push(arrival(at, anyone()));
    }
    list
}
