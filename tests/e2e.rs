//! The filter end to end: real Envoys with two workers each, and a real Redis.
#![allow(
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and they do have a clock"
)]

/// Tenants and routes that other parts of Envoy know.
#[path = "e2e/attributes.rs"]
mod attributes;
/// Every kind of store, and every way to it.
#[path = "e2e/backends.rs"]
mod backends;
/// Client libraries as they are used, with their own ways to retry.
#[path = "e2e/clients.rs"]
mod clients;
/// A Redis Cluster whose shards fail over while traffic flows.
#[path = "e2e/cluster.rs"]
mod cluster;
/// What global limits admit under steady demand, and under many clients at once.
#[path = "e2e/fleet.rs"]
mod fleet;
/// Where a request comes from, in every mode of Envoy.
#[path = "e2e/forwarding.rs"]
mod forwarding;
/// Limits that several Envoys share.
#[path = "e2e/global.rs"]
mod global;
/// The kill switch that an operator throws in the store.
#[path = "e2e/kill_switch.rs"]
mod kill_switch;
/// What requests and late answers may not do to VMs and connections.
#[path = "e2e/lifecycle.rs"]
mod lifecycle;
/// What a flood of tenants does to Envoy's memory.
#[path = "e2e/memory.rs"]
mod memory;
/// That the metrics add up.
#[path = "e2e/metrics.rs"]
mod metrics;
/// Methods, versions, bodies, reloads: what HTTP and Envoy do around the filter.
#[path = "e2e/protocols.rs"]
mod protocols;
/// Requests in flight, through every way in which a request can end.
#[path = "e2e/in_flight.rs"]
mod requests_in_flight;
/// Retries, redirects, and the spellings of a path.
#[path = "e2e/routing.rs"]
mod routing;
mod scenarios;
/// Stores that are odd, slow or forgetful.
#[path = "e2e/sick_store.rs"]
mod sick_store;
/// A store that forgets what it has granted.
#[path = "e2e/state_loss.rs"]
mod state_loss;
/// A store that is paused, killed, flushed and replaced under traffic.
#[path = "e2e/store_troubles.rs"]
mod store_troubles;
mod support;

use std::fs;
use std::rc::Rc;
use std::time::Duration;

use scenarios::{Rig, by, expect, global_limit, merged, node_limit, store, window};
use serde_json::{Value, json};
use support::client::{Connection, Request, Response};
use support::envoy::{Envoy, Update};
use support::redis::Redis;

/// An Envoy that starts with the scenario's first configuration.
#[derive(Default)]
struct EnvoyRig {
    envoy: Option<Envoy>,
    held: Vec<Connection>,
    redis: Option<Rc<Redis>>,
}

impl EnvoyRig {
    fn with_redis() -> Self {
        Self::with_store(Redis::start())
    }

    fn with_store(store: Redis) -> Self {
        Self { redis: Some(Rc::new(store)), envoy: None, held: Vec::new() }
    }

    fn store(&self) -> Rc<Redis> {
        self.redis.clone().expect("a store")
    }

    fn envoy(&mut self) -> &mut Envoy {
        self.envoy.as_mut().expect("a configuration")
    }
}

impl Rig for EnvoyRig {
    fn send(&mut self, request: &Request) -> Response {
        self.envoy().send(request)
    }

    fn hold(&mut self, request: &Request) -> Option<Response> {
        let envoy = self.envoy();
        let before = envoy.upstream().count();
        let mut connection = Connection::open(envoy.port()).expect("a connection");
        let lasting = request.clone().header("x-echo-delay-ms", "60000");
        connection.send_raw(&lasting.to_bytes()).expect("a request");
        while envoy.upstream().count() == before {
            if connection.is_readable(Duration::from_millis(5)) {
                return Some(connection.read_response(false).expect("an answer"));
            }
        }
        self.held.push(connection);
        None
    }

    fn end_all(&mut self) {
        self.held.clear();
    }

    fn wait(&mut self, time: Duration) {
        std::thread::sleep(time);
    }

