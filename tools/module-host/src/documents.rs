/// A tenant and a credential level on the node.
pub const NODE: &str = r#"{
  "identity": {"credential": {"from": [{"header": "x-api-key"}]}},
  "limits": [{
    "name": "api",
    "tenant": {"rate": 2000, "per": "1s", "burst": 4000},
    "credential": {"rate": 3, "per": "1h", "burst": 3}
  }]
}"#;

/// A level on the node that is large enough for workers to draw units ahead of need.
pub const LARGE: &str = r#"{
  "limits": [{"name": "api", "tenant": {"rate": 20000, "per": "1s", "burst": 40000}}]
}"#;

/// Three levels of rates and three caps on the node, all with room for everything.
pub const FULL: &str = r#"{
  "identity": {"credential": {"from": [{"header": "x-api-key"}]}},
  "limits": [{
    "name": "dns", "match": {"path_prefix": "/dns/"},
    "shared": {"requests": 400000, "window": "1s"},
    "tenant": {"requests": 200000, "window": "1s"},
    "credential": {"rate": 200000, "per": "1s", "burst": 400000},
    "in_flight": {"shared": 4000, "tenant": 2000, "credential": 1000}
  }]
}"#;

/// The same for the fleet, by leases.
pub const FULL_LEASED: &str = r#"{
  "identity": {"credential": {"from": [{"header": "x-api-key"}]}},
  "limits": [{
    "name": "dns", "match": {"path_prefix": "/dns/"}, "scope": "global",
    "shared": {"requests": 400000, "window": "1s"},
    "tenant": {"requests": 200000, "window": "1s"},
    "credential": {"rate": 200000, "per": "1s", "burst": 400000},
    "in_flight": {"shared": 4000, "tenant": 2000, "credential": 1000}
  }],
  "store": {"cluster": "redis", "timeout": "50ms"}
}"#;

/// A tenant level so small that the node is asked for each request, which a request every 50 microseconds
/// does not use up.
pub const SMALL: &str = r#"{
  "limits": [{"name": "dns", "tenant": {"requests": 1000, "window": "40ms"}}]
}"#;

/// A tenant level that is soon used up.
pub const TIGHT: &str = r#"{
  "limits": [{"name": "dns", "tenant": {"requests": 5, "window": "1h"}}]
}"#;

/// A shared and a tenant level of the fleet, by leases.
pub const LEASED: &str = r#"{
  "limits": [{
    "name": "fleet",
    "scope": "global",
    "shared": {"requests": 1000, "window": "10s"},
    "tenant": {"requests": 100, "window": "10s"}
  }],
  "store": {"cluster": "redis", "timeout": "50ms"}
}"#;

/// The same, with the store asked for each request.
pub const STRICT: &str = r#"{
  "limits": [{
    "name": "fleet",
    "scope": "global",
    "consistency": "strict",
    "shared": {"requests": 1000, "window": "10s"},
    "tenant": {"requests": 100, "window": "10s"}
  }],
  "store": {"cluster": "redis", "timeout": "50ms"}
}"#;

/// Nearly everything at once.
pub const EVERYTHING: &str = r#"{
  "identity": {
    "tenant": {"header": "x-tenant-id", "missing": "anonymous"},
    "credential": {"from": [{"header": "x-api-key"}, {"header": "authorization", "scheme": "bearer"}]},
    "client": {"trusted_hops": 1},
    "hash_key": "0123456789abcdef"
  },
  "exempt": [{"path": "/healthz"}],
  "auth_failures": {"per_client": {"failures": 3, "window": "1m"}},
  "limits": [
    {"name": "node", "shared": {"requests": 50, "window": "1s"}, "client": {"rate": 20, "burst": 20}},
    {"name": "flying", "in_flight": {"shared": 20, "tenant": 10}},
    {"name": "leased", "match": {"path_prefix": "/leased"}, "scope": "global",
     "shared": {"requests": 40, "window": "1s"}, "tenant": {"rate": 10, "burst": 20}},
    {"name": "strict", "match": {"path_prefix": "/strict"}, "scope": "global", "consistency": "strict",
     "shared": {"requests": 40, "window": "1s"}, "tenant": {"rate": 10, "burst": 20},
     "on_store_error": "deny"},
    {"name": "watched", "mode": "shadow", "scope": "global", "shared": {"requests": 1, "window": "1s"}},
    {"name": "watched-node", "mode": "shadow", "shared": {"requests": 1, "window": "1s"},
     "in_flight": {"shared": 1}}
  ],
  "store": {"cluster": "redis", "timeout": "50ms", "password": "secret"},
  "headers": {"rate_limit": "always"}
}"#;

/// Those that take the most ways through the module.
pub const ALL: [&str; 3] = [NODE, LEASED, EVERYTHING];
