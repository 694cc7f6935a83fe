//! Policies under which the targets run.

use std::rc::Rc;

use fairshare::config;
use fairshare::policy::{Attributes, HeaderMap, KnownDigests, Plan, Policy, RequestView};

/// Documents that use nearly everything.
const DOCUMENTS: [&str; 3] = [
    r#"{"limits": [{"name": "api", "tenant": {"rate": 2000, "per": "1s", "burst": 4000},
        "credential": {"rate": 3, "per": "1h", "burst": 3}}]}"#,
    r#"{
      "identity": {
        "tenant": {"metadata": ["jwt", "payload", "tenant"], "missing": "reject"},
        "client": {"trusted_hops": 2, "ipv6_prefix": 48}
      },
      "limits": [{"name": "fleet", "scope": "global", "shared": {"requests": 40, "window": "1s"},
        "client": {"requests": 10, "window": "10s"}, "match": {"route": "main"}}],
      "store": {"cluster": "redis", "timeout": "50ms"}
    }"#,
    r#"{
      "identity": {
        "tenant": {"header": "x-tenant-id", "missing": "anonymous", "max_length": 8},
        "credential": {"from": [{"header": "x-api-key"}, {"header": "authorization", "scheme": "bearer"}]},
        "client": {"trusted_hops": 1},
        "hash_key": "0123456789abcdef"
      },
      "exempt": [{"path": "/healthz"}, {"headers": {"x-internal": "yes"}}],
      "auth_failures": {"per_client": {"failures": 3, "window": "1m"}},
      "limits": [
        {"name": "node", "shared": {"requests": 50, "window": "1s"}, "client": {"rate": 20, "burst": 20}},
        {"name": "flying", "in_flight": {"shared": 20, "tenant": 10}},
        {"name": "leased", "match": {"path_prefix": "/leased"}, "scope": "global",
         "shared": {"requests": 40, "window": "1s"}, "tenant": {"rate": 10, "burst": 20}},
        {"name": "strict", "match": {"path_prefix": "/strict"}, "scope": "global",
         "consistency": "strict", "shared": {"requests": 40, "window": "1s"},
         "tenant": {"rate": 10, "burst": 20}, "on_store_error": "deny"},
        {"name": "watched", "mode": "shadow", "scope": "global", "shared": {"requests": 1, "window": "1s"}},
        {"name": "watched-node", "mode": "shadow", "shared": {"requests": 1, "window": "1s"},
         "in_flight": {"shared": 1}}
      ],
      "overrides": {"acme": {"leased": {"tenant": {"rate": 20, "burst": 20}}}},
      "store": {"cluster": "redis", "timeout": "50ms", "password": "secret"}
    }"#,
];

/// One of the policies.
pub(crate) fn policy(number: usize) -> Rc<Policy> {
    thread_local! {
        static POLICIES: [Rc<Policy>; 3] = DOCUMENTS.map(|document| {
            Rc::new(config::parse(document.as_bytes()).unwrap_or_else(|errors| {
                panic!("{}", config::render_errors(&errors))
            }))
        });
    }
    POLICIES.with(|policies| Rc::clone(&policies[number % policies.len()]))
}

/// The charges of a request of `acme` for `path`.
pub(crate) fn plan(policy: &Policy, path: &str) -> Plan {
    let map = HeaderMap::serialize(&[
        (b":method", b"GET"),
        (b":path", path.as_bytes()),
        (b"x-tenant-id", b"acme"),
        (b"x-api-key", b"key"),
    ]);
    let attributes = Attributes {
        peer: Some(b"192.0.2.7:1".to_vec()),
        route: Some(b"main".to_vec()),
        tenant: Some(b"acme".to_vec()),
    };
    let request = RequestView::new(HeaderMap::new(&map), &attributes);
    let mut known = KnownDigests::new(7);
    let client = policy.identity.client(&request, &mut known);
    let identity = policy.identity.identify(&request, client, &mut known).expect("it is complete");
    policy.plan(&request, &identity, policy.mode)
}