    fn update(&mut self, plugin: &Value) -> Result<(), String> {
        if let (Some(redis), Some(prefix)) =
            (&self.redis, plugin.pointer("/store/key_prefix").and_then(Value::as_str))
        {
            redis.age(prefix);
        }
        let Some(envoy) = &mut self.envoy else {
            // What is held goes on under its own configuration.
            let mut builder = Envoy::builder(plugin).drain_seconds(60);
            if let Some(redis) = &self.redis {
                builder = builder.redis_unix(redis.socket());
            }
            self.envoy = Some(builder.try_start().map_err(|failure| failure.log)?);
            return Ok(());
        };
        match envoy.update_plugin(plugin) {
            Update::Accepted => Ok(()),
            Update::Rejected(log) => Err(log),
        }
    }

    /// Without its socket's name nobody finds the server, and it comes back with its name.
    fn set_store(&mut self, reachable: bool) {
        let socket = self.redis.as_ref().expect("a Redis").socket();
        let hidden = socket.with_extension("hidden");
        let (from, to) = if reachable { (hidden.as_path(), socket) } else { (socket, &*hidden) };
        fs::rename(from, to).expect("the socket's name");
    }

    fn metric(&mut self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.envoy().metric(&format!("fairshare_{name}"), labels)
    }
}

impl Drop for EnvoyRig {
    /// Whatever a scenario sent, no VM may have failed.
    fn drop(&mut self) {
        if let (Some(envoy), false) = (&self.envoy, std::thread::panicking()) {
            let log = envoy.log();
            assert!(
                !log.contains("wasm vm failed") && !log.contains("Function: proxy_on"),
                "{log}"
            );
        }
    }
}

scenarios::every_scenario!(EnvoyRig);

#[test]
fn red_3_a_forgotten_script_is_sent_again() {
    let mut rig = EnvoyRig::with_redis();
    let redis = rig.store();
    let mut forget = || drop(redis.run(&["SCRIPT", "FLUSH"]));
    store::red_3_a_forgotten_script_is_sent_again(&mut rig, &mut forget);
}

/// CFG-1: a document that is wrong from the start keeps Envoy from starting, and the log says why.
#[test]
fn bad_config_names_path_value_rule_and_fix() {
    let plugin = json!({
        "limits": [{
            "name": "dns",
            "shared": {"requests": 20, "window": "1s"},
            "tenant": {"requests": 30, "window": "1s"},
            "windw": "1s",
        }],
    });
    let failure = Envoy::builder(plugin).fixed_listener().try_start().err().expect("no start");
    let line = failure.log.lines().find(|line| line.contains("limits[0].tenant.requests"));
    let line = line.unwrap_or_else(|| panic!("no such line:\n{}", failure.log));
    for part in ["30", "shared", "20", "lower"] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    assert!(failure.log.contains("limits[0].windw"), "{}", failure.log);
}

/// A limit of which leases can admit less than nine tenths is taken, and the log says which, as
/// `fairshare check` does. Of one that is decided strictly, or of which they can, it says nothing.
#[test]
fn the_log_names_limits_that_are_poor_to_lease() {
    let limit = |name: &str, consistency: &str, level: Value| json!({"name": name, "scope": "global", "consistency": consistency, "tenant": level});
    let plugin = json!({
        "limits": [
            limit("short", "leased", window(100, "200ms")),
            limit("strict", "strict", window(100, "200ms")),
            limit("tight", "leased", json!({"rate": 1000, "per": "1s", "burst": 20})),
            limit("long", "leased", window(100, "1s")),
        ],
        "overrides": {"acme": {"long": {"tenant": window(10, "50ms")}}},
        "store": {"cluster": "fairshare_redis"},
    });
    let redis = Redis::start();
    let envoy = Envoy::builder(plugin).redis_unix(redis.socket()).start();
    let log = envoy.log();
    let warnings = log.lines().filter_map(|line| line.split_once("fairshare: limit "));
    let mut warnings: Vec<&str> = warnings.map(|(_, warning)| warning).collect();
    warnings.sort_unstable();
    warnings.dedup();
    let advice = |limit: &str, level: &str, percent: u64| {
        format!(
            "{limit}: of {level}, leases admit less than {percent}%; \"consistency\": \"strict\" admits all"
        )
    };
    assert_eq!(
        warnings,
        [
            advice("long", "10 requests in any 50ms", 46),
            advice("short", "100 requests in any 200ms", 77),
            advice("tight", "1000 requests per 1s, burst 20", 33),
        ],
        "{log}"
    );
}

