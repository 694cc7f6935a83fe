//! Who is refused most, as the node's log tells it: workers on one process's shared data.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and they do have a clock"
)]

mod fake_host;

use std::cell::RefCell;
use std::rc::Rc;

use fairshare::policy::Digester;
use fairshare::units::Span;
use fake_host::{Machine, Outcome, Process};
use log::{LevelFilter, Log, Metadata, Record};

/// Every tenant is refused here.
const PLUGIN: &str = r#"{"limits": [
    {"name": "dns", "tenant": {"requests": 0, "window": "1m"}},
    {"name": "calm", "match": {"path": "/calm"}, "shared": {"requests": 0, "window": "1m"}}]}"#;

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Keeps the lines of each test's thread.
struct Lines;

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        LINES.with_borrow_mut(|lines| lines.push(record.args().to_string()));
    }

    fn flush(&self) {}
}

fn process() -> (Process, Rc<RefCell<Machine>>) {
    // A second test finds the logger in place.
    if log::set_logger(&Lines).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
    let process = Process::new(PLUGIN, 4).unwrap();
    let machine = process.machine();
    (process, machine)
}

fn refuse(process: &mut Process, tenant: &str, times: usize) {
    for _ in 0..times {
        let (stream, outcome) = process.start(&[(b"x-tenant-id", tenant.as_bytes())]);
        assert!(matches!(outcome, Outcome::Answered(_)), "{outcome:?}");
        process.end(stream);
    }
}

/// Lets time pass, and returns what was logged.
fn wait(process: &mut Process, seconds: u64) -> Vec<String> {
    for _ in 0..seconds * 2 {
        process.advance(Span::from_millis(500));
        process.tick();
    }
    LINES.take()
}

fn entry(tenant: &str, count: usize) -> String {
    let digest = Digester::new(None).digest(tenant.as_bytes()).0;
    let subject: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("limit=dns level=tenant subject={subject} refused={count}")
}

/// O6: the node tells whom it refuses most, all workers together, at most once a minute.
#[test]
fn the_most_refused_tenants_are_told_once_a_minute() {
    let (mut process, _) = process();
    for number in 1..=20 {
        refuse(&mut process, &format!("tenant-{number}"), number);
    }
    assert!(wait(&mut process, 9).is_empty());
    let top: Vec<String> = (11..=20).rev().map(|n| entry(&format!("tenant-{n}"), n)).collect();
    let line = format!("fairshare: top refused: {}", top.join(", "));
    assert_eq!(wait(&mut process, 2), [line]);
    refuse(&mut process, "acme", 3);
    assert!(wait(&mut process, 50).is_empty());
    refuse(&mut process, "acme", 4);
    let line = format!("fairshare: top refused: {}", entry("acme", 7));
    assert_eq!(wait(&mut process, 12), [line]);
    assert!(wait(&mut process, 200).is_empty());
}

/// Where nobody was refused, or everyone together, there is nothing to tell, and nothing is written.
#[test]
fn without_refused_subjects_nothing_is_written() {
    let (mut process, machine) = process();
    wait(&mut process, 1);
    let keys = process.shared_keys();
    let (stream, outcome) = process.start(&[(b":path", b"/calm")]);
    assert!(matches!(outcome, Outcome::Answered(_)), "{outcome:?}");
    process.end(stream);
    assert!(wait(&mut process, 120).is_empty());
    let told = |keys: &[String]| keys.iter().any(|key| key.contains("refused"));
    assert!(!told(&keys) && !told(&process.shared_keys()));
    let swaps = machine.borrow().swaps;
    refuse(&mut process, "acme", 1);
    wait(&mut process, 120);
    assert!(told(&process.shared_keys()));
    let then = machine.borrow().swaps;
    assert!(then > swaps);
    wait(&mut process, 120);
    assert!(machine.borrow().swaps - then <= then - swaps);
}

/// IDN-7: a flood of invented names hides nobody who is refused much, and takes no memory.
#[test]
fn a_flood_of_names_hides_nobody() {
    let (mut process, machine) = process();
    let before = machine.borrow().bytes();
    for number in 0..5000 {
        refuse(&mut process, &format!("invented-{number}"), 1);
        if number % 10 == 0 {
            refuse(&mut process, "noisy", 2);
        }
        if number % 1000 == 0 {
            process.tick();
        }
    }
    process.tick();
    assert!(machine.borrow().bytes() < before + 4096);
    let lines = wait(&mut process, 11);
    let first = lines[0].split(", ").next().unwrap();
    let subject = entry("noisy", 0).split(" refused").next().unwrap().to_owned();
    assert!(first.contains(&subject), "{first}");
    let count: usize = first.rsplit('=').next().unwrap().parse().unwrap();
    assert!((700..=1400).contains(&count), "{count}");
}
