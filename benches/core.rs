//! What the parts of a request take, natively: `cargo bench --bench core`.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    reason = "no part of the filter"
)]

mod host;
#[allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "made for tests"
)]
#[path = "../tools/module-host/src/store.rs"]
mod store;

use divan::{Bencher, black_box};
use fairshare::config;
use fairshare::limiter::{Quota, WindowQuota};
use fairshare::policy::{
    Attributes, Charge, HeaderMap, KnownDigests, Level, LimitId, Policy, RequestView, Subject,
};
use fairshare::store::leases::{LeaseOutcome, Leases};
use fairshare::store::node::NodeStore;
use fairshare::store::slab::{Fingerprint, Slot};
use fairshare::units::{Instant, Span};
use host::{Bench, FULL, PlainHost, headers, many_limits, policy};

const NOW: Instant = Instant::from_nanos(1_000_000_000_000);
const TIGHT: &str = r#"{"limits": [{"name": "dns", "tenant": {"requests": 5, "window": "1h"}}]}"#;

fn main() {
    divan::main();
}

/// A whole request, with all that the worker does for it.
mod request {
    use super::*;

    #[divan::bench]
    fn hot(bencher: Bencher<'_, '_>) {
        repeat(bencher, FULL, 1);
    }

    /// Of ever other tenants, one after the other.
    #[divan::bench(args = [1, 1_000, 1_000_000])]
    fn tenants(bencher: Bencher<'_, '_>, tenants: usize) {
        repeat(bencher, FULL, tenants);
    }

    #[divan::bench(args = [1, 4, 32])]
    fn matching_limits(bencher: Bencher<'_, '_>, limits: usize) {
        repeat(bencher, &many_limits(limits), 1);
    }

    #[divan::bench]
    fn refused(bencher: Bencher<'_, '_>) {
        repeat(bencher, TIGHT, 1);
    }

    fn repeat(bencher: Bencher<'_, '_>, plugin: &str, tenants: usize) {
        let (mut bench, mut next) = (Bench::new(plugin), 0);
        let one = headers("acme");
        bencher.bench_local(|| {
            next = (next + 1) % tenants;
            match next {
                0 => bench.request(&one),
                _ => bench.request(&headers(&format!("t{next}"))),
            }
        });
    }
}

/// Reading: the headers, the identity, the limits that match; and the configuration.
mod parse {
    use super::*;

    #[divan::bench]
    fn request(bencher: Bencher<'_, '_>) {
        let bytes = headers("acme");
        bencher.bench_local(|| view(black_box(&bytes)).path().len());
    }

    #[divan::bench]
    fn identity(bencher: Bencher<'_, '_>) {
        let (policy, bytes) = (policy(FULL), headers("acme"));
        let (view, mut known) = (view(&bytes), KnownDigests::new(7));
        bencher
            .bench_local(|| policy.identity.identify(black_box(&view), None, &mut known).is_ok());
    }

    #[divan::bench(args = [1, 32])]
    fn plan(bencher: Bencher<'_, '_>, limits: usize) {
        let (policy, bytes) = (policy(&many_limits(limits)), headers("acme"));
        let view = view(&bytes);
        let identity = policy.identity.identify(&view, None, &mut KnownDigests::new(7)).unwrap();
        bencher.bench_local(|| policy.plan(black_box(&view), &identity, policy.mode).node.len());
    }

    #[divan::bench(args = [1, 32])]
    fn configuration(bencher: Bencher<'_, '_>, limits: usize) {
        let document = many_limits(limits);
        let parse =
            || config::parse(black_box(document.as_bytes())).map(|p: Policy| p.limits.len());
        bencher.bench_local(parse);
    }

    fn view(bytes: &[u8]) -> RequestView<'_> {
        RequestView::new(HeaderMap::new(bytes), &Attributes::NONE)
    }
}

/// The node's usage: charged in shared data, and from what was drawn.
mod node {
    use super::*;

    #[divan::bench]
    fn charged_one_by_one(bencher: Bencher<'_, '_>) {
        decide(bencher, 1000);
    }

    #[divan::bench]
    fn drawn_ahead(bencher: Bencher<'_, '_>) {
        decide(bencher, 1_000_000_000);
    }

