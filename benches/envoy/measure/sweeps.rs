use std::fmt::Write;
use std::sync::Arc;

use fairshare::limiter::Quota;
use serde_json::{Value, json};

use crate::figures::Figure;
use crate::filters::{
    document, empty_plugin, fairshare, global_policy, limit, native_local, node_policy,
};
use crate::http::write_request;
use crate::load::{Load, Requests};
use crate::measure::{CONNECTIONS, requests_of};
use crate::plot::{Line, Plot};
use crate::proxy::{Proxy, Setup};
use crate::report::Report;
use crate::rounds::{Plan, Round, Series, Variant};
use crate::support::redis::Redis;
use crate::turns_of_workers;

const CPU: &str = "CPU µs per request";

/// The variants of a sweep are called by their line and their place on it.
fn point(line: &str, x: u64) -> String {
    format!("{line}, {x}")
}

fn line_of(series: &Series, name: &'static str, places: &[u64]) -> Line {
    let figure = |x: &u64| (*x as f64, series.figure(&point(name, *x), Round::cpu_us));
    Line { name, points: places.iter().map(figure).collect() }
}

/// Limits that all match every request, each with all its levels.
pub(crate) fn limits(plan: Plan, report: &mut Report) {
    const NAME: &str = "full policy";
    let counts = [1, 2, 4, 8, 16, 32];
    let proxies = counts.map(|count| {
        let limits: Value =
            (0..count).map(|number| limit(&format!("limit-{number}"), &json!({}))).collect();
        Setup::new(vec![fairshare(&document(&limits))]).start()
    });
    let mut variants: Vec<Variant> = counts
        .iter()
        .zip(&proxies)
        .map(|(count, proxy)| {
            Variant::of(point(NAME, *count), proxy, CONNECTIONS, &requests_of("acme"))
        })
        .collect();
    let series = Series::measure("Number of matching limits", plan.sweep(), &mut variants);
    counts.iter().for_each(|count| series.expect_refused(&point(NAME, *count), 0.0..=0.0));
    report.figure("limits_32_cpu_vs_one", series.cpu_ratio(&point(NAME, 32), &point(NAME, 1)));
    report.plot(Plot {
        file: "limits",
        title: "Cost against the number of matching limits",
        x_label: "limits, each with all levels",
        y_label: CPU,
        log_x: false,
        lines: vec![line_of(&series, NAME, &counts)],
    });
    report.series(series);
}

/// Headers that the policy does not look at.
pub(crate) fn headers(plan: Plan, report: &mut Report) {
    let counts = [0, 8, 16, 32, 64];
    let kinds = [
        ("no filter", vec![]),
        ("empty plugin", vec![empty_plugin()]),
        ("full policy", vec![fairshare(&node_policy())]),
    ];
    let proxies = kinds.map(|(name, filters)| (name, Setup::new(filters).start()));
    let mut variants = Vec::new();
    for count in counts {
        for (name, proxy) in &proxies {
            let requests = with_headers(count);
            variants.push(Variant::of(point(name, count), proxy, CONNECTIONS, &requests));
        }
    }
    let series = Series::measure("Number of headers", plan.sweep(), &mut variants);
    for count in counts {
        proxies.iter().for_each(|(name, _)| series.expect_refused(&point(name, count), 0.0..=0.0));
    }
    let (ours, empty) = (point("full policy", 64), point("empty plugin", 64));
    report.figure("headers_64_cpu_vs_empty_plugin", series.cpu_ratio(&ours, &empty));
    report.plot(Plot {
        file: "headers",
        title: "Cost against the number of headers",
        x_label: "headers beyond the usual ones",
        y_label: CPU,
        log_x: false,
        lines: proxies.iter().map(|(name, _)| line_of(&series, name, &counts)).collect(),
    });
    report.series(series);
}

fn with_headers(count: u64) -> Requests {
    let mut more = String::new();
    for number in 0..count {
        let _ = write!(more, "x-other-header-{number}: a value of some thirty bytes {number}\r\n");
    }
    Arc::new(move |_, bytes| write_request(bytes, "/", "acme", &more))
}

/// One and two workers, which share the node's counts.
pub(crate) fn workers(plan: Plan, report: &mut Report) {
    let kinds = [("no filter", vec![]), ("full policy", vec![fairshare(&node_policy())])];
    let counts = [1, 2];
    let mut proxies = Vec::new();
    for (name, filters) in kinds {
        for count in counts {
            let workers = u32::try_from(count).expect("few workers");
            let proxy = Setup::new(filters.clone()).workers(workers).start();
            proxies.push((point(name, count), proxy));
        }
    }
    // More connections than for one worker: the kernel deals them out to the workers unevenly.
    let mut variants: Vec<Variant> = proxies
        .iter()
        .map(|(name, proxy)| Variant::of(name, proxy, 4 * CONNECTIONS, &requests_of("acme")))
        .collect();
    let series = Series::measure("Number of workers", plan.sweep(), &mut variants);
    proxies.iter().for_each(|(name, _)| series.expect_refused(name, 0.0..=0.0));
    let (two, one) = (point("full policy", 2), point("full policy", 1));
    report.figure("workers_2_cpu_vs_one", series.cpu_ratio(&two, &one));
    report.figure("workers_2_rps_vs_one", series.rps_ratio(&two, &one));
    report.plot(Plot {
        file: "workers",
        title: "Cost against the number of workers",
        x_label: "workers of one Envoy",
        y_label: CPU,
        log_x: false,
        lines: ["no filter", "full policy"].map(|name| line_of(&series, name, &counts)).into(),
    });
    report.plot(many_workers());
    report.series(series);
}

