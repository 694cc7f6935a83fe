//! The filters that are compared.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::tools;

const RATELIMIT_API: &str = "type.googleapis.com/envoy.extensions.filters.http";

/// The module under test, with this plugin JSON.
pub(crate) fn fairshare(plugin: &Value) -> Value {
    fairshare_of(tools::module(), plugin)
}

/// Another build of it.
pub(crate) fn fairshare_of(module: &Path, plugin: &Value) -> Value {
    wasm("fairshare", module, &plugin.to_string())
}

/// A module that does nothing, as the SDK builds it.
pub(crate) fn empty_plugin() -> Value {
    wasm("empty", &empty_module(), "")
}

fn empty_module() -> std::path::PathBuf {
    let module = tools::repository().join("target/tools/wasm32-wasip1/release/empty_plugin.wasm");
    assert!(
        module.is_file(),
        "{} is missing: run ./envoy/bench.sh, which builds it",
        module.display()
    );
    module
}

fn wasm(name: &str, module: &Path, configuration: &str) -> Value {
    json!({
        "name": name,
        "typed_config": {
            "@type": format!("{RATELIMIT_API}.wasm.v3.Wasm"),
            "config": {
                "name": name,
                "root_id": name,
                "failure_policy": "FAIL_RELOAD",
                "vm_config": {
                    "vm_id": name,
                    "runtime": "envoy.wasm.runtime.v8",
                    "code": {"local": {"filename": module}},
                },
                "configuration": {
                    "@type": "type.googleapis.com/google.protobuf.StringValue",
                    "value": configuration,
                },
            },
        },
    })
}

/// The levels that all policies here have: the shared one, the tenant's and the credential's, all in
/// use and none ever full.
pub(crate) fn ample_levels() -> Value {
    json!({
        "shared": {"requests": 400_000, "window": "1s"},
        "tenant": {"requests": 200_000, "window": "1s"},
        "credential": {"rate": 200_000, "per": "1s", "burst": 400_000},
        "in_flight": {"shared": 4000, "tenant": 2000, "credential": 1000},
    })
}

/// A whole document with these limits.
pub(crate) fn document(limits: &Value) -> Value {
    json!({
        "identity": {
            "tenant": {"header": "x-tenant-id"},
            "credential": {
                "from": [{"header": "x-api-key"}, {"header": "authorization", "scheme": "bearer"}],
            },
        },
        "limits": limits,
        "store": {"cluster": "fairshare_redis", "timeout": "1s"},
    })
}

/// The full policy on the node.
pub(crate) fn node_policy() -> Value {
    document(&json!([limit("bench", &json!({}))]))
}

/// The same policy for the fleet. Without the store it refuses with 503, so that nobody measures what would
/// replace it.
pub(crate) fn global_policy(consistency: &str) -> Value {
    let scope = json!({"scope": "global", "consistency": consistency, "on_store_error": "deny"});
    document(&json!([limit("bench", &scope)]))
}

/// The same policy on the node, with windows so short that nothing is drawn ahead of need: each request reads and
/// writes the node's store.
pub(crate) fn charging_policy() -> Value {
    let levels = json!({
        "shared": {"requests": 100_000, "window": "250ms"},
        "tenant": {"requests": 50_000, "window": "250ms"},
        "credential": {"rate": 50_000, "per": "250ms", "burst": 100_000},
    });
    document(&json!([limit("bench", &levels)]))
}

/// The same policy with so small a share for each tenant that next to everything is refused.
pub(crate) fn refusing_policy() -> Value {
    let tenant = json!({"tenant": {"requests": 10, "window": "1m"}});
    document(&json!([limit("bench", &tenant)]))
}

/// A limit with ample levels, in which `changes` replace fields.
pub(crate) fn limit(name: &str, changes: &Value) -> Value {
    let mut limit = ample_levels();
    limit["name"] = json!(name);
    for (field, value) in changes.as_object().expect("an object") {
        limit[field] = value.clone();
    }
    limit
}

/// Envoy's own local rate limit filter with a bucket of `tokens` per minute for the tenant `acme`,
/// and, of more descriptors, one bucket for each pair of the tenant and a rule.
pub(crate) fn native_local(tokens: u64, descriptors: usize) -> Value {
    let bucket = |tokens: u64| json!({"max_tokens": tokens, "tokens_per_fill": tokens, "fill_interval": "60s"});
    let tenant =
        json!({"request_headers": {"header_name": "x-tenant-id", "descriptor_key": "tenant"}});
    let rule = |number: usize| json!({"generic_key": {"descriptor_key": "rule", "descriptor_value": number.to_string()}});
    let limits = (0..descriptors).map(|number| match number {
        0 => json!({"actions": [tenant]}),
        _ => json!({"actions": [tenant, rule(number)]}),
    });
    let buckets = (0..descriptors).map(|number| {
        let mut entries = vec![json!({"key": "tenant", "value": "acme"})];
        if number > 0 {
            entries.push(json!({"key": "rule", "value": number.to_string()}));
        }
        json!({"entries": entries, "token_bucket": bucket(tokens)})
    });
    json!({
        "name": "envoy.filters.http.local_ratelimit",
        "typed_config": {
            "@type": format!("{RATELIMIT_API}.local_ratelimit.v3.LocalRateLimit"),
            "stat_prefix": "native",
            "token_bucket": bucket(1_000_000_000),
            "filter_enabled": {"default_value": {"numerator": 100}},
            "filter_enforced": {"default_value": {"numerator": 100}},
            "rate_limits": limits.collect::<Vec<_>>(),
            "descriptors": buckets.collect::<Vec<_>>(),
        },
    })
}

/// Envoy's own rate limit filter, which asks the cluster `rls` about the tenant of each request.
pub(crate) fn native_global() -> Value {
    json!({
        "name": "envoy.filters.http.ratelimit",
        "typed_config": {
            "@type": format!("{RATELIMIT_API}.ratelimit.v3.RateLimit"),
            "domain": "bench",
            "timeout": "1s",
            "failure_mode_deny": true,
            "rate_limits": [{"actions": [
                {"request_headers": {"header_name": "x-tenant-id", "descriptor_key": "tenant"}},
            ]}],
            "rate_limit_service": {
                "transport_api_version": "V3",
                "grpc_service": {"envoy_grpc": {"cluster_name": "rls"}},
            },
        },
    })
}
