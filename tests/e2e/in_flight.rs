//! Requests in flight, through every way in which a request can end.

use std::net::{Ipv4Addr, TcpListener};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::scenarios::{by, global_limit, merged, node_limit, window};
use crate::support::client::{Connection, Request};
use crate::support::envoy::{Builder, Envoy, Update};
use crate::support::process::poll_until;
use crate::support::redis::Redis;
use crate::support::{h2, tools};

/// For how long slots count that a trapped VM held: a lease of 15 s, rounded up, and a tick.
const LEASE: Duration = Duration::from_secs(17);

/// How long Envoy may take to notice that a request is over, and a tick, on a machine that is busy with other
/// things: far less than the minute after which requests end here by themselves.
const SOON: Duration = Duration::from_secs(20);

/// How long a machine that is busy with other things may take for a few requests.
const PATIENCE: Duration = Duration::from_secs(60);

/// A filter behind this one, which answers where a request asks for it.
const FAULT: &str = r#"- {name: envoy.filters.http.fault, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault, abort: {http_status: 418, percentage: {numerator: 100}}, headers: [{name: x-fault, string_match: {exact: abort}}]}}"#;

/// A route whose upstream has little time.
const SHORT_ROUTE: &str =
    r#"- {name: short, match: {prefix: "/short"}, route: {cluster: upstream, timeout: 0.1s}}"#;

/// An Envoy in which requests can end in every way.
fn builder(plugin: impl ToString) -> Builder {
    let value = "                  value: ${FAIRSHARE_PLUGIN_JSON}";
    let route = "              - name: upstream";
    Envoy::builder(plugin)
        .replacing(value, &format!("{value}\n          {FAULT}"))
        .replacing(route, &format!("              {SHORT_ROUTE}\n{route}"))
}

fn in_flight(envoy: &Envoy) -> u64 {
    envoy.metric("fairshare_in_flight", &[])
}

fn wait_for_in_flight(envoy: &Envoy, count: u64) {
    let reached = poll_until(SOON, || (in_flight(envoy) == count).then_some(()));
    assert!(reached.is_some(), "{} are in flight, not {count}", in_flight(envoy));
}

/// Sends what reaches the upstream, and waits until it is there.
fn begin(envoy: &Envoy, bytes: &[u8]) -> Connection {
    let before = envoy.upstream().count();
    let mut connection = Connection::open(envoy.port()).expect("a connection");
    connection.send_raw(bytes).expect("half a request");
    let there = poll_until(SOON, || (envoy.upstream().count() > before).then_some(()));
    assert!(there.is_some(), "the request did not reach the upstream");
    connection
}

/// A request that lasts until its client leaves.
fn hold(envoy: &Envoy, request: &Request) -> Connection {
    begin(envoy, &request.clone().header("x-echo-delay-ms", "60000").to_bytes())
}

/// The statuses of these requests, in order, which are all under way, or refused, at the same time.
fn together(envoy: &Envoy, requests: &[Request]) -> Vec<u16> {
    let before = envoy.upstream().count();
    let send = |request: &Request| {
        let mut connection = Connection::open(envoy.port()).expect("a connection");
        let held = request.clone().header("x-echo-hold", "yes");
        connection.send_raw(&held.to_bytes()).expect("a request");
        connection
    };
    let mut connections: Vec<Connection> = requests.iter().map(send).collect();
    let at_once = Duration::from_millis(1);
    let decided = poll_until(PATIENCE, || {
        let refused =
            connections.iter_mut().filter_map(|one| one.is_readable(at_once).then_some(()));
        let admitted = usize::try_from(envoy.upstream().count() - before).expect("a small number");
        (admitted + refused.count() == requests.len()).then_some(())
    });
    assert!(decided.is_some(), "some of {} requests wait for a decision", requests.len());
    envoy.upstream().release();
    let answer = |one: &mut Connection| one.read_response(false).expect("an answer").status;
    let mut statuses: Vec<u16> = connections.iter_mut().map(answer).collect();
    statuses.sort_unstable();
    statuses
}

