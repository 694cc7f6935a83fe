//! Store calls on their way, and faults as they strike.

use fairshare::store::StoreError;
use fairshare::units::Instant;

use crate::exchanges::evaluations;
use crate::fake_host::FakeCall;
use crate::faults::Fault;
use crate::network::{Call, CallEnd};
use crate::plan::{MILLI, SECOND};
use crate::world::{Event, Fate, Sabotage, World};

/// Calls that one worker may have under way to one server: eight with decisions, one about the mode and,
/// in a Redis Cluster, one about the topology; and decisions in one.
const CALLS_MAX: usize = 9;
const DECISIONS_MAX: usize = 256;

/// Time between two calls of one worker for leases, and how many may come at once: eight, and one that waited
/// for the end of another call. In a Redis Cluster those that are sent on come on top.
const PACE: u64 = 2 * MILLI;
const LEASE_CALLS_MAX: u64 = 9;

/// How many times as much clocks drift that race: up to four parts of a hundred.
const RACE: i64 = 200;

impl World<'_> {
    /// A worker makes a call.
    pub(super) fn launch(&mut self, number: usize, made: FakeCall) {
        let Some(member) = &mut self.fleet.members[number] else { return };
        let node = member.node;
        let mut call = self.network.send(&self.rng, (number, node), made, self.now);
        if self.sabotage == Sabotage::Crams && evaluations(&call.body) > DECISIONS_MAX / 2 {
            call.body = call.body.repeat(2);
            (call.executions, call.end) = (vec![], CallEnd::Timeout);
        }
        if call.end != CallEnd::Never || self.sabotage == Sabotage::Hurries {
            let under_way = member.calls_under_way.entry(call.to.clone()).or_default();
            *under_way += 1;
            // A clock that jumps ahead makes the worker give calls up that are under way.
            let most = CALLS_MAX + usize::from(self.plan.shards > 0);
            if *under_way > most && !self.plan.faults.node_clocks {
                self.violations.push(format!("{under_way} calls under way"));
            }
        }
        if self.plan.asks_for_leases(&call.body) {
            member.ahead_until = member.ahead_until.max(self.now) + PACE;
            let is_steady = self.plan.shards == 0 && !self.plan.faults.node_clocks;
            if is_steady && member.ahead_until > self.now + LEASE_CALLS_MAX * PACE {
                self.violations.push("calls for leases beyond their pace".to_owned());
            }
        }
        if evaluations(&call.body) > DECISIONS_MAX {
            self.violations.push(format!("{} decisions in a call", evaluations(&call.body)));
        }
        let place = self.calls.len();
        for at in call.executions.clone() {
            self.at(at, Event::Execute(place));
        }
        let replied = call.executions.first().map(|at| at + call.reply_after);
        let heard = replied.filter(|_| call.end != CallEnd::Timeout).unwrap_or(call.deadline);
        if call.end != CallEnd::Never {
            self.at(heard.min(call.deadline), Event::Deliver(place));
        }
        self.calls.push(call);
    }

    pub(super) fn execute(&mut self, place: usize) {
        let now = self.now;
        if self.sabotage == Sabotage::Repeats && self.calls[place].executions.len() < 200 {
            self.calls[place].executions.push(now);
            self.at(now, Event::Execute(place));
        }
        if self.sabotage == Sabotage::Strays {
            self.network.shards.stray();
        }
        if self.sabotage == Sabotage::Undoes && self.calls[place].executed_at.is_some() {
            self.network.shards.forget_usage();
        }
        self.network.execute(&mut self.calls[place], &self.plan.limits, now);
    }

    /// What a canary does to a process before a callback.
    pub(super) fn tamper(&self, process: usize) {
        let mut machine = self.fleet.processes[process].borrow_mut();
        match self.sabotage {
            Sabotage::Lies => machine.lies = self.rng.in_thousand(100),
            Sabotage::Boasts => machine.boasts = true,
            Sabotage::Forgets if self.rng.in_thousand(20) => machine.forget(),
            _ => {}
        }
    }

    /// The last reply to the same question.
    fn echo(&self, place: usize) -> Option<Vec<u8>> {
        let call = &self.calls[place];
        let same = self.calls.iter().rev().filter(|other| other.body == call.body);
        same.filter_map(|other| other.reply.clone()).next()
    }

    /// What a canary does to a process that is struck.
    fn forget_if(&self, sabotage: Sabotage, node: usize) {
        if self.sabotage == sabotage {
            self.fleet.processes[self.fleet.nodes[node].process].borrow_mut().forget();
        }
    }

    fn raced(&self, gain: i64) -> i64 {
        if self.sabotage == Sabotage::Races { gain * RACE } else { gain }
    }

    /// The reply as the worker sees it.
    fn shown(&self, place: usize) -> Option<Vec<u8>> {
        let call = &self.calls[place];
        let mut reply = call.reply.clone()?;
        if self.sabotage == Sabotage::StaleBuffer && call.cut != (1000, 1000) {
            let before = self.calls[..place].iter().rev();
            let mut before = before.filter(|other| other.member == call.member);
            let rest = before.find_map(|other| other.reply.as_ref()?.get(reply.len()..));
            reply.extend_from_slice(rest.unwrap_or_default());
        }
        Some(reply)
    }

    /// The host hears of a call's end.
    pub(super) fn deliver(&mut self, place: usize) {
        let Call { end, node, sent_at, ref reply, .. } = self.calls[place];
        let is_in_the_dark = reply.is_none() && self.network.cut[node].0 > sent_at;
        let echoes = match self.sabotage {
            Sabotage::Echo => end == CallEnd::Timeout,
            Sabotage::EchoInTheDark => is_in_the_dark,
            _ => false,
        };
        if echoes && let Some(reply) = self.echo(place) {
            let call = &mut self.calls[place];
            (call.reply, call.end, call.deadline) = (Some(reply), CallEnd::Reply, u64::MAX);
        }
        let (call, reply) = (&self.calls[place], self.shown(place));
        let (number, id, late) = (call.member, call.id, self.now >= call.deadline);
        let result = match (reply, call.end) {
            (Some(reply), CallEnd::Reply) if !late => Ok(reply),
            (_, CallEnd::Reset) => Err(StoreError::Reset),
            (None, _) if !late && self.network.cut[call.node].1 => {
                let deadline = call.deadline;
                return self.at(deadline, Event::Deliver(place));
            }
            (None, _) if !late => Err(StoreError::Unreachable),
            // The tunnel may have answered before, so that the timeout breaks the answer off.
            _ if self.rng.in_thousand(500) => Err(StoreError::Reset),
            _ => Err(StoreError::Timeout),
        };
        if let Some(member) = &mut self.fleet.members[number] {
            let under_way = member.calls_under_way.get_mut(&self.calls[place].to).unwrap();
            *under_way -= usize::from(self.sabotage != Sabotage::Hurries);
            if result.is_ok() {
                self.network.heard(&self.calls[place], &self.plan.limits, self.now);
            }
        }
        let dozed = if self.sabotage == Sabotage::Dozes { self.now - sent_at } else { 0 };
        self.callback(number, |worker, host, now| {
            let now = Instant::from_nanos(now.as_nanos() - dozed);
            worker.on_store_reply(host, id, result.as_deref().map_err(|error| *error), now);
        });
    }

    /// Something happens to the fleet.
    pub(super) fn strike(&mut self, fault: &Fault) {
        match *fault {
            Fault::Trap { node, worker } => {
                if self.fleet.nodes[node].threads[worker].active.is_some() {
                    self.forget_if(Sabotage::ForgetsTrapped, node);
                    self.lose(node, worker);
                    self.at(self.now + SECOND, Event::Reload(node, worker));
                }
            }
            Fault::Crash { node } => {
                if std::mem::replace(&mut self.fleet.nodes[node].up, false) {
                    if self.sabotage == Sabotage::ForgetsWithTheDead {
                        self.network.shards.forget_usage();
                    }
                    (0..self.plan.workers).for_each(|worker| self.lose(node, worker));
                    let after = self.rng.within(MILLI, SECOND);
                    self.at(self.now + after, Event::Restart(node));
                }
            }
            Fault::Update { node } => {
                self.forget_if(Sabotage::ForgetsReplaced, node);
                for (worker, old) in self.fleet.update(node, self.plan) {
                    self.network.books.gone(old, self.now);
                    self.load(node, worker);
                }
            }
            Fault::NodeStep { node, by } => {
                self.fleet.nodes[node].clock.step(by, self.now);
                if by >= 0 {
                    self.jumps[self.fleet.nodes[node].process] += 1;
                } else {
                    self.forget_if(Sabotage::ForgetsTheFuture, node);
                }
            }
            Fault::NodeGain { node, gain } => {
                let gain = self.raced(gain);
                self.fleet.nodes[node].clock.set_gain(gain, self.now);
            }
            Fault::StoreStep { by } => self.network.clock.step(by, self.now),
            Fault::StoreGain { gain } => {
                let gain = self.raced(gain);
                self.network.clock.set_gain(gain, self.now);
            }
            Fault::Cut { node, silent, lasts } => {
                for (number, cut) in self.network.cut.iter_mut().enumerate() {
                    if node.is_none_or(|node| node == number) {
                        *cut = (self.now + lasts, silent);
                        self.network.books.trouble(number, self.now, self.now + lasts);
                    }
                }
            }
            Fault::Failing { error, lasts } => {
                self.network.shards.set_failing(Some(error));
                self.network.failing_until = self.now + lasts;
                let until = self.network.failing_until;
                self.network.books.trouble_all(self.plan.nodes, self.now, until);
            }
            Fault::ForgetScript => self.network.forget_script(&self.rng),
            Fault::Flush => self.network.flush(&self.rng),
            Fault::Evict => self.network.evict(&self.rng, self.now),
            Fault::FailOver { lost } => self.network.fail_over(&self.rng, lost, self.now),
            Fault::MoveSlot { lasts } => {
                if self.sabotage == Sabotage::Clings {
                    self.network.shards.cling();
                }
                let place = self.rng.place(self.plan.limits.len());
                self.network.move_slot(&self.rng, place, self.now + lasts, self.now);
            }
        }
    }

    /// A thread's VM is gone, with all that it held. The proxy ends its requests.
    fn lose(&mut self, node: usize, worker: usize) {
        self.lost_memories += 1;
        let (members, requests) = match self.sabotage {
            Sabotage::Ghosts => self.fleet.abandon(node, worker),
            _ => self.fleet.unload(node, worker),
        };
        members.into_iter().for_each(|member| self.network.books.gone(member, self.now));
        for number in requests {
            let request = &mut self.requests[number];
            request.ended_at = Some(self.now);
            if request.fate == Fate::Waits {
                request.fate = Fate::Lost;
            }
        }
    }

    /// All faults are over, and every worker is there.
    pub fn heal(&mut self) {
        self.network.heal();
        for node in 0..self.plan.nodes {
            if !self.fleet.nodes[node].up {
                self.restart(node);
            }
            for worker in 0..self.plan.workers {
                if self.fleet.nodes[node].threads[worker].active.is_none() {
                    self.load(node, worker);
                }
            }
        }
    }
}
