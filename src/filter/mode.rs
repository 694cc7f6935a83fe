//! Following the mode that operators set in the store.
//!
//! One worker of the node asks the store every three seconds, in a call of its own on which no request
//! waits, and writes what it hears on the node's board. Every worker looks at the board among its
//! chores. While the store's word stands, it is what counts; before and after, what is configured does.
//!
//! This is also the question by which a worker that the store has never answered finds out whether it can
//! be reached: no record of usage has to be there, and nobody's usage is touched.

use super::standing::sits_out;
use super::worker::Worker;
use crate::host::{CallId, Host, StoreCall};
use crate::policy::{Mode, Policy};
use crate::store::mode::{self, Word};
use crate::store::mode_board::ModeBoard;
use crate::store::{Redirections, ScriptCall, StoreError};
use crate::units::{Instant, Span};

/// Time for an answer about the mode. No request waits for it, so it may take longer than
/// `store.timeout`; and it is over long before the next question.
const TIMEOUT: Span = Span::from_secs(1);

/// Time for the answer to a worker that was never answered. By such questions it finds out that the store
/// is well again, and that takes no longer than a second.
const NEWCOMER_TIMEOUT: Span = Span::from_millis(500);

/// Time from a question that failed to the next one. With two that are lost after their whole time, a node
/// of one worker follows in some eight seconds.
const PAUSE: Span = Span::from_millis(500);

/// The mode that a worker's requests are decided by.
#[derive(Debug)]
pub(super) struct ModeInForce {
    pub(super) in_force: Mode,
    /// The mode that the gauge shows.
    shown: Option<Mode>,
    /// None without a store.
    board: Option<ModeBoard>,
    /// The latest question to the store.
    asked: Option<CallId>,
    sits_out_until: Instant,
}

impl ModeInForce {
    pub(super) fn new(policy: &Policy) -> Self {
        let board = policy.store.as_ref().map(ModeBoard::new);
        Self {
            in_force: policy.mode,
            shown: None,
            board,
            asked: None,
            sits_out_until: Instant::ORIGIN,
        }
    }

    /// Whether this mode is in force.
    pub(super) fn is(&self, mode: Mode) -> bool {
        self.in_force == mode
    }

    /// Whether the call was the question about the mode, which is answered now.
    pub(super) fn takes(&mut self, call: CallId) -> bool {
        self.asked.take_if(|asked| *asked == call).is_some()
    }
}

impl Worker {
    /// Does what the board says, and asks the store where it is this worker's turn.
    pub(super) fn follow_mode(&mut self, host: &mut impl Host, now: Instant) {
        let claims = self.standing.may_claim() && self.mode.sits_out_until <= now;
        let look = self.mode.board.as_ref().map(|board| board.look(host, claims, now));
        let set = look.as_ref().and_then(|look| look.mode);
        let mode = set.unwrap_or(self.policy.mode);
        if self.mode.shown != Some(mode) {
            self.mode.shown = Some(mode);
            let number = match mode {
                Mode::Off => 0,
                Mode::Shadow => 1,
                Mode::Enforce => 2,
            };
            host.record(self.metrics.mode(), number);
        }
        self.mode.in_force = mode;
        let Some(look) = look else { return };
        if look.ended {
            tell(Word::Silent, Span::ZERO);
        }
        if !look.ask && !self.asks_alone(look.is_neglected, now) {
            return;
        }
        if self.mode.asked.take().is_none() {
            return self.ask_for_mode(host, now);
        }
        // The host has forgotten the last question, so another worker is to ask.
        self.on_mode_reply(host, Err(StoreError::Timeout), now);
    }

    /// Whether a worker that takes no turns is to ask all the same, where nobody takes them or where it
    /// has given the store up.
    fn asks_alone(&mut self, is_neglected: bool, now: Instant) -> bool {
        let under_way = if self.mode.asked.is_some() { self.mode_timeout() } else { Span::ZERO };
        (is_neglected || self.groups.any_is_given_up()) && self.standing.tries_alone(under_way, now)
    }

    fn mode_timeout(&self) -> Span {
        match self.standing.may_claim() {
            true => TIMEOUT,
            false => NEWCOMER_TIMEOUT,
        }
    }

    /// The breaker does not matter: one question in three seconds is no burden, and no request waits.
    fn ask_for_mode(&mut self, host: &mut impl Host, now: Instant) {
        let Some(store) = &self.policy.store else { return };
        let body = mode::encode(store);
        let node = self.groups.node(self.policy.limits.len());
        let call = StoreCall {
            cluster: &store.cluster,
            node: node.as_deref(),
            body: &body,
            timeout: self.mode_timeout(),
        };
        match host.call_store(&call) {
            Ok(call) => self.mode.asked = Some(call),
            Err(error) => self.on_mode_reply(host, Err(error), now),
        }
    }

    /// Writes what the store said on the board. Where it said nothing, its last word stands.
    pub(super) fn on_mode_reply(
        &mut self,
        host: &mut impl Host,
        body: Result<&[u8], StoreError>,
        now: Instant,
    ) {
        let (Some(store), Some(board)) = (&self.policy.store, &self.mode.board) else { return };
        if let Ok(body) = body
            && let Some(elsewhere) = Redirections::new(store, ScriptCall::Cached, body).take()
            && !elsewhere.only_now
        {
            // The next turn goes there. While the key is on its way, what was heard last stands.
            self.groups.follow(&elsewhere);
        }
        let told = body.and_then(|body| mode::decode(store, body));
        let read = told.ok().map(|(text, left)| (Word::read(text, !left.is_zero()), text, left));
        let followed = read.map(|(word, ..)| word != Word::Ignored);
        host.count(self.metrics.mode_reads(followed), 1);
        let Some((_, text, left)) = read else {
            self.groups.doubt();
            if self.standing.may_claim() {
                self.mode.sits_out_until = now.plus(sits_out(PAUSE));
                board.hand_over(host, PAUSE, now);
            }
            return;
        };
        if let Some(news) = board.note(host, text, left, now) {
            tell(news, left);
        }
        self.follow_mode(host, now);
    }
}

/// One line of each node's log for each change.
fn tell(word: Word<'_>, left: Span) {
    match word {
        Word::Set(_, text) => {
            log::warn!("fairshare: the store sets the mode for {} s: {text}", left.as_secs_ceil());
        }
        Word::Silent => {
            log::warn!("fairshare: the store sets no mode any more; the configured one holds");
        }
        Word::Ignored => log::warn!(
            "fairshare: the mode in the store is ignored; it must expire, and read \
             <off|shadow|enforce> by=<who> at=<when> reason=<text>"
        ),
    }
}
