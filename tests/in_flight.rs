//! Slots of requests in flight: several workers on one process's shared data, and what they leave
//! behind when they vanish.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and they do have a clock"
)]

mod fake_host;
/// Workers that come, go and vanish, against the truth.
#[path = "in_flight/model.rs"]
mod model;

use std::cell::RefCell;
use std::rc::Rc;

use fairshare::limiter::{Quota, WindowQuota};
use fairshare::policy::{Charge, Level, LimitId};
use fairshare::store::StoreError;
use fairshare::store::node::NodeStore;
use fairshare::units::{Instant, Span};
use fake_host::{Machine, Outcome, Process, SharedMap};
use model::{Model, SECOND, Step, slot};
use serde_json::{Value, json};

/// Goal: where shared data fail at the wrong moment, a slot is given back later, not never.
#[test]
fn a_release_that_was_lost_is_told_again() {
    let mut model = Model::new(1, 1);
    model.acquire(0, 0);
    model.machine.borrow_mut().broken = true;
    let (charges, _) = model.workers[0].requests.pop().unwrap();
    model.workers[0].node.release(&mut model.map, &charges, model.now);
    model.machine.borrow_mut().broken = false;
    let now = model.now;
    assert!(!model.workers[1].node.decide(&mut model.map, &charges, now).admitted);
    model.step(Step::Pass { seconds: 5 });
    model.acquire(1, 0);
    assert_eq!(model.alive(None), 1);
}

/// Goal: a request that is refused at its second level leaves no slot at its first, even where that
/// could not be written at once.
#[test]
fn a_refused_request_leaves_no_slot_behind() {
    let mut model = Model::new(5, 1);
    model.acquire(0, 0);
    for _ in 0..9 {
        model.acquire(1, 0);
        model.race(2, 3, 0);
    }
    (1..3).for_each(|tenant| model.acquire(1, tenant));
    assert_eq!(model.alive(None), 3);
}

fn caps(caps: Value) -> Value {
    json!({"limits": [{"name": "dns", "in_flight": caps}]})
}

fn start(process: &mut Process) -> Outcome {
    process.start(&[(b":method", b"GET"), (b":path", b"/"), (b"x-tenant-id", b"acme")]).1
}

fn is_admitted(outcome: &Outcome) -> bool {
    *outcome == Outcome::Passed(None)
}

/// VMX-1: what was in flight when the VMs trapped counts until its lease ends, and no longer.
#[test]
fn in_flight_survives_a_trap_for_one_lease() {
    let mut process = Process::new(&caps(json!({"tenant": 3})).to_string(), 2).unwrap();
    assert!((0..3).all(|_| is_admitted(&start(&mut process))));
    process.pass(SECOND);
    assert_eq!(process.metric("fairshare_in_flight"), 3);
    process.trap();
    process.pass(Span::from_secs(9));
    assert!(!is_admitted(&start(&mut process)));
    assert_eq!(process.metric("fairshare_in_flight"), 3);
    process.pass(Span::from_secs(8));
    assert_eq!(process.metric("fairshare_in_flight"), 0);
    assert!((0..3).all(|_| is_admitted(&start(&mut process))));
    assert!(!is_admitted(&start(&mut process)));
}

/// Goal: slots of requests that last are renewed for as long as they last.
#[test]
fn long_requests_hold_their_slots() {
    let mut process =
        Process::new(&caps(json!({"shared": 9, "tenant": 2})).to_string(), 3).unwrap();
    assert!((0..2).all(|_| is_admitted(&start(&mut process))));
    for _ in 0..20 {
        process.pass(Span::from_secs(7));
        assert!(!is_admitted(&start(&mut process)));
        assert_eq!(process.metric("fairshare_in_flight"), 2);
    }
}

