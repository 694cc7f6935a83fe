use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::scenarios::{merged, node_limit, window};
use crate::support::client::Request;
use crate::support::envoy::Envoy;

/// Where the filter stands in the reference configuration.
const FILTER: &str = "          - name: fairshare\n            typed_config:";

/// Where its only route stands.
const ROUTE: &str = "              - name: upstream\n                match: {prefix: \"/\"}";

const KEY: &[u8] = b"a symmetric key for tokens of a test";

/// `bytes` in base64url without padding (RFC 4648, section 5).
fn base64url(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let encode = |group: &[u8]| {
        let bits = (0..3)
            .fold(0_usize, |bits, i| bits << 8 | usize::from(group.get(i).copied().unwrap_or(0)));
        (0..=group.len()).map(move |i| char::from(LETTERS[bits >> (18 - 6 * i) & 63]))
    };
    bytes.chunks(3).flat_map(encode).collect()
}

/// A signed token that makes this claim about its tenant.
fn token(tenant: &Value) -> String {
    let part = |value: Value| base64url(value.to_string().as_bytes());
    let header = part(json!({"alg": "HS256", "typ": "JWT"}));
    let signed = format!("{header}.{}", part(json!({"iss": "test", "tenant": tenant})));
    let mut mac = Hmac::<Sha256>::new_from_slice(KEY).expect("a key");
    mac.update(signed.as_bytes());
    format!("{signed}.{}", base64url(&mac.finalize().into_bytes()))
}

/// The filter that checks tokens.
fn jwt_authn() -> String {
    let key = json!({"keys": [{"kty": "oct", "alg": "HS256", "k": base64url(KEY)}]}).to_string();
    let config = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
        "providers": {"test": {
            "issuer": "test",
            "local_jwks": {"inline_string": key},
            "payload_in_metadata": "payload",
        }},
        "rules": [{"match": {"prefix": "/"}, "requires": {"provider_name": "test"}}],
    });
    format!("          - {{name: envoy.filters.http.jwt_authn, typed_config: {config}}}\n")
}

/// The tenant is the one that a checked token names, whatever a client writes into headers.
#[test]
fn the_tenant_of_a_checked_token_is_read_from_metadata() {
    let plugin = merged(
        node_limit(json!({"tenant": window(2, "1m")})),
        json!({"identity": {"tenant": {
            "metadata": ["envoy.filters.http.jwt_authn", "payload", "tenant"],
            "missing": "reject",
            "max_length": 8,
        }}}),
    );
    let envoy =
        Envoy::builder(plugin).replacing(FILTER, &format!("{}{FILTER}", jwt_authn())).start();
    let send = |claim: Value| {
        let bearer = format!("Bearer {}", token(&claim));
        envoy.send(&Request::get("/").tenant("someone").header("authorization", bearer))
    };
    let status = |claim| send(claim).status;
    let names = ["acme", "acme", "acme", " acme ", "globex"];
    assert_eq!(names.map(|name| status(json!(name))), [200, 200, 429, 429, 200]);
    for (claim, code) in [
        (json!(""), "identity_missing"),
        (json!("  "), "identity_missing"),
        (json!("far too long"), "identity_invalid"),
        (json!("a\u{7}b"), "identity_invalid"),
        (json!(42), "identity_invalid"),
        (json!({"name": "acme"}), "identity_invalid"),
        (json!(["acme"]), "identity_invalid"),
    ] {
        let refused = send(claim.clone());
        assert_eq!((refused.status, &refused.json()["code"]), (400, &json!(code)), "{claim}");
    }
    let detail = send(json!("")).json()["detail"].clone();
    let place = "metadata envoy.filters.http.jwt_authn.payload.tenant";
    assert!(detail.as_str().unwrap().contains(place), "{detail}");
    assert_eq!(envoy.send(&Request::get("/")).status, 401);
}

/// A filter between this one and the upstream may be the one that refuses; over gRPC, too, where its
/// 401 is a status of another kind.
#[test]
fn answers_of_filters_behind_this_one_count_as_failures() {
    const ROUTER: &str = "          - name: envoy.filters.http.router\n";
    let failures = json!({"per_client": {"failures": 2, "window": "1m"}});
    let plugin =
        merged(node_limit(json!({"tenant": window(50, "1m")})), json!({"auth_failures": failures}));
    let envoy =
        Envoy::builder(plugin).replacing(ROUTER, &format!("{}{ROUTER}", jwt_authn())).start();
    let send = |client: u8, content_type: &str, token: &str| {
        let request =
            Request::get("/").from([127, 0, 0, client]).header("content-type", content_type);
        envoy.send(&request.header("authorization", format!("Bearer {token}")))
    };
    let good = token(&json!("acme"));
    let guesses = ["a.b.c", "", "d.e.f"].map(|guess| send(2, "text/plain", guess).status);
    assert_eq!(guesses, [401, 401, 429]);
    assert_eq!(send(2, "text/plain", &good).status, 429);
    assert_eq!(send(3, "text/plain", &good).status, 200);
    let grpc = |token: &str| send(4, "application/grpc", token).header("grpc-status");
    let guesses = ["a.b.c", "", "d.e.f"].map(|guess| grpc(guess).expect("a gRPC status"));
    assert_eq!(guesses, ["16", "16", "8"]);
    assert_eq!(send(4, "text/plain", &good).status, 429);
    assert_eq!(envoy.upstream().count(), 1);
}

/// A limit may be about one of Envoy's routes, and an exemption too.
#[test]
fn limits_match_on_the_route_that_envoy_chose() {
    let routes = format!(
        "              - name: probes
                match: {{path: /healthz}}
                route: {{cluster: upstream}}
              - name: reports
                match: {{safe_regex: {{regex: \"/[a-z]+/report\"}}}}
                route: {{cluster: upstream}}\n{ROUTE}"
    );
    let plugin = merged(
        json!({"exempt": [{"route": "probes"}]}),
        json!({"limits": [
            {"name": "reports", "match": {"route": "reports"}, "shared": window(2, "1m")},
            {"name": "rest", "match": {"route": "upstream"}, "shared": window(3, "1m")},
        ]}),
    );
    let envoy = Envoy::builder(plugin).replacing(ROUTE, &routes).start();
    let statuses = |paths: &[&str]| -> Vec<u16> {
        paths.iter().map(|path| envoy.send(&Request::get(path)).status).collect()
    };
    assert_eq!(statuses(&["/a/report", "/b/report", "/c/report"]), [200, 200, 429]);
    assert_eq!(statuses(&["/", "/x", "/a/reports", "/"]), [200, 200, 200, 429]);
    assert_eq!(statuses(&["/healthz"; 5]), [200; 5]);
}
