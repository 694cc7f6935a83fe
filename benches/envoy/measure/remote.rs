use std::time::Duration;

use crate::filters::{fairshare, global_policy, native_global, node_policy};
use crate::measure::requests_of;
use crate::proxy::{Proxy, Setup, http2_cluster};
use crate::report::Report;
use crate::rls;
use crate::rounds::{Plan, Series, Variant};
use crate::support::process::TempDir;
use crate::support::redis::Redis;
use crate::support::stats;

/// Enough that a filter whose requests wait for an answer is still never idle.
const CONNECTIONS: usize = 64;

/// The rate at which latency is measured: the machine has room to spare.
const REQUESTS_PER_SECOND: u32 = 500;

const NO_FILTER: &str = "no filter, route";
const NODE: &str = "fairshare, node, route";
const LEASED: &str = "fairshare, leased, route";
const STRICT: &str = "fairshare, strict, route";
const NATIVE: &str = "ratelimit, service says OK";

/// Envoys with a route to a cluster, without which Envoy's rate limit filter asks nobody.
fn proxies(redis: &Redis, directory: &TempDir) -> [(&'static str, Proxy); 5] {
    let ours = |policy| Setup::new(vec![fairshare(&policy)]).routed();
    let mut native = Setup::new(vec![native_global()]).routed();
    let socket = directory.file("rls.sock");
    rls::start(&socket);
    native.clusters.push(http2_cluster("rls", &socket));
    [
        (NO_FILTER, Setup::new(vec![]).routed()),
        (NODE, ours(node_policy())),
        (LEASED, ours(global_policy("leased")).redis(redis.socket())),
        (STRICT, ours(global_policy("strict")).redis(redis.socket())),
        (NATIVE, native),
    ]
    .map(|(name, setup)| (name, setup.start()))
}

/// As many requests as go through.
pub(crate) fn throughput(plan: Plan, report: &mut Report) {
    let (redis, directory) = (Redis::start(), TempDir::new("rls"));
    let proxies = proxies(&redis, &directory);
    let mut variants = proxies
        .each_ref()
        .map(|(name, proxy)| Variant::of(*name, proxy, CONNECTIONS, &requests_of("acme")));
    let series = Series::measure("Filters that ask somebody", plan, &mut variants);
    for (name, proxy) in &proxies {
        series.expect_refused(name, 0.0..=0.0);
        proxy.expect_no_trap();
    }
    expect_asked(&proxies[4].1);
    report.figure("strict_rps_vs_native_ratelimit", series.rps_ratio(STRICT, NATIVE));
    report.figure("strict_cpu_vs_native_ratelimit", series.cpu_ratio(STRICT, NATIVE));
    report.figure("leased_rps_vs_native_ratelimit", series.rps_ratio(LEASED, NATIVE));
    report.figure("native_ratelimit_cpu_vs_no_filter", series.cpu_ratio(NATIVE, NO_FILTER));
    report.series(series);
}

/// Fails the run where Envoy's filter has asked nobody: it would have been compared for nothing.
fn expect_asked(native: &Proxy) {
    let of_the_service = [("envoy_cluster_name", "rls")];
    let count =
        stats::sum(&native.prometheus(), "envoy_cluster_upstream_rq_total", &of_the_service);
    assert!(count > 100, "the rate limit filter has asked {count} times");
}

/// Latency at a fixed rate far below what the proxy can do.
pub(crate) fn latency(plan: Plan, report: &mut Report) {
    let (redis, directory) = (Redis::start(), TempDir::new("rls"));
    let proxies = proxies(&redis, &directory);
    let mut variants = proxies.each_ref().map(|(name, proxy)| {
        Variant::paced(*name, proxy, REQUESTS_PER_SECOND, requests_of("acme"))
    });
    // Long enough for a percentile.
    let slice = if plan.quick { Duration::from_millis(200) } else { Duration::from_secs(1) };
    let series = Series::measure("Latency at a fixed rate", Plan { slice, ..plan }, &mut variants);
    for (name, proxy) in &proxies {
        series.expect_refused(name, 0.0..=0.0);
        proxy.expect_no_trap();
    }
    report.figure("strict_added_p50_ms", series.added_ms(STRICT, NODE, 0.50));
    report.figure("leased_added_p99_ms", series.added_ms(LEASED, NODE, 0.99));
    report.figure("native_ratelimit_added_p50_ms", series.added_ms(NATIVE, NO_FILTER, 0.50));
    report.series(series);
}
