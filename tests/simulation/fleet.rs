use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use fairshare::config;
use fairshare::policy::{Attributes, HeaderMap, KnownDigests, Level, Policy, RequestView};
use fairshare::store;
use fairshare::units::Instant;

use crate::clock::Clock;
use crate::fake_host::{FakeWorker, Machine};
use crate::plan::{Plan, SECOND};
use crate::world::headers;

/// One Envoy.
pub struct Node {
    /// What its process keeps; the place in the list of all processes that there ever were.
    pub process: usize,
    pub clock: Clock,
    pub threads: Vec<Thread>,
    pub edition: usize,
    pub policy: Rc<Policy>,
    pub up: bool,
}

/// One worker thread of an Envoy.
#[derive(Default)]
pub struct Thread {
    /// None after a trap, until the VM is loaded again.
    pub active: Option<usize>,
    /// Workers of earlier configurations, whose requests go on to their ends.
    pub draining: Vec<usize>,
}

/// The filter of one configuration in one thread.
pub struct Member {
    pub fake: FakeWorker,
    pub node: usize,
    pub thread: usize,
    pub process: usize,
    /// Requests that the host would end here.
    pub streams: BTreeSet<usize>,
    /// By the server that they are for.
    pub calls_under_way: BTreeMap<Option<String>, usize>,
    /// Until when calls for leases are ahead of their pace.
    pub ahead_until: u64,
}

/// All Envoys.
pub struct Fleet {
    pub nodes: Vec<Node>,
    /// By number; none where it is gone.
    pub members: Vec<Option<Member>>,
    /// All processes that there ever were.
    pub processes: Vec<Rc<RefCell<Machine>>>,
}

impl Fleet {
    pub fn new(plan: &Plan) -> Self {
        let mut fleet = Self { nodes: vec![], members: vec![], processes: vec![] };
        for node in 0..plan.nodes {
            let process = fleet.new_process();
            let shows = (1_000_000 + 1_000 * u64::try_from(node).unwrap()) * SECOND;
            fleet.nodes.push(Node {
                process,
                clock: Clock::new(shows),
                threads: (0..plan.workers).map(|_| Thread::default()).collect(),
                edition: 0,
                policy: policy(plan, 0),
                up: true,
            });
        }
        fleet
    }

    fn new_process(&mut self) -> usize {
        self.processes.push(Rc::default());
        self.processes.len() - 1
    }

    /// Loads the filter on a thread that has none. Returns its number.
    pub fn load(&mut self, node: usize, thread: usize) -> usize {
        let number = self.members.len();
        let home = &mut self.nodes[node];
        let fake = FakeWorker::new(&home.policy, &self.processes[home.process]);
        home.threads[thread].active = Some(number);
        self.members.push(Some(Member {
            fake,
            node,
            thread,
            process: home.process,
            streams: BTreeSet::new(),
            calls_under_way: BTreeMap::new(),
            ahead_until: 0,
        }));
        number
    }

    /// Everything in the thread is gone. Returns its workers and the requests that they had.
    pub fn unload(&mut self, node: usize, thread: usize) -> (Vec<usize>, Vec<usize>) {
        let left = self.abandon(node, thread);
        left.0.iter().for_each(|number| self.members[*number] = None);
        left
    }

    /// The same as far as clients and the proxy can see, while what is in the VM runs on.
    pub fn abandon(&mut self, node: usize, thread: usize) -> (Vec<usize>, Vec<usize>) {
        let thread = std::mem::take(&mut self.nodes[node].threads[thread]);
        let numbers: Vec<usize> = thread.active.into_iter().chain(thread.draining).collect();
        let members = numbers.iter().filter_map(|number| self.members[*number].as_ref());
        let requests = members.flat_map(|member| member.streams.iter().copied()).collect();
        (numbers, requests)
    }

    /// Whether it is a worker of an earlier configuration.
    pub fn is_draining(&self, number: usize) -> bool {
        let threads = self.nodes.iter().flat_map(|node| &node.threads);
        threads.into_iter().any(|thread| thread.draining.contains(&number))
    }

    /// A new process, which knows nothing of the old one.
    pub fn restart(&mut self, node: usize) {
        self.nodes[node].process = self.new_process();
        self.nodes[node].up = true;
    }

    /// Puts another configuration in force. Returns the threads that are to be loaded with it, and who
    /// was there.
    pub fn update(&mut self, node: usize, plan: &Plan) -> Vec<(usize, usize)> {
        let home = &mut self.nodes[node];
        home.edition += 1;
        home.policy = policy(plan, home.edition);
        let mut threads = Vec::new();
        for (number, thread) in home.threads.iter_mut().enumerate() {
            if let Some(active) = thread.active.take() {
                thread.draining.push(active);
                threads.push((number, active));
            }
        }
        threads
    }

    /// Lets go of a worker of an earlier configuration that has nothing left to do.
    pub fn let_go(&mut self, number: usize) {
        let Some(member) = &self.members[number] else { return };
        let thread = &mut self.nodes[member.node].threads[member.thread];
        if thread.active != Some(number) && member.streams.is_empty() {
            thread.draining.retain(|draining| *draining != number);
            self.members[number] = None;
        }
    }

    /// The time on the clock of a worker's node.
    pub fn time(&self, member: &Member, now: u64) -> Instant {
        Instant::from_nanos(self.nodes[member.node].clock.read(now))
    }

    /// The key under which the store counts for the limit at `place`, of a tenant or of all.
    pub fn key(&self, place: usize, tenant: Option<usize>) -> String {
        let policy = &self.nodes[0].policy;
        let name = &policy.limits[place].name;
        let bytes = headers(tenant.unwrap_or(0));
        let request = RequestView::new(HeaderMap::new(&bytes), &Attributes::NONE);
        let identity =
            policy.identity.identify(&request, None, &mut KnownDigests::new(7)).expect("a tenant");
        let level = if tenant.is_some() { Level::Tenant } else { Level::Shared };
        let subject = tenant.and(identity.tenant);
        let tag = store::tag(policy.store.as_ref().expect("a store"), name);
        store::key(&tag, name, level, subject.as_ref())
    }

    /// The sum over all processes of metrics whose names contain every part.
    pub fn metric(&self, parts: &[&str]) -> u64 {
        let all = 0..self.processes.len();
        all.map(|process| self.metric_of(process, parts)).sum()
    }

    pub fn metric_of(&self, process: usize, parts: &[&str]) -> u64 {
        let machine = self.processes[process].borrow();
        let named = machine.metrics().iter();
        let named = named.filter(|(name, _)| parts.iter().all(|part| name.contains(part)));
        named.map(|(_, value)| value).sum()
    }
}

fn policy(plan: &Plan, edition: usize) -> Rc<Policy> {
    let plugin = plan.plugin(edition);
    match config::parse(plugin.as_bytes()) {
        Ok(policy) => Rc::new(policy),
        Err(errors) => {
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            panic!("{}\n{plugin}", errors.join("\n"))
        }
    }
}
