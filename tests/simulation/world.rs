use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fairshare::filter::{Reply, Step, Worker};
use fairshare::host::StreamId;
use fairshare::policy::HeaderMap;
use fairshare::units::Instant;

use crate::embedded_redis::EmbeddedRedis;
use crate::fake_host::{FakeHost, Outcome};
use crate::fleet::Fleet;
use crate::network::{Call, Network};
use crate::plan::{Arrival, MILLI, Plan};
use crate::rng::Rng;

/// How often a worker's timer runs.
pub const TICK: u64 = 10 * MILLI;

/// A fleet, its store and its clients, in a time of their own.
pub struct World<'a> {
    pub plan: &'a Plan,
    pub fleet: Fleet,
    pub network: Network<'a>,
    pub requests: Vec<Request>,
    pub now: u64,
    /// What was found wrong while it happened.
    pub violations: Vec<String>,
    /// How far the nodes' clocks have gone back and how often they jumped ahead, by process.
    pub back: u64,
    pub jumps: Vec<u64>,
    /// VMs and processes that were lost with what they held.
    pub lost_memories: u64,
    pub sabotage: Sabotage,
    pub(super) rng: Rng,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    queued: u64,
    pub(super) calls: Vec<Call>,
}

/// What a canary does to the simulation, so that some check must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    None,
    /// A call whose reply is lost hears the last reply to the same question, as if it were its own.
    Echo,
    /// Timers stand still.
    NoTicks,
    /// One request in ten is decided and never told so.
    LostDecisions,
    /// One stream in ten ends unheard.
    LostEnds,
    /// Now and then a swap of shared data is made and said to be lost.
    Lies,
    /// Now and then shared data are gone.
    Forgets,
    /// The store runs each call again and again.
    Repeats,
    /// Every server of a Redis Cluster says that all slots are its own.
    Strays,
    /// Every call is told to have failed, and goes on.
    Hurries,
    /// Shared data are gone when a VM traps.
    ForgetsTrapped,
    /// Shared data are gone when a new configuration comes.
    ForgetsReplaced,
    /// The store forgets what was used when a process dies.
    ForgetsWithTheDead,
    /// Servers go on with slots that they have given away.
    Clings,
    /// Shared data are gone when the node's clock goes back.
    ForgetsTheFuture,
    /// A VM that trapped runs on, and hears of nothing that its requests do.
    Ghosts,
    /// Workers of earlier configurations hear of no stream's end.
    DeafOnTheWayOut,
    /// Clocks drift many times as much as they should.
    Races,
    /// A reply that is cut ends as the one before it did.
    StaleBuffer,
    /// Swaps of shared data that are lost are said to be made.
    Boasts,
    /// Workers hear of nobody who leaves before the decision.
    DeafToLeavers,
    /// A call that a cut swallows hears the last reply to the same question.
    EchoInTheDark,
    /// What comes twice has the store forget its keys.
    Undoes,
    /// To a worker that hears a reply it is as early as when it asked.
    Dozes,
    /// All that a large call asks is asked twice in it, which no server answers.
    Crams,
    /// Every other time that a worker is woken its clock is 20 ms slow, so nothing is ever too soon.
    Rewinds,
}

/// What a client sees of its request.
#[derive(Clone, Debug)]
pub struct Request {
    pub arrival: Arrival,
    pub process: usize,
    member: usize,
    pub fate: Fate,
    pub arrived_at: u64,
    pub decided_at: u64,
    pub ended_at: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has not come yet, or the proxy was not there for it.
    NotTaken,
    Waits,
    Admitted,
    Refused {
        status: u16,
        body: Vec<u8>,
    },
    /// The client left before it was decided.
    Left,
    /// The VM or the process was lost before it was decided.
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    Arrive(usize),
    Leave(usize),
    Answer(usize),
    End(usize),
    Tick(usize),
    Wake(usize),
    Execute(usize),
    Deliver(usize),
    Fault(usize),
    Reload(usize, usize),
    Restart(usize),
}

