//! How large a worker's VM gets: fresh, with every table full, and with as many requests waiting as may.
//!
//! A VM's memory grows and never shrinks, so what counts is the most that anybody outside can make of it by
//! inventing tenants. `docs/operations.md` states the figures.

use module_host::{Fate, Machine, Program, Proxy, header_map, store};

/// A limit for each table, told apart by path.
const DOCUMENT: &str = r#"{
  "identity": {"credential": {"from": [{"header": "x-api-key"}]}},
  "limits": [
    {"name": "drawn", "match": {"path_prefix": "/drawn"},
     "tenant": {"requests": 100000, "window": "10s"}},
    {"name": "tight", "match": {"path_prefix": "/tight"},
     "tenant": {"requests": 1, "window": "1h"}},
    {"name": "leased", "match": {"path_prefix": "/leased"}, "scope": "global",
     "tenant": {"requests": 100000, "window": "1h"}},
    {"name": "strict", "match": {"path_prefix": "/strict"}, "scope": "global", "consistency": "strict",
     "tenant": {"requests": 100000, "window": "1h"}, "credential": {"requests": 100000, "window": "1h"}}
  ],
  "store": {"cluster": "redis", "timeout": "1s"}
}"#;

/// What the module bounds: leases and requests that wait, refusals of the node, levels that are drawn.
const LEASES: u32 = 16_384;
const WAITING: u32 = 16_384;
const REFUSALS: u32 = 512;
const DRAWN: u32 = 1024;

/// How many more tenants come than a table has room for.
const BEYOND: u32 = 100;

fn start() -> Proxy {
    let mut machine = Machine::new(DOCUMENT);
    machine.response_headers = header_map(&[(b":status", b"200")]);
    let (proxy, taken) = Proxy::start(&Program::load(), machine).unwrap();
    assert!(taken, "{:?}", proxy.vm.machine().log);
    proxy
}

/// A request of a tenant, a microsecond after the one before.
fn request(proxy: &mut Proxy, path: &str, tenant: u32) -> (u32, Fate) {
    let (tenant, key) = (format!("invented-{path}-{tenant}"), format!("key-{path}-{tenant}"));
    let machine = proxy.vm.machine_mut();
    machine.now += 1000;
    machine.request_headers = header_map(&[
        (b":method", b"GET"),
        (b":path", path.as_bytes()),
        (b"x-tenant-id", tenant.as_bytes()),
        (b"x-api-key", key.as_bytes()),
    ]);
    proxy.request().unwrap()
}

fn end(proxy: &mut Proxy, stream: u32) {
    proxy.response(stream).unwrap();
    proxy.end(stream).unwrap();
}

/// Takes a request of each tenant to its end. Returns how many did not wait for the store.
fn all(proxy: &mut Proxy, path: &str, tenants: u32) -> usize {
    let mut passed = 0;
    for first in (0..tenants).step_by(256) {
        let last = tenants.min(first + 256);
        let requests: Vec<_> = (first..last).map(|tenant| request(proxy, path, tenant)).collect();
        passed += requests.iter().filter(|(_, fate)| *fate == Fate::Passed).count();
        for _ in 0..100 {
            if proxy.vm.machine().streams.paused.is_empty() {
                break;
            }
            // The pace of questions, and no more: leases that rest for a second go back.
            proxy.vm.machine_mut().advance_millis(1);
            proxy.vm.call("proxy_on_tick", &[module_host::ROOT]).unwrap();
            proxy.wake().unwrap();
            proxy.answer_calls("200", store::granting).unwrap();
        }
        assert!(proxy.vm.machine().streams.paused.is_empty(), "{path}: some wait for ever");
        requests.into_iter().for_each(|(stream, _)| end(proxy, stream));
    }
    passed
}

fn kib(proxy: &Proxy) -> usize {
    proxy.vm.memory_bytes() / 1024
}

