use fairshare::host::CallId;

use crate::clock::Clock;
use crate::embedded_redis::{EmbeddedRedis, Snapshot, read_command};
use crate::fake_host::FakeCall;
use crate::faults::Faults;
use crate::plan::{LimitPlan, MILLI, Plan};
use crate::rng::Rng;

/// The store's clock at the beginning, in nanoseconds.
const STORE_START: u64 = 1_700_000_000_000_000_000;

/// Copies are kept so often, and so many.
const COPY_PERIOD: u64 = 50 * MILLI;
const COPIES: usize = 8;

/// A store call on its way.
pub struct Call {
    pub member: usize,
    pub node: usize,
    pub id: CallId,
    pub body: Vec<u8>,
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
    cut: (u64, u64),
    pub done: bool,
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
    pub store: &'a mut EmbeddedRedis,
    pub clock: Clock,
    pub faults: Faults,
    /// Until when the store is out of reach of each node, and whether that is noticed only by its
    /// silence.
    pub cut: Vec<(u64, bool)>,
    pub failing_until: u64,
    copies: Vec<(u64, Snapshot)>,
    /// How often state was lost.
    pub losses: u64,
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
    pub fn new(plan: &Plan, store: &'a mut EmbeddedRedis) -> Self {
        store.reset();
        store.password = plan.password.then(|| "secret".to_owned());
        store.set_clock(STORE_START / 1000);
        store.age("fairshare");
        Self {
            store,
            clock: Clock::new(STORE_START),
            faults: plan.faults.clone(),
            cut: vec![(0, false); plan.nodes],
            failing_until: 0,
            copies: vec![],
            losses: 0,
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
        self.store.failing = None;
    }

    /// What becomes of a call that `member` makes at `now`.
    pub fn send(&self, rng: &Rng, by: (usize, usize), made: FakeCall, now: u64) -> Call {
        let short = || rng.within(MILLI / 10, 2 * MILLI);
        let timeout = made.timeout.as_nanos();
        let (member, node) = by;
        let mut call = Call {
            member,
            node,
            id: made.id,
            body: made.body,
            deadline: now + timeout,
            executions: vec![now + short()],
            executed_at: None,
            reply: None,
            reply_after: short(),
            end: CallEnd::Reply,
            cut: (1000, 1000),
            done: false,
        };
        if !self.faults.network {
            return call;
        }
        match rng.within(0, 100) {
            0..5 => call.executions = vec![now + rng.within(0, 2 * timeout)],
            5..12 => call.reply_after = rng.within(0, timeout),
            12..15 => (call.executions, call.end) = (vec![], CallEnd::Timeout),
            15..19 => call.end = CallEnd::Timeout,
            // What gives units back must not come twice; Envoy sends nothing again by itself.
            19..23 if !gives_back(&call.body) => {
                call.executions.push(now + rng.within(0, 2 * timeout))
            }
            23..26 => call.cut.1 = rng.within(0, 1000),
            26..28 => call.cut.0 = rng.within(0, 1000),
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
        self.store.failing = self.store.failing.filter(|_| self.failing_until > now);
        self.store.set_clock(self.clock.read(now) / 1000);
        let body = part(&call.body, call.cut.0);
        let reply = self.store.exchange(body);
        let granted = granted(body, &reply, limits);
        self.exchanges += 1;
        self.decisions += u64::try_from(evaluations(body)).unwrap();
        self.granted += granted;
        if call.executed_at.is_none() {
            call.executed_at = Some(now);
            call.reply = Some(part(&reply, call.cut.1).to_vec());
        }
    }

    /// A worker hears of a call's reply.
    pub fn heard(&mut self, call: &Call, limits: &[LimitPlan], now: u64) {
        let Some((reply, executed_at)) = call.reply.as_ref().zip(call.executed_at) else { return };
        self.longest_reply = self.longest_reply.max(now - executed_at);
        self.heard += granted(&call.body, reply, limits);
    }

    fn keep_copy(&mut self, now: u64) {
        let due = self.copies.last().is_none_or(|(at, _)| at + COPY_PERIOD <= now);
        if self.faults.losses && due {
            if self.copies.len() == COPIES {
                self.copies.remove(0);
            }
            self.copies.push((now, self.store.snapshot()));
        }
    }

    /// A copy takes over that is older by `lost`, and by half of [`COPY_PERIOD`] or more.
    pub fn fail_over(&mut self, lost: u64, now: u64) {
        let copy = self.copies.iter().rfind(|(at, _)| at + lost <= now).or(self.copies.first());
        if let Some((_, copy)) = copy {
            self.store.fail_over(copy);
            self.losses += 1;
        }
    }

    pub fn flush(&mut self) {
        self.store.flush();
        self.losses += 1;
    }
}

/// The first parts of a thousand of `bytes`.
fn part(bytes: &[u8], thousandths: u64) -> &[u8] {
    &bytes[..bytes.len() * usize::try_from(thousandths).unwrap() / 1000]
}

/// Whether a body gives units back.
fn gives_back(mut body: &[u8]) -> bool {
    let mut commands = std::iter::from_fn(|| read_command(&mut body));
    commands.any(|command| command.iter().any(|argument| argument == b"return"))
}

/// Script calls in a body.
pub fn evaluations(mut body: &[u8]) -> usize {
    let mut count = 0;
    while let Some(command) = read_command(&mut body) {
        count += usize::from(command[0] == b"EVALSHA");
    }
    count
}

/// Units that these replies grant by leased limits.
fn granted(mut body: &[u8], mut replies: &[u8], limits: &[LimitPlan]) -> u64 {
    let mut units = 0;
    while let Some(command) = read_command(&mut body) {
        let Some(integers) = integers(&mut replies) else { return units };
        if command[0] != b"EVALSHA" || integers.is_empty() {
            continue;
        }
        let keys: usize = str::from_utf8(&command[2]).unwrap().parse().unwrap();
        if command[3 + keys + 1] != b"lease" {
            continue;
        }
        let is_leased = |key: &[u8]| {
            let name = str::from_utf8(key).unwrap().split(':').nth(2).unwrap();
            let place: usize = name[1..].parse().unwrap();
            limits[place].kind == crate::plan::Kind::Leased
        };
        // Five numbers about the store come first, and its record is the first key.
        for (place, key) in command[4..3 + keys].iter().enumerate() {
            if is_leased(key) {
                units += integers[5 + 5 * place];
            }
        }
    }
    units
}

/// The integers of the first reply; none where it has others. None at all where it is not whole.
fn integers(rest: &mut &[u8]) -> Option<Vec<u64>> {
    let line = |rest: &mut &[u8]| -> Option<Vec<u8>> {
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let line = rest[..end].to_vec();
        *rest = &rest[end + 2..];
        Some(line)
    };
    let number = |line: &[u8]| str::from_utf8(&line[1..]).unwrap().parse::<u64>().unwrap();
    let head = line(rest)?;
    match head[0] {
        b'*' => (0..number(&head)).map(|_| line(rest).map(|line| number(&line))).collect(),
        b'$' => {
            line(rest)?;
            Some(vec![])
        }
        _ => Some(vec![]),
    }
}
