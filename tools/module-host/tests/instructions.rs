//! How many instructions of the module a request takes, from its headers to its end.
//!
//! Unlike time, they are the same on every machine; and other than those of the core alone, which the
//! project's own `tests/instructions.rs` counts, they are of what is shipped, as the compiler made it.

use std::ops::Range;

use module_host::{Fate, Machine, Program, Proxy, documents, header_map, store};

/// Instructions of one request, by what kind it is.
const COUNTS: [(&str, &str, Tenants, Fate, u64); 5] = [
    ("spends what was drawn", documents::FULL, Tenants::One, Fate::Passed, 14_339),
    ("charges the node", documents::SMALL, Tenants::One, Fate::Passed, 33_963),
    ("is its tenant's first", documents::FULL, Tenants::Fresh, Fate::Passed, 40_947),
    ("spends from leases", documents::FULL_LEASED, Tenants::One, Fate::Passed, 17_117),
    ("is refused", documents::TIGHT, Tenants::One, Fate::Answered, 9_224),
];

/// Whose the requests are.
#[derive(Clone, Copy)]
enum Tenants {
    One,
    /// Each of another tenant that was never there before.
    Fresh,
}

/// The part by which a count may be off, in percent: compilers differ.
const MARGIN: u64 = 10;

#[test]
fn a_request_takes_as_many_instructions_as_it_did() {
    let program = Program::load();
    let mut wrong = Vec::new();
    for (name, document, tenants, fate, expected) in COUNTS {
        let count = instructions(&program, document, tenants, fate);
        println!("{name}: {count}");
        if count.abs_diff(expected) * 100 > expected * MARGIN {
            wrong.push(format!("{name}: {count} instead of {expected}"));
        }
    }
    assert!(wrong.is_empty(), "where that is on purpose, correct COUNTS: {}", wrong.join("; "));
}

/// Of one request in the mean of many, all of which end as `fate`, after as many others.
fn instructions(program: &Program, document: &str, tenants: Tenants, fate: Fate) -> u64 {
    const REQUESTS: u64 = 500;
    let mut machine = Machine::new(document);
    machine.response_headers = header_map(&[(b":status", b"200")]);
    let (mut proxy, taken) = Proxy::start(program, machine).unwrap();
    assert!(taken, "{:?}", proxy.vm.machine().log);
    let mut run = |requests: Range<u64>, of_interest: bool| {
        for number in requests {
            let tenant = match tenants {
                Tenants::One => "acme".to_string(),
                Tenants::Fresh => format!("tenant-{number}"),
            };
            proxy.vm.machine_mut().request_headers = headers(&tenant);
            proxy.vm.machine_mut().now += 50_000;
            let (stream, ended) = proxy.request().unwrap();
            assert!(!of_interest || ended == fate, "{ended:?} instead of {fate:?}");
            proxy.response(stream).unwrap();
            proxy.end(stream).unwrap();
            // What goes to the store and comes from there is a part of what requests cost.
            proxy.wake().unwrap();
            proxy.answer_calls("200", store::granting).unwrap();
        }
        proxy.vm.take_instructions() / REQUESTS
    };
    run(0..REQUESTS, false);
    run(REQUESTS..2 * REQUESTS, true)
}

fn headers(tenant: &str) -> Vec<u8> {
    header_map(&[
        (b":authority", b"shop.example"),
        (b":path", b"/dns/lookup?name=example.org"),
        (b":method", b"GET"),
        (b":scheme", b"http"),
        (b"user-agent", b"some-client/1.2.3"),
        (b"x-tenant-id", tenant.as_bytes()),
        (b"x-api-key", b"a-key-of-some-length-0123456789"),
        (b"x-forwarded-for", b"192.0.2.7"),
        (b"x-request-id", b"5f0c3cbe-7d5e-4f6b-9c53-3c1b4f1d9a11"),
    ])
}