    fn decide(bencher: Bencher<'_, '_>, requests: u64) {
        let (mut node, mut host, mut now) = (NodeStore::new("bench", 7), PlainHost::default(), NOW);
        let charge = charge(requests, Span::from_secs(1));
        bencher.bench_local(|| {
            now = now.plus(Span::from_micros(1100));
            node.decide(&mut host, std::slice::from_ref(&charge), now).admitted
        });
    }
}

/// A slot of the slab with so many tenants in it, read and written for one of them.
#[divan::bench(args = [1, 10, 40])]
fn slab(bencher: Bencher<'_, '_>, tenants: u64) {
    let (mut node, mut host) = (NodeStore::new("bench", 7), PlainHost::default());
    node.decide(&mut host, &[charge(1000, Span::from_secs(60))], NOW);
    let record =
        Slot::decode(host.value("fairshare/1/bench/s")).unwrap().record(Fingerprint::ONLY, NOW);
    let mut slot = Slot::default();
    for tenant in 0..tenants {
        slot.put(Fingerprint::new(tenant + 10), &record, NOW);
    }
    bencher.bench_local(|| {
        let mut slot = Slot::decode(black_box(slot.bytes()).to_vec()).unwrap();
        let record = slot.record(Fingerprint::new(10), NOW);
        slot.put(Fingerprint::new(10), &record, NOW);
        slot.bytes().len()
    });
}

/// A request at a global limit of so many levels, from units of leases.
#[divan::bench(args = [1, 3])]
fn lease(bencher: Bencher<'_, '_>, levels: usize) {
    let all = [
        (Level::Shared, None),
        (Level::Tenant, Some(Subject([1; 32]))),
        (Level::Credential, Some(Subject([2; 32]))),
    ];
    let charge = charge(1000, Span::from_secs(1));
    let of = |&(level, subject): &(Level, Option<Subject>)| Charge { level, subject, ..charge };
    let charges: Vec<Charge> = all.iter().take(levels).map(of).collect();
    let mut leases = Leases::new(7);
    for charge in &charges {
        let told = fairshare::limiter::Verdict::refusal(&charge.quota);
        leases.take(charge, (1_000_000_000_000, 1), told, NOW, NOW);
    }
    bencher.bench_local(|| {
        let outcome = leases.decide(black_box(&charges), NOW);
        assert!(matches!(outcome, LeaseOutcome::Admitted(..)));
    });
}

/// So many requests at once that the store decides, of one tenant or each of another: until the store is
/// called, and from its replies until all go upstream.
mod queue {
    use super::*;

    const STRICT: &str = r#"{
      "limits": [{"name": "dns", "scope": "global", "consistency": "strict",
                  "shared": {"requests": 1000000, "window": "1h"},
                  "tenant": {"requests": 1000000, "window": "1h"}}],
      "store": {"cluster": "redis", "timeout": "1s"}
    }"#;

    /// Requests, and the tenants from whom they come.
    const CROWDS: [(usize, usize); 5] = [(1, 1), (64, 1), (1024, 1), (64, 64), (1024, 1024)];

    #[divan::bench(args = CROWDS)]
    fn ask(bencher: Bencher<'_, '_>, (requests, tenants): (usize, usize)) {
        let all = all(requests, tenants);
        bencher.with_inputs(|| Bench::with_store(STRICT)).bench_local_values(|mut bench| {
            bench.ask(&all);
            assert!(!bench.host.asked.is_empty());
            bench
        });
    }

    #[divan::bench(args = CROWDS)]
    fn deliver(bencher: Bencher<'_, '_>, (requests, tenants): (usize, usize)) {
        let all = all(requests, tenants);
        let asked = || {
            let mut bench = Bench::with_store(STRICT);
            bench.ask(&all);
            let calls = std::mem::take(&mut bench.host.asked);
            let reply = |(call, body): &(_, Vec<u8>)| (*call, store::granting(body));
            (bench, calls.iter().map(reply).collect::<Vec<_>>())
        };
        bencher.with_inputs(asked).bench_local_values(|(mut bench, replies)| {
            bench.answer(&replies);
            assert_eq!(bench.host.resumed.len(), requests);
            (bench, replies)
        });
    }

    fn all(requests: usize, tenants: usize) -> Vec<Vec<u8>> {
        (0..requests).map(|number| headers(&format!("t{}", number % tenants))).collect()
    }
}

fn charge(requests: u64, window: Span) -> Charge {
    let quota = Quota::Window(WindowQuota { requests, window });
    Charge { place: 0, id: LimitId::of("dns"), level: Level::Shared, subject: None, quota, cost: 1 }
}
