//! What must hold at the end of a run, as far as a client, a scraper of metrics and an operator of
//! the store can see.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::bounds::Bound;
use crate::plan::{Kind, MILLI, OnStoreError, SECOND};
use crate::world::{Fate, Request, TICK, World};

/// The time beyond its deadline in which a request is surely decided: one tick, and as many
/// callbacks as it takes.
const GRACE: u64 = TICK + 5 * MILLI;

/// The lease of a slot in flight that its worker left behind, and one period of chores.
const SLOT_LEASE: u64 = 17 * SECOND;

/// All that is wrong with a run whose faults are over.
pub fn check(world: &World<'_>) -> Vec<String> {
    let mut wrong = world.violations.clone();
    wrong.extend(answers(world));
    wrong.extend(metrics(world));
    wrong.extend(units(world));
    wrong.extend(calls(world));
    wrong.extend(in_flight(world));
    wrong.extend(intervals(world));
    wrong.extend(undue_refusals(world));
    wrong
}

/// Whether anything may have been decided without the store.
pub fn without_store(world: &World<'_>) -> bool {
    let calls = world.fleet.metric(&["fairshare_store_calls."]);
    let told = |result: &str| world.fleet.metric(&["fairshare_store_calls.", result]);
    let faults = &world.plan.faults;
    // Where servers stay what they are, whoever is sent on once gets an answer there.
    let steady = !(faults.moves || faults.losses);
    let answered = told("result=ok") + if steady { told("result=moved") } else { 0 };
    let waited =
        world.requests.iter().map(|request| request.decided_at.saturating_sub(request.arrived_at));
    calls > answered || faults.node_clocks || waited.max().unwrap_or(0) + TICK >= world.plan.timeout
}

/// No request stays without an answer, and none waits beyond the store's time and one tick.
fn answers(world: &World<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    let steps: u64 = world.fleet.nodes.iter().map(|node| node.clock.back).sum();
    let drift = if world.plan.faults.node_clocks { MILLI } else { 0 };
    let most = world.plan.timeout + GRACE + steps + drift;
    for (number, request) in world.requests.iter().enumerate() {
        match request.fate {
            Fate::Waits => wrong.push(format!("request {number} has no answer")),
            Fate::Admitted | Fate::Refused { .. }
                if request.decided_at - request.arrived_at > most =>
            {
                let waited = (request.decided_at - request.arrived_at) / MILLI;
                wrong.push(format!("request {number} waited for {waited} ms"));
            }
            _ => {}
        }
    }
    wrong
}

/// Every request that a filter has ended is counted once, as what it became.
fn metrics(world: &World<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    for process in 0..world.fleet.processes.len() {
        let mut seen = BTreeMap::from([("admitted", 0u64), ("refused", 0), ("errored", 0)]);
        for request in world.requests.iter().filter(|request| request.process == process) {
            let outcome = match &request.fate {
                Fate::Admitted => "admitted",
                Fate::Refused { status: 429, .. } => "refused",
                Fate::Refused { .. } | Fate::Left => "errored",
                Fate::NotTaken | Fate::Waits | Fate::Lost => continue,
            };
            *seen.get_mut(outcome).unwrap() += 1;
        }
        for (outcome, seen) in seen {
            let label = format!(".outcome={outcome}");
            let told = world.fleet.metric_of(process, &["fairshare_requests.", &label]);
            if told != seen {
                wrong.push(format!("process {process}: {seen} requests {outcome}, {told} counted"));
            }
        }
        wrong.extend(codes(world, process));
    }
    wrong
}

/// Every refusal is counted once, by the code that its client sees.
fn codes(world: &World<'_>, process: usize) -> Vec<String> {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for request in world.requests.iter().filter(|request| request.process == process) {
        if let Fate::Refused { body, .. } = &request.fate {
            *seen.entry(code(body)).or_default() += 1;
        }
    }
    let mut wrong = Vec::new();
    let (all, told) =
        (seen.values().sum::<u64>(), world.fleet.metric_of(process, &["fairshare_refusals."]));
    if all != told {
        wrong.push(format!("process {process}: {all} requests refused, {told} counted by code"));
    }
    for (code, seen) in seen {
        let told =
            world.fleet.metric_of(process, &["fairshare_refusals.", &format!("code={code}")]);
        if told != seen {
            wrong.push(format!("process {process}: {seen} refused as {code}, {told} counted"));
        }
    }
    wrong
}

/// The code of a problem.
fn code(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).expect("a problem");
    body["code"].as_str().expect("a code").to_owned()
}

