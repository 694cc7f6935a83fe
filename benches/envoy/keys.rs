//! What is measured, and what is wanted of it.

/// A figure of `summary.json`.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) target: Target,
}

/// What a figure should be. The second number is the harder one, where there are two.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// Told for comparison.
    None,
    /// The median is at most this.
    AtMost(f64, Option<f64>),
    /// The median is at least this.
    AtLeast(f64, Option<f64>),
    /// No round is above this.
    Never(f64),
    /// No round is below this.
    Always(f64),
}

use Target::{Always, AtLeast, AtMost, Never, None as Told};

const fn key(name: &'static str, target: Target, what: &'static str) -> Key {
    Key { name, what, target }
}

/// All figures, in the order of the report.
pub(crate) const KEYS: &[Key] = &[
    key(
        "local_cpu_vs_empty_plugin",
        AtMost(1.10, Some(1.00)),
        "CPU per request: the full policy on the node ÷ a plugin that does nothing",
    ),
    key(
        "local_rps_vs_native_local_ratelimit",
        AtLeast(0.85, None),
        "requests per second: the same policy ÷ Envoy's local rate limit filter with one descriptor",
    ),
    key(
        "local_rps_vs_native_ten_descriptors",
        AtLeast(1.0, None),
        "the same ÷ Envoy's local rate limit filter with ten descriptors",
    ),
    key(
        "refused_cpu_vs_native_refused",
        AtMost(1.2, None),
        "CPU per request where more than 99 % are refused: this filter ÷ Envoy's local rate limit filter",
    ),
    key(
        "leased_rps_vs_local",
        AtLeast(0.97, None),
        "requests per second: the policy for the fleet, leased ÷ on the node",
    ),
    key(
        "leased_cpu_vs_empty_plugin",
        AtMost(1.15, None),
        "CPU per request: the policy for the fleet, leased ÷ a plugin that does nothing",
    ),
    key(
        "charged_cpu_vs_empty_plugin",
        Told,
        "CPU per request: the policy on the node where nothing is drawn ahead of need ÷ a plugin that does nothing",
    ),
    key(
        "strict_rps_vs_native_ratelimit",
        AtLeast(1.0, Some(1.5)),
        "requests per second over 64 connections: strict, with Redis ÷ Envoy's rate limit filter whose service says OK without a store",
    ),
    key("strict_added_p50_ms", Told, "median latency at a fixed rate: strict − on the node"),
    key(
        "leased_added_p99_ms",
        AtMost(0.2, None),
        "99th percentile of the latency at a fixed rate: leased − on the node",
    ),
    key(
        "store_calls_per_1000_requests",
        AtMost(10.0, None),
        "calls that Redis got for each 1000 requests, leased, at full load",
    ),
    key(
        "window_overshoot_max",
        Never(1.0),
        "the most that was admitted in any interval ÷ the limit: two Envoys, node, leased and strict",
    ),
    key(
        "window_utilisation_min",
        Always(0.90),
        "the least that was admitted ÷ the limit, under demand that never lets up",
    ),
    key(
        "rss_growth_million_tenants_mib",
        AtMost(64.0, None),
        "MiB that Envoy grows by over a million tenants",
    ),
    key(
        "rss_growth_second_million_mib",
        AtMost(0.5, None),
        "MiB that it grows by over a million more: none, but for what the allocator keeps",
    ),
    key(
        "rss_growth_100k_tenants_mib",
        AtMost(64.0, None),
        "MiB that Envoy grows by over 100 000 tenants (with --quick)",
    ),
    key("wasm_bytes", AtMost(409_600.0, None), "the module's size"),
    key("vm_start_ms", AtMost(50.0, None), "CPU time that starting one more VM takes"),
    key(
        "first_vm_start_ms",
        AtMost(50.0, None),
        "CPU time that Envoy's start takes more with the filter: V8's own start and the compiling included",
    ),
    key(
        "million_tenants_cpu_vs_one",
        AtMost(1.15, None),
        "CPU per request: requests of a million tenants in turn ÷ of one",
    ),
    key(
        "limits_32_cpu_vs_one",
        AtMost(2.0, None),
        "CPU per request: 32 matching limits, all levels each ÷ one",
    ),
    key(
        "headers_64_cpu_vs_empty_plugin",
        Told,
        "CPU per request with 64 more headers: the full policy ÷ a plugin that does nothing",
    ),
    key("workers_2_cpu_vs_one", Told, "CPU per request, full policy: two workers ÷ one"),
    key("workers_2_rps_vs_one", Told, "requests per second, full policy: two workers ÷ one"),
    key(
        "envoys_4_cpu_vs_one",
        Told,
        "CPU per request, leased: four Envoys that share a Redis ÷ one Envoy",
    ),
    key("refused_cpu_vs_admitted", Told, "CPU per request of this filter: all refused ÷ none"),
    key(
        "empty_plugin_cpu_vs_no_filter",
        Told,
        "CPU per request: a plugin that does nothing ÷ no filter",
    ),
    key("local_cpu_vs_no_filter", Told, "CPU per request: the full policy on the node ÷ no filter"),
    key(
        "native_local_cpu_vs_no_filter",
        Told,
        "CPU per request: Envoy's local rate limit filter ÷ no filter",
    ),
    key(
        "native_ratelimit_cpu_vs_no_filter",
        Told,
        "CPU per request over 64 connections: Envoy's rate limit filter ÷ no filter, both with a route",
    ),
    key(
        "strict_cpu_vs_native_ratelimit",
        Told,
        "CPU per request of Envoy over 64 connections: strict ÷ Envoy's rate limit filter",
    ),
    key(
        "leased_rps_vs_native_ratelimit",
        Told,
        "requests per second over 64 connections: leased ÷ Envoy's rate limit filter",
    ),
    key(
        "native_ratelimit_added_p50_ms",
        Told,
        "median latency at a fixed rate: Envoy's rate limit filter − no filter, both with a route",
    ),
    key("nginx_limit_req_cpu_vs_none", Told, "CPU per request: nginx with limit_req ÷ without"),
    key(
        "haproxy_stick_table_cpu_vs_none",
        Told,
        "CPU per request: HAProxy with a stick table ÷ without",
    ),
    key(
        "local_cpu_vs_baseline",
        Told,
        "CPU per request, full policy on the node: this build ÷ the one that FAIRSHARE_BASELINE_WASM names",
    ),
    key("leased_cpu_vs_baseline", Told, "the same, leased"),
    key("refused_cpu_vs_baseline", Told, "the same, nearly everything refused"),
];

/// The key of this name.
pub(crate) fn find(name: &str) -> &'static Key {
    KEYS.iter().find(|key| key.name == name).unwrap_or_else(|| panic!("no key {name}"))
}
