//! How many instructions a request takes in the core, counted by Valgrind: unlike time, the same on
//! every machine. The counts are those of the test profile; what matters is that they do not grow.
//!
//! A count that has changed on purpose is written down anew: `cargo test --test instructions` tells it.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and this one runs a program"
)]

#[path = "../benches/host/mod.rs"]
mod host;

use std::env;
use std::process::Command;

use host::{Bench, FULL, headers, many_limits};

/// The variable that tells the process under Valgrind what to do: the name of the work, and how often.
const WORK: &str = "FAIRSHARE_INSTRUCTIONS";

/// Instructions of one request, by what kind it is.
const COUNTS: [(&str, u64); 4] =
    [("hot", 13_377), ("cold", 33_072), ("refused", 8_691), ("hot at 32 limits", 64_560)];

/// The part by which a count may be off, in percent: compilers differ.
const MARGIN: u64 = 10;

/// Times that the work is done before and after what is counted.
const FEW: u64 = 300;
const MANY: u64 = 1300;

const TIGHT: &str = r#"{"limits": [{"name": "dns", "tenant": {"requests": 5, "window": "1h"}}]}"#;

#[test]
fn a_request_takes_as_many_instructions_as_it_did() {
    let mut wrong = Vec::new();
    for (name, expected) in COUNTS {
        let count = (instructions(name, MANY) - instructions(name, FEW)) / (MANY - FEW);
        println!("{name}: {count}");
        if count.abs_diff(expected) * 100 > expected * MARGIN {
            wrong.push(format!("{name}: {count} instead of {expected}"));
        }
    }
    assert!(wrong.is_empty(), "where that is on purpose, correct COUNTS: {}", wrong.join("; "));
}

/// Beside its headers, the clock and the fields of its answer, a request at a busy limit asks the host
/// for nothing but to be counted; only now and then are units drawn.
#[test]
fn a_busy_request_calls_the_host_once() {
    let (mut bench, acme) = (Bench::new(FULL), headers("acme"));
    assert!((0..1000).all(|_| bench.request(&acme)));
    let before = bench.host.calls;
    assert!((0..1000).all(|_| bench.request(&acme)));
    let calls = bench.host.calls - before;
    assert!((1000..1100).contains(&calls), "{calls} calls for 1000 requests");
}

/// Instructions of a whole process that does the work so often.
fn instructions(name: &str, times: u64) -> u64 {
    let valgrind = env::var("VALGRIND_BIN").unwrap_or_else(|_| "valgrind".into());
    let mut command = Command::new(&valgrind);
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(env::current_exe().expect("this program"));
    command.args(["--exact", "the_work_that_is_counted", "--ignored", "--test-threads=1"]);
    let output = command.env(WORK, format!("{name}:{times}")).output().unwrap_or_else(|error| {
        panic!(
            "{valgrind} cannot be run ({error}): install the package valgrind, or set VALGRIND_BIN"
        )
    });
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {text}");
    let collected = text.lines().find_map(|line| line.split_once("Collected :"));
    let (_, count) = collected.unwrap_or_else(|| panic!("Valgrind tells no count: {text}"));
    count.trim().parse().expect("a count")
}

#[test]
#[ignore = "the other test runs it, under Valgrind"]
fn the_work_that_is_counted() {
    let Ok(work) = env::var(WORK) else { return };
    let (name, times) = work.split_once(':').expect("NAME:TIMES");
    let times: u64 = times.parse().expect("a number");
    let acme = headers("acme");
    let repeat = |plugin: &str, admitted: u64| {
        let mut bench = Bench::new(plugin);
        let passed = (0..times).filter(|_| bench.request(&acme)).count();
        assert_eq!(u64::try_from(passed).unwrap(), admitted.min(times));
    };
    match name {
        "hot" => repeat(FULL, u64::MAX),
        "refused" => repeat(TIGHT, 5),
        "hot at 32 limits" => repeat(&many_limits(32), u64::MAX),
        "cold" => {
            let mut bench = Bench::new(FULL);
            // Ever other tenants: the headers are made before, as those of the others are.
            let all: Vec<_> = (0..MANY).map(|number| headers(&format!("t{number:04}"))).collect();
            let limit = usize::try_from(times).unwrap();
            assert!(all.iter().take(limit).all(|headers| bench.request(headers)));
        }
        other => panic!("no work is called {other:?}"),
    }
}