/// A way in which a request can end.
type Ending = (&'static str, fn(&Envoy, Request));

const ENDINGS: [Ending; 9] = [
    ("a normal end", |envoy, request| assert_eq!(envoy.send(&request).status, 200)),
    ("the client leaves before the answer", |envoy, request| drop(hold(envoy, &request))),
    ("the client leaves in the middle of its body", |envoy, request| {
        let whole = request.header("content-length", "1000").to_bytes();
        drop(begin(envoy, &[whole.as_slice(), b"half"].concat()));
    }),
    ("the client leaves in the middle of the answer", |envoy, request| {
        let stalls = request.header("x-echo-stall-ms", "60000");
        assert!(begin(envoy, &stalls.to_bytes()).is_readable(SOON));
    }),
    ("the upstream breaks before its answer", |envoy, request| {
        assert_eq!(envoy.send(&request.header("x-echo-abort", "headers")).status, 503);
    }),
    ("the upstream breaks in the middle of its answer", |envoy, request| {
        let mut connection = begin(envoy, &request.header("x-echo-abort", "body").to_bytes());
        assert!(connection.read_response(false).is_err());
    }),
    ("the upstream takes too long", |envoy, request| {
        let late = request.with_target("/short").header("x-echo-delay-ms", "60000");
        assert_eq!(envoy.send(&late).status, 504);
    }),
    ("another filter answers", |envoy, request| {
        assert_eq!(envoy.send(&request.header("x-fault", "abort")).status, 418);
    }),
    ("another limit refuses", |envoy, request| {
        let refused = envoy.send(&request.header("x-refuse", "yes"));
        assert_eq!(refused.json()["code"], "rate_limited");
    }),
];

/// `plugin` with a limit that refuses what has the header `x-refuse: yes`.
fn with_refusals(mut plugin: Value) -> Value {
    plugin["limits"].as_array_mut().unwrap().push(json!({
        "name": "refuse", "match": {"headers": {"x-refuse": "yes"}}, "shared": window(0, "1m"),
    }));
    plugin
}

/// O4: a slot is free again however its request ended.
#[test]
fn in_flight_limit_releases_on_drop() {
    let caps = node_limit(json!({"in_flight": {"shared": 5, "tenant": 2}}));
    let envoy = builder(with_refusals(caps)).start();
    for (how, ending) in ENDINGS {
        for _ in 0..3 {
            ending(&envoy, by("acme"));
            wait_for_in_flight(&envoy, 0);
        }
        let three = [by("acme"), by("acme"), by("acme")];
        assert_eq!(together(&envoy, &three), [200, 200, 429], "after this: {how}");
        wait_for_in_flight(&envoy, 0);
    }
    let held = [hold(&envoy, &by("acme")), hold(&envoy, &by("globex"))];
    wait_for_in_flight(&envoy, 2);
    drop(held);
    wait_for_in_flight(&envoy, 0);
}

/// WRK-1: the workers of a process share one cap, exactly, while 40 clients want it all the time.
#[test]
fn wrk_1_eight_workers_share_one_cap_exactly() {
    const CAP: u64 = 12;
    let envoy =
        Envoy::builder(node_limit(json!({"in_flight": {"tenant": CAP}}))).workers(8).start();
    let admitted: usize = thread::scope(|scope| {
        let client = || {
            let mut connection = Connection::open(envoy.port()).expect("a connection");
            let request = by("acme").header("x-echo-delay-ms", "5");
            let mut answer = || connection.send(&request).expect("an answer").status;
            (0..200).filter(|_| answer() == 200).count()
        };
        let clients: Vec<_> = (0..40).map(|_| scope.spawn(client)).collect();
        clients.into_iter().map(|client| client.join().expect("a client")).sum()
    });
    assert_eq!(envoy.upstream().most_at_once(), CAP);
    assert!((200..8000).contains(&admitted), "{admitted}");
    wait_for_in_flight(&envoy, 0);
    assert_eq!(envoy.metric("fairshare_decisions_given_up", &[]), 0);
}

/// INF-1: of all limits and levels at once, and while the store is asked.
#[test]
fn inf_1_slots_are_released_in_every_scope() {
    let caps = json!({"in_flight": {"shared": 5, "tenant": 2, "credential": 2}});
    let rates = json!({"shared": window(100_000, "1m")});
    let mut plugin = with_refusals(global_limit(json!({}), merged(rates, caps.clone())));
    let node = json!({"name": "node", "in_flight": {"tenant": 3, "shared": 6}});
    plugin["limits"].as_array_mut().unwrap().push(node);
    let redis = Redis::start();
    let envoy = builder(&plugin).redis_unix(redis.socket()).start();
    let keyed = |tenant: &str| by(tenant).header("x-api-key", tenant);
    for (how, ending) in ENDINGS {
        for tenant in ["acme", "globex", "acme"] {
            ending(&envoy, keyed(tenant));
            wait_for_in_flight(&envoy, 0);
        }
        let three = [keyed("acme"), keyed("acme"), keyed("acme")];
        assert_eq!(together(&envoy, &three), [200, 200, 429], "after this: {how}");
        wait_for_in_flight(&envoy, 0);
        let everyone = ["a", "b", "c", "d", "e", "f"].map(keyed);
        assert_eq!(
            together(&envoy, &everyone),
            [200, 200, 200, 200, 200, 429],
            "after this: {how}"
        );
        wait_for_in_flight(&envoy, 0);
    }
}

/// INF-1 c: requests hold no slots while the store is asked, which never answers, and clients that
/// leave meanwhile leave none behind.
#[test]
fn inf_1_a_client_that_leaves_while_the_store_is_asked_leaves_no_slot_behind() {
    let mut plugin = global_limit(
        json!({"match": {"path_prefix": "/global"}}),
        json!({"shared": window(100, "1m")}),
    );
    plugin["store"]["timeout"] = json!("10s");
    let caps = json!({"name": "caps", "in_flight": {"shared": 5, "tenant": 2}});
    plugin["limits"].as_array_mut().unwrap().push(caps);
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = silent.local_addr().expect("its address").port().to_string();
    let address = [("HOST", "127.0.0.1"), ("PORT", &*port)];
    let envoy = Envoy::builder(&plugin)
        .redis_by("tcp.yaml", &address)
        .replacing("connect_timeout: 0.25s", "connect_timeout: 10s")
        .start();
    // Two: with three questions that fail, the store would be given up.
    let asked = by("acme").with_target("/global").to_bytes();
    let connections = [(); 2].map(|()| {
        let mut connection = Connection::open(envoy.port()).expect("a connection");
        connection.send_raw(&asked).expect("a request");
        connection
    });
    let active = || envoy.stat("http.fairshare.downstream_rq_active");
    poll_until(PATIENCE, || (active() == 2).then_some(())).expect("both wait");
    assert_eq!(together(&envoy, &[by("acme"), by("acme"), by("acme")]), [200, 200, 429]);
    poll_until(PATIENCE, || (active() == 2).then_some(())).expect("both still wait");
    drop(connections);
    let errored = || envoy.metric("fairshare_requests", &[("outcome", "errored")]);
    poll_until(PATIENCE, || (errored() == 2).then_some(())).expect("both requests end");
    assert_eq!(together(&envoy, &[by("acme"), by("acme"), by("acme")]), [200, 200, 429]);
    wait_for_in_flight(&envoy, 0);
    assert!(!envoy.log().contains("wasm vm failed"), "{}", envoy.log());
}

/// VMX-1 e: a trap loses no limit. What was in flight counts until its lease ends; what comes after
/// a reload of the configuration is counted with what came before.
#[test]
fn in_flight_survives_vm_trap_and_reload() {
    let levels = json!({"tenant": window(50, "1h"), "in_flight": {"shared": 9, "tenant": 2}});
    let plugin = node_limit(levels);
    let builder = Envoy::builder(&plugin).trapping_module().workers(1).drain_seconds(60);
    let mut envoy = builder.start();
    let held = [hold(&envoy, &by("acme")), hold(&envoy, &by("acme"))];
    wait_for_in_flight(&envoy, 2);
    assert_eq!(envoy.send(&by("acme")).json()["code"], "concurrency_limited");
    // Envoy reloads a VM that is older than a second at once.
    thread::sleep(Duration::from_secs(2));
    let trap = by("acme").header("x-fairshare-test-trap", "now");
    assert_eq!(envoy.send(&trap).status, 503);
    drop(held);
    assert_eq!(envoy.send(&by("globex")).status, 200);
    assert_eq!(envoy.stat("wasm.fairshare.vm_reload_success"), 1, "{}", envoy.stats());
    assert_eq!(envoy.send(&by("acme")).json()["code"], "concurrency_limited");
    assert_eq!(in_flight(&envoy), 2);
    let free = poll_until(LEASE, || (envoy.send(&by("acme")).status == 200).then_some(()));
    assert!(free.is_some(), "the slots of the VM that trapped are still taken");
    wait_for_in_flight(&envoy, 0);
    assert_eq!(together(&envoy, &[by("acme"), by("acme"), by("acme")]), [200, 200, 429]);
    // The two requests of before the trap, and the three of after it.
    let left = envoy.send(&by("acme")).header("ratelimit").expect("fields");
    assert!(left.starts_with("\"dns.tenant\";r=44;"), "{left}");

    let held = [hold(&envoy, &by("acme")), hold(&envoy, &by("globex"))];
    let lower = node_limit(json!({"in_flight": {"shared": 9, "tenant": 1}}));
    assert_eq!(envoy.update_plugin(lower), Update::Accepted);
    wait_for_in_flight(&envoy, 2);
    assert_eq!(envoy.send(&by("acme")).status, 429);
    assert_eq!(envoy.send(&by("initech")).status, 200);
    drop(held);
    wait_for_in_flight(&envoy, 0);
    assert_eq!(together(&envoy, &[by("acme"), by("acme")]), [200, 429]);
    wait_for_in_flight(&envoy, 0);
}

/// INF-3: an upgrade is one request and one slot until it is closed, whatever it carries; one that is
/// refused gets a plain 429.
#[test]
fn inf_3_upgrades_hold_one_slot_until_they_close() {
    let levels = json!({"tenant": window(100, "1m"), "in_flight": {"tenant": 2}});
    let envoy = Envoy::builder(node_limit(levels)).start();
    let upgrade = || {
        let mut connection = Connection::open(envoy.port()).expect("a connection");
        let status = connection.upgrade(&by("acme")).expect("an answer");
        (status, connection)
    };
    let mut open = vec![upgrade(), upgrade()];
    assert_eq!(open.iter().map(|(status, _)| *status).collect::<Vec<_>>(), [101, 101]);
    assert_eq!(upgrade().0, 429);
    for (_, connection) in &mut open {
        for number in 0..1000 {
            // A masked text frame of six bytes.
            let frame = format!("\u{1}\u{6}mask{number:06}");
            connection.send_raw(frame.as_bytes()).expect("a frame");
            assert!(connection.reads(frame.as_bytes()).expect("its echo"));
        }
    }
    wait_for_in_flight(&envoy, 2);
    assert_eq!(upgrade().0, 429);
    assert_eq!(envoy.metric("fairshare_requests", &[("outcome", "admitted")]), 2);
    open.pop();
    let free = poll_until(Duration::from_secs(1), || Some(upgrade()).filter(|(s, _)| *s == 101));
    open.push(free.expect("a free slot"));
    assert_eq!(upgrade().0, 429);
    open.clear();
    wait_for_in_flight(&envoy, 0);

    // An endless answer is one request as well.
    let stream = || by("acme").header("x-echo-stall-ms", "60000").to_bytes();
    let streams = [begin(&envoy, &stream()), begin(&envoy, &stream())];
    assert_eq!(envoy.send(&by("acme")).status, 429);
    drop(streams);
    wait_for_in_flight(&envoy, 0);
}

/// INF-3 b: the same over HTTP/2, where the upgrade is an extended CONNECT.
#[test]
fn inf_3_extended_connect_holds_one_slot_until_it_closes() {
    let envoy = Envoy::builder(node_limit(json!({"in_flight": {"tenant": 2}})))
        .replacing(
            "stat_prefix: fairshare",
            "http2_protocol_options: {allow_connect: true}\n          stat_prefix: fairshare",
        )
        .start();
    let client = h2::Client::connect(envoy.port());
    let open = [client.websocket("acme"), client.websocket("acme")];
    assert_eq!(open.each_ref().map(h2::WebSocket::status), [200, 200]);
    assert_eq!(client.websocket("acme").status(), 429);
    wait_for_in_flight(&envoy, 2);
    drop(open);
    wait_for_in_flight(&envoy, 0);
    assert_eq!(client.websocket("acme").status(), 200);
}

/// What the tests trap with is in no module that is shipped.
#[test]
fn the_shipped_module_has_no_test_trap() {
    const LOGGED: &[u8] = b"trapped for a test";
    let can_trap = |module| {
        let bytes = std::fs::read(module).expect("a module");
        bytes.windows(LOGGED.len()).any(|window| window == LOGGED)
    };
    assert!(can_trap(tools::trapping_module()));
    assert!(!can_trap(tools::module()));
    let envoy = Envoy::builder(node_limit(json!({"tenant": window(9, "1m")}))).start();
    assert_eq!(envoy.send(&by("acme").header("x-fairshare-test-trap", "now")).status, 200);
}
