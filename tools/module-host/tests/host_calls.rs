//! How many host functions a request costs. Each is a switch out of the module, and those are most
//! of what the filter costs a proxy; so a change of these numbers is a change to be meant.

use std::collections::BTreeMap;

use module_host::{Fate, Machine, Program, Proxy, documents, header_map, store};

type Calls = BTreeMap<&'static str, usize>;

fn proxy(document: &str) -> Proxy {
    let mut machine = Machine::new(document);
    machine.request_headers = header_map(&[
        (b":method", b"GET"),
        (b":path", b"/dns/lookup"),
        (b"x-tenant-id", b"acme"),
        (b"x-api-key", b"key"),
    ]);
    machine.response_headers = header_map(&[(b":status", b"200")]);
    let (proxy, taken) = Proxy::start(&Program::load(), machine).unwrap();
    assert!(taken, "{:?}", proxy.vm.machine().log);
    proxy
}

/// One request from its headers to its end, and all that it calls. Nothing of it waits.
fn one(proxy: &mut Proxy) -> (Fate, Calls) {
    proxy.vm.machine_mut().take_called();
    let (stream, fate) = proxy.request().unwrap();
    proxy.response(stream).unwrap();
    proxy.end(stream).unwrap();
    (fate, proxy.vm.machine_mut().take_called())
}

/// What each of a number of requests calls, as lines.
fn lines(calls: &Calls) -> Vec<String> {
    calls.iter().map(|(name, count)| format!("{count} {name}")).collect()
}

#[test]
fn a_request_that_the_node_admits() {
    let mut proxy = proxy(documents::NODE);
    one(&mut proxy);
    let (fate, calls) = one(&mut proxy);
    assert_eq!(fate, Fate::Passed);
    let expected = [
        "1 clock_time_get",
        "2 proxy_add_header_map_value",
        "1 proxy_get_header_map_pairs",
        "2 proxy_get_shared_data",
        "2 proxy_set_shared_data",
    ];
    assert_eq!(lines(&calls), expected);
}

/// At a busy level, most requests spend what the worker has drawn, and the store of the node is not
/// asked. A request every 50 microseconds is half of what the level admits.
#[test]
fn requests_that_spend_what_was_drawn() {
    const REQUESTS: usize = 100;
    let mut proxy = proxy(documents::LARGE);
    let mut requests = |count| {
        proxy.vm.machine_mut().take_called();
        for _ in 0..count {
            proxy.vm.machine_mut().now += 50_000;
            let (stream, _) = proxy.request().unwrap();
            proxy.response(stream).unwrap();
            proxy.end(stream).unwrap();
        }
        proxy.vm.machine_mut().take_called()
    };
    requests(REQUESTS);
    let calls = requests(REQUESTS);
    let count = |name| calls.get(name).copied().unwrap_or(0);
    let (reads, writes) = (count("proxy_get_shared_data"), count("proxy_set_shared_data"));
    assert!(reads <= REQUESTS / 10 && writes <= REQUESTS / 10, "{reads} reads, {writes} writes");
    // Nobody spends what was never drawn: in 5 ms a hundred requests use up what one draw may take.
    assert!(reads >= 1 && writes >= 1, "{reads} reads, {writes} writes");
    assert!(count("proxy_increment_metric") <= 1, "5 ms are counted together");
}

/// Whoever comes for the first time is read and written once, and beside it only what all share, now and
/// then. Its slot of the cap is not given back by a write of its own.
#[test]
fn tenants_that_come_for_the_first_time() {
    const REQUESTS: usize = 1000;
    let mut proxy = proxy(documents::FULL);
    let mut requests = |from: usize| {
        proxy.vm.machine_mut().take_called();
        for number in from..from + REQUESTS {
            let tenant = format!("tenant-{number}");
            proxy.vm.machine_mut().request_headers = header_map(&[
                (b":method", b"GET"),
                (b":path", b"/dns/lookup"),
                (b"x-tenant-id", tenant.as_bytes()),
                (b"x-api-key", b"key"),
            ]);
            proxy.vm.machine_mut().now += 50_000;
            let (stream, fate) = proxy.request().unwrap();
            assert_eq!(fate, Fate::Passed);
            proxy.response(stream).unwrap();
            proxy.end(stream).unwrap();
        }
        proxy.vm.machine_mut().take_called()
    };
    requests(0);
    let calls = requests(REQUESTS);
    for name in ["proxy_get_shared_data", "proxy_set_shared_data"] {
        let count = calls.get(name).copied().unwrap_or(0);
        assert!((REQUESTS..REQUESTS * 21 / 20).contains(&count), "{count} of {name}");
    }
    assert_eq!(calls.get("clock_time_get"), Some(&REQUESTS));
}

