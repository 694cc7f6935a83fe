//! Benchmarks on real Envoys: `./envoy/bench.sh`, which gets and builds what this needs.
//!
//! `docs/benchmarks.md` says what is measured and how.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::disallowed_methods,
    reason = "a benchmark ends where something is wrong, has a clock, and computes with floating point"
)]

/// Medians and their intervals.
mod figures;
/// Configurations of the filters that are compared.
mod filters;
/// Requests and the ends of responses.
mod http;
/// What is measured, and what is wanted of it.
mod keys;
/// The load generator.
mod load;
/// CPU time and the machine's load.
mod machine;
/// The measurements.
mod measure;
/// Charts.
mod plot;
/// Envoys.
mod proxy;
/// The results.
mod report;
/// A rate limit service that always says OK.
mod rls;
/// Variants in alternation.
mod rounds;
#[path = "../../tests/support/mod.rs"]
mod support;
/// Workers of one process without an Envoy, as many as there may be.
#[path = "../../tests/turns_of_workers/mod.rs"]
mod turns_of_workers;

use std::process::Command;
use std::time::{Duration, Instant};

use keys::KEYS;
use measure::{builds, local, neighbours, remote, scale, start, sweeps, windows};
use report::Report;
use rounds::Plan;
use support::tools;

/// A measurement and the keys that it gives.
type Group = (fn(Plan, &mut Report), &'static [&'static str]);

const GROUPS: &[Group] = &[
    (
        builds::builds,
        &["local_cpu_vs_baseline", "leased_cpu_vs_baseline", "refused_cpu_vs_baseline"],
    ),
    (
        local::admitted,
        &[
            "local_cpu_vs_empty_plugin",
            "local_rps_vs_native_local_ratelimit",
            "local_rps_vs_native_ten_descriptors",
            "leased_rps_vs_local",
            "leased_cpu_vs_empty_plugin",
            "charged_cpu_vs_empty_plugin",
            "store_calls_per_1000_requests",
            "empty_plugin_cpu_vs_no_filter",
            "local_cpu_vs_no_filter",
            "native_local_cpu_vs_no_filter",
        ],
    ),
    (local::refused, &["refused_cpu_vs_native_refused"]),
    (
        remote::throughput,
        &[
            "strict_rps_vs_native_ratelimit",
            "strict_cpu_vs_native_ratelimit",
            "leased_rps_vs_native_ratelimit",
            "native_ratelimit_cpu_vs_no_filter",
        ],
    ),
    (
        remote::latency,
        &["strict_added_p50_ms", "leased_added_p99_ms", "native_ratelimit_added_p50_ms"],
    ),
    (windows::windows, &["window_overshoot_max", "window_utilisation_min"]),
    (start::start, &["wasm_bytes", "vm_start_ms", "first_vm_start_ms"]),
    (
        scale::tenants,
        &[
            "rss_growth_million_tenants_mib",
            "rss_growth_second_million_mib",
            "rss_growth_100k_tenants_mib",
            "million_tenants_cpu_vs_one",
        ],
    ),
    (neighbours::neighbours, &["nginx_limit_req_cpu_vs_none", "haproxy_stick_table_cpu_vs_none"]),
    (sweeps::limits, &["limits_32_cpu_vs_one"]),
    (sweeps::headers, &["headers_64_cpu_vs_empty_plugin"]),
    (sweeps::workers, &["workers_2_cpu_vs_one", "workers_2_rps_vs_one"]),
    (sweeps::envoys, &["envoys_4_cpu_vs_one"]),
    (sweeps::refusals, &["refused_cpu_vs_admitted"]),
];

/// How long a run waits for a machine that is busy with something else.
const CALM_WITHIN: Duration = Duration::from_secs(60);
const CALM_WITHIN_QUICK: Duration = Duration::from_secs(5);

/// After this nothing more is begun with `--quick`; what has begun still takes up to half a minute.
const QUICK_LASTS: Duration = Duration::from_secs(130);

fn main() {
    check();
    // Cargo adds the flag --bench.
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let names: Vec<&String> =
        arguments.iter().filter(|argument| !argument.starts_with("--")).collect();
    let is_wanted = |key: &str| names.is_empty() || names.iter().any(|name| key.contains(*name));
    if let Some(unknown) =
        names.iter().find(|name| !KEYS.iter().any(|key| key.name.contains(**name)))
    {
        eprintln!("no key contains {unknown}; there are:");
        KEYS.iter().for_each(|key| eprintln!("  {}", key.name));
        std::process::exit(2);
    }
    let plan = if quick { Plan::quick() } else { Plan::full() };
    let mut report = Report::default();
    let start = Instant::now();
    let calm = machine::wait_for_calm(if quick { CALM_WITHIN_QUICK } else { CALM_WITHIN });
    report.condition(format!("machine: {}", machine::description()));
    report.condition(format!("at the start: {calm}"));
    report.condition(format!("Envoy: {}", version(&tools::envoy())));
    let directory = tools::repository().join("target/bench");
    // A run that fails leaves no older one's figures behind.
    let _ = std::fs::remove_file(directory.join("summary.json"));
    for (measure, keys) in GROUPS {
        if keys.iter().any(|key| is_wanted(key)) {
            if quick && start.elapsed() > QUICK_LASTS {
                report.note(format!("Left out, for the time was up: {}.", keys.join(", ")));
                continue;
            }
            measure(plan, &mut report);
            report.write(&directory);
        }
    }
    let minutes = start.elapsed().as_secs_f64() / 60.0;
    let load = machine::load_average();
    report.condition(format!("at the end, {minutes:.1} minutes later: load average {load:.2}"));
    report.write(&directory);
    println!("{}", report.table_of_figures());
    println!("target/bench/report.md has the charts and all variants");
}

/// What tests would check, were there tests in a benchmark.
fn check() {
    figures::check();
    http::check();
    let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, keys)| *keys).copied().collect();
    let mut known: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
    grouped.sort_unstable();
    known.sort_unstable();
    assert_eq!(grouped, known, "each key belongs to one group");
}

fn version(envoy: &std::path::Path) -> String {
    let output = Command::new(envoy).arg("--version").output().expect("Envoy's version");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
