use crate::filters::{fairshare, fairshare_of, global_policy, node_policy, refusing_policy};
use crate::measure::{CONNECTIONS, requests_of};
use crate::proxy::Setup;
use crate::report::Report;
use crate::rounds::{Plan, Series, Variant};
use crate::support::redis::Redis;
use crate::support::tools;

/// Names the build to compare with.
const VARIABLE: &str = "FAIRSHARE_BASELINE_WASM";

/// The module against another build of it: what a change has gained. Measured where one is named.
pub(crate) fn builds(plan: Plan, report: &mut Report) {
    let Ok(baseline) = std::env::var(VARIABLE) else {
        return report.note(format!("No other build is compared: {VARIABLE} names none."));
    };
    // From the repository's root, where the script was called; Envoy runs elsewhere.
    let baseline = tools::repository().join(baseline);
    assert!(baseline.is_file(), "{VARIABLE} names {}, which is no file", baseline.display());
    let redis = Redis::start();
    let kinds = [
        ("node", "local_cpu_vs_baseline", node_policy()),
        ("leased", "leased_cpu_vs_baseline", global_policy("leased")),
        ("refused", "refused_cpu_vs_baseline", refusing_policy()),
    ];
    let name = |build: &str, kind: &str| format!("{build}, {kind}");
    let mut proxies = Vec::new();
    for (kind, _, policy) in &kinds {
        let builds = [("this", fairshare(policy)), ("baseline", fairshare_of(&baseline, policy))];
        for (build, filter) in builds {
            let proxy = Setup::new(vec![filter]).redis(redis.socket()).start();
            proxies.push((name(build, kind), proxy));
        }
    }
    let mut variants: Vec<Variant> = proxies
        .iter()
        .map(|(name, proxy)| Variant::of(name, proxy, CONNECTIONS, &requests_of("acme")))
        .collect();
    let series = Series::measure("Against another build", plan, &mut variants);
    for (name, proxy) in &proxies {
        let refused = if name.ends_with("refused") { 0.99..=1.0 } else { 0.0..=0.0 };
        series.expect_refused(name, refused);
        proxy.expect_no_trap();
    }
    for (kind, key, _) in kinds {
        report.figure(key, series.cpu_ratio(&name("this", kind), &name("baseline", kind)));
    }
    report.series(series);
}