/// O3: the access log tells a refusal by its code.
#[test]
fn the_access_log_names_the_refusal() {
    let envoy = Envoy::builder(node_limit(json!({"tenant": window(1, "1m")}))).start();
    assert_eq!(envoy.send(&by("acme")).status, 200);
    assert_eq!(envoy.send(&by("acme")).status, 429);
    assert!(envoy.access_log_line("fairshare_rate_limited").contains(" 429 "));
    assert_eq!(envoy.upstream().count(), 1);
}

/// RSP-3: over a limit a gRPC client gets RESOURCE_EXHAUSTED, everyone else a 429.
#[test]
fn rsp_3_grpc_refusal_is_resource_exhausted() {
    let envoy = Envoy::builder(node_limit(json!({"tenant": window(0, "1m")}))).start();
    let call = |content_type: &str| {
        let request = Request::post("/svc/Method", b"").tenant("acme");
        envoy.send(&request.header("content-type", content_type))
    };
    for content_type in ["application/grpc", "application/grpc+proto"] {
        let refused = call(content_type);
        assert_eq!(refused.status, 200);
        assert_eq!(refused.header("grpc-status").as_deref(), Some("8"));
        assert!(refused.header("grpc-message").expect("a message").contains("dns"));
        assert!(refused.header("retry-after").is_some());
        assert!(refused.body.is_empty());
    }
    for content_type in ["application/grpc-web+proto", "application/grpcx", "application/json"] {
        assert_eq!(call(content_type).status, 429, "{content_type}");
    }
}

/// RSP-5: a refusal of HEAD has no body; a genuine CORS preflight is not counted.
#[test]
fn rsp_5_head_has_no_body_and_preflights_are_exempt() {
    let envoy = Envoy::builder(node_limit(json!({"tenant": window(1, "1m")}))).start();
    let preflight = Request::new("OPTIONS", "/")
        .tenant("acme")
        .header("origin", "https://app.example")
        .header("access-control-request-method", "GET");
    for _ in 0..3 {
        assert_eq!(envoy.send(&preflight).status, 200);
    }
    assert_eq!(envoy.send(&Request::new("OPTIONS", "/").tenant("acme")).status, 200);
    let refused = envoy.send(&Request::new("HEAD", "/").tenant("acme"));
    assert_eq!((refused.status, refused.body.len()), (429, 0));
    assert!(refused.header("retry-after").is_some());
}

/// O2: a credential's secret stands in no store, metric, log or answer.
#[test]
fn secrets_appear_nowhere() {
    const SECRET: &str = "s3cr3t-credential-value";
    let redis = Redis::start();
    let plugin = merged(
        global_limit(json!({}), json!({"credential": window(2, "1m")})),
        json!({"identity": {"hash_key": "a-hash-key-of-some-length"}}),
    );
    let envoy = Envoy::builder(&plugin).redis_unix(redis.socket()).start();
    for _ in 0..3 {
        let answer = envoy.send(&Request::get("/").header("x-api-key", SECRET));
        assert!(answer.status == 200 || !answer.text().contains(SECRET));
    }
    let keys = redis.keys();
    assert!(keys.iter().any(|key| key.contains(":c:")), "{keys:?}");
    let values = keys.iter().filter_map(|key| redis.get(key));
    let everything = [envoy.stats(), envoy.prometheus(), envoy.log(), keys.join(" ")];
    assert!(everything.into_iter().chain(values).all(|text| !text.contains(SECRET)));
}

/// VMX-1, IDN-4: headers of every odd byte are refused or pass, and none traps.
#[test]
fn vmx_1_odd_bytes_never_trap() {
    let mut rig = EnvoyRig::default();
    rig.update(&node_limit(json!({"shared": window(30, "1m"), "tenant": window(10, "1m")})))
        .unwrap();
    for byte in 0x80..=0xff_u8 {
        let request = Request::get("/").tenant([b'a', byte]).header("x-odd", [byte, b' ', byte]);
        assert_eq!(rig.send(&request).status, 400);
    }
    expect(&mut rig, &by("acme"), 10, 3);
}