/// Units of leases: granted = spent + returned + expired + held, and nothing is held at the end.
fn units(world: &World<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    let told =
        |event: &str| world.fleet.metric(&["fairshare_lease_units.", &format!("event={event}")]);
    let [granted, spent, returned, expired] = ["granted", "spent", "returned", "expired"].map(told);
    let gone = spent + returned + expired;
    let whole = world.lost_memories == 0;
    if granted < gone || (whole && granted > gone) {
        wrong.push(format!(
            "units: {granted} granted, {spent} spent, {returned} returned, {expired} expired"
        ));
    }
    let heard = world.network.heard;
    // A node whose clock jumps ahead has given up calls that are answered in time.
    let listened = whole && world.jumps.iter().all(|jumps| *jumps == 0);
    if granted > heard || (listened && granted < heard) || heard > world.network.granted {
        wrong.push(format!(
            "units: the store granted {}, workers heard of {heard} and took {granted}",
            world.network.granted
        ));
    }
    let leased = world.plan.limits.iter().filter(|limit| limit.kind == Kind::Leased);
    let cost: u64 = leased.map(|limit| 2 * limit.cost).sum();
    let admitted = world.requests.iter().filter(|request| request.fate == Fate::Admitted).count();
    let due = cost * u64::try_from(admitted).unwrap();
    if world.lost_memories == 0 && (spent > due || (spent < due && !without_store(world))) {
        wrong.push(format!("units: {spent} spent by {admitted} requests, {due} due"));
    }
    wrong
}

/// The store is asked a bounded number of times.
fn calls(world: &World<'_>) -> Vec<String> {
    let plan = world.plan;
    let count = |number: usize| u64::try_from(number).unwrap();
    let members = count(world.fleet.members.len());
    let tenants = 1 + plan.arrivals.iter().map(|arrival| arrival.tenant).max().map_or(0, count);
    // A request asks for its leases and for what is strict, and gives the latter back. A lease asks
    // ahead of need twice in its life, and goes back in at most as many parcels as it asked for.
    let asked = 3 * count(world.requests.len()) * (1 + count(plan.limits.len()));
    let shortest = plan.limits.iter().map(|limit| limit.period_ms / 32).min().unwrap_or(0).max(20);
    let lives = world.now / MILLI / shortest + 1;
    let ahead = 4 * lives * members * (1 + tenants) * count(plan.limits.len());
    let groups = if plan.shards > 0 { count(plan.limits.len()) } else { 1 };
    let probes = world.now / (200 * MILLI) * members * groups;
    // In a Redis Cluster each may be sent on four times.
    let times = if plan.shards > 0 { 5 } else { 1 };
    let most = 2 * times * (asked + ahead + probes);
    match world.network.decisions > most {
        true => vec![format!(
            "{} decisions in the store, at most {most} are due",
            world.network.decisions
        )],
        false => vec![],
    }
}

/// Caps hold on every process, and at the end nobody holds a slot.
fn in_flight(world: &World<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    let caps = world.plan.limits.iter().filter_map(|limit| limit.in_flight);
    let Some(cap) = caps.min() else { return wrong };
    for process in 0..world.fleet.processes.len() {
        let mut changes = Vec::new();
        for request in world.requests.iter().filter(|request| request.process == process) {
            if request.fate == Fate::Admitted {
                changes.push((request.decided_at, 1, 1i64));
                changes.push((request.ended_at.unwrap_or(u64::MAX), 0, -1));
            }
        }
        changes.sort_unstable();
        let mut now = 0;
        let most = changes
            .iter()
            .map(|(_, _, by)| {
                now += by;
                now
            })
            .max()
            .unwrap_or(0);
        if u64::try_from(most).unwrap() > cap {
            wrong.push(format!("process {process}: {most} in flight, {cap} allowed"));
        }
        let held = world.fleet.metric_of(process, &["fairshare_in_flight"]);
        let alive = world.fleet.nodes.iter().any(|node| node.process == process);
        if alive && held != 0 {
            wrong.push(format!("process {process}: {held} in flight at the end"));
        }
    }
    wrong
}

/// How long to wait after the last request until whatever was left behind is over.
pub fn aftermath(world: &World<'_>) -> u64 {
    if world.lost_memories > 0 && world.plan.limits.iter().any(|limit| limit.in_flight.is_some()) {
        SLOT_LEASE + 2 * SECOND
    } else {
        3 * SECOND
    }
}

