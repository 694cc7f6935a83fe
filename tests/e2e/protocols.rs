use std::time::Duration;

use hyper::body::{Bytes, Frame};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::json;

use crate::scenarios::{Rig, by, expect, global_limit, node_limit, statuses, window};
use crate::support::client::{Connection, Request};
use crate::support::envoy::{Envoy, Update};
use crate::support::redis::Redis;
use crate::support::upstream::Upstream;

/// RSP-7: an upload over the limit is refused on its headers: no 100, and nothing goes upstream.
#[test]
fn rsp_7_a_large_upload_is_refused_on_its_headers() {
    let upstream = Upstream::start();
    let envoy = Envoy::builder(node_limit(json!({"tenant": window(0, "1m")})))
        .upstream_port(upstream.port())
        .start();
    let head =
        "POST /upload HTTP/1.1\r\nhost: a\r\nx-tenant-id: acme\r\ncontent-length: 10000000\r\n";
    let mut waits = Connection::open(envoy.port()).expect("a connection");
    waits.send_raw(format!("{head}expect: 100-continue\r\n\r\n").as_bytes()).expect("headers");
    // A client that sees a 100 first would fail to read this as the final answer.
    let refused = waits.read_first_response().expect("an answer without a body being sent");
    assert_eq!(refused.status, 429);
    assert!(refused.header("retry-after").is_some());

    let mut sends = Connection::open(envoy.port()).expect("a connection");
    sends.send_raw(format!("{head}\r\n").as_bytes()).expect("headers");
    assert_eq!(sends.read_response(false).expect("an answer").status, 429);
    assert_eq!(upstream.count(), 0);
}

/// RSP-7: the same where the refusal comes from the store while the body is on its way.
#[test]
fn rsp_7_a_refusal_by_the_store_does_not_let_the_body_through() {
    let redis = Redis::start();
    let upstream = Upstream::start();
    let plugin = global_limit(json!({}), json!({"tenant": window(0, "1m")}));
    let envoy =
        Envoy::builder(plugin).redis_unix(redis.socket()).upstream_port(upstream.port()).start();
    let refused = envoy.send(&Request::post("/", vec![b'x'; 160_000]).tenant("acme"));
    assert_eq!((refused.status, upstream.count()), (429, 0));
    let body = vec![b'x'; 160_000];
    let admitted = envoy.send(&Request::post("/", body));
    assert_eq!((admitted.status, upstream.count()), (200, 1), "a paused body arrives whole");
}

/// What is no ordinary HTTP/1.1 request is answered, counted like any other, and traps nothing.
#[test]
fn odd_methods_and_versions_are_answered() {
    let envoy = Envoy::builder(node_limit(json!({"shared": window(100, "1m")}))).start();
    let answer = |bytes: &[u8]| {
        let mut connection = Connection::open(envoy.port()).expect("a connection");
        connection.send_raw(bytes).expect("bytes");
        connection.read_response(false).map(|response| response.status).unwrap_or(0)
    };
    // Envoy takes HTTP/1.0 only where it is told to.
    assert_eq!(answer(b"GET / HTTP/1.0\r\nhost: a\r\n\r\n"), 426);
    // A CONNECT has no path. No route takes it, but the filter has seen it.
    assert_eq!(answer(b"CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\n\r\n"), 404);
    assert_eq!(answer(b"GET / HTTP/1.1\r\n\r\n"), 400, "no host: Envoy answers before the filter");
    assert_eq!(answer(b"OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n"), 404);
    assert_eq!(answer(b"PATCH /x HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"), 200);
    assert_eq!(envoy.send(&by("acme")).status, 200);
    assert!(!envoy.log().contains("vm failed"));
}

/// HTTP/2 requests share the buckets of HTTP/1.1 ones, and bodies with trailers pass.
#[test]
fn http_2_requests_share_the_buckets() {
    let envoy = Envoy::builder(node_limit(json!({"tenant": window(3, "1m")}))).start();
    let port = envoy.port();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let statuses = runtime.expect("a runtime").block_on(async {
        let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
        let mut statuses = Vec::new();
        for _ in 0..4 {
            let request = hyper::Request::post(format!("http://127.0.0.1:{port}/"))
                .header("x-tenant-id", "acme")
                .body(WithTrailers(2))
                .expect("a request");
            let sent = tokio::time::timeout(Duration::from_secs(20), client.request(request));
            statuses.push(sent.await.expect("in time").expect("an answer").status().as_u16());
        }
        statuses
    });
    assert_eq!(statuses, [200, 200, 200, 429]);
    assert_eq!(envoy.send(&Request::get("/").header("X-TENANT-ID", "acme")).status, 429);
}