impl<'a> World<'a> {
    pub fn new(seed: u64, plan: &'a Plan, servers: &'a mut [EmbeddedRedis]) -> Self {
        let mut world = Self {
            plan,
            fleet: Fleet::new(plan),
            network: Network::new(plan, servers),
            requests: Vec::new(),
            now: 0,
            violations: Vec::new(),
            back: 0,
            jumps: vec![0; plan.nodes],
            lost_memories: 0,
            sabotage: Sabotage::None,
            rng: Rng::new(seed ^ 0x5eed),
            queue: BinaryHeap::new(),
            queued: 0,
            calls: Vec::new(),
        };
        for node in 0..plan.nodes {
            (0..plan.workers).for_each(|thread| world.load(node, thread));
        }
        plan.arrivals.iter().for_each(|arrival| world.add(arrival.clone()));
        for (number, (at, _)) in plan.events.iter().enumerate() {
            world.at(*at, Event::Fault(number));
        }
        world
    }

    /// A request is to come.
    pub fn add(&mut self, arrival: Arrival) {
        let number = self.requests.len();
        self.at(arrival.at, Event::Arrive(number));
        self.requests.push(Request {
            arrived_at: arrival.at,
            arrival,
            process: 0,
            member: 0,
            fate: Fate::NotTaken,
            decided_at: 0,
            ended_at: None,
        });
    }

    pub(super) fn at(&mut self, time: u64, event: Event) {
        self.queued += 1;
        self.queue.push(Reverse((time, self.queued, event)));
    }

    pub(super) fn load(&mut self, node: usize, thread: usize) {
        let number = self.fleet.load(node, thread);
        self.at(self.now + self.rng.within(0, TICK), Event::Tick(number));
    }

    /// A new process takes the place of one that died.
    pub(super) fn restart(&mut self, node: usize) {
        self.fleet.restart(node);
        self.jumps.push(0);
    }

    /// Lets time pass.
    pub fn run_until(&mut self, end: u64) {
        while let Some(Reverse((time, _, event))) = self.queue.peek().copied() {
            if time > end {
                break;
            }
            self.queue.pop();
            self.now = self.now.max(time);
            self.happen(event);
        }
        self.now = self.now.max(end);
    }

