//! What each field compiles to, and its default.

use fairshare::limiter::{GcraQuota, InFlightQuota, Quota, WindowQuota};
use fairshare::policy::{
    Consistency, HeaderPolicy, LEVELS, LimitId, Missing, MissingCredential, Mode, OnStoreError,
    RateLimitHeaders, Scope, TenantSource,
};
use fairshare::store::is_exact;
use fairshare::units::Span;

use super::{golden, valid};

const fn window(requests: u64, seconds: u64) -> Quota {
    Quota::Window(WindowQuota { requests, window: Span::from_secs(seconds) })
}

const fn gcra(rate: u64, per: Span, burst: u64) -> Quota {
    Quota::Gcra(GcraQuota { rate, per, burst })
}

/// The shared level of a document's only limit.
fn shared(level: &str) -> Quota {
    let policy = valid(&format!(r#"{{"limits": [{{"name": "x", "shared": {level}}}]}}"#));
    policy.limits[0].levels.shared.unwrap()
}

#[test]
fn the_smallest_document_has_every_default() {
    let policy =
        valid(r#"{"limits": [{"name": "dns", "tenant": {"requests": 5, "window": "1s"}}]}"#);
    assert_eq!(policy.mode, Mode::Enforce);
    assert!(policy.fair_share);
    assert_eq!(policy.namespace, "default");
    assert_eq!(policy.identity.tenant.source, TenantSource::Header("x-tenant-id".to_owned()));
    assert_eq!(policy.identity.tenant.missing, Missing::Skip);
    assert_eq!(policy.identity.tenant.default_tenant, "default");
    assert_eq!(policy.identity.tenant.max_length, 128);
    let sources = &policy.identity.credential.from;
    assert_eq!((sources[0].header.as_str(), sources[0].scheme.as_deref()), ("x-api-key", None));
    let bearer = (sources[1].header.as_str(), sources[1].scheme.as_deref());
    assert_eq!(bearer, ("authorization", Some("bearer")));
    assert_eq!(policy.identity.credential.missing, MissingCredential::Skip);
    assert_eq!(policy.identity.credential.max_length, 4096);
    assert!(!policy.identity.digester.is_keyed());
    assert!(policy.exempt.is_empty());
    assert!(policy.store.is_none());
    let headers = HeaderPolicy { rate_limit: RateLimitHeaders::Always, envoy_ratelimited: true };
    assert_eq!(policy.headers, headers);

    let limit = &policy.limits[0];
    assert_eq!(&*limit.name, "dns");
    assert_eq!(limit.id, LimitId::of("dns"));
    assert_eq!(limit.fallback_id, LimitId::of_fallback("dns"));
    assert_eq!(limit.in_flight_id, LimitId::of_in_flight("dns"));
    assert!(limit.in_flight.is_empty() && limit.in_flight_overrides.is_empty());
    assert_eq!(limit.scope, Scope::Node);
    assert_eq!(limit.levels.tenant, Some(window(5, 1)));
    assert_eq!(limit.levels.shared, None);
    assert_eq!(limit.cost, 1);
    assert!(!limit.shadow);
}

#[test]
fn a_global_limit_and_its_store_have_defaults() {
    let policy = valid(
        r#"{"limits": [{"name": "a", "scope": "global", "shared": {"requests": 5, "window": "1s"}}],
            "store": {"cluster": "redis"}}"#,
    );
    let limit = &policy.limits[0];
    assert_eq!(limit.scope, Scope::Global);
    assert_eq!(limit.consistency, Consistency::Leased);
    assert_eq!(limit.on_store_error, OnStoreError::Local { fraction_ppm: 500_000 });
    let store = policy.store.unwrap();
    assert_eq!(store.cluster, "redis");
    assert_eq!(store.timeout, Span::from_millis(50));
    assert_eq!(store.key_prefix, "fairshare");
    assert_eq!((store.username.as_str(), store.password.0.as_str()), ("", ""));
}

#[test]
fn rates_are_exact() {
    let second = Span::from_secs(1);
    let cases = [
        (r#"{"rate": 10}"#, gcra(10, second, 10)),
        (r#"{"rate": 10.0, "burst": 20.0}"#, gcra(10, second, 20)),
        (r#"{"rate": 0.5}"#, gcra(1, Span::from_secs(2), 1)),
        (r#"{"rate": 0.1, "per": "1m", "burst": 7}"#, gcra(1, Span::from_secs(600), 7)),
        (r#"{"rate": 2.5}"#, gcra(5, Span::from_secs(2), 3)),
        (r#"{"rate": 1000.000001}"#, gcra(1_000_000_001, Span::from_secs(1_000_000), 1001)),
        (r#"{"rate": 5, "burst": 0}"#, gcra(5, second, 0)),
        (r#"{"rate": 18446744073709551615}"#, gcra(u64::MAX, second, u64::MAX)),
    ];
    for (text, quota) in cases {
        assert_eq!(shared(text), quota, "{text}");
    }
}

#[test]
fn predicates_are_compiled_as_they_are_compared() {
    let policy = valid(
        r#"{"mode": "off",
            "exempt": [{"path": "/healthz"}],
            "limits": [{"name": "a", "shared": {"requests": 1, "window": "1s"},
              "match": {"path_prefix": "/a/", "methods": ["GET", "M-SEARCH"],
                        "headers": {"X-Kind": "Lookup", ":authority": "a.example"}}}]}"#,
    );
    assert_eq!(policy.exempt[0].path.as_deref(), Some("/healthz"));
    let matcher = &policy.limits[0].matcher;
    assert_eq!(matcher.path, None);
    assert_eq!(matcher.path_prefix.as_deref(), Some("/a/"));
    assert_eq!(matcher.methods, ["GET", "M-SEARCH"]);
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(matcher.headers, [pair("x-kind", "Lookup"), pair(":authority", "a.example")]);
}

#[test]
fn overrides_stand_with_the_limit_that_they_are_about() {
    let policy = valid(
        r#"{"limits": [{"name": "a", "shared": {"requests": 9, "window": "1s"}},
                       {"name": "b", "tenant": {"requests": 9, "window": "1s"}}],
            "overrides": {"acme": {"b": {"tenant": {"requests": 99, "window": "1s"}}},
                          "globex": {"a": {"credential": {"rate": 1}},
                                     "b": {"tenant": {"requests": 0, "window": "1s"}}}}}"#,
    );
    let of = |limit: usize, tenant: &str| policy.limits[limit].overrides.get(tenant);
    assert!(of(0, "acme").is_none());
    assert_eq!(of(1, "acme").unwrap().tenant, Some(window(99, 1)));
    let credential = of(0, "globex").unwrap().credential;
    assert_eq!(credential, Some(gcra(1, Span::from_secs(1), 1)));
    assert_eq!(of(1, "globex").unwrap().tenant, Some(window(0, 1)));
}

#[test]
fn caps_on_requests_in_flight_stand_beside_the_levels() {
    let policy = valid(
        r#"{"limits": [{"name": "a", "in_flight": {"shared": 500, "tenant": 100, "client": 0}}],
            "overrides": {"acme": {"a": {"in_flight": {"tenant": 300}}},
                          "globex": {"a": {"credential": {"rate": 1}}}}}"#,
    );
    let limit = &policy.limits[0];
    let cap = |requests| Some(Quota::InFlight(InFlightQuota { requests }));
    assert!(limit.levels.is_empty());
    assert_eq!(LEVELS.map(|level| limit.in_flight.get(level)), [cap(500), cap(100), None, cap(0)]);
    assert_eq!(limit.in_flight_for(Some("acme")).tenant, cap(300));
    assert_eq!(limit.in_flight_for(Some("acme")).shared, cap(500));
    assert_eq!(limit.in_flight_for(Some("globex")), limit.in_flight);
    assert!(limit.overrides.contains_key("globex") && !limit.overrides.contains_key("acme"));
    assert!(policy.wanted.peer, "the client's cap needs the peer's address");
}

/// The configuration takes only what the store can keep to the unit.
#[test]
fn global_quotas_are_exact_in_the_store() {
    let mut global_quotas = 0;
    for path in golden::documents("good") {
        let policy = valid(&std::fs::read_to_string(path).unwrap());
        for limit in policy.limits.iter().filter(|limit| limit.scope == Scope::Global) {
            let levels = std::iter::once(&limit.levels).chain(limit.overrides.values());
            for quota in levels.flat_map(|levels| LEVELS.map(|level| levels.get(level))).flatten() {
                assert!(is_exact(&quota), "{}: {quota}", limit.name);
                global_quotas += 1;
            }
        }
    }
    assert!(global_quotas > 5);
}

/// Each attribute costs a call of the host, so none is asked for that no part looks at.
#[test]
fn only_what_is_looked_at_is_asked_for() {
    let asked = |more: &str, level: &str| {
        let policy =
            valid(&format!(r#"{{"limits": [{{"name": "a", "{level}": {{"rate": 1}}}}] {more}}}"#));
        let mut asked = Vec::new();
        policy.attributes(|path| {
            asked.push(path.join("/"));
            None
        });
        asked
    };
    assert_eq!(asked("", "credential"), [""; 0]);
    assert_eq!(asked("", "client"), ["source/address"]);
    assert_eq!(asked(r#", "exempt": [{"route": "health"}]"#, "shared"), ["xds/route_name"]);
    let metadata = r#", "identity": {"tenant": {"metadata": ["jwt", "payload", "tenant"]}}"#;
    assert_eq!(asked(metadata, "shared"), ["metadata/filter_metadata/jwt/payload/tenant"]);
}