/// Compares with a bound that is a tenth above what was measured.
fn check(proxy: &Proxy, when: &str, measured_kib: usize) {
    println!("{when}: {} KiB", kib(proxy));
    let bound = measured_kib + measured_kib / 10;
    assert!(kib(proxy) <= bound, "{when}: {} KiB instead of {measured_kib}", kib(proxy));
}

/// Fills the table of leases, the record of what was granted and the known digests.
fn fill_leases(proxy: &mut Proxy) {
    all(proxy, "/leased", LEASES);
    let held = all(proxy, "/leased", LEASES);
    assert_eq!(held, LEASES as usize, "each has a lease with units");
    // As many others take the places of the first.
    all(proxy, "/leased/newcomers", LEASES);
}

/// Fills the table of what was drawn ahead. Those beyond it ask the node each time.
fn fill_drawn(proxy: &mut Proxy) {
    all(proxy, "/drawn", DRAWN + BEYOND);
    all(proxy, "/drawn", DRAWN + BEYOND);
    proxy.vm.machine_mut().take_called();
    all(proxy, "/drawn", DRAWN + BEYOND);
    let reads = proxy.vm.machine().called.get("proxy_get_shared_data").copied();
    assert_eq!(reads, Some(BEYOND as usize), "the others spend what was drawn");
}

/// Fills the table of refusals. Those beyond it ask the node each time.
fn fill_refusals(proxy: &mut Proxy) {
    let mut reads = 0;
    for tenant in 0..REFUSALS + BEYOND {
        for expected in [Fate::Passed, Fate::Answered, Fate::Answered] {
            proxy.vm.machine_mut().take_called();
            let (stream, fate) = request(proxy, "/tight", tenant);
            assert_eq!(fate, expected, "{tenant}");
            end(proxy, stream);
        }
        reads += usize::from(proxy.vm.machine().called.contains_key("proxy_get_shared_data"));
    }
    assert_eq!(reads, BEYOND as usize, "the others are remembered");
}

/// Lets as many requests wait as may, with all calls to the store under way.
fn fill_waiting(proxy: &mut Proxy, path: &str) {
    let fates = (0..WAITING + BEYOND).map(|tenant| request(proxy, path, tenant).1);
    let paused = fates.filter(|fate| *fate == Fate::Paused).count();
    assert_eq!(paused, WAITING as usize, "{path}");
    proxy.wake().unwrap();
}

/// Lets the store answer until nobody waits.
fn deliver(proxy: &mut Proxy) {
    for _ in 0..300 {
        proxy.vm.machine_mut().advance_millis(1);
        proxy.vm.call("proxy_on_tick", &[module_host::ROOT]).unwrap();
        proxy.wake().unwrap();
        proxy.answer_calls("200", store::granting).unwrap();
    }
    assert!(proxy.vm.machine().streams.paused.is_empty(), "some wait for ever");
    for stream in proxy.vm.machine().streams.alive.clone() {
        if stream != module_host::ROOT {
            end(proxy, stream);
        }
    }
}

#[test]
fn a_vm_is_as_large_as_documented() {
    let mut proxy = start();
    check(&proxy, "configured", 1_152);
    fill_leases(&mut proxy);
    fill_drawn(&mut proxy);
    fill_refusals(&mut proxy);
    check(&proxy, "all tables are full", 24_832);
    fill_waiting(&mut proxy, "/strict");
    check(&proxy, "requests wait for the store", 52_288);
    fill_waiting(&mut proxy, "/leased/others");
    check(&proxy, "and as many for leases", 79_744);
    deliver(&mut proxy);
    check(&proxy, "all have been delivered", 83_008);
    // Whoever comes next finds room in what is there.
    let before = kib(&proxy);
    fill_waiting(&mut proxy, "/strict/again");
    deliver(&mut proxy);
    assert!(kib(&proxy) <= before + before / 50, "{} KiB after {before}", kib(&proxy));
}
