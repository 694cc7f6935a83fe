//! Every host function answers with every status, once, and from then on; the module goes on.

use std::cell::Cell;

use std::rc::Rc;

use module_host::{
    Fate, Machine, Program, Proxy, Script, Status, Trap, documents, header_map, store,
};

/// More calls than there are.
const EVER: usize = usize::MAX / 2;

const PATHS: [&[u8]; 3] = [b"/", b"/leased/a", b"/strict/a"];

/// An hour in the life of a worker: requests that pass, wait, are refused, leave while they wait; a
/// store that grants, refuses, forgets the script, breaks off and says nothing.
fn live(program: &Program, document: &str, script: Option<Script>) -> Result<Proxy, Trap> {
    let mut machine = Machine::new(document);
    machine.response_headers = header_map(&[(b":status", b"401")]);
    machine.properties.insert(b"source\0address".to_vec(), b"192.0.2.7:5000".to_vec());
    machine.script = script;
    let (mut proxy, _) = Proxy::start(program, machine)?;
    for round in 0..5 {
        let mut open = Vec::new();
        for path in PATHS {
            let headers = header_map(&[
                (b":method", b"GET"),
                (b":path", path),
                (b"x-tenant-id", b"acme"),
                (b"x-api-key", b"key"),
                (b"content-type", b"application/grpc"),
            ]);
            proxy.vm.machine_mut().request_headers = headers;
            for _ in 0..3 {
                open.push(proxy.request()?);
            }
        }
        // One leaves while it waits.
        if let Some(place) = open.iter().position(|(_, fate)| *fate == Fate::Paused) {
            let (stream, _) = open.remove(place);
            proxy.end(stream)?;
        }
        proxy.wake()?;
        match round {
            0 => proxy.answer_calls("200", store::granting)?,
            1 => proxy.answer_calls("200", store::without_script)?,
            2 => proxy.answer_calls("200", store::refusing)?,
            3 => proxy.answer_calls("", |_| Vec::new())?,
            _ => {}
        }
        proxy.wake()?;
        proxy.answer_calls("200", store::granting)?;
        proxy.pass_millis(300)?;
        for (stream, _) in open {
            proxy.response(stream)?;
            proxy.end(stream)?;
        }
    }
    // What was asked for last has time to end.
    proxy.pass_millis(2000)?;
    Ok(proxy)
}

/// How often each function is called where nothing fails.
fn functions(program: &Program, document: &str) -> Vec<(&'static str, usize)> {
    let proxy = live(program, document, None).unwrap();
    let called = proxy.vm.machine().called.clone();
    called.into_iter().collect()
}

/// The script that answers `function` with `status` from its `from`-th call on, `times` times.
fn failing(function: &'static str, status: Status, from: usize, times: usize) -> Script {
    let calls = Rc::new(Cell::new(0));
    Box::new(move |name| {
        if name != function {
            return Status::Ok;
        }
        calls.set(calls.get() + 1);
        let fails = (from..from + times).contains(&calls.get());
        if fails { status } else { Status::Ok }
    })
}

/// Runs `document` with every failure there is, and returns what came of it.
fn fail_everything(document: &str) {
    let program = Program::load();
    let (mut runs, mut found) = (0, Vec::new());
    for (function, calls) in functions(&program, document) {
        // Once in the middle, and from the first call on.
        let places = [(calls.div_ceil(2), 1), (1, EVER)];
        for (status, (from, times)) in
            Status::ALL.into_iter().flat_map(|status| places.map(|place| (status, place)))
        {
            runs += 1;
            let what =
                format!("{function} says {status:?}, from its call {from} on, {times} times");
            match live(&program, document, Some(failing(function, status, from, times))) {
                Ok(proxy) if proxy.vm.machine().streams.paused.is_empty() => {}
                Ok(_) => found.push(format!("{what}: a request waits for ever")),
                Err(trap) => found.push(format!("{what}: {trap:?}")),
            }
        }
    }
    assert!(found.is_empty(), "{} of {runs} runs:\n{}", found.len(), found.join("\n"));
}

#[test]
fn the_node_takes_every_status() {
    fail_everything(documents::NODE);
}

#[test]
fn leases_take_every_status() {
    fail_everything(documents::LEASED);
}

#[test]
fn everything_takes_every_status() {
    fail_everything(documents::EVERYTHING);
}

/// The two clocks have nothing in common: what is dated by the wall's would last for decades.
#[test]
fn a_clock_that_fails_once_is_not_the_other_clock() {
    let mut machine = Machine::new(documents::NODE);
    machine.request_headers =
        header_map(&[(b":method", b"GET"), (b":path", b"/"), (b"x-api-key", b"key")]);
    machine.script = Some(failing("clock_time_get", Status::NotFound, 2, 1));
    let (mut proxy, _) = Proxy::start(&Program::load(), machine).unwrap();
    for _ in 0..4 {
        proxy.request().unwrap();
    }
    assert_eq!(proxy.request().unwrap().1, Fate::Answered, "three an hour");
    proxy.vm.machine_mut().advance_millis(7_200_000);
    assert_eq!(proxy.request().unwrap().1, Fate::Passed);
}
