//! That no trouble is dead: each of these plants a fault that one kind of trouble reveals and no other
//! does, so it is found with this kind, and in the same seeds without it there is nothing to find.

use fairshare::store::SCRIPT;

use crate::canaries::{SEEDS, changed, readable};
use crate::embedded_redis::EmbeddedRedis;
use crate::faults::Fault;
use crate::plan::{Arrival, Plan, SECOND};
use crate::world::{Sabotage, World};

/// Asserts that some seed reports what has all of `words`, and that neither this seed nor one before it
/// does once the plan is `spared` the trouble.
fn assert_revealed(
    spared: impl Fn(&mut Plan),
    words: &[&str],
    mut run: impl FnMut(u64, &Plan) -> Vec<String>,
) {
    let is_it = |line: &String| words.iter().all(|word| line.contains(word));
    let found = (0..SEEDS).find(|seed| run(*seed, &Plan::of(*seed)).iter().any(is_it));
    let Some(found) = found else { panic!("no seed below {SEEDS} reports {words:?}") };
    for seed in 0..=found {
        let mut plan = Plan::of(seed);
        spared(&mut plan);
        let others: Vec<String> = run(seed, &plan).into_iter().filter(is_it).collect();
        assert!(others.is_empty(), "seed {seed} reports it without the trouble: {others:?}");
    }
}

fn sabotage_is_revealed(sabotage: Sabotage, spared: impl Fn(&mut Plan), words: &[&str]) {
    let mut store = crate::servers(SCRIPT);
    assert_revealed(spared, words, |seed, plan| {
        let mut world = World::new(seed, plan, &mut store);
        world.sabotage = sabotage;
        crate::finish(&mut world);
        crate::checks::check(&world)
    });
}

fn script_is_revealed(script: &str, spared: impl Fn(&mut Plan), words: &[&str]) {
    let mut store: Vec<EmbeddedRedis> = crate::servers(script);
    assert_revealed(spared, words, |seed, plan| crate::run_plan(seed, plan, &mut store).0);
}

/// A plan in which nothing of this happens.
fn without(is_it: impl Fn(&Fault) -> bool) -> impl Fn(&mut Plan) {
    move |plan| plan.events.retain(|(_, fault)| !is_it(fault))
}

const fn is_trap(fault: &Fault) -> bool {
    matches!(fault, Fault::Trap { .. })
}

const fn is_update(fault: &Fault) -> bool {
    matches!(fault, Fault::Update { .. })
}

#[test]
fn canary_of_a_store_whose_clock_goes_back() {
    let old = "level.found = true\n";
    let new = "level.found = true\nif value and value.at > now_us then\nreturn nil\nend\n";
    let is_back = |fault: &Fault| matches!(fault, Fault::StoreStep { by } if *by < 0);
    script_is_revealed(&changed(&readable(), old, new), without(is_back), &["units within"]);
}

#[test]
fn canary_of_a_node_whose_clock_goes_back() {
    let is_back = |fault: &Fault| matches!(fault, Fault::NodeStep { by, .. } if *by < 0);
    let words = ["kind: Node", "units within"];
    sabotage_is_revealed(Sabotage::ForgetsTheFuture, without(is_back), &words);
}

#[test]
fn canary_of_clocks_that_drift() {
    let drifts = |fault: &Fault| matches!(fault, Fault::NodeGain { .. } | Fault::StoreGain { .. });
    sabotage_is_revealed(Sabotage::Races, without(drifts), &["kind: Node", "units within"]);
}

#[test]
fn canary_of_a_reply_that_is_cut() {
    let spared = |plan: &mut Plan| plan.faults.cuts = false;
    sabotage_is_revealed(Sabotage::StaleBuffer, spared, &["workers heard of"]);
}

#[test]
fn canary_of_a_reply_that_is_late() {
    let spared = |plan: &mut Plan| (plan.faults.network, plan.faults.slow) = (false, false);
    sabotage_is_revealed(Sabotage::Dozes, spared, &["kind: Leased", "units within"]);
}

#[test]
fn canary_of_a_reply_that_is_lost() {
    let spared = |plan: &mut Plan| plan.faults.network = false;
    sabotage_is_revealed(Sabotage::Echo, spared, &["the store granted"]);
}

#[test]
fn canary_of_a_call_that_comes_twice() {
    let spared = |plan: &mut Plan| plan.faults.network = false;
    sabotage_is_revealed(Sabotage::Undoes, spared, &["units within"]);
}

#[test]
fn canary_of_a_node_that_is_cut_off() {
    let is_cut = |fault: &Fault| matches!(fault, Fault::Cut { .. });
    sabotage_is_revealed(Sabotage::EchoInTheDark, without(is_cut), &["the store granted"]);
}

#[test]
fn canary_of_swaps_that_are_lost() {
    let spared = |plan: &mut Plan| plan.faults.contention = false;
    sabotage_is_revealed(Sabotage::Boasts, spared, &["kind: Node", "units within"]);
}

#[test]
fn canary_of_clients_that_leave() {
    let patient = |arrival: &mut Arrival| arrival.patience = 3600 * SECOND;
    let spared = |plan: &mut Plan| plan.arrivals.iter_mut().for_each(patient);
    sabotage_is_revealed(Sabotage::DeafToLeavers, spared, &["Left, then Admitted"]);
}

#[test]
fn canary_of_a_store_that_forgets() {
    let is_loss = |fault: &Fault| matches!(fault, Fault::Flush | Fault::FailOver { .. });
    let old = "local is_held = level.hold and now_us < epoch.since_us + level.period_us";
    let script = changed(&readable(), old, "local is_held = false");
    script_is_revealed(&script, without(is_loss), &["on_state_loss: Hold", "units within"]);
}

#[test]
fn canary_of_a_fail_over() {
    let is_fail_over = |fault: &Fault| matches!(fault, Fault::FailOver { .. });
    let script = changed(&readable(), "why = 3", "why = nil");
    let script = changed(&script, "why = 2", "why = nil");
    script_is_revealed(&script, without(is_fail_over), &["units within"]);
}

#[test]
fn canary_of_usage_that_ends_with_a_trap() {
    let words = ["kind: Node", "units within"];
    sabotage_is_revealed(Sabotage::ForgetsTrapped, without(is_trap), &words);
}

#[test]
fn canary_of_slots_that_outlast_a_trap() {
    sabotage_is_revealed(Sabotage::Ghosts, without(is_trap), &["in flight at the end"]);
}

#[test]
fn canary_of_usage_that_ends_with_a_reload() {
    let words = ["kind: Node", "units within"];
    sabotage_is_revealed(Sabotage::ForgetsReplaced, without(is_update), &words);
}

#[test]
fn canary_of_slots_that_outlast_a_reload() {
    sabotage_is_revealed(Sabotage::DeafOnTheWayOut, without(is_update), &["in flight at the end"]);
}

#[test]
fn canary_of_usage_that_ends_with_a_process() {
    let is_crash = |fault: &Fault| matches!(fault, Fault::Crash { .. });
    let words = ["kind: Leased", "units within"];
    sabotage_is_revealed(Sabotage::ForgetsWithTheDead, without(is_crash), &words);
}

#[test]
fn canary_of_a_server_that_clings_to_a_slot_that_moves() {
    let is_move = |fault: &Fault| matches!(fault, Fault::MoveSlot { .. });
    sabotage_is_revealed(Sabotage::Clings, without(is_move), &["units within"]);
}
