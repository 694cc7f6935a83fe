//! Cases from the field, each named after its id, and the requirements that the configuration
//! alone can meet.

use fairshare::config;
use fairshare::limiter::{GcraQuota, Quota, WindowQuota};
use fairshare::policy::{Digester, LimitId, TenantSource};
use fairshare::units::Span;

use super::{invalid, lines, valid};

/// A document with one limit whose shared level is `level`.
fn with_level(level: &str) -> String {
    format!(r#"{{"limits": [{{"name": "x", "shared": {level}}}]}}"#)
}

/// Every mistake gets exactly one line that begins with where it is and names what is wrong.
fn assert_says(document: &str, path: &str, rule: &str) {
    let errors = invalid(document);
    let found = errors.iter().any(|error| error.path == path && error.rule.contains(rule));
    assert!(found, "{document}\n{}", config::render_errors(&errors));
}

#[test]
fn cfg_1_typos_and_unknown_fields_are_refused() {
    let typo = with_level(r#"{"requests": 5, "windw": "1s"}"#);
    assert_says(&typo, "limits[0].shared.windw", "not a field of this version");
    assert_eq!(invalid(&typo)[0].fix, "write \"window\", or remove it");
    let sister = r#"{"query_per_day": 5, "mode": "off"}"#;
    assert_says(sister, "query_per_day", "not a field of this version");
}

#[test]
fn cfg_1_missing_units_and_wrong_types_are_refused() {
    let bare = with_level(r#"{"requests": 5, "window": 10}"#);
    assert_says(&bare, "limits[0].shared.window", "a number without a unit");
    assert_eq!(invalid(&bare)[0].fix, "add one, as in \"window\": \"10s\"");
    let text = with_level(r#"{"requests": "ten", "window": "1s"}"#);
    assert_says(&text, "limits[0].shared.requests", "is a string, not a number");
}

#[test]
fn cfg_1_a_tenant_listed_twice_is_refused() {
    let twice = r#"{"limits": [{"name": "dns", "tenant": {"requests": 5, "window": "1s"}}],
        "overrides": {"acme": {"dns": {"tenant": {"requests": 6, "window": "1s"}}},
                      "acme": {"dns": {"tenant": {"requests": 7, "window": "1s"}}}}}"#;
    assert_says(twice, "overrides.acme", "given more than once");
}

#[test]
fn cfg_1_no_document_runs_unlimited_by_accident() {
    for document in ["", " \n", "{}", r#"{"limits": []}"#, r#"{"mode": "shadow"}"#, "null", "[]"] {
        assert!(config::parse(document.as_bytes()).is_err(), "{document:?}");
    }
    assert_says("{}", "limits", "is missing");
    assert_says(r#"{"limits": []}"#, "limits", "is empty");
    assert_says(r#"{"limits": [{"name": "dns"}]}"#, "limits[0]", "has no level");
}

#[test]
fn cfg_1_a_document_of_a_newer_version_is_refused_by_field() {
    let newer = r#"{"limits": [{"name": "dns", "max_wait": "1s", "max_queue": 5,
        "shared": {"requests": 5, "window": "1s"}}], "classes": {}}"#;
    for path in ["classes", "limits[0].max_wait", "limits[0].max_queue"] {
        assert_says(newer, path, "not a field of this version");
    }
}

#[test]
fn cfg_1_all_mistakes_are_reported_at_once() {
    let document = r#"{"mode": "on", "limits": [
        {"name": "A", "shared": {"requests": -1, "window": "1s"}},
        {"name": "b", "shared": {"requests": 1, "window": "0s"}}], "store": {}}"#;
    let paths: Vec<String> = invalid(document).into_iter().map(|error| error.path).collect();
    let expected = [
        "mode",
        "limits[0].name",
        "limits[0].shared.requests",
        "limits[1].shared.window",
        "store.cluster",
    ];
    assert_eq!(paths, expected);
}

