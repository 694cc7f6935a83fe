//! Callbacks in every order, with hostile data and host functions that fail, from seeds.
//!
//! `FAIRSHARE_SEED=N` runs one seed again.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use module_host::random::Random;
use module_host::{Machine, Program, Script, Status, Trap, Vm, documents, header_map, store};

/// Callbacks in one run.
const STEPS: usize = 80;

/// Seeds of each kind.
const SEEDS: u64 = 250;

/// A host that calls the module as it likes.
struct Chaos {
    vm: Vm,
    random: Random,
    /// Whether the host keeps to the order in which callbacks come, which Envoy does.
    lawful: bool,
    /// Roots that were created, and those that were configured.
    roots: BTreeSet<u32>,
    configured: BTreeSet<u32>,
    /// Streams that were created, and those of them that have had headers.
    streams: BTreeSet<u32>,
    begun: BTreeSet<u32>,
    next_stream: u32,
    /// Streams that have ever been paused.
    paused: BTreeSet<u32>,
}

impl Chaos {
    fn new(program: &Program, seed: u64, lawful: bool) -> Self {
        let mut random = Random::new(seed);
        let mut machine = Machine::new("");
        machine.script = faults(&mut random);
        Self {
            vm: program.start(machine),
            random,
            lawful,
            roots: BTreeSet::new(),
            configured: BTreeSet::new(),
            streams: BTreeSet::new(),
            begun: BTreeSet::new(),
            next_stream: 100,
            paused: BTreeSet::new(),
        }
    }