/// INF-1 c: a request that waits for the store holds slots of limits in shadow mode alone, a client
/// that goes away meanwhile gives them back, and its stream is never resumed.
#[test]
fn inf_1_a_request_that_ends_while_it_waits_leaves_no_slot_behind() {
    let limit = |mode: &str, caps: Value| {
        json!({"name": mode, "mode": mode, "scope": "global", "consistency": "strict", "in_flight": caps,
               "shared": {"requests": 1000, "window": "1m"}})
    };
    let limits = [limit("enforce", json!({"tenant": 2})), limit("shadow", json!({"tenant": 2}))];
    let plugin = json!({"limits": limits, "store": {"cluster": "redis", "timeout": "10s"}});
    let mut process = Process::new(&plugin.to_string(), 2).unwrap();
    let pairs: [(&[u8], &[u8]); 1] = [(b"x-tenant-id", b"acme")];
    for _ in 0..4 {
        let waiting = [(); 3].map(|()| process.start(&pairs));
        assert!(waiting.iter().all(|(_, outcome)| *outcome == Outcome::Waits));
        process.pass(SECOND);
        assert_eq!(process.metric("fairshare_in_flight"), 2);
        waiting.into_iter().for_each(|(stream, _)| process.end(stream));
        process.pass(SECOND);
        assert_eq!(process.metric("fairshare_in_flight"), 0);
    }
    assert_eq!(process.run(&mut |_| Err(StoreError::Unreachable)), [], "nobody is there any more");
    let name = "fairshare_requests.limit=shadow.level=tenant.outcome=shadow_refused";
    assert_eq!(process.metric(name), 4);
}

/// Goal: two filters of one process show one number, whatever their namespaces.
#[test]
fn the_gauge_is_the_whole_processes() {
    let charge = slot(Level::Shared, 0, 9);
    let machine = Rc::new(RefCell::new(Machine::default()));
    let mut map = SharedMap::new(&machine);
    let (mut one, mut other) = (NodeStore::new("one", 7), NodeStore::new("other", 7));
    let mut at = Instant::ORIGIN.plus(SECOND);
    assert_eq!(one.tally(&mut map, 0, at), Some(0));
    for node in [&mut one, &mut other] {
        assert!(node.decide(&mut map, std::slice::from_ref(&charge), at).admitted);
    }
    assert_eq!((one.tally(&mut map, 1, at), other.tally(&mut map, 2, at)), (Some(1), Some(3)));
    for _ in 0..9 {
        at = at.plus(Span::from_secs(5));
        assert_eq!(one.tally(&mut map, 1, at), Some(3));
        assert_eq!(other.tally(&mut map, 2, at), Some(3));
    }
    assert_eq!(one.tally(&mut map, 0, at), Some(2));
    assert_eq!(other.tally(&mut map, 0, at), Some(0));
}

/// Goal: rates and slots of one request are decided together, also where they lie in one record.
#[test]
fn rates_and_slots_are_charged_together_or_not_at_all() {
    let window = Quota::Window(WindowQuota { requests: 2, window: Span::from_secs(60) });
    let both = [
        Charge { quota: window, id: LimitId::of("dns"), ..slot(Level::Tenant, 1, 0) },
        slot(Level::Tenant, 1, 1),
    ];
    let mut model = Model::new(0, 0);
    let node = &mut model.workers[0].node;
    let mut decide = |node: &mut NodeStore| node.decide(&mut model.map, &both, model.now).admitted;
    assert_eq!([decide(node), decide(node), decide(node)], [true, false, false]);
    node.release(&mut model.map, &both[1..], model.now);
    let mut decide = |node: &mut NodeStore| node.decide(&mut model.map, &both, model.now).admitted;
    assert!(decide(node));
    node.release(&mut model.map, &both[1..], model.now);
    let mut decide = |node: &mut NodeStore| node.decide(&mut model.map, &both, model.now).admitted;
    assert!(!decide(node), "the window holds two");
}

/// Goal: a spare slot that a request took in memory, and gave back because another level was used up
/// meanwhile, is free at the next look, although the shared data were told of it in between.
#[test]
fn a_spare_slot_of_a_refused_request_is_given_back_at_the_next_look() {
    let mut model = Model::new(0, 0);
    let window = |requests, level| {
        let quota = Quota::Window(WindowQuota { requests, window: Span::from_secs(60) });
        Charge { quota, id: LimitId::of("dns"), ..slot(level, 1, 0) }
    };
    let (tenant, cap) = (window(100, Level::Tenant), slot(Level::Tenant, 1, 160));
    let shared = Charge { subject: None, ..window(2, Level::Shared) };
    let charges = [tenant, cap, shared];
    let now = model.now;
    let node = &mut model.workers[0].node;
    let outcome = node.decide(&mut model.map, &charges, now);
    assert!(outcome.admitted && node.refund_later(&cap, &outcome.verdicts[1]));
    // Another worker takes the last shared unit while the tenant's level is written.
    model.machine.borrow_mut().before_swap = Some(Box::new(move |map: &mut SharedMap| {
        assert!(NodeStore::new("test", 7).decide(map, &[shared], now).admitted);
    }));
    assert!(!node.decide(&mut model.map, &charges, now).admitted);
    let left = |map: &mut SharedMap| {
        let outcome = NodeStore::new("test", 7).peek(map, &[tenant, cap], now);
        [outcome.verdicts[0].remaining, outcome.verdicts[1].remaining]
    };
    assert_eq!(left(&mut model.map), [98, 158], "the slot is a spare one, and stands there");
    node.renew(&mut model.map, now.plus(Span::from_millis(100)));
    assert_eq!(left(&mut model.map), [98, 159]);
}

