//! The scenarios on a host of the tests' own: four workers, a clock that the tests move, and a real
//! Redis behind the store calls.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and they do have a clock"
)]

mod fake_host;
mod scenarios;
mod support;

use std::rc::Rc;
use std::time::Duration;

use fairshare::host::StreamId;
use fairshare::store::StoreError;
use fairshare::units::Span;
use fake_host::{Outcome, Process};
use scenarios::{Rig, by, expect, global_limit, merged, node_limit, store, window};
use serde_json::{Value, json};
use support::client::{Request, Response};
use support::redis::Redis;

const WORKERS: usize = 4;

/// A process of the fake host.
#[derive(Default)]
struct FakeRig {
    process: Option<Process>,
    redis: Option<Rc<Redis>>,
    store_down: bool,
    held: Vec<StreamId>,
}

impl FakeRig {
    /// Lets the workers do all that is to be done.
    fn run(&mut self) -> Vec<(StreamId, Outcome)> {
        let (redis, down) = (self.redis.as_deref(), self.store_down);
        let process = self.process.as_mut().expect("a configuration");
        process.run(&mut |body| match redis {
            Some(redis) if !down => Ok(redis.exchange(body)),
            _ => Err(StoreError::Unreachable),
        })
    }

    fn with_redis() -> Self {
        Self { redis: Some(Rc::new(Redis::start())), ..Self::default() }
    }

    /// Starts a request and lets the store answer.
    fn start(&mut self, request: &Request) -> (StreamId, Outcome) {
        let process = self.process.as_mut().expect("a configuration");
        let pairs = forwarded(request.pairs());
        let pairs: Vec<(&[u8], &[u8])> =
            pairs.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect();
        let peer = format!("{}:4711", request.peer());
        let properties = [("source.address", peer.as_bytes())];
        let (stream, mut outcome) = process.start_with(&pairs, &properties);
        let settled = self.run();
        if let Some((_, later)) = settled.into_iter().find(|(waited, _)| *waited == stream) {
            outcome = later;
        }
        (stream, outcome)
    }
}

impl Rig for FakeRig {
    fn send(&mut self, request: &Request) -> Response {
        let (stream, outcome) = self.start(request);
        self.process.as_mut().expect("a configuration").end(stream);
        response(outcome, request)
    }

    fn hold(&mut self, request: &Request) -> Option<Response> {
        let (stream, outcome) = self.start(request);
        if let Outcome::Passed(_) = outcome {
            self.held.push(stream);
            return None;
        }
        self.process.as_mut().expect("a configuration").end(stream);
        Some(response(outcome, request))
    }

    fn end_all(&mut self) {
        let process = self.process.as_mut().expect("a configuration");
        self.held.drain(..).for_each(|stream| process.end(stream));
    }

    fn wait(&mut self, time: Duration) {
        const TICK: Duration = Duration::from_millis(100);
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(TICK);
            left -= step;
            let process = self.process.as_mut().expect("a configuration");
            process.advance(Span::from_nanos(u64::try_from(step.as_nanos()).unwrap()));
            process.tick();
            self.run();
        }
    }

    fn update(&mut self, plugin: &Value) -> Result<(), String> {
        if let (Some(redis), Some(prefix)) =
            (&self.redis, plugin.pointer("/store/key_prefix").and_then(Value::as_str))
        {
            redis.age(prefix);
        }
        let updated = match &mut self.process {
            Some(process) => process.update(&plugin.to_string()),
            None => Process::new(&plugin.to_string(), WORKERS).map(|new| self.process = Some(new)),
        };
        updated.map_err(|errors| errors.iter().map(|error| format!("{error}\n")).collect())
    }

    fn set_store(&mut self, reachable: bool) {
        self.store_down = !reachable;
    }

    fn metric(&mut self, name: &str, labels: &[(&str, &str)]) -> u64 {
        if labels.is_empty() {
            return self
                .process
                .as_ref()
                .expect("a configuration")
                .metric(&format!("fairshare_{name}"));
        }
        let mut parts = vec![format!("fairshare_{name}.")];
        parts.extend(labels.iter().map(|(label, value)| format!(".{label}={value}")));
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.process.as_ref().expect("a configuration").metrics_with(&parts)
    }
}

/// The headers after the proxy has appended its own address to `x-forwarded-for`, as it does for a
/// peer on its machine.
fn forwarded(mut pairs: Vec<(Vec<u8>, Vec<u8>)>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let list = |name: &[u8]| name == b"x-forwarded-for";
    let mut hops: Vec<Vec<u8>> =
        pairs.iter().filter(|(name, _)| list(name)).map(|(_, value)| value.clone()).collect();
    hops.push(b"192.0.2.2".to_vec());
    pairs.retain(|(name, _)| !list(name));
    pairs.push((b"x-forwarded-for".to_vec(), hops.join(&b',')));
    pairs
}

fn response(outcome: Outcome, request: &Request) -> Response {
    let owned = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
    match outcome {
        Outcome::Passed(fields) => {
            let fields = fields.as_ref().into_iter().flat_map(|fields| fields.pairs());
            let headers = fields.map(|(name, value)| owned(name, value)).collect();
            let pairs = request.pairs();
            let wanted = pairs.iter().find(|(name, _)| name == b"x-echo-status");
            let status = wanted.map_or("200", |(_, status)| str::from_utf8(status).unwrap());
            Response { status: status.parse().unwrap(), headers, body: b"ok".to_vec() }
        }
        Outcome::Answered(reply) => {
            let headers = reply.headers.iter().map(|(name, value)| owned(name, value)).collect();
            Response { status: reply.status, headers, body: reply.body }
        }
        Outcome::Waits => panic!("the request has no answer"),
    }
}

scenarios::every_scenario!(FakeRig);

#[test]
fn red_3_a_forgotten_script_is_sent_again() {
    let mut rig = FakeRig::with_redis();
    let redis = rig.redis.clone().expect("a Redis");
    let mut forget = || drop(redis.run(&["SCRIPT", "FLUSH"]));
    store::red_3_a_forgotten_script_is_sent_again(&mut rig, &mut forget);
}

/// O10: what the node keeps is a cache that fails closed: who cannot be counted is refused, and charged
/// nothing, on the node as by the share of a store that is away.
#[test]
fn o_10_usage_that_cannot_be_read_refuses() {
    let node = node_limit(json!({"tenant": window(5, "1m"), "in_flight": {"tenant": 3}}));
    let settings = json!({"on_store_error": "local", "local_fraction": 1.0});
    let away = global_limit(settings, json!({"tenant": window(5, "1m")}));
    let caps = node_limit(json!({"in_flight": {"tenant": 3}}));
    for (plugin, left) in [(node, [3, 1]), (away, [3, 1]), (caps, [4, 0])] {
        let mut rig = FakeRig::with_redis();
        rig.set_store(false);
        rig.update(&merged(plugin, json!({}))).expect("a configuration");
        expect(&mut rig, &by("acme"), 2, 0);
        let machine = rig.process.as_ref().expect("a configuration").machine();
        machine.borrow_mut().broken = true;
        expect(&mut rig, &by("acme"), 0, 5);
        expect(&mut rig, &by("globex"), 0, 5);
        machine.borrow_mut().broken = false;
        rig.wait(Duration::from_millis(500));
        assert!(rig.metric("decisions_given_up", &[]) > 0);
        expect(&mut rig, &by("acme"), left[0], left[1]);
    }
}