#[test]
fn tim_6_zero_tiny_and_huge_limits_are_exact_or_refused() {
    let quota = |level: &str| valid(&with_level(level)).limits[0].levels.shared.unwrap();
    let window = |requests, seconds| {
        Quota::Window(WindowQuota { requests, window: Span::from_secs(seconds) })
    };
    let gcra = |rate, seconds, burst| {
        Quota::Gcra(GcraQuota { rate, per: Span::from_secs(seconds), burst })
    };
    let day = 86_400;
    let understood = [
        (r#"{"requests": 0, "window": "1m"}"#, window(0, 60)),
        (r#"{"requests": 18446744073709551615, "window": "1d"}"#, window(u64::MAX, day)),
        (r#"{"rate": 2000000000, "per": "1s", "burst": 1}"#, gcra(2_000_000_000, 1, 1)),
        (r#"{"rate": 1, "per": "365d", "burst": 1000000}"#, gcra(1, 365 * day, 1_000_000)),
        (r#"{"rate": 6, "per": "60s"}"#, gcra(6, 60, 6)),
        (r#"{"rate": 0.5, "per": "1s", "burst": 1}"#, gcra(1, 2, 1)),
    ];
    for (level, expected) in understood {
        assert_eq!(quota(level), expected, "{level}");
    }
    let refused = [
        (r#"{"requests": 1, "window": "0s"}"#, "window", "no time at all"),
        (r#"{"requests": -1, "window": "1s"}"#, "requests", "is below 0"),
        (r#"{"requests": 1, "window": "1month"}"#, "window", "has the unit \"month\""),
        (r#"{"rate": 0}"#, "rate", "not above zero"),
        (r#"{"rate": -1}"#, "rate", "not above zero"),
    ];
    for (level, field, rule) in refused {
        assert_says(&with_level(level), &format!("limits[0].shared.{field}"), rule);
    }
}

#[test]
fn tim_6_the_default_burst_is_shown() {
    let description = config::describe(&valid(&with_level(r#"{"rate": 6, "per": "60s"}"#)));
    assert!(description.contains("shared: 6 per 1m, burst 6\n"), "{description}");
}

#[test]
fn tim_6_zero_refuses_everything_and_the_description_says_so() {
    let description = config::describe(&valid(&with_level(r#"{"requests": 0, "window": "1s"}"#)));
    assert!(description.contains("(refuses everything)"), "{description}");
}

#[test]
fn idn_5_header_names_are_lower_case_whatever_the_document_says() {
    let policy = valid(
        r#"{"mode": "off", "identity": {
            "tenant": {"header": "X-Tenant-ID"},
            "credential": {"from": [{"header": "X-API-KEY", "scheme": "Bearer"}]}},
            "exempt": [{"headers": {"X-Probe": "Yes"}}]}"#,
    );
    assert_eq!(policy.identity.tenant.source, TenantSource::Header("x-tenant-id".to_owned()));
    assert_eq!(policy.identity.credential.from[0].header, "x-api-key");
    assert_eq!(policy.identity.credential.from[0].scheme.as_deref(), Some("bearer"));
    assert_eq!(policy.exempt[0].headers, [("x-probe".to_owned(), "Yes".to_owned())]);
}

#[test]
fn idn_6_lengths_of_identities_are_bounded() {
    let tenant = |length: u64| {
        format!(r#"{{"mode": "off", "identity": {{"tenant": {{"max_length": {length}}}}}}}"#)
    };
    assert_eq!(valid(&tenant(1024)).identity.tenant.max_length, 1024);
    assert_says(&tenant(0), "identity.tenant.max_length", "is below 1");
    assert_says(&tenant(1025), "identity.tenant.max_length", "is above 1024");
}

#[test]
fn idn_6_no_part_of_a_key_can_hold_a_separator() {
    for name in ["a:b", "a{b}", "a b", "a/b", "ä", ""] {
        let document = format!(r#"{{"mode": "off", "namespace": "{name}"}}"#);
        assert_says(&document, "namespace", "is not a name");
    }
    for prefix in ["a{b}", "a b", ""] {
        let store = format!(r#"{{"cluster": "c", "key_prefix": "{prefix}"}}"#);
        let document = format!(r#"{{"mode": "off", "store": {store}}}"#);
        assert_says(&document, "store.key_prefix", "is not a prefix");
    }
}

#[test]
fn names_that_share_a_number_are_refused() {
    assert_eq!(LimitId::of("gwzx"), LimitId::of("16cd"));
    assert_eq!(LimitId::of("ccic"), LimitId::of_fallback("aw1g"));
    for (first, second) in [("gwzx", "16cd"), ("aw1g", "ccic"), ("ccic", "aw1g")] {
        let level = r#""shared": {"requests": 1, "window": "1s"}"#;
        let document = format!(
            r#"{{"limits": [{{"name": "{first}", {level}}}, {{"name": "{second}", {level}}}]}}"#
        );
        assert_eq!(
            lines(&document),
            [format!(
                "limits[1].name: \"{second}\": hashes to the same number as the name of \
                 limits[0]; change a letter of one of them"
            )]
        );
    }
}

#[test]
fn d_6_tenant_above_shared_over_the_same_window_is_refused() {
    let document = r#"{"limits": [{"name": "dns", "shared": {"requests": 20, "window": "1s"},
        "tenant": {"requests": 30, "window": "1s"}}]}"#;
    assert_eq!(
        lines(document),
        ["limits[0].tenant.requests: 30: is above the shared level (20) over the same window of \
          1s; lower it to at most 20, or raise limits[0].shared.requests"]
    );
}

#[test]
fn o_2_secrets_are_in_no_error_and_no_description() {
    let secrets = ["hunter2-hunter2", "314159265358979", "s3cr3t"];
    let documents = [
        r#"{"mode": "off", "identity": {"hash_key": "s3cr3t"}}"#,
        r#"{"mode": "off", "identity": {"hash_key": 314159265358979}}"#,
        r#"{"mode": "off", "identity": {"hash_key": ["hunter2-hunter2"], "hashkey": "s3cr3t"}}"#,
        r#"{"mode": "off", "identity": "hunter2-hunter2"}"#,
        r#"{"mode": "off", "store": "redis://:hunter2-hunter2@cache"}"#,
        r#"{"mode": "off", "store": {"cluster": "c", "password": 314159265358979}}"#,
        r#"{"mode": "off", "store": {"cluster": "c", "password": {"from": "s3cr3t"}}}"#,
        r#"{"mode": "off", "store": {"cluster": "c", "pass": "s3cr3t", "password": false}}"#,
        r#"{"mode": "off", "exempt": [{"headers": {"x-api-key": "s3cr3t "}}]}"#,
        r#"{"mode": "off", "exempt": [{"headers": "x-api-key: s3cr3t"}]}"#,
        r#"{"mode": "off", "store": {"cluster": "c", "password": "s3cr3t"#,
    ];
    for document in documents {
        let errors = invalid(document);
        let text = format!("{} {errors:?}", config::render_errors(&errors));
        assert!(secrets.iter().all(|secret| !text.contains(secret)), "{text}");
    }
    let policy = valid(
        r#"{"mode": "off", "identity": {"hash_key": "hunter2-hunter2-"},
            "store": {"cluster": "c", "username": "u", "password": "s3cr3t"}}"#,
    );
    assert_eq!(policy.store.as_ref().unwrap().password.0, "s3cr3t");
    let text = format!("{} {policy:?}", config::describe(&policy));
    assert!(secrets.iter().all(|secret| !text.contains(secret)), "{text}");
}

#[test]
fn o_2_the_hash_key_is_what_identities_are_hashed_with() {
    let policy = valid(r#"{"mode": "off", "identity": {"hash_key": "0123456789abcdef"}}"#);
    let digester = &policy.identity.digester;
    assert!(digester.is_keyed());
    assert_eq!(digester.digest(b"k"), Digester::new(Some(b"0123456789abcdef")).digest(b"k"));
    assert_ne!(digester.digest(b"k"), Digester::new(None).digest(b"k"));
}
