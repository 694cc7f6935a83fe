use std::time::Duration;

use serde_json::{Value, json};

use super::{Rig, by, expect, merged, node_limit, statuses, window};

/// Runs a command in the store.
type Command<'a> = &'a mut dyn FnMut(&[&str]);

/// The key that operators write.
const KEY: &str = "{fairshare}:1:mode";

const OFF: u64 = 0;
const SHADOW: u64 = 1;
const ENFORCE: u64 = 2;

/// A plugin JSON with one node limit, and a store.
fn plugin(levels: Value) -> Value {
    merged(node_limit(levels), json!({"store": {"cluster": "fairshare_redis", "timeout": "200ms"}}))
}

fn set(store: Command<'_>, word: &str) {
    store(&["SET", KEY, word, "EX", "3600"]);
}

/// Waits until the node follows, and a little longer, so that all of its workers do.
fn follows(rig: &mut dyn Rig, mode: u64) {
    for _ in 0..200 {
        rig.wait(Duration::from_millis(100));
        if rig.metric("mode", &[]) == mode {
            return rig.wait(Duration::from_millis(300));
        }
    }
    panic!("the node does not follow");
}

/// The kill switch: the mode that an operator sets in the store holds while it stands, and then the configured
/// one; usage goes on where it was.
pub fn a_mode_in_the_store_holds_while_it_stands(rig: &mut dyn Rig, store: Command<'_>) {
    rig.update(&plugin(json!({"tenant": window(2, "1h")}))).unwrap();
    expect(rig, &by("acme"), 2, 1);
    set(store, "shadow by=alice at=2026-11-30T12:00:00Z");
    follows(rig, SHADOW);
    assert_eq!(statuses(rig, &by("acme"), 8), [200; 8]);
    assert!(rig.metric("requests", &[("outcome", "shadow_refused")]) >= 8);
    set(store, "off by=alice at=2026-11-30T12:05:00Z reason=incident 4711");
    follows(rig, OFF);
    let counted = rig.metric("requests", &[("limit", "dns")]);
    assert_eq!(statuses(rig, &by("acme"), 8), [200; 8]);
    assert_eq!(rig.metric("requests", &[("limit", "dns")]), counted);
    store(&["DEL", KEY]);
    follows(rig, ENFORCE);
    expect(rig, &by("acme"), 0, 8);
    // What is configured may be less than what the store says.
    let off = merged(plugin(json!({"tenant": window(1, "1h")})), json!({"mode": "off"}));
    rig.update(&off).unwrap();
    follows(rig, OFF);
    set(store, "enforce by=bob at=2026-11-30T13:00:00Z");
    follows(rig, ENFORCE);
    expect(rig, &by("acme"), 0, 8);
}

/// Text of any other form, or without an expiry, neither lets traffic through nor refuses it.
pub fn what_is_no_mode_is_ignored(rig: &mut dyn Rig, store: Command<'_>) {
    rig.update(&plugin(json!({"tenant": window(2, "1h")}))).unwrap();
    expect(rig, &by("acme"), 2, 1);
    let long = format!("off by=a at=b reason={}", "x".repeat(100_000));
    let odd: [&[&str]; 4] = [
        &["SET", KEY, "OFF", "EX", "60"],
        &["SET", KEY, "off by=alice at=2026-11-30T12:00:00Z"],
        &["SET", KEY, &long, "EX", "60"],
        &["LPUSH", KEY, "off by=a at=b"],
    ];
    for (command, fresh) in odd.into_iter().zip(["a", "b", "c", "d"]) {
        store(&["DEL", KEY]);
        store(command);
        let ignored = rig.metric("mode_reads", &[("result", "ignored")]);
        for _ in 0..80 {
            rig.wait(Duration::from_millis(100));
            if rig.metric("mode_reads", &[("result", "ignored")]) > ignored {
                break;
            }
        }
        assert!(rig.metric("mode_reads", &[("result", "ignored")]) > ignored, "{command:?}");
        rig.wait(Duration::from_millis(300));
        expect(rig, &by("acme"), 0, 8);
        expect(rig, &by(fresh), 2, 1);
    }
}

/// While the store is away its last word stands, though not for longer than it was given.
pub fn a_mode_ends_in_time_without_the_store(rig: &mut dyn Rig, store: Command<'_>) {
    rig.update(&plugin(json!({"tenant": window(2, "1h")}))).unwrap();
    expect(rig, &by("acme"), 2, 1);
    store(&["SET", KEY, "off by=alice at=2026-11-30T12:00:00Z", "EX", "7"]);
    follows(rig, OFF);
    rig.set_store(false);
    rig.wait(Duration::from_millis(1500));
    assert_eq!(statuses(rig, &by("acme"), 8), [200; 8]);
    follows(rig, ENFORCE);
    assert!(rig.metric("mode_reads", &[("result", "failed")]) >= 1);
    expect(rig, &by("acme"), 0, 8);
}

/// Slots in flight are given back under every mode, and taken again after it.
pub fn slots_come_back_while_it_is_off(rig: &mut dyn Rig, store: Command<'_>) {
    rig.update(&plugin(json!({"in_flight": {"tenant": 2}}))).unwrap();
    assert!(rig.hold(&by("acme")).is_none() && rig.hold(&by("acme")).is_none());
    assert_eq!(rig.send(&by("acme")).status, 429);
    set(store, "off by=alice at=2026-11-30T12:00:00Z");
    follows(rig, OFF);
    // One that came while it was off holds nothing, and gives nothing back.
    assert!(rig.hold(&by("acme")).is_none());
    rig.end_all();
    store(&["DEL", KEY]);
    follows(rig, ENFORCE);
    assert_eq!(rig.metric("in_flight", &[]), 0);
    assert!(rig.hold(&by("acme")).is_none() && rig.hold(&by("acme")).is_none());
    assert_eq!(rig.send(&by("acme")).status, 429);
}
