//! Groups of keys that lie together: which node of the store has each, and whether that answers.
//!
//! Where one node has all keys there is one group, which the Envoy cluster leads to. In a Redis Cluster
//! each limit is a group with a slot of its own, and the mode that operators set is one more. Its node
//! is learned from redirections, and from the answer to `CLUSTER SLOTS`, which is asked for at the start
//! and whenever something is amiss.

use std::rc::Rc;

use super::breaker::Breaker;
use crate::host::{CallId, Host, StoreCall};
use crate::policy::{Policy, StorePolicy, Topology};
use crate::store::StoreError;
use crate::store::cluster::{Node, Redirection, Served, decode_slots, encode_slots};
use crate::store::health::StoreHealth;
use crate::store::{mode, slot, tag};
use crate::units::{Instant, Span};

/// Time between two questions for the topology.
const ASK_PAUSE: Span = Span::from_millis(250);

/// The groups of one worker's policy: one, or one for each limit.
#[derive(Debug)]
pub(super) struct KeyGroups {
    groups: Vec<KeyGroup>,
    are_spread: bool,
    /// Whether the nodes known may be the wrong ones.
    in_doubt: bool,
    /// The question for the topology that is under way, and when one was last sent.
    call: Option<CallId>,
    asked_at: Instant,
    asked: usize,
    /// Whether the last question for it failed, which is told once.
    fails: bool,
}

/// Keys that lie together.
#[derive(Debug)]
pub(super) struct KeyGroup {
    slot: i64,
    /// None: whom the Envoy cluster leads to.
    node: Option<Node>,
    pub(super) breaker: Breaker,
    pub(super) health: StoreHealth,
}

impl KeyGroups {
    pub(super) fn new(policy: &Policy) -> Self {
        let group = |slot, part: &str| KeyGroup {
            slot,
            node: None,
            breaker: Breaker::default(),
            health: StoreHealth::new(&policy.namespace, part),
        };
        let spread = policy.store.as_ref().filter(|store| store.topology == Topology::Cluster);
        let groups = match spread {
            Some(store) => {
                let of_limit = |name: &Rc<str>| group(slot(&tag(store, name)), name);
                let limits = policy.limits.iter().map(|limit| &limit.name);
                // The last one has the mode's key alone.
                let mode = group(slot(&mode::tag(&store.key_prefix)), "");
                limits.map(of_limit).chain([mode]).collect()
            }
            None => vec![group(0, "")],
        };
        Self {
            groups,
            are_spread: spread.is_some(),
            in_doubt: true,
            call: None,
            asked_at: Instant::ORIGIN,
            asked: 0,
            fails: false,
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.groups.len()
    }

    /// The group of a decision.
    pub(super) fn get_mut(&mut self, group: usize) -> Option<&mut KeyGroup> {
        self.groups.get_mut(group)
    }

    /// Whether they may be on several nodes.
    pub(super) const fn are_spread(&self) -> bool {
        self.are_spread
    }

    /// Whether the store may be asked about a group.
    pub(super) fn is_asked(&self, group: usize) -> bool {
        self.groups.get(group).is_none_or(|group| group.breaker.is_closed())
    }

    /// Whether a part of the store is given up.
    pub(super) fn any_is_given_up(&self) -> bool {
        self.groups.iter().any(|group| !group.breaker.is_closed())
    }

    /// Whom to ask about a group.
    pub(super) fn node(&self, group: usize) -> Option<Node> {
        self.groups.get(group)?.node.clone()
    }

    /// Takes the result of a call about a group. Returns whether it is given up because of it.
    pub(super) fn on_call(
        &mut self,
        group: usize,
        result: Result<(), StoreError>,
        now: Instant,
    ) -> bool {
        // Where a node is gone, another one may have taken its place.
        self.in_doubt |= result.is_err_and(StoreError::is_about_the_store);
        self.get_mut(group).is_some_and(|group| group.breaker.on_call(result, now))
    }

    /// Notes that what is known of the nodes may be wrong.
    pub(super) const fn doubt(&mut self) {
        self.in_doubt = true;
    }

    /// Follows a redirection that holds from now on.
    pub(super) fn follow(&mut self, redirection: &Redirection) {
        if !self.are_spread {
            return;
        }
        self.in_doubt = true;
        for group in self.groups.iter_mut().filter(|group| group.slot == redirection.slot) {
            // Its word alone does not make anybody trust it.
            group.node = Some(Rc::clone(&redirection.node));
        }
    }

    /// Asks for the topology where something is amiss.
    pub(super) fn ask(&mut self, host: &mut impl Host, store: &StorePolicy, now: Instant) {
        let is_well = !self.in_doubt && !self.any_is_given_up();
        if !self.are_spread || is_well {
            return;
        }
        // A call that is lost is over by then, too.
        let patience = if self.call.is_some() { store.timeout } else { Span::ZERO };
        if now.since(self.asked_at) < patience.plus(ASK_PAUSE) {
            return;
        }
        self.asked_at = now;
        self.asked = self.asked.wrapping_add(1);
        // Every other time a node that is known, should those be gone that the Envoy cluster lists.
        let number = (self.asked / 2).checked_rem(self.groups.len());
        let node =
            number.filter(|_| self.asked.is_multiple_of(2)).and_then(|number| self.node(number));
        let call = StoreCall {
            cluster: &store.cluster,
            node: node.as_deref(),
            body: &encode_slots(store),
            timeout: store.timeout,
        };
        self.call = host.call_store(&call).ok();
    }

    /// Whether the call was the question for the topology, which is answered now.
    pub(super) fn takes(&mut self, call: CallId) -> bool {
        self.call.take_if(|asked| *asked == call).is_some()
    }

    /// Learns from the answer to the question for the topology.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub(super) fn learn(
        &mut self,
        store: &StorePolicy,
        body: Result<&[u8], StoreError>,
        now: Instant,
    ) -> Result<(), StoreError> {
        let mut served = false;
        let serves = |Served { first, last, node }| {
            served = true;
            for group in &mut self.groups {
                let is_news = group.node.as_ref() != Some(&node);
                if (first..=last).contains(&group.slot) && is_news {
                    // One that was given up is probed there: nodes may contradict each other.
                    group.node = Some(Rc::clone(&node));
                    group.breaker.wait(now);
                }
            }
        };
        let result = body.and_then(|body| decode_slots(store, body, serves));
        match result {
            Ok(()) => self.in_doubt = !served,
            Err(why) if !self.fails => {
                let why = why.name();
                log::warn!("fairshare: the Redis Cluster does not tell its nodes ({why})");
            }
            Err(_) => {}
        }
        self.fails = result.is_err();
        result
    }
}

impl KeyGroup {
    /// Asks the store again.
    pub(super) fn trust(&mut self) {
        self.breaker.close();
        log::info!("fairshare: the store answers again");
    }
}