/// No interval holds more than its limit, at any level of any limit.
fn intervals(world: &World<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    let tenants = world.plan.arrivals.iter().map(|arrival| arrival.tenant).max().unwrap_or(0);
    for place in 0..world.plan.limits.len() {
        for tenant in std::iter::once(None).chain((0..=tenants).map(Some)) {
            wrong.extend(level(world, place, tenant));
        }
    }
    wrong
}

fn level(world: &World<'_>, place: usize, tenant: Option<usize>) -> Option<String> {
    let limit = &world.plan.limits[place];
    if limit.kind != Kind::Node
        && limit.on_store_error == OnStoreError::Allow
        && without_store(world)
    {
        return None;
    }
    let admitted = admitted(&world.requests, tenant);
    let processes = match limit.kind {
        Kind::Node => (0..world.fleet.processes.len()).map(Some).collect(),
        Kind::Leased | Kind::Strict => vec![None],
    };
    processes.into_iter().find_map(|process| {
        let log: Vec<u64> = admitted
            .iter()
            .filter(|request| process.is_none_or(|process| request.process == process))
            .map(|request| request.decided_at)
            .collect();
        let bound = Bound::of(world, place, tenant, process);
        bound.broken(&log, limit.cost).map(|how| {
            format!(
                "limit {place} {limit:?}, tenant {tenant:?}, process {process:?}: {how}; {bound:?}"
            )
        })
    })
}

/// Requests that were let through, in their order.
fn admitted(requests: &[Request], tenant: Option<usize>) -> Vec<&Request> {
    let mut admitted: Vec<&Request> = requests
        .iter()
        .filter(|request| request.fate == Fate::Admitted)
        .filter(|request| tenant.is_none_or(|tenant| request.arrival.tenant == tenant))
        .collect();
    admitted.sort_by_key(|request| request.decided_at);
    admitted
}

/// A request that is refused spends nothing, so that nobody is refused for whom there is room.
fn undue_refusals(world: &World<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    if world.fleet.metric(&["fairshare_decisions_given_up"]) > 0 {
        return wrong;
    }
    for (number, request) in world.requests.iter().enumerate() {
        let Fate::Refused { status: 429, body } = &request.fate else { continue };
        let body: Value = serde_json::from_slice(body).expect("a problem");
        if body["code"] != "rate_limited" {
            continue;
        }
        let place: usize = body["limit"].as_str().unwrap()[1..].parse().unwrap();
        let tenant = (body["level"] == "tenant").then_some(request.arrival.tenant);
        let limit = &world.plan.limits[place];
        if !(limit.window_form && is_exact(world, place)) {
            continue;
        }
        let process = (limit.kind == Kind::Node).then_some(request.process);
        let log = admitted(&world.requests, tenant);
        let log: Vec<u64> = log
            .into_iter()
            .filter(|admitted| process.is_none_or(|process| admitted.process == process))
            .map(|admitted| admitted.decided_at)
            .collect();
        let slack =
            if limit.kind == Kind::Node { 0 } else { 2 * world.network.longest_reply + GRACE };
        let longer = limit.period_ms * MILLI * 17 / 16 + MILLI / 1000 + slack;
        let (from, to) = (request.decided_at.saturating_sub(longer), request.decided_at + slack);
        let spent = log.iter().filter(|at| (from..=to).contains(*at)).count();
        let spent = limit.cost * u64::try_from(spent).unwrap();
        let capacity = if tenant.is_some() { limit.tenant } else { limit.shared };
        if spent + limit.cost <= capacity {
            wrong.push(format!(
                "request {number} is refused by limit {place} of {capacity} when {spent} were spent"
            ));
        }
    }
    wrong
}

/// Whether a refusal by this limit can be judged from outside: nothing but admissions takes room.
fn is_exact(world: &World<'_>, place: usize) -> bool {
    let (plan, faults) = (world.plan, &world.plan.faults);
    match plan.limits[place].kind {
        Kind::Node => !faults.node_clocks && !faults.updates,
        Kind::Leased => false,
        Kind::Strict => {
            let calm = !(faults.network
                || faults.slow
                || faults.outages
                || faults.traps
                || faults.crashes
                || faults.moves
                || faults.losses);
            let steady =
                !(faults.node_clocks || faults.store_clock || faults.updates || faults.leaving);
            let alone = (plan.shards == 0 || plan.limits.len() == 1)
                && plan
                    .limits
                    .iter()
                    .all(|limit| limit.kind != Kind::Node && limit.in_flight.is_none());
            calm && steady && alone && !without_store(world)
        }
    }
}
