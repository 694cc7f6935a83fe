//! What the store is to be asked, by whom, and what comes of it.

use std::rc::Rc;

use super::charging_in_store::Charged;
use super::key_groups::KeyGroups;
use crate::host::StreamId;
use crate::policy::Charge;
use crate::store::cluster::{Node, Redirection};
use crate::store::{Answer, Decision, StoreError};
use crate::units::Instant;

/// How often a question is sent again because a Redis Cluster wants it elsewhere or later.
const DETOURS_MAX: u8 = 4;

/// Who wants to know a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// Paused requests, and what each of them is to be charged to.
    Streams(Vec<StreamId>, Rc<[Charge]>),
    /// Nobody waits: these are the charges of a limit in shadow mode.
    Shadow(Rc<[Charge]>),
    /// The leases of these charges, asked for at this time.
    Lease(Rc<[Charge]>, Instant),
    /// Nobody waits: so many units go back.
    Return(u64),
    /// Nobody waits: the store is told what is charged to the one charge.
    Report(Rc<[Charge]>),
    /// Nobody waits: does the store answer about this group of keys?
    Probe(usize),
    /// Nobody waits: which state is the store in?
    Poll,
}

/// A decision that is wanted from the store.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) ticket: Ticket,
    pub(super) decision: Decision,
}

/// Who wants a decision, and until when.
#[derive(Clone, Debug)]
pub(super) struct Ticket {
    pub(super) asker: Asker,
    pub(super) deadline: Instant,
    /// Whether the script was already sent for it; then it is not sent again.
    pub(super) reloaded: bool,
    /// How often a Redis Cluster has sent it on, and where to for this once.
    pub(super) detours: u8,
    pub(super) detour: Option<Node>,
}

/// What someone is to hear.
#[derive(Debug)]
pub(super) enum Delivery {
    /// What the store, or its absence, said, and about which group of keys.
    Answer(Asker, Result<Answer, StoreError>, usize),
    /// To a request: what was charged for those that it waited with, and its place among them.
    Charged(StreamId, Rc<Charged>, u64),
    /// To a request: its leases may be there now, or some of its limits are to be decided without the
    /// store.
    GoOn(StreamId, Unanswered),
}

/// What is to be decided without the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unanswered {
    Nothing,
    /// Limits of one group of keys.
    Group(usize),
    Everything,
}

impl Ticket {
    /// Notes where the store wants its question to go, if that may be done.
    pub(super) fn may_go_on(
        &mut self,
        groups: &mut KeyGroups,
        error: StoreError,
        redirection: Option<Redirection>,
    ) -> bool {
        if self.detours >= DETOURS_MAX || !groups.are_spread() {
            return false;
        }
        self.detour = None;
        match (error, redirection) {
            (StoreError::TryAgain, _) => {}
            (StoreError::Moved, Some(redirection)) => groups.follow(&redirection),
            (StoreError::Ask, Some(redirection)) => self.detour = Some(redirection.node),
            _ => return false,
        }
        self.detours = self.detours.saturating_add(1);
        true
    }
}
