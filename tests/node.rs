//! The node's store: several workers on one process's shared data.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and they do have a clock"
)]

mod fake_host;

use std::cell::RefCell;
use std::rc::Rc;

use fairshare::limiter::{Quota, WindowQuota};
use fairshare::policy::{Charge, Digester, Level, LimitId, Subject};
use fairshare::store::node::NodeStore;
use fairshare::units::{Instant, Span};
use fake_host::{Machine, SharedMap};
use proptest::prelude::*;

const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

fn subject(name: &str) -> Option<Subject> {
    Some(Digester::new(None).digest(name.as_bytes()))
}

fn charge(level: Level, name: &str, requests: u64, cost: u64) -> Charge {
    let subject = if level == Level::Shared { None } else { subject(name) };
    let quota = Quota::Window(WindowQuota { requests, window: Span::from_secs(60) });
    Charge { place: 0, id: LimitId::of("dns"), level, subject, quota, cost }
}

fn store() -> NodeStore {
    NodeStore::new("test", 7)
}

fn shared() -> (Rc<RefCell<Machine>>, SharedMap) {
    let machine = Rc::new(RefCell::new(Machine::default()));
    let map = SharedMap::new(&machine);
    (machine, map)
}

#[test]
fn tim_1_a_refused_request_spends_nothing_at_any_level() {
    let (_machine, mut map) = shared();
    let mut node = store();
    let mut take = |tenant: &str, tenant_limit| {
        let charges =
            [charge(Level::Shared, "", 10, 1), charge(Level::Tenant, tenant, tenant_limit, 1)];
        node.decide(&mut map, &charges, NOW).admitted
    };
    let acme = (0..5).filter(|_| take("acme", 3)).count();
    let globex = (0..8).filter(|_| take("globex", 100)).count();
    assert_eq!((acme, globex), (3, 7));
}

/// Goal: where the shared level fills up between a request's reading and its writing, what the
/// request already wrote is taken back.
#[test]
fn a_level_that_fills_up_in_between_gives_the_others_back() {
    let (machine, mut map) = shared();
    let both = [charge(Level::Tenant, "acme", 5, 1), charge(Level::Credential, "key", 1, 1)];
    // The seed and the tenant's cell are written first; the interloper comes before the third.
    let mut node = store();
    assert!(node.decide(&mut map, &[charge(Level::Tenant, "other", 5, 1)], NOW).admitted);
    machine.borrow_mut().before_swap = Some(Box::new(|map: &mut SharedMap| {
        let taken = store().decide(map, &[charge(Level::Credential, "key", 1, 1)], NOW);
        assert!(taken.admitted);
    }));
    let outcome = node.decide(&mut map, &both, NOW);
    assert!(!outcome.admitted);
    let left = node.decide(&mut map, &[charge(Level::Tenant, "acme", 5, 5)], NOW);
    assert!(left.admitted, "the refused request's tenant unit was not given back");
}

#[test]
fn wrk_1_a_lost_swap_is_decided_anew() {
    let (machine, mut map) = shared();
    let mut node = store();
    assert!(node.decide(&mut map, &[charge(Level::Tenant, "acme", 2, 1)], NOW).admitted);
    machine.borrow_mut().before_swap = Some(Box::new(|map: &mut SharedMap| {
        assert!(store().decide(map, &[charge(Level::Tenant, "acme", 2, 1)], NOW).admitted);
    }));
    assert!(!node.decide(&mut map, &[charge(Level::Tenant, "acme", 2, 1)], NOW).admitted);
}

#[test]
fn wrk_3_namespaces_never_mix() {
    let (_machine, mut map) = shared();
    let (mut one, mut other) = (NodeStore::new("one", 7), NodeStore::new("other", 7));
    let ask = [charge(Level::Tenant, "acme", 1, 1)];
    assert!(one.decide(&mut map, &ask, NOW).admitted);
    assert!(other.decide(&mut map, &ask, NOW).admitted);
    assert!(!one.decide(&mut map, &ask, NOW).admitted);
    assert!(!NodeStore::new("other", 7).decide(&mut map, &ask, NOW).admitted);
}

#[test]
fn idn_7_ever_more_tenants_take_a_bounded_number_of_bytes() {
    let (machine, mut map) = shared();
    let mut node = store();
    let flood = |map: &mut SharedMap, node: &mut NodeStore, from: u32, to: u32| {
        for number in from..to {
            let charges = [charge(Level::Tenant, &format!("tenant-{number}"), 5, 1)];
            assert!(node.decide(map, &charges, NOW).admitted);
        }
    };
    for part in 0..4 {
        flood(&mut map, &mut node, part * 100_000, (part + 1) * 100_000);
        let bytes = machine.borrow().bytes();
        assert!(bytes <= 2048 * 4096 + 8, "{bytes} after part {part}");
    }
}

proptest! {
    /// Goal: whatever several workers do at once, no level admits more than its limit, and what is
    /// refused is refused at a level that has no room.
    #[test]
    fn no_interleaving_exceeds_a_limit(
        steps in prop::collection::vec((0..4u8, 0..4u8, any::<bool>()), 1..80),
        shared_limit in 1..12u64, tenant_limit in 1..6u64,
    ) {
        let (machine, mut map) = shared();
        let admitted = Rc::new(RefCell::new(Vec::new()));
        let mut node = store();
        let charges = move |tenant: u8| [
            charge(Level::Shared, "", shared_limit, 1),
            charge(Level::Tenant, &format!("t{tenant}"), tenant_limit, 1),
        ];
        for (tenant, other, interrupted) in steps {
            if interrupted {
                let admitted = Rc::clone(&admitted);
                machine.borrow_mut().before_swap = Some(Box::new(move |map: &mut SharedMap| {
                    if store().decide(map, &charges(other), NOW).admitted {
                        admitted.borrow_mut().push(other);
                    }
                }));
            }
            if node.decide(&mut map, &charges(tenant), NOW).admitted {
                admitted.borrow_mut().push(tenant);
            }
        }
        let admitted = admitted.borrow();
        let limit = usize::try_from(shared_limit).unwrap();
        prop_assert!(admitted.len() <= limit);
        for tenant in 0..4 {
            let own = admitted.iter().filter(|name| **name == tenant).count();
            prop_assert!(own <= usize::try_from(tenant_limit).unwrap());
        }
    }
}
