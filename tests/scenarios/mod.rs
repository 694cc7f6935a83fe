//! What the filter does, told once for every host: real Envoys and the host of the tests' own run
//! the same scenarios. A scenario asserts outcomes alone: statuses, headers, bodies.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    unused_macros,
    reason = "each test binary uses its own part of this"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests fail by panicking"
)]

/// Scenarios about failed authentications.
pub mod auth;
/// Scenarios about where a request comes from.
pub mod client;
/// Scenarios about who a request belongs to.
pub mod identity;
/// Scenarios about requests in flight.
pub mod in_flight;
/// Scenarios about the mode that operators set in the store.
pub mod mode;
/// Scenarios about limits on the node.
pub mod node;
/// Scenarios about limits in the store.
pub mod store;

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::client::{Request, Response};

/// A proxy with the filter in it.
pub trait Rig {
    /// Sends a request and waits for its answer.
    fn send(&mut self, request: &Request) -> Response;

    /// Sends a request that stays in flight. Where it is answered at once instead, says how.
    fn hold(&mut self, request: &Request) -> Option<Response>;

    /// Ends all requests that are held.
    fn end_all(&mut self);

    /// Lets time pass.
    fn wait(&mut self, time: Duration);

    /// Puts another plugin JSON in force; where it is refused, says why.
    fn update(&mut self, plugin: &Value) -> Result<(), String>;

    /// Takes the store away, or gives it back.
    fn set_store(&mut self, reachable: bool);

    /// The sum of the series of `fairshare_<name>` that carry all of these labels, or the one series
    /// that has none.
    fn metric(&mut self, name: &str, labels: &[(&str, &str)]) -> u64;
}

/// What a scenario is to whoever runs it.
pub type Scenario = fn(&mut dyn Rig);

/// The scenarios that every host runs, as tests of the rig `$rig`: some need no store, some have one of
/// their own, and some an operator who writes into it. This is the one list of them.
macro_rules! every_scenario {
    ($rig:ident) => {
        $crate::scenarios::tests_of!($rig::default() =>
            node::over_rate_answers_429_with_retry_after,
            node::tenants_do_not_share_buckets,
            node::refused_request_spends_nothing,
            node::two_workers_share_one_budget,
            node::default_tenant_skips_tenant_window,
            node::kill_switch_off_restores_shared_only,
            node::cfg_4_overrides_replace_the_tenant_level,
            node::namespaces_are_independent,
            node::a_remembered_refusal_hides_no_longer_wait,
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
            in_flight::c_5_budgets_and_ceiling_are_seen_and_set,
            identity::duplicate_tenant_header_is_refused,
            identity::non_utf8_headers_never_trap,
            identity::idn_3_missing_tenant_follows_its_policy,
            identity::header_names_have_no_case,
            identity::long_names_are_refused_and_separators_do_not_collide,
            identity::crd_1_one_credential_has_one_bucket,
            identity::joined_credentials_are_refused,
            identity::an_overridden_credential_level_counts_by_itself,
            client::forged_forwarded_for_does_not_escape,
            client::crd_3_hops_are_counted_from_the_right,
            auth::auth_failures_throttle_only_that_client,
            auth::only_what_the_rule_means_is_a_failure,
            auth::auth_failures_in_shadow_refuse_nothing,
            client::the_client_level_holds_for_everyone,
            identity::bound_credential_decides_tenant,
        );
        $crate::scenarios::with_store!(tests_of, $rig::with_redis() =>);
        $crate::scenarios::tests_of!(@operator $rig =>
            mode::a_mode_in_the_store_holds_while_it_stands,
            mode::what_is_no_mode_is_ignored,
            mode::a_mode_ends_in_time_without_the_store,
            mode::slots_come_back_while_it_is_off,
        );
    };
}

/// Those of them that a store of any kind serves, handed to another macro behind what it is to have before.
macro_rules! with_store {
    ($to:ident, $($before:tt)*) => {
        $crate::scenarios::$to! { $($before)*
            in_flight::caps_of_a_global_limit_hold_on_the_node,
            store::strict_limits_are_decided_in_the_store,
            store::the_node_gives_back_what_the_store_refuses,
            store::redis_down_follows_on_store_error,
            store::a_global_shadow_limit_is_only_counted,
            client::a_client_level_is_counted_in_the_store,
            store::leased_limits_admit_what_they_say,
            store::the_default_tenant_has_the_shared_level_of_the_fleet_alone,
            store::limits_of_the_fleet_share_no_budget,
            store::without_fair_share_the_fleet_has_the_shared_level_alone,
            store::refused_traffic_never_reaches_redis,
            store::a_large_leased_limit_takes_few_calls,
            store::breaker_opens_probes_and_closes,
            store::retry_after_is_the_longest_wait,
        }
    };
}

/// Scenarios with their names.
macro_rules! named {
    ($($module:ident :: $scenario:ident,)*) => {
        [$((stringify!($scenario), $crate::scenarios::$module::$scenario as $crate::scenarios::Scenario)),*]
    };
}

macro_rules! tests_of {
    (@operator $rig:ident => $($module:ident :: $scenario:ident,)*) => {
        $(#[test] fn $scenario() {
            let mut rig = $rig::with_redis();
            let redis = rig.redis.clone().expect("a Redis");
            $crate::scenarios::$module::$scenario(&mut rig, &mut |command| drop(redis.run(command)));
        })*
    };
    ($rig:expr => $($module:ident :: $scenario:ident,)*) => {
        $(#[test] fn $scenario() { $crate::scenarios::$module::$scenario(&mut $rig); })*
    };
}

pub(crate) use {every_scenario, named, tests_of, with_store};

/// A plugin JSON with one node limit called `dns`.
pub fn node_limit(levels: Value) -> Value {
    limit(json!({"scope": "node"}), levels)
}

/// A plugin JSON with one strict global limit called `dns`.
pub fn global_limit(settings: Value, levels: Value) -> Value {
    let mut plugin =
        limit(merged(json!({"scope": "global", "consistency": "strict"}), settings), levels);
    plugin["store"] = json!({"cluster": "fairshare_redis", "timeout": "2s"});
    plugin
}

fn limit(settings: Value, levels: Value) -> Value {
    let limit = merged(merged(json!({"name": "dns"}), settings), levels);
    json!({"limits": [limit]})
}

/// `base` with the fields of `more`.
pub fn merged(mut base: Value, more: Value) -> Value {
    if let (Value::Object(base), Value::Object(more)) = (&mut base, more) {
        base.extend(more);
    }
    base
}

/// A window level.
pub fn window(requests: u64, window: &str) -> Value {
    json!({"requests": requests, "window": window})
}

/// A request of a tenant.
pub fn by(tenant: &str) -> Request {
    Request::get("/").tenant(tenant)
}

/// The statuses of `count` equal requests.
pub fn statuses(rig: &mut dyn Rig, request: &Request, count: usize) -> Vec<u16> {
    (0..count).map(|_| rig.send(request).status).collect()
}

/// Asserts that of `admitted + refused` equal requests the first `admitted` pass and no other.
pub fn expect(rig: &mut dyn Rig, request: &Request, admitted: usize, refused: usize) {
    let expected = [vec![200; admitted], vec![429; refused]].concat();
    assert_eq!(statuses(rig, request, admitted + refused), expected);
}