/// Slots that are taken and given back in the worker's memory need neither the node's store nor a second
/// look at the clock.
#[test]
fn a_request_that_takes_slots_and_what_was_drawn() {
    let mut proxy = proxy(documents::FULL);
    for _ in 0..300 {
        proxy.vm.machine_mut().now += 20_000;
        one(&mut proxy);
    }
    let (fate, calls) = one(&mut proxy);
    assert_eq!(fate, Fate::Passed);
    let expected =
        ["1 clock_time_get", "2 proxy_add_header_map_value", "1 proxy_get_header_map_pairs"];
    assert_eq!(lines(&calls), expected);
}

#[test]
fn a_request_that_the_node_refuses() {
    let mut proxy = proxy(documents::NODE);
    for _ in 0..3 {
        one(&mut proxy);
    }
    let (fate, calls) = one(&mut proxy);
    assert_eq!(fate, Fate::Answered);
    let expected = [
        "1 clock_time_get",
        "1 proxy_get_header_map_pairs",
        "1 proxy_get_shared_data",
        "1 proxy_send_local_response",
    ];
    assert_eq!(lines(&calls), expected);
    // It will say so again, so it is not asked again.
    let (fate, calls) = one(&mut proxy);
    assert_eq!(fate, Fate::Answered);
    let expected =
        ["1 clock_time_get", "1 proxy_get_header_map_pairs", "1 proxy_send_local_response"];
    assert_eq!(lines(&calls), expected);
}

/// Most requests of a global limit spend what the worker holds already.
#[test]
fn a_request_that_spends_from_a_lease() {
    let mut proxy = proxy(documents::LEASED);
    // The first requests make the worker ask, each time for more.
    for _ in 0..3 {
        proxy.request().unwrap();
        proxy.wake().unwrap();
        proxy.answer_calls("200", store::granting).unwrap();
    }
    let (fate, calls) = one(&mut proxy);
    assert_eq!(fate, Fate::Passed);
    let expected =
        ["1 clock_time_get", "2 proxy_add_header_map_value", "1 proxy_get_header_map_pairs"];
    assert_eq!(lines(&calls), expected);
}

/// A strict request that comes alone: its headers, the wake-up from which the store is called, the reply,
/// and the fields of its answer.
#[test]
fn a_request_that_the_store_decides() {
    let mut proxy = proxy(documents::STRICT);
    let mut request = || {
        proxy.vm.machine_mut().now += 5_000_000;
        proxy.vm.machine_mut().take_called();
        let (stream, fate) = proxy.request().unwrap();
        assert_eq!(fate, Fate::Paused);
        proxy.wake().unwrap();
        assert_eq!(proxy.vm.machine().events.calls.len(), 1);
        proxy.answer_calls("200", store::granting).unwrap();
        assert!(proxy.vm.machine().streams.paused.is_empty(), "it goes on");
        proxy.response(stream).unwrap();
        proxy.end(stream).unwrap();
        proxy.vm.machine_mut().take_called()
    };
    request();
    let expected = [
        "3 clock_time_get",
        "2 proxy_add_header_map_value",
        "1 proxy_continue_stream",
        "1 proxy_dequeue_shared_queue",
        "1 proxy_enqueue_shared_queue",
        "1 proxy_get_buffer_bytes",
        "2 proxy_get_header_map_pairs",
        "1 proxy_http_call",
        "1 proxy_record_metric",
        "1 proxy_set_effective_context",
    ];
    assert_eq!(lines(&request()), expected);
}

/// What the metrics say of requests that were let through, all series together.
fn admitted(proxy: &Proxy) -> u64 {
    let metrics = proxy.vm.machine().metrics.iter();
    metrics.filter(|(name, _)| name.ends_with("outcome=admitted")).map(|(_, count)| count).sum()
}

/// Counts wait, but not for long, and none is lost while the module lives.
#[test]
fn every_request_is_counted_by_the_next_tick() {
    let mut proxy = proxy(documents::LARGE);
    one(&mut proxy);
    assert_eq!(admitted(&proxy), 1, "after a pause at once");
    for _ in 0..20 {
        one(&mut proxy);
    }
    proxy.vm.call("proxy_on_tick", &[module_host::ROOT]).unwrap();
    assert_eq!(admitted(&proxy), 21);
    one(&mut proxy);
    assert_eq!(admitted(&proxy), 21);
    proxy.vm.call("proxy_on_delete", &[module_host::ROOT]).unwrap();
    assert_eq!(admitted(&proxy), 22, "a configuration that ends");
}