/// More workers than this machine has processors for: not their time, but how often each has to read or
/// write what all of them share.
fn many_workers() -> Plot {
    let of = |quota: Quota, requests: u64| {
        let calls = |workers: u32| {
            let (count, share) = (workers.try_into().expect("few"), requests / u64::from(workers));
            let sum = turns_of_workers::run(count, share, turns_of_workers::shared(quota));
            assert_eq!(sum.refused + sum.gave_up, 0, "{workers} workers: {sum:?}");
            (f64::from(workers), Figure::of(&[sum.node_hundredths() as f64 / 100.0]))
        };
        [1, 2, 4, 8, 16, 32, 64].map(calls).into()
    };
    Plot {
        file: "many_workers",
        title: "Calls for the node's data against the number of workers",
        x_label: "workers of one process, at one level",
        y_label: "calls for shared data per request",
        log_x: true,
        lines: vec![
            Line { name: "busy level", points: of(turns_of_workers::window(10_000_000), 32_000) },
            Line { name: "1000 units", points: of(turns_of_workers::window(1000), 960) },
        ],
    }
}

/// One to four Envoys, of one worker each, that share a Redis.
pub(crate) fn envoys(plan: Plan, report: &mut Report) {
    const NAME: &str = "full policy, leased";
    let counts = [1, 2, 3, 4];
    let redis = Redis::start();
    let setup = Setup::new(vec![fairshare(&global_policy("leased"))]).redis(redis.socket());
    let proxies: [Proxy; 4] = std::array::from_fn(|_| setup.start());
    let variant = |count: u64| {
        let fleet = &proxies[..usize::try_from(count).expect("few Envoys")];
        let ports: Vec<u16> = fleet.iter().map(Proxy::port).collect();
        let pids = fleet.iter().map(Proxy::id).collect();
        let load = Load::connect(&ports, fleet.len() * CONNECTIONS, requests_of("acme"));
        Variant::new(point(NAME, count), load, pids)
    };
    let mut variants = counts.map(variant);
    let series = Series::measure("Number of Envoys", plan.sweep(), &mut variants);
    counts.iter().for_each(|count| series.expect_refused(&point(NAME, *count), 0.0..=0.0));
    report.figure("envoys_4_cpu_vs_one", series.cpu_ratio(&point(NAME, 4), &point(NAME, 1)));
    report.plot(Plot {
        file: "envoys",
        title: "Cost against the number of Envoys",
        x_label: "Envoys that share a Redis",
        y_label: "CPU µs per request, all Envoys",
        log_x: false,
        lines: vec![line_of(&series, NAME, &counts)],
    });
    report.series(series);
}

/// Requests of a tenant that may do nothing, among those of one that may do everything.
pub(crate) fn refusals(plan: Plan, report: &mut Report) {
    let shares = [0, 25, 50, 75, 100];
    let mut policy = node_policy();
    policy["overrides"] =
        json!({"refused": {"bench": {"tenant": {"requests": 0, "window": "1s"}}}});
    let mut native = native_local(1, 1);
    native["typed_config"]["descriptors"][0]["entries"][0]["value"] = json!("refused");
    let (ours, theirs) = ("full policy", "local_ratelimit");
    let kinds = [(ours, fairshare(&policy)), (theirs, native)];
    let proxies = kinds.map(|(name, filter)| (name, Setup::new(vec![filter]).start()));
    let mut variants = Vec::new();
    for share in shares {
        for (name, proxy) in &proxies {
            let requests: Requests = Arc::new(move |index, bytes| {
                let refused = index * 37 % 100 < share;
                write_request(bytes, "/", if refused { "refused" } else { "acme" }, "");
            });
            variants.push(Variant::of(point(name, share), proxy, CONNECTIONS, &requests));
        }
    }
    let series = Series::measure("Share of refusals", plan.sweep(), &mut variants);
    for share in shares {
        let share_of_one = share as f64 / 100.0;
        let around = (share_of_one - 0.02).max(0.0)..=(share_of_one + 0.02).min(1.0);
        proxies
            .iter()
            .for_each(|(name, _)| series.expect_refused(&point(name, share), around.clone()));
    }
    report.figure("refused_cpu_vs_admitted", series.cpu_ratio(&point(ours, 100), &point(ours, 0)));
    report.plot(Plot {
        file: "refusals",
        title: "Cost against the share of refusals",
        x_label: "refused, %",
        y_label: CPU,
        log_x: false,
        lines: [ours, theirs].map(|name| line_of(&series, name, &shares)).into(),
    });
    report.series(series);
}
