use std::sync::Arc;

use serde_json::{Value, json};

use crate::figures::Figure;
use crate::filters::{document, fairshare, limit};
use crate::http::write_request;
use crate::load::{Load, Requests};
use crate::machine::resident_bytes;
use crate::measure::{CONNECTIONS, requests_of};
use crate::plot::{Line, Plot};
use crate::proxy::Setup;
use crate::report::Report;
use crate::rounds::{Plan, Round, Series, Variant};

const MILLION: u64 = 1_000_000;

/// What the million is compared with: an Envoy that has never seen but one tenant.
const FRESH: &str = "1 tenant, another Envoy";

/// All tenants and credentials of the run still count when the last one has come.
fn lasting_policy() -> Value {
    let levels = json!({
        "shared": {"requests": 400_000_000, "window": "1h"},
        "tenant": {"requests": 100_000_000, "window": "1h"},
        "credential": {"requests": 100_000_000, "window": "1h"},
    });
    document(&json!([limit("bench", &levels)]))
}

/// Request `n` is of tenant `first + n`, with a credential of its own.
fn newcomers(first: u64) -> Requests {
    Arc::new(move |index, bytes| {
        write_request(bytes, "/", &format!("tenant-{}", first + index), "");
    })
}

/// Each request is of one of `count` tenants, in an order without a pattern.
fn any_of(count: u64) -> Requests {
    Arc::new(move |index, bytes| {
        let tenant = index.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) % count;
        write_request(bytes, "/", &format!("tenant-{tenant}"), "");
    })
}

/// Floods an Envoy with distinct tenants, looks at its memory, and then at what tenants cost it.
pub(crate) fn tenants(plan: Plan, report: &mut Report) {
    let most = if plan.quick { MILLION / 10 } else { MILLION };
    eprintln!("{most} tenants, and as many again");
    let proxy = Setup::new(vec![fairshare(&lasting_policy())]).start();
    let flood = |requests: Requests, count| {
        let mut load = Load::connect(&[proxy.port()], CONNECTIONS, requests);
        let tally = load.run_count(count);
        tally.expect_answered("the flooded Envoy");
        assert_eq!(tally.refused, 0, "all tenants of the flood are admitted");
        resident_bytes(proxy.id()) as f64 / f64::from(1 << 20)
    };
    let before = flood(requests_of("acme"), 20_000);
    let first = flood(newcomers(0), most);
    if plan.quick {
        report.figure("rss_growth_100k_tenants_mib", Figure::of(&[first - before]));
    } else {
        report.figure("rss_growth_million_tenants_mib", Figure::of(&[first - before]));
        let second = flood(newcomers(most), most);
        report.figure("rss_growth_second_million_mib", Figure::of(&[second - first]));
    }
    let counts: Vec<u64> = (0..=6).map(|power| 10_u64.pow(power)).filter(|n| *n <= most).collect();
    let name = |count: u64| format!("{count} tenants");
    let variant = |count: &u64| Variant::of(name(*count), &proxy, CONNECTIONS, &any_of(*count));
    let mut variants: Vec<Variant> = counts.iter().map(variant).collect();
    let fresh = Setup::new(vec![fairshare(&lasting_policy())]).start();
    variants.push(Variant::of(FRESH, &fresh, CONNECTIONS, &any_of(1)));
    let series = Series::measure("Number of tenants", plan.sweep(), &mut variants);
    counts.iter().for_each(|count| series.expect_refused(&name(*count), 0.0..=0.0));
    proxy.expect_no_trap();
    series.expect_refused(FRESH, 0.0..=0.0);
    if !plan.quick {
        report.figure("million_tenants_cpu_vs_one", series.cpu_ratio(&name(MILLION), FRESH));
    }
    let points =
        counts.iter().map(|count| (*count as f64, series.figure(&name(*count), Round::cpu_us)));
    report.plot(Plot {
        file: "tenants",
        title: "Cost against the number of tenants",
        x_label: "tenants, each with a credential",
        y_label: "CPU µs per request",
        log_x: true,
        lines: vec![Line { name: "full policy", points: points.collect() }],
    });
    report.series(series);
}