/// Goal: where very many subjects come once each, the end of most requests writes nothing, neither at
/// once nor later. What is left to run out is never more than a 256th of a cap, and is over after
/// a lease.
#[test]
fn slots_of_a_crowd_of_subjects_lapse_where_they_are_few() {
    const CAP: u64 = 512;
    let mut model = Model::new(0, 0);
    let Model { machine, map, workers, now, .. } = &mut model;
    let node = &mut workers[0].node;
    let come_and_go = |node: &mut NodeStore, map: &mut SharedMap, tenant: u8, together: usize| {
        let slot = slot(Level::Tenant, tenant, CAP);
        let outcomes: Vec<_> = (0..together).map(|_| node.decide(map, &[slot], *now)).collect();
        for outcome in outcomes {
            assert!(outcome.admitted);
            if !node.refund_later(&slot, &outcome.verdicts[0]) {
                node.release(map, &[slot], *now);
            }
        }
    };
    (0..=255).for_each(|tenant| come_and_go(node, map, tenant, 1));
    assert_eq!(machine.borrow().swaps - 2, 256, "one write each, and one for seed and holder");
    let left = |map: &mut SharedMap, tenant: u8, now: Instant| {
        let slot = slot(Level::Tenant, tenant, CAP);
        NodeStore::new("test", 7).peek(map, &[slot], now).verdicts[0].remaining
    };
    // A subject that comes back several times finds its own lapsed slots to be its own.
    (0..20).for_each(|_| come_and_go(node, map, 255, 1));
    // One that holds more than a 256th at once gives back all of it.
    come_and_go(node, map, 200, 3);
    assert_eq!(left(map, 200, *now), CAP - 1);
    let all = |map: &mut SharedMap, now: Instant| -> Vec<u64> {
        (0..=255).map(|tenant| left(map, tenant, now)).collect()
    };
    let at_once = all(map, *now);
    assert!(at_once.iter().all(|left| *left >= CAP - 1 - CAP / 256), "{at_once:?}");
    assert!(at_once.iter().any(|left| *left < CAP - 1), "nothing was left to lapse");
    assert!(all(map, now.plus(Span::from_secs(16))).iter().all(|left| *left == CAP - 1));
}

/// Goal: where a level is nearly empty, the end of a request writes nothing at once, the next look
/// does, and what ends meanwhile is never more than a sixteenth of the cap.
#[test]
fn slots_of_a_nearly_empty_level_are_given_back_at_the_next_look() {
    let plugin = caps(json!({"tenant": 160})).to_string();
    let mut process = Process::new(&plugin, 1).unwrap();
    let request = |process: &mut Process| {
        process.start(&[(b":method", b"GET"), (b":path", b"/"), (b"x-tenant-id", b"acme")])
    };
    let early: Vec<_> = (0..10).map(|_| request(&mut process)).collect();
    let late: Vec<_> = (0..150).map(|_| request(&mut process)).collect();
    let refused = |process: &mut Process| !is_admitted(&request(process).1);
    let swaps = |process: &Process| process.machine().borrow().swaps;
    let before = swaps(&process);
    early.iter().for_each(|(stream, _)| process.end(*stream));
    assert_eq!(swaps(&process), before);
    process.end(late[0].0);
    assert_eq!(swaps(&process), before + 1);
    // That write told of the others as well.
    assert!((0..11).all(|_| !refused(&mut process)));
    assert!(refused(&mut process));
}