    /// A host that keeps to the order has a configuration before it has requests.
    fn begin(&mut self) -> Result<(), Trap> {
        for _ in 0..if self.lawful { 20 } else { 0 } {
            self.create_root()?;
            self.configure()?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), Trap> {
        self.vary();
        match self.random.below(14) {
            0 => self.create_root()?,
            1 => self.configure()?,
            2..=5 => self.request()?,
            6 => self.response()?,
            7 => self.end()?,
            8 | 9 => self.tick()?,
            10 | 11 => self.message()?,
            12 => self.answer()?,
            _ if self.lawful => {}
            _ => self.anything()?,
        }
        self.paused.extend(self.vm.machine().streams.paused.keys());
        Ok(())
    }

    /// Time passes, and what requests and answers carry changes.
    fn vary(&mut self) {
        let millis = self.random.pick(&[0, 0, 1, 10, 60, 1000]);
        let headers = headers(&mut self.random);
        let answer = header_map(&[(b":status", self.random.pick(&[b"200", b"401", b"xyz"]))]);
        let peer = match self.random.below(4) {
            0 => self.random.bytes(30),
            1 => b"[2001:db8::1]:80".to_vec(),
            _ => b"192.0.2.7:5000".to_vec(),
        };
        let response = if self.random.chance(20) { self.random.bytes(40) } else { answer };
        let machine = self.vm.machine_mut();
        machine.advance_millis(millis);
        machine.request_headers = headers;
        machine.response_headers = response;
        machine.properties.insert(b"source\0address".to_vec(), peer);
    }

    fn create_root(&mut self) -> Result<(), Trap> {
        let root = 1 + self.random.below(3) as u32;
        if self.lawful && !self.roots.insert(root) {
            return Ok(());
        }
        self.roots.insert(root);
        self.vm.call("proxy_on_context_create", &[root, 0])?;
        self.vm.call("proxy_on_vm_start", &[root, 0]).map(drop)
    }

    fn configure(&mut self) -> Result<(), Trap> {
        let root = self.any_root();
        if self.lawful && (!self.roots.contains(&root) || !self.configured.insert(root)) {
            return Ok(());
        }
        let mut document = self.random.pick(&documents::ALL).as_bytes().to_vec();
        if self.random.chance(20) {
            let place = self.random.below(document.len());
            document[place] = self.random.bytes(1).first().copied().unwrap_or(b'{');
        }
        self.vm.machine_mut().document = document;
        self.vm.call("proxy_on_configure", &[root, 1]).map(drop)
    }

    fn request(&mut self) -> Result<(), Trap> {
        let root = self.any_root();
        if self.lawful && !self.configured.contains(&root) {
            return Ok(());
        }
        let stream = if self.lawful || self.random.chance(50) {
            self.next_stream += 1;
            self.next_stream
        } else {
            self.any_stream()
        };
        self.streams.insert(stream);
        self.vm.call("proxy_on_context_create", &[stream, root])?;
        if self.random.chance(90) {
            self.begun.insert(stream);
            self.vm.call("proxy_on_request_headers", &[stream, 5, 1])?;
        }
        Ok(())
    }

    fn response(&mut self) -> Result<(), Trap> {
        let stream = self.any_stream();
        if self.lawful && !self.streams.contains(&stream) {
            return Ok(());
        }
        self.vm.call("proxy_on_response_headers", &[stream, 1, 1]).map(drop)
    }

    fn end(&mut self) -> Result<(), Trap> {
        let stream = self.any_stream();
        if self.lawful && !self.streams.remove(&stream) {
            return Ok(());
        }
        for callback in ["proxy_on_log", "proxy_on_done", "proxy_on_delete"] {
            if self.lawful || self.random.chance(70) {
                self.vm.call(callback, &[stream])?;
            }
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<(), Trap> {
        let root = self.any_root();
        if self.lawful && !self.roots.contains(&root) {
            return Ok(());
        }
        self.vm.call("proxy_on_tick", &[root]).map(drop)
    }

    /// A message of the module to itself arrives: at each root, since any may be the one.
    fn message(&mut self) -> Result<(), Trap> {
        let messages = &mut self.vm.machine_mut().events.messages;
        let queue = match messages.is_empty() {
            false => messages.remove(0),
            true if self.lawful => return Ok(()),
            true => self.random.below(5) as u32,
        };
        for root in self.roots.clone() {
            self.vm.call("proxy_on_queue_ready", &[root, queue])?;
        }
        Ok(())
    }

    /// A store call ends, in one of many ways.
    fn answer(&mut self) -> Result<(), Trap> {
        let calls = &mut self.vm.machine_mut().events.calls;
        if calls.is_empty() {
            return Ok(());
        }
        let call = calls.remove(self.random.below(calls.len()));
        let body = match self.random.below(6) {
            0 => store::granting(&call.body),
            1 => store::refusing(&call.body),
            2 => store::without_script(&call.body),
            3 => {
                let mut body = store::granting(&call.body);
                body.truncate(self.random.below(body.len().max(1)));
                body
            }
            4 => b"*3\r\n:1\r\n:99999999999999999\r\n:-1\r\n".repeat(self.random.below(5)),
            _ => self.random.bytes(60),
        };
        let status: &[u8] = self.random.pick(&[b"200", b"200", b"503"]);
        let headers = match self.random.below(10) {
            0 => self.random.bytes(30),
            _ => header_map(&[(b":status", status)]),
        };
        let machine = self.vm.machine_mut();
        machine.call_headers = headers;
        machine.call_body = body;
        let count = u32::from(self.random.chance(90));
        // Tokens are the host's; here one of another root is only a token that is not known.
        for root in self.roots.clone() {
            self.vm.call("proxy_on_http_call_response", &[root, call.token, count, 9, 0])?;
        }
        Ok(())
    }

    /// A callback that no order allows.
    fn anything(&mut self) -> Result<(), Trap> {
        let numbers: Vec<u32> = (0..5)
            .map(|_| self.random.pick(&[0, 1, 2, 3, 100, 101, 102, u32::MAX - 1, u32::MAX]))
            .collect();
        let (callback, count) = self.random.pick(&[
            ("proxy_on_context_create", 2),
            ("proxy_on_vm_start", 2),
            ("proxy_on_configure", 2),
            ("proxy_on_tick", 1),
            ("proxy_on_queue_ready", 2),
            ("proxy_on_http_call_response", 5),
            ("proxy_on_request_headers", 3),
            ("proxy_on_response_headers", 3),
            ("proxy_on_log", 1),
            ("proxy_on_done", 1),
            ("proxy_on_delete", 1),
        ]);
        self.vm.call(callback, &numbers[..count]).map(drop)
    }

    fn any_root(&mut self) -> u32 {
        match self.lawful || self.random.chance(95) {
            true => 1 + self.random.below(3) as u32,
            false => self.random.pick(&[0, 100, 101, u32::MAX]),
        }
    }

    fn any_stream(&mut self) -> u32 {
        let back = self.random.below(12) as u32;
        self.next_stream.saturating_sub(back)
    }

    /// The host works again, and all that it owes comes: every message, the end of every call, and
    /// time. Or time alone, which is enough too.
    fn come_to_rest(&mut self) -> Result<(), Trap> {
        self.vm.machine_mut().script = None;
        let silent = self.random.chance(50);
        for _ in 0..60 {
            self.vm.machine_mut().advance_millis(50);
            let machine = self.vm.machine_mut();
            machine.call_headers = header_map(&[(b":status", b"504")]);
            machine.call_body.clear();
            let mut messages = std::mem::take(&mut machine.events.messages);
            let mut calls = std::mem::take(&mut machine.events.calls);
            if silent {
                messages.clear();
                calls.clear();
            }
            for root in self.roots.clone() {
                self.vm.call("proxy_on_tick", &[root])?;
                for queue in &messages {
                    self.vm.call("proxy_on_queue_ready", &[root, *queue])?;
                }
                for call in &calls {
                    self.vm.call("proxy_on_http_call_response", &[root, call.token, 1, 0, 0])?;
                }
            }
        }
        Ok(())
    }

    /// What holds where the host keeps to the order: every request has one outcome.
    fn check_outcomes(&self) {
        let streams = &self.vm.machine().streams;
        let waiting: Vec<_> = streams.paused.keys().collect();
        assert!(waiting.is_empty(), "{waiting:?} wait for ever");
        for stream in self.paused.intersection(&streams.alive) {
            assert_eq!(streams.outcomes.get(stream), Some(&1), "outcomes of the paused {stream}");
        }
        for (stream, outcomes) in &streams.outcomes {
            assert_eq!(*outcomes, 1, "outcomes of {stream}");
            assert!(self.begun.contains(stream), "{stream} has an outcome without a request");
        }
    }
}

/// Which host functions fail and how often: none, few, many, or one always.
fn faults(random: &mut Random) -> Option<Script> {
    let mut own = Random::new(random.number());
    let percent = random.pick(&[0, 2, 30]);
    let broken: Rc<RefCell<Option<&'static str>>> = Rc::default();
    let always = random.chance(30);
    Some(Box::new(move |function| {
        let mut broken = broken.borrow_mut();
        if always && broken.is_none() && own.chance(5) {
            *broken = Some(function);
        }
        let fails = *broken == Some(function) || own.chance(percent);
        if fails { own.pick(&Status::ALL) } else { Status::Ok }
    }))
}

/// A request's header map, as it should be or not.
fn headers(random: &mut Random) -> Vec<u8> {
    let path: &[u8] = random.pick(&[b"/".as_slice(), b"/leased/x", b"/strict/x", b"/healthz"]);
    let long = vec![b'x'; 5000];
    let odd = random.bytes(20);
    let values: [&[u8]; 5] = [b"acme", b"globex", b"", &long, &odd];
    let map = header_map(&[
        (b":method", b"GET"),
        (b":path", path),
        (b"x-tenant-id", values[random.below(5)]),
        (b"x-api-key", values[random.below(5)]),
        (b"x-forwarded-for", values[random.below(5)]),
        (b"content-type", if random.chance(30) { b"application/grpc" } else { b"text/plain" }),
    ]);
    match random.below(10) {
        0 => random.bytes(60),
        1 => {
            // Sizes that lie.
            let mut map = map;
            let place = random.below(40);
            map[place] = random.bytes(1).first().copied().unwrap_or(255);
            map
        }
        2 => map[..random.below(map.len())].to_vec(),
        _ => map,
    }
}

/// Runs seeds, or the one that `FAIRSHARE_SEED` names.
fn run(lawful: bool) {
    let (program, mut waited, mut settled) = (Program::load(), 0, 0);
    let named = std::env::var_os("FAIRSHARE_SEED");
    let named = named.map(|seed| seed.to_string_lossy().parse().expect("a number"));
    for seed in named.map_or(0..SEEDS, |seed| seed..seed + 1) {
        let mut chaos = Chaos::new(&program, seed, lawful);
        let steps = |chaos: &mut Chaos| (0..STEPS).try_for_each(|_| chaos.step());
        let result = chaos.begin().and_then(|()| steps(&mut chaos));
        let result = result.and_then(|()| chaos.come_to_rest());
        if let Err(trap) = result {
            panic!("FAIRSHARE_SEED={seed}: {trap:?}");
        }
        if lawful {
            println!("FAIRSHARE_SEED={seed}");
            chaos.check_outcomes();
            waited += chaos.paused.len();
            settled += chaos.vm.machine().streams.outcomes.len();
        }
    }
    if lawful && named.is_none() {
        assert!(waited > 500 && settled > 1000, "{waited} waited, {settled} were settled");
    }
}

#[test]
fn every_request_has_one_outcome_whatever_fails() {
    run(true);
}

#[test]
fn callbacks_in_no_order_never_trap() {
    run(false);
}