/// A body of one piece of data and trailers.
struct WithTrailers(u8);

impl hyper::body::Body for WithTrailers {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0 = self.0.saturating_sub(1);
        std::task::Poll::Ready(match self.0 {
            1 => Some(Ok(Frame::data(Bytes::from_static(b"data")))),
            0 if !self.is_end_stream() => None,
            _ => {
                let mut trailers = hyper::HeaderMap::new();
                trailers.insert("x-checksum", hyper::header::HeaderValue::from_static("1"));
                Some(Ok(Frame::trailers(trailers)))
            }
        })
    }
}

/// WRK-1: eight workers admit what the limit says, exactly, while many connections compete for it.
#[test]
fn wrk_1_eight_workers_share_one_budget_exactly() {
    let levels = json!({"shared": window(2000, "1h"), "tenant": window(1000, "1h")});
    let envoy = Envoy::builder(node_limit(levels)).workers(8).start();
    let admitted: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..32)
            .map(|_| {
                scope.spawn(|| {
                    let mut connection = Connection::open(envoy.port()).expect("a connection");
                    let mut status = || connection.send(&by("acme")).expect("an answer").status;
                    (0..100).filter(|_| status() == 200).count()
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("a client")).sum()
    });
    assert_eq!(admitted, 1000);
}

/// CFG-2: reloads that have nothing to do with a limit do not refill it.
#[test]
fn reload_keeps_usage_and_applies_new_limit() {
    let plugin = |requests: u64, round: u64| {
        let mut plugin = node_limit(json!({"tenant": window(requests, "1m")}));
        plugin["limits"].as_array_mut().expect("limits").push(json!({
            "name": "other", "match": {"path": "/other"}, "shared": window(round + 1, "1m"),
        }));
        plugin
    };
    let mut envoy = Envoy::builder(plugin(5, 0)).start();
    let calls = |envoy: &Envoy, count: usize| -> Vec<u16> {
        (0..count).map(|_| envoy.send(&by("acme")).status).collect()
    };
    assert_eq!(calls(&envoy, 5), [200; 5]);
    for round in 1..=10 {
        assert_eq!(envoy.update_plugin(plugin(5, round)), Update::Accepted);
        assert_eq!(calls(&envoy, 1), [429], "reload {round}");
    }
    assert_eq!(envoy.update_plugin(plugin(8, 0)), Update::Accepted);
    assert_eq!(calls(&envoy, 4), [200, 200, 200, 429]);
    assert_eq!(envoy.update_plugin(plugin(3, 0)), Update::Accepted);
    assert_eq!(calls(&envoy, 1), [429]);
}

/// VMX-2, C4: many requests that wait for the store at once get one answer each.
#[test]
fn vmx_2_many_waiting_requests_get_one_answer_each() {
    let redis = Redis::start();
    let mut plugin = global_limit(json!({}), json!({"tenant": window(150, "1m")}));
    plugin["store"]["timeout"] = json!("5s");
    let envoy = Envoy::builder(plugin).redis_unix(redis.socket()).start();
    assert_eq!(envoy.send(&by("warm-up")).status, 200);
    redis.pause();
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..200).map(|_| scope.spawn(|| envoy.send(&by("acme")).status)).collect();
        std::thread::sleep(Duration::from_millis(500));
        redis.resume();
        clients.into_iter().map(|client| client.join().expect("a client")).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 150);
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 50);
}

/// The shadow scenario under its contract's name: a limit in shadow mode changes no answer.
#[test]
fn shadow_limit_changes_nothing() {
    let mut rig = crate::EnvoyRig::default();
    let enforced = json!({"name": "dns", "tenant": window(3, "1m")});
    rig.update(&json!({"limits": [enforced]})).expect("a configuration");
    let plain = statuses(&mut rig, &by("acme"), 5);
    let shadow = json!({"name": "tight", "mode": "shadow", "tenant": window(0, "1m")});
    rig.update(&json!({"limits": [shadow, enforced], "namespace": "again"})).expect("an update");
    assert_eq!(statuses(&mut rig, &by("acme"), 5), plain);
    expect(&mut rig, &by("globex"), 3, 2);
}
