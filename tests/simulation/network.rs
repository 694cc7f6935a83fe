use fairshare::host::CallId;

use crate::clock::Clock;
use crate::embedded_redis::{EmbeddedRedis, Snapshot};
use crate::exchanges::{Answered, answered, evaluations, gives_back, limit_of};
use crate::fake_host::FakeCall;
use crate::faults::Faults;
use crate::forgotten::Books;
use crate::plan::{Kind, LimitPlan, MILLI, Plan};
use crate::rng::Rng;
use crate::shards::Shards;

/// The store's clock at the beginning, in nanoseconds.
pub const STORE_START: u64 = 1_700_000_000_000_000_000;

/// Copies are kept so often, and so many.
const COPY_PERIOD: u64 = 50 * MILLI;
const COPIES: usize = 8;

/// A store call on its way.
pub struct Call {
    pub member: usize,
    pub node: usize,
    /// The server of a Redis Cluster that is called; none for any.
    pub to: Option<String>,
    pub id: CallId,
    pub body: Vec<u8>,
    pub sent_at: u64,
    /// When the host gives up.
    pub deadline: u64,
    /// When the store gets it, and once more.
    pub executions: Vec<u64>,
    pub executed_at: Option<u64>,
    /// What comes back; none where nothing does.
    pub reply: Option<Vec<u8>>,
    pub reply_after: u64,
    pub end: CallEnd,
    /// Parts of a thousand of the body and of the reply that arrive.
    pub cut: (u64, u64),
}

/// How the host hears of a call's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallEnd {
    Reply,
    /// The connection breaks when the reply would come.
    Reset,
    /// The reply is lost: the host's timeout ends it.
    Timeout,
    /// The host never says anything.
    Never,
}

/// The store and all that lies between.
pub struct Network<'a> {
    pub shards: Shards<'a>,
    pub clock: Clock,
    pub faults: Faults,
    /// Until when the store is out of reach of each node, and whether that is noticed only by its
    /// silence.
    pub cut: Vec<(u64, bool)>,
    pub failing_until: u64,
    copies: Vec<(u64, Vec<Snapshot>)>,
    /// What was granted, lost and told again.
    pub books: Books,
    /// The longest time from an execution to the arrival of its reply.
    pub longest_reply: u64,
    /// Units that the store has granted by leased limits, and those of which a worker has heard.
    pub granted: u64,
    pub heard: u64,
    /// Exchanges, and decisions in them.
    pub exchanges: u64,
    pub decisions: u64,
}

impl<'a> Network<'a> {
    pub fn new(plan: &Plan, servers: &'a mut [EmbeddedRedis]) -> Self {
        Self {
            shards: Shards::new(plan, servers),
            clock: Clock::new(STORE_START),
            faults: plan.faults.clone(),
            cut: vec![(0, false); plan.nodes],
            failing_until: 0,
            copies: vec![],
            books: Books::default(),
            longest_reply: 0,
            granted: 0,
            heard: 0,
            exchanges: 0,
            decisions: 0,
        }
    }

    /// Everything works from now on.
    pub fn heal(&mut self) {
        self.faults = Faults::default();
        self.cut.fill((0, false));
        self.shards.set_failing(None);
        self.shards.heal();
    }

    /// What becomes of a call that `member` makes at `now`.
    pub fn send(&mut self, rng: &Rng, by: (usize, usize), made: FakeCall, now: u64) -> Call {
        let short = || rng.within(MILLI / 10, 2 * MILLI);
        let timeout = made.timeout.as_nanos();
        let (member, node) = by;
        let mut call = Call {
            member,
            node,
            to: made.node,
            id: made.id,
            body: made.body,
            sent_at: now,
            deadline: now + timeout,
            executions: vec![now + short()],
            executed_at: None,
            reply: None,
            reply_after: short(),
            end: CallEnd::Reply,
            cut: (1000, 1000),
        };
        let kind = match (self.faults.slow && rng.in_thousand(500), self.faults.network) {
            (true, _) => 5,
            (false, true) => rng.within(0, 100),
            (false, false) => return call,
        };
        if kind <= 30 {
            self.books.trouble(node, now, call.deadline);
        }
        match kind {
            0..5 => call.executions = vec![now + rng.within(0, 2 * timeout)],
            5..12 => call.reply_after = rng.within(0, timeout),
            12..15 => (call.executions, call.end) = (vec![], CallEnd::Timeout),
            15..19 => call.end = CallEnd::Timeout,
            // What gives units back must not come twice; Envoy sends nothing again by itself.
            19..23 if !gives_back(&call.body) => {
                call.executions.push(now + rng.within(0, 2 * timeout))
            }
            23..26 if self.faults.cuts => call.cut.1 = rng.within(0, 1000),
            26..28 if self.faults.cuts => call.cut.0 = rng.within(0, 1000),
            28..30 => call.end = CallEnd::Reset,
            30 => call.end = CallEnd::Never,
            _ => {}
        }
        call
    }

