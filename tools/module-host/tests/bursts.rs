//! How long a worker's longest callback is when as many tenants wait for the store as may.
//!
//! A callback holds up all other requests of its worker. What is done in one is bounded by the calls that
//! may be made, however many wait.

use module_host::{Fate, Machine, Program, Proxy, ROOT, header_map, store};

/// A strict and a leased limit, told apart by path.
const DOCUMENT: &str = r#"{
  "limits": [
    {"name": "strict", "match": {"path_prefix": "/strict"}, "scope": "global", "consistency": "strict",
     "shared": {"requests": 100000, "window": "1h"}, "tenant": {"requests": 1000, "window": "1h"}},
    {"name": "leased", "match": {"path_prefix": "/leased"}, "scope": "global",
     "shared": {"requests": 100000, "window": "1h"}, "tenant": {"requests": 1000, "window": "1h"}}
  ],
  "store": {"cluster": "redis", "timeout": "1s"}
}"#;

/// Requests that the module takes on at most, each of another tenant.
const WAITING: u32 = 16_384;

/// Instructions of the longest callback, by what waits. The store is asked for 2048 tenants in it.
const MOST: [(&str, u64); 2] = [("/strict", 106_692_710), ("/leased", 95_873_617)];

/// The part by which a count may be off, in percent: compilers differ.
const MARGIN: u64 = 10;

#[test]
fn no_callback_of_a_burst_is_long() {
    let program = Program::load();
    let mut wrong = Vec::new();
    for (path, expected) in MOST {
        let count = longest(&program, path);
        println!("{path}: {count}");
        if count.abs_diff(expected) * 100 > expected * MARGIN {
            wrong.push(format!("{path}: {count} instead of {expected}"));
        }
    }
    assert!(wrong.is_empty(), "where that is on purpose, correct MOST: {}", wrong.join("; "));
}

/// Of a burst that comes at once, until everybody is told something.
fn longest(program: &Program, path: &str) -> u64 {
    let (mut proxy, taken) = Proxy::start(program, Machine::new(DOCUMENT)).unwrap();
    assert!(taken, "{:?}", proxy.vm.machine().log);
    for tenant in 0..WAITING {
        let tenant = format!("tenant-{tenant}");
        proxy.vm.machine_mut().request_headers = header_map(&[
            (b":method", b"GET"),
            (b":path", path.as_bytes()),
            (b"x-tenant-id", tenant.as_bytes()),
        ]);
        assert_eq!(proxy.request().unwrap().1, Fate::Paused);
    }
    proxy.wake().unwrap();
    for _ in 0..100 {
        proxy.answer_calls("200", store::granting).unwrap();
        proxy.wake().unwrap();
        proxy.vm.machine_mut().advance_millis(2);
        proxy.vm.call("proxy_on_tick", &[ROOT]).unwrap();
        if proxy.vm.machine().streams.paused.is_empty() {
            return proxy.vm.take_most_instructions();
        }
    }
    panic!("{path}: some wait for ever");
}
