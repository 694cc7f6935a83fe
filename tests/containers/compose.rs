use std::time::Duration;

use serde_json::json;

use crate::fleet::Fleet;
use crate::support::client::Request;
use crate::support::process::poll_until;

/// The two Envoys share one budget, and Prometheus sees the metrics of both.
#[test]
#[ignore = "needs Docker: ./envoy/test.sh compose"]
fn compose_two_envoys_share_a_budget_and_prometheus_sees_both() {
    let fleet = Fleet::start(&json!({
        "limits": [{
            "name": "demo", "scope": "global", "consistency": "strict",
            "tenant": {"requests": 10, "window": "1m"},
        }],
        "store": {"cluster": "fairshare_redis", "timeout": "1s"},
    }));
    let refused = || {
        let of = |envoy| fleet.metric(envoy, "fairshare_requests", "outcome=\"refused\"");
        of(0) + of(1)
    };
    // By what was asked before the store granted anything, too.
    let expected = refused() + 6;
    let request = Request::get("/").tenant("acme");
    let statuses: Vec<u16> =
        (0..16).map(|number| request.send(fleet.ports[number % 2]).status).collect();
    assert_eq!(statuses, [vec![200; 10], vec![429; 6]].concat());
    let query = "/api/v1/query?query=sum(fairshare_requests%7Boutcome%3D%22refused%22%7D)";
    let said = || Some(Request::get(query).try_send(fleet.prometheus_port).ok()?.json());
    let sum = || {
        let answer = said()?;
        let value = answer["data"]["result"][0]["value"][1].as_str()?;
        (value == expected.to_string()).then_some(())
    };
    let seen = poll_until(Duration::from_secs(30), sum);
    assert!(seen.is_some(), "not {expected}, but {:?}", said());
}
