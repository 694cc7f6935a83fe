//! That no check is dead: each of these plants a fault in what surrounds the filter, and some seed
//! must find it, by the check that is meant to.

use fairshare::store::SCRIPT;

use crate::world::{Fate, Sabotage, World};
use crate::{finish, plan::Plan};

/// Seeds that a canary has to be found in. `fixed_seeds_hold` finds nothing in them.
pub const SEEDS: u64 = 2_000;

/// Asserts that some seed reports what has all of `words`.
fn assert_found(words: &[&str], mut run: impl FnMut(u64) -> Vec<String>) {
    let is_it = |line: &String| words.iter().all(|word| line.contains(word));
    let found = (0..SEEDS).find(|seed| run(*seed).iter().any(is_it));
    assert!(found.is_some(), "no seed below {SEEDS} reports {words:?}");
}

/// The script as a person reads it: faults are planted by its words.
pub fn readable() -> String {
    let lines = include_str!("../../src/store/script.lua").lines().map(str::trim);
    lines.filter(|line| !line.starts_with("--")).flat_map(|line| [line, "\n"]).collect()
}

/// Puts other text into the script.
pub fn changed(script: &str, old: &str, new: &str) -> String {
    assert_eq!(script.matches(old).count(), 1, "{old:?} in the script");
    script.replace(old, new)
}

fn script_is_found(old: &str, new: &str, words: &[&str]) {
    let mut store = crate::servers(&changed(&readable(), old, new));
    assert_found(words, |seed| crate::run(seed, &mut store).0);
}

fn sabotage_is_found(sabotage: Sabotage, words: &[&str]) {
    let mut store = crate::servers(SCRIPT);
    assert_found(words, |seed| {
        let plan = Plan::of(seed);
        let mut world = World::new(seed, &plan, &mut store);
        world.sabotage = sabotage;
        finish(&mut world);
        crate::checks::check(&world)
    });
}