    /// Lets time pass in which nothing runs.
    pub fn sleep(&mut self, time: u64) {
        self.now += time;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive(number) => self.arrive(number),
            Event::Leave(number) => {
                if self.requests[number].fate == Fate::Waits {
                    self.requests[number].fate = Fate::Left;
                    if self.sabotage != Sabotage::DeafToLeavers {
                        self.end(number);
                    }
                }
            }
            Event::Answer(number) => {
                let member = self.requests[number].member;
                if self.requests[number].ended_at.is_none() {
                    self.callback(member, |worker, _, _| {
                        worker.on_response(stream(number)).cloned()
                    });
                }
            }
            Event::End(number) => self.end(number),
            Event::Tick(number) => self.tick(number),
            Event::Wake(number) => {
                let rewound = self.sabotage == Sabotage::Rewinds && self.rng.in_thousand(500);
                let by = if rewound { 20 * MILLI } else { 0 };
                self.callback(number, |worker, host, now| {
                    worker.on_wake(host, Instant::from_nanos(now.as_nanos() - by));
                });
            }
            Event::Execute(number) => self.execute(number),
            Event::Deliver(number) => self.deliver(number),
            Event::Fault(number) => self.strike(&self.plan.events[number].1),
            Event::Reload(node, thread) => {
                if self.fleet.nodes[node].up
                    && self.fleet.nodes[node].threads[thread].active.is_none()
                {
                    self.load(node, thread);
                }
            }
            Event::Restart(node) => {
                if !self.fleet.nodes[node].up {
                    self.restart(node);
                    (0..self.plan.workers).for_each(|thread| self.load(node, thread));
                }
            }
        }
    }

    /// Runs a callback of a worker, if it is there, and does what it asked its host for.
    pub(super) fn callback<T>(
        &mut self,
        number: usize,
        work: impl FnOnce(&mut Worker, &mut FakeHost, Instant) -> T,
    ) -> Option<T> {
        let mut member = self.fleet.members[number].take()?;
        let now = self.fleet.time(&member, self.now);
        let (until, silent) = self.network.cut[member.node];
        let host = &mut member.fake.host;
        host.store_reachable = silent || until <= self.now;
        if self.network.faults.contention {
            let lost = if self.rng.in_thousand(200) { self.rng.within(1, 6) } else { 0 };
            self.fleet.processes[member.process].borrow_mut().lost_swaps =
                u32::try_from(lost).unwrap();
        }
        self.tamper(member.process);
        let result = work(&mut member.fake.worker, host, now);
        let mut machine = self.fleet.processes[member.process].borrow_mut();
        (machine.lost_swaps, machine.lies) = (0, false);
        drop(machine);
        let (wakes, calls) = (std::mem::take(&mut host.wakes), std::mem::take(&mut host.calls));
        let decided = host.take_decided();
        self.fleet.members[number] = Some(member);
        calls.into_iter().for_each(|call| self.launch(number, call));
        for _ in 0..wakes {
            let after = if self.rng.in_thousand(50) { 2 * MILLI } else { 60_000 };
            self.at(self.now + after, Event::Wake(number));
        }
        for (StreamId(id), outcome) in decided {
            if self.sabotage == Sabotage::LostDecisions && self.rng.in_thousand(100) {
                continue;
            }
            let request = usize::try_from(id).unwrap();
            match outcome {
                Outcome::Passed(_) => self.admitted(request),
                Outcome::Answered(reply) => self.answered(request, &reply),
                Outcome::Waits => {}
            }
        }
        Some(result)
    }

    fn arrive(&mut self, number: usize) {
        let Arrival { node, worker, tenant, patience, .. } = self.requests[number].arrival;
        let Some(member) = self.fleet.nodes[node].threads[worker].active else { return };
        let bytes = headers(tenant);
        let request = &mut self.requests[number];
        (request.member, request.process) = (member, self.fleet.nodes[node].process);
        (request.arrived_at, request.fate) = (self.now, Fate::Waits);
        if let Some(member) = &mut self.fleet.members[member] {
            member.streams.insert(number);
        }
        let step = self.callback(member, |worker, host, now| {
            worker.on_request(host, stream(number), HeaderMap::new(&bytes), now)
        });
        match step {
            Some(Step::Continue) => self.admitted(number),
            Some(Step::Reply(reply)) => self.answered(number, &reply),
            Some(Step::Pause) => self.at(self.now + patience, Event::Leave(number)),
            None => {}
        }
    }

    fn admitted(&mut self, number: usize) {
        self.decided(number, Fate::Admitted);
        let Arrival { lasts, answered, .. } = self.requests[number].arrival;
        if answered {
            self.at(self.now + lasts / 2, Event::Answer(number));
        }
        self.at(self.now + lasts, Event::End(number));
    }

    fn answered(&mut self, number: usize, reply: &Reply) {
        let Reply { status, body, .. } = reply;
        self.decided(number, Fate::Refused { status: *status, body: body.clone() });
        self.at(self.now, Event::End(number));
    }

    fn decided(&mut self, number: usize, fate: Fate) {
        let request = &mut self.requests[number];
        if request.fate != Fate::Waits {
            self.violations.push(format!("request {number}: {:?}, then {fate:?}", request.fate));
        }
        (request.fate, request.decided_at) = (fate, self.now);
    }

    /// A request is over, in whatever way.
    fn end(&mut self, number: usize) {
        let member = self.requests[number].member;
        if self.requests[number].ended_at.replace(self.now).is_some() {
            return;
        }
        if self.sabotage == Sabotage::DeafOnTheWayOut && self.fleet.is_draining(member) {
            return;
        }
        if let Some(member) = &mut self.fleet.members[member] {
            member.streams.remove(&number);
        }
        if self.sabotage == Sabotage::LostEnds && self.rng.in_thousand(100) {
            return;
        }
        self.callback(member, |worker, host, now| worker.on_end(host, stream(number), || now));
    }

    fn tick(&mut self, number: usize) {
        if self.sabotage == Sabotage::NoTicks {
            return;
        }
        if self.callback(number, |worker, host, now| worker.on_tick(host, now)).is_some() {
            self.at(self.now + TICK, Event::Tick(number));
            if self.rng.in_thousand(50) {
                let before = self.fleet.members[number].is_some();
                self.fleet.let_go(number);
                self.lost_memories += u64::from(before && self.fleet.members[number].is_none());
            }
        }
    }
}

/// The headers of a tenant's requests.
pub fn headers(tenant: usize) -> Vec<u8> {
    let name = format!("t{tenant}");
    HeaderMap::serialize(&[
        (b":method", b"GET"),
        (b":path", b"/"),
        (b"x-tenant-id", name.as_bytes()),
    ])
}

fn stream(request: usize) -> StreamId {
    StreamId(u32::try_from(request).unwrap())
}
