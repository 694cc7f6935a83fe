use crate::figures::Figure;
use crate::filters::{
    charging_policy, empty_plugin, fairshare, global_policy, native_local, node_policy,
    refusing_policy,
};
use crate::load::Load;
use crate::measure::{CONNECTIONS, requests_of};
use crate::proxy::{Proxy, Setup};
use crate::report::Report;
use crate::rounds::{Plan, Series, Variant};
use crate::support::redis::Redis;

/// More than any run sends in a minute.
const AMPLE: u64 = 100_000_000;

/// All requests admitted, of one tenant with one credential.
pub(crate) fn admitted(plan: Plan, report: &mut Report) {
    let redis = Redis::start();
    let setups = [
        ("no filter", Setup::new(vec![])),
        ("empty plugin", Setup::new(vec![empty_plugin()])),
        ("fairshare, node", Setup::new(vec![fairshare(&node_policy())])),
        (
            "fairshare, leased",
            Setup::new(vec![fairshare(&global_policy("leased"))]).redis(redis.socket()),
        ),
        ("fairshare, node, each charged", Setup::new(vec![fairshare(&charging_policy())])),
        ("local_ratelimit, 1 descriptor", Setup::new(vec![native_local(AMPLE, 1)])),
        ("local_ratelimit, 10 descriptors", Setup::new(vec![native_local(AMPLE, 10)])),
    ];
    let proxies = setups.map(|(name, setup)| (name, setup.start()));
    let mut variants = proxies
        .each_ref()
        .map(|(name, proxy)| Variant::of(*name, proxy, CONNECTIONS, &requests_of("acme")));
    let series = Series::measure("Everything admitted", plan, &mut variants);
    for (name, proxy) in &proxies {
        series.expect_refused(name, 0.0..=0.0);
        proxy.expect_no_trap();
    }
    let (node, leased, empty) = ("fairshare, node", "fairshare, leased", "empty plugin");
    let (native, ten) = ("local_ratelimit, 1 descriptor", "local_ratelimit, 10 descriptors");
    report.figure("local_cpu_vs_empty_plugin", series.cpu_ratio(node, empty));
    report.figure("local_rps_vs_native_local_ratelimit", series.rps_ratio(node, native));
    report.figure("local_rps_vs_native_ten_descriptors", series.rps_ratio(node, ten));
    report.figure("leased_rps_vs_local", series.rps_ratio(leased, node));
    report.figure("leased_cpu_vs_empty_plugin", series.cpu_ratio(leased, empty));
    let charged = "fairshare, node, each charged";
    report.figure("charged_cpu_vs_empty_plugin", series.cpu_ratio(charged, empty));
    let calls = store_calls(plan, &proxies[3].1, &redis);
    report.figure("store_calls_per_1000_requests", Figure::of(&calls));
    report.figure("empty_plugin_cpu_vs_no_filter", series.cpu_ratio(empty, "no filter"));
    report.figure("local_cpu_vs_no_filter", series.cpu_ratio(node, "no filter"));
    report.figure("native_local_cpu_vs_no_filter", series.cpu_ratio(native, "no filter"));
    report.series(series);
}

/// Calls for each 1000 requests, round by round, of load without a pause.
fn store_calls(plan: Plan, leased: &Proxy, redis: &Redis) -> Vec<f64> {
    let mut load = Load::connect(&[leased.port()], CONNECTIONS, requests_of("acme"));
    load.run_for(plan.slice);
    let mut round = || {
        let before = script_calls(redis);
        let requests = load.run_for(plan.slice * 2).requests();
        (script_calls(redis) - before) as f64 * 1000.0 / requests as f64
    };
    (0..plan.rounds).map(|_| round()).collect()
}

/// How often Redis has run a script, by its own count.
fn script_calls(redis: &Redis) -> u64 {
    let calls = redis.calls().into_iter();
    calls.filter(|(name, _)| name.starts_with("eval")).map(|(_, calls)| calls).sum()
}

/// More than 99 of 100 requests refused, on both sides.
pub(crate) fn refused(plan: Plan, report: &mut Report) {
    let setups = [
        ("fairshare refuses", Setup::new(vec![fairshare(&refusing_policy())])),
        ("local_ratelimit refuses", Setup::new(vec![native_local(10, 1)])),
        ("empty plugin, nothing refused", Setup::new(vec![empty_plugin()])),
    ];
    let proxies = setups.map(|(name, setup)| (name, setup.start()));
    let mut variants = proxies
        .each_ref()
        .map(|(name, proxy)| Variant::of(*name, proxy, CONNECTIONS, &requests_of("acme")));
    let series = Series::measure("Nearly everything refused", plan, &mut variants);
    proxies.iter().for_each(|(_, proxy)| proxy.expect_no_trap());
    let (ours, native) = ("fairshare refuses", "local_ratelimit refuses");
    series.expect_refused(ours, 0.99..=1.0);
    series.expect_refused(native, 0.99..=1.0);
    report.figure("refused_cpu_vs_native_refused", series.cpu_ratio(ours, native));
    report.series(series);
}
