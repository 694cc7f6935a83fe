use std::time::Duration;

use serde_json::{Value, json};

use crate::scenarios::{by, merged, node_limit, window};
use crate::support::client::Request;
use crate::support::envoy::Envoy;
use crate::support::process::poll_until;

/// What the reference configuration does with a request.
const ROUTE: &str = "route: {cluster: upstream}";

fn requests(envoy: &Envoy, outcome: &str) -> u64 {
    envoy.metric("fairshare_requests", &[("outcome", outcome)])
}

/// CFG-5: with the path normalised by Envoy, no spelling of it passes by a limit or into an
/// exemption.
#[test]
fn cfg_5_spellings_do_not_dodge_a_limit() {
    let plugin = json!({
        "exempt": [{"path": "/health"}],
        "limits": [
            {"name": "login", "match": {"path": "/login"}, "shared": window(1, "1m")},
            {"name": "below", "match": {"path_prefix": "/login"}, "shared": window(3, "1m")},
            {"name": "all", "shared": window(100, "1m")},
        ],
    });
    let envoy = Envoy::builder(plugin).start();
    let status = |path: &str| envoy.send(&Request::get(path)).status;
    assert_eq!(["/health", "/health?x=1", "/./health", "//health"].map(status), [200; 4]);
    assert_eq!(requests(&envoy, "exempt"), 4);
    assert_eq!(
        ["/healthz", "/health/", "/HEALTH", "/health;a", "/health%3fx"].map(status),
        [200; 5]
    );
    assert_eq!((requests(&envoy, "exempt"), requests(&envoy, "admitted")), (4, 5));
    let login = [
        "/health/../login",
        "//login",
        "/login?x=1",
        "/%6cogin",
        "/./login",
        "/%2e/login",
        "/a/..//login",
        "/health%2f..%2flogin",
    ];
    assert_eq!(login.map(status), [200, 429, 429, 429, 429, 429, 429, 429]);
    // Envoy itself refuses these.
    assert_eq!(["\\login", "/login#x", "login"].map(status), [400; 3]);
    // These are other paths: the one below it shares the prefix's bucket, the others nothing.
    assert_eq!(["/login/", "/login%2f", "/login/x"].map(status), [200, 200, 429]);
    assert_eq!(["/LOGIN", "/login;a", "/loginx"].map(status), [200; 3]);
    assert_eq!(requests(&envoy, "exempt"), 4);
}

/// RTY-1: a refusal tells an Envoy in front not to try again; without the header it does.
#[test]
fn rty_1_a_front_envoy_does_not_retry_a_refusal() {
    const RETRIES: &str = "route: {cluster: upstream, retry_policy: {retry_on: \"5xx,retriable-status-codes\", retriable_status_codes: [429], num_retries: 3}}";
    for (told, attempts) in [(true, 1), (false, 4)] {
        let plugin = merged(
            node_limit(json!({"tenant": window(1, "1m")})),
            json!({"headers": {"x_envoy_ratelimited": told}}),
        );
        let limiter = Envoy::builder(plugin).start();
        let front = Envoy::builder(json!({"mode": "off"})).replacing(ROUTE, RETRIES);
        let front = front.upstream_port(limiter.port()).start();
        assert_eq!(front.send(&by("acme")).status, 200);
        let refused = front.send(&by("acme"));
        assert_eq!(refused.status, 429);
        assert_eq!(refused.json()["code"], "rate_limited");
        assert!(refused.header("retry-after").is_some());
        assert_eq!(requests(&limiter, "refused"), attempts, "told: {told}");
        assert_eq!(limiter.upstream().count(), 1);
    }
}

/// RTY-1: what a client says about attempts and limits changes nothing.
#[test]
fn rty_1_clients_headers_change_nothing() {
    let envoy = Envoy::builder(node_limit(json!({"tenant": window(2, "1m")}))).start();
    let odd = |tenant: &str| {
        by(tenant)
            .header("x-envoy-attempt-count", "9")
            .header("x-envoy-ratelimited", "true")
            .header("x-envoy-max-retries", "9")
            .header("x-envoy-retry-on", "5xx")
    };
    let statuses: Vec<u16> = (0..3).map(|_| envoy.send(&odd("acme")).status).collect();
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(envoy.upstream().count(), 2);
    assert_eq!((requests(&envoy, "admitted"), requests(&envoy, "refused")), (2, 1));
}

/// RTY-1: each pass of an internal redirect is a request of its own. One that the limit has no room
/// for ends in the refusal.
#[test]
fn rty_1_an_internal_redirect_is_charged_for_each_pass() {
    const REDIRECTS: &str =
        "route: {cluster: upstream, internal_redirect_policy: {max_internal_redirects: 1}}";
    let start =
        |limit: Value| Envoy::builder(node_limit(limit)).replacing(ROUTE, REDIRECTS).start();
    let redirected = by("acme")
        .header("x-echo-status", "302")
        .header("x-echo-location", "http://fairshare.test/next");
    let envoy = start(json!({"tenant": window(3, "1m")}));
    assert_eq!(envoy.send(&redirected).status, 302);
    assert_eq!((requests(&envoy, "admitted"), envoy.upstream().count()), (2, 2));
    assert_eq!(envoy.send(&by("acme")).status, 200);
    assert_eq!(envoy.send(&by("acme")).status, 429);
    let envoy = start(json!({"tenant": window(1, "1m")}));
    assert_eq!(envoy.send(&redirected).status, 429);
    assert_eq!((requests(&envoy, "admitted"), requests(&envoy, "refused")), (1, 1));
    // The first pass has ended when the second one begins, so they never hold two slots.
    let envoy = start(json!({"in_flight": {"tenant": 1}}));
    for _ in 0..3 {
        assert_eq!(envoy.send(&redirected).status, 302);
    }
    let in_flight = || envoy.stat("wasmcustom.fairshare_in_flight");
    poll_until(Duration::from_secs(5), || (in_flight() == 0).then_some(())).expect("all slots");
}
