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
use scenarios::{Rig, auth, client, identity, in_flight, mode, node, store};
use serde_json::Value;
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

macro_rules! on_the_fake_host {
    ($rig:expr => $($module:ident :: $scenario:ident),* $(,)?) => {
        $(#[test] fn $scenario() { $module::$scenario(&mut $rig); })*
    };
}

on_the_fake_host!(FakeRig::default() =>
    node::over_rate_answers_429_with_retry_after,
    node::tenants_do_not_share_buckets,
    node::refused_request_spends_nothing,
    node::two_workers_share_one_budget,
    node::default_tenant_skips_tenant_window,
    node::kill_switch_off_restores_shared_only,
    node::cfg_4_overrides_replace_the_tenant_level,
    node::namespaces_are_independent,
    node::gcra_admits_its_burst_at_once,
    node::probes_are_exempt,
    node::a_changed_limit_applies_to_current_usage,
    node::bad_update_keeps_the_old_config,
    node::shadow_refuses_nothing,
    node::met_1_metrics_add_up,
    in_flight::a_full_cap_refuses_until_a_request_ends,
    in_flight::a_lowered_cap_refuses_until_use_has_fallen,
    in_flight::a_cap_of_zero_refuses_everything,
    in_flight::refused_request_holds_nothing,
    in_flight::overrides_and_the_fair_share_switch_hold_for_caps,
    in_flight::a_shadow_cap_refuses_nothing,
    identity::duplicate_tenant_header_is_refused,
    identity::non_utf8_headers_never_trap,
    identity::idn_3_missing_tenant_follows_its_policy,
    identity::header_names_have_no_case,
    identity::long_names_are_refused_and_separators_do_not_collide,
    identity::crd_1_one_credential_has_one_bucket,
    identity::joined_credentials_are_refused,
    identity::an_overridden_credential_level_counts_by_itself,
);

on_the_fake_host!(FakeRig::default() =>
    client::forged_forwarded_for_does_not_escape,
    client::crd_3_hops_are_counted_from_the_right,
    auth::auth_failures_throttle_only_that_client,
    auth::only_what_the_rule_means_is_a_failure,
    auth::auth_failures_in_shadow_refuse_nothing,
    client::the_client_level_holds_for_everyone,
    identity::bound_credential_decides_tenant,
);

on_the_fake_host!(FakeRig::with_redis() =>
    in_flight::caps_of_a_global_limit_hold_on_the_node,
    store::strict_limits_are_decided_in_the_store,
    store::the_node_gives_back_what_the_store_refuses,
    store::redis_down_follows_on_store_error,
    store::a_global_shadow_limit_is_only_counted,
    client::a_client_level_is_counted_in_the_store,
    store::leased_limits_admit_what_they_say,
    store::refused_traffic_never_reaches_redis,
    store::a_large_leased_limit_takes_few_calls,
    store::breaker_opens_probes_and_closes,
    store::retry_after_is_the_longest_wait,
);

macro_rules! with_an_operator {
    ($($scenario:ident),* $(,)?) => {
        $(#[test] fn $scenario() {
            let mut rig = FakeRig::with_redis();
            let redis = rig.redis.clone().expect("a Redis");
            mode::$scenario(&mut rig, &mut |command| drop(redis.run(command)));
        })*
    };
}

with_an_operator!(
    a_mode_in_the_store_holds_while_it_stands,
    what_is_no_mode_is_ignored,
    a_mode_ends_in_time_without_the_store,
    slots_come_back_while_it_is_off,
);

#[test]
fn red_3_a_forgotten_script_is_sent_again() {
    let mut rig = FakeRig::with_redis();
    let redis = rig.redis.clone().expect("a Redis");
    let mut forget = || drop(redis.run(&["SCRIPT", "FLUSH"]));
    store::red_3_a_forgotten_script_is_sent_again(&mut rig, &mut forget);
}