    /// The store gets a call, if it is in reach.
    pub fn execute(&mut self, call: &mut Call, limits: &[LimitPlan], now: u64) {
        self.keep_copy(now);
        if self.cut[call.node].0 > now {
            return;
        }
        if self.failing_until <= now {
            self.shards.set_failing(None);
        }
        self.shards.set_clock(self.clock.read(now) / 1000);
        let body = part(&call.body, call.cut.0);
        let Some(reply) = self.shards.exchange(call.to.as_deref(), body, now) else { return };
        self.exchanges += 1;
        self.decisions += u64::try_from(evaluations(body)).unwrap();
        let answered = answered(body, &reply);
        self.granted += leased(&answered, limits);
        let is_doubled = call.executed_at.is_some();
        self.books.note(call, &answered, is_doubled, now);
        if !is_doubled {
            call.executed_at = Some(now);
            call.reply = Some(part(&reply, call.cut.1).to_vec());
        }
    }

    /// A worker hears of a call's reply.
    pub fn heard(&mut self, call: &Call, limits: &[LimitPlan], now: u64) {
        let Some((reply, executed_at)) = call.reply.as_ref().zip(call.executed_at) else { return };
        self.longest_reply = self.longest_reply.max(now - executed_at);
        self.books.heard(call, now);
        self.heard += leased(&answered(&call.body, reply), limits);
    }

    fn keep_copy(&mut self, now: u64) {
        let due = self.copies.last().is_none_or(|(at, _)| at + COPY_PERIOD <= now);
        if self.faults.losses && due {
            if self.copies.len() == COPIES {
                self.copies.remove(0);
            }
            self.copies.push((now, self.shards.snapshots()));
        }
    }

    /// A server fails over to a copy that is older by `lost`, and by half of [`COPY_PERIOD`] or more.
    pub fn fail_over(&mut self, rng: &Rng, lost: u64, now: u64) {
        let copy = self.copies.iter().rfind(|(at, _)| at + lost <= now).or(self.copies.first());
        let Some((_, copies)) = copy.filter(|_| !self.shards.moves()) else { return };
        let number = self.shards.with_limits(rng);
        let until = now + rng.within(0, 400 * MILLI);
        self.shards.fail_over(number, &copies[number], until);
        if self.shards.count() > 1 {
            self.books.trouble_all(self.cut.len(), now, until);
        }
    }

    /// A server loses all that it holds.
    pub fn flush(&mut self, rng: &Rng) {
        if !self.shards.moves() {
            let number = self.shards.with_limits(rng);
            self.shards.redis(number).flush();
        }
    }

    pub fn forget_script(&mut self, rng: &Rng) {
        let number = self.shards.with_limits(rng);
        self.shards.redis(number).forget_script();
    }

    /// One key is gone.
    pub fn evict(&mut self, rng: &Rng, now: u64) {
        let number = self.shards.with_limits(rng);
        if self.shards.moves() {
            return;
        }
        let redis = self.shards.redis(number);
        let keys = redis.keyspace().names();
        if keys.is_empty() {
            return;
        }
        let key = &keys[rng.place(keys.len())];
        redis.evict(key);
        if !key.ends_with(b":epoch") {
            self.books.lose_key(str::from_utf8(key).unwrap(), now);
        }
    }

    /// The slot of a limit goes to another server.
    pub fn move_slot(&mut self, rng: &Rng, place: usize, until: u64, now: u64) {
        if self.shards.count() > 1 {
            self.shards.move_slot(place, rng, until);
            self.books.trouble_all(self.cut.len(), now, until);
        }
    }
}

/// The first parts of a thousand of `bytes`.
fn part(bytes: &[u8], thousandths: u64) -> &[u8] {
    &bytes[..bytes.len() * usize::try_from(thousandths).unwrap() / 1000]
}

/// Units that these answers grant by leased limits.
fn leased(answers: &[Answered], limits: &[LimitPlan]) -> u64 {
    let is_leased = |key: &str| {
        let place: usize = limit_of(key)[1..].parse().unwrap();
        limits[place].kind == Kind::Leased
    };
    let leases = answers.iter().filter(|answer| answer.operation == b"lease");
    let grants = leases.flat_map(|answer| &answer.grants);
    grants.filter(|(key, _)| is_leased(key)).map(|(_, units)| units).sum()
}