/// Changes what the clients report.
fn doctored_trace_is_found(doctor: impl Fn(&mut World<'_>) -> Option<()>, words: &[&str]) {
    let mut store = crate::servers(SCRIPT);
    assert_found(words, |seed| {
        let plan = Plan::of(seed);
        let mut world = World::new(seed, &plan, &mut store);
        finish(&mut world);
        match doctor(&mut world) {
            Some(()) => crate::checks::check(&world),
            None => vec![],
        }
    });
}

#[test]
fn canary_a_window_that_forgets_the_life_of_leases() {
    let old = "local cost, limit, window_us = whole(ARGV[next]), whole(ARGV[next + 1]), whole(ARGV[next + 2])";
    let new = "local cost, limit, window_us = whole(ARGV[next]), whole(ARGV[next + 1]), math.floor(whole(ARGV[next + 2]) * 7 / 8)";
    // Workers notice that units are gone too early, and tell the store of them again.
    let restore = "local function restore(level)\n";
    let script = changed(&readable(), restore, &format!("{restore}if true then\nreturn 0\nend\n"));
    let mut store = crate::servers(&changed(&script, old, new));
    let words = ["kind: Leased", "units within"];
    assert_found(&words, |seed| crate::run(seed, &mut store).0);
}

#[test]
fn canary_a_store_that_charges_half_of_what_it_grants() {
    script_is_found(
        "charge(level, granted)",
        "charge(level, floor(granted / 2))",
        &["kind: Leased", "units within"],
    );
}

#[test]
fn canary_a_strict_limit_that_grants_one_too_many() {
    let (old, new) = ("capacity = limit,", "capacity = limit + 1,");
    script_is_found(old, new, &["kind: Strict", "units within"]);
}

#[test]
fn canary_a_bucket_that_leaks_twice_as_fast() {
    let old = "level.held = held - elapsed_us * rate";
    script_is_found(
        old,
        "level.held = math.max(0, held - 2 * elapsed_us * rate)",
        &["units in the bucket"],
    );
}

#[test]
fn canary_usage_that_expires_early() {
    script_is_found("'PX', ttl_ms)", "'PX', floor(ttl_ms / 8) + 1)", &["units within"]);
}

#[test]
fn canary_returned_units_that_count_twice() {
    let old = "level.older, level.units = older, level.units - units";
    let new = "level.older, level.units = older, math.max(0, level.units - 2 * units)";
    script_is_found(old, new, &["units within"]);
}

#[test]
fn canary_a_rebuild_that_forgets_what_it_is_told() {
    let old = "if units > 0 and at_us + level.period_us > from_us then";
    script_is_found(old, "if units < 0 then", &["on_state_loss: Rebuild", "units within"]);
}

#[test]
fn canary_a_rebuild_that_waits_for_nobody() {
    script_is_found(
        "PAUSE_US, REPORT_US, MAX_PAUSE_US = 500000",
        "PAUSE_US, REPORT_US, MAX_PAUSE_US = 1000",
        &["on_state_loss: Rebuild", "units within"],
    );
}

#[test]
fn canary_a_refusal_that_is_charged() {
    let old = "if not admitted then\nreturn 0";
    let new = "if not admitted then\nif level.fits then\ncharge(level, level.cost)\ndecide_level(level)\nend\nreturn 0";
    script_is_found(old, new, &["is refused by limit"]);
}

#[test]
fn canary_waiters_whom_no_timer_lets_go() {
    sabotage_is_found(Sabotage::NoTicks, &["waited for"]);
}

#[test]
fn canary_a_decision_that_never_arrives() {
    sabotage_is_found(Sabotage::LostDecisions, &["has no answer"]);
}

#[test]
fn canary_slots_that_stay_taken() {
    sabotage_is_found(Sabotage::LostEnds, &["in flight at the end"]);
}

#[test]
fn canary_units_that_never_come_back() {
    let head = "local function window_load(level, value)";
    let script =
        changed(&readable(), head, &format!("{head}\nvalue.at = math.max(value.at, level.now)"));
    let script = changed(&script, "SLACK_MS = 500", "SLACK_MS = 500000");
    let mut store = crate::servers(&script);
    let words = ["are refused when all is over"];
    assert_found(&words, |seed| crate::run(seed, &mut store).0);
}

#[test]
fn canary_a_charge_on_the_node_that_is_made_twice() {
    sabotage_is_found(Sabotage::Lies, &["is refused by limit"]);
}

#[test]
fn canary_a_node_that_forgets_what_was_used() {
    sabotage_is_found(Sabotage::Forgets, &["kind: Node", "units within"]);
}

#[test]
fn canary_a_node_that_forgets_what_is_in_flight() {
    sabotage_is_found(Sabotage::Forgets, &["in flight", "allowed"]);
}

#[test]
fn canary_a_store_that_is_asked_too_often() {
    sabotage_is_found(Sabotage::Repeats, &["decisions in the store, at most"]);
}

#[test]
fn canary_servers_that_all_claim_every_slot() {
    sabotage_is_found(Sabotage::Strays, &["units within"]);
}

#[test]
fn canary_calls_without_bound() {
    sabotage_is_found(Sabotage::Hurries, &["calls under way"]);
}

#[test]
fn canary_a_pace_that_calls_for_leases_do_not_keep() {
    sabotage_is_found(Sabotage::Rewinds, &["calls for leases beyond their pace"]);
}

#[test]
fn canary_a_request_that_is_counted_as_another() {
    let doctor = |world: &mut World<'_>| {
        let request = world.requests.iter_mut().find(|request| request.fate == Fate::Admitted)?;
        request.fate = Fate::Left;
        Some(())
    };
    doctored_trace_is_found(doctor, &["requests admitted", "counted"]);
}

#[test]
fn canary_a_refusal_for_another_reason() {
    let doctor = |world: &mut World<'_>| {
        world.requests.iter_mut().find_map(|request| match &mut request.fate {
            Fate::Refused { status: 429, body } => {
                *body = br#"{"code": "wait_timeout"}"#.to_vec();
                Some(())
            }
            _ => None,
        })
    };
    doctored_trace_is_found(doctor, &["refused as wait_timeout", "counted"]);
}

#[test]
fn canary_calls_that_hold_too_much() {
    sabotage_is_found(Sabotage::Crams, &["decisions in a call"]);
}

/// Changes what the first process counts.
fn miscount_is_found(part: &str, by: i64, words: &[&str]) {
    let doctor =
        |world: &mut World<'_>| world.fleet.processes.first()?.borrow_mut().miscount(part, by);
    doctored_trace_is_found(doctor, words);
}

#[test]
fn canary_units_that_vanish() {
    for event in ["returned", "expired"] {
        miscount_is_found(&format!("lease_units.event={event}"), -1, &["granted,", "expired"]);
    }
}

#[test]
fn canary_a_refusal_that_nobody_saw() {
    miscount_is_found("fairshare_refusals.", 1, &["requests refused", "counted by code"]);
}

#[test]
fn canary_units_that_nobody_spent() {
    let doctor = |world: &mut World<'_>| {
        let request = world.requests.iter_mut().find(|request| request.fate == Fate::Admitted)?;
        request.fate = Fate::Left;
        Some(())
    };
    doctored_trace_is_found(doctor, &["spent by", "due"]);
}
