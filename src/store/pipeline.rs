//! Many decisions in one exchange with the store: group commit.
//!
//! The pipeline is the body of one POST through the tunnel, and the replies, in order, are the body
//! of its answer. The connection behind it is new each time, so a password comes first, each time.
//! [`encode`] and [`decode`] take the same policy, decisions and script call, which is how the
//! reader knows what was asked.

use std::borrow::Borrow;
use std::iter::zip;

use super::StoreError;
use super::cluster::Redirection;
use super::decision::{Answer, Decision, Operation, StoreCharge};
use super::epoch::State;
use super::resp::{Command, Reader, Reply};
use super::script::{self, SCRIPT, SCRIPT_SHA1};
use crate::limiter::Verdict;
use crate::policy::StorePolicy;
use crate::units::Span;

/// The most decisions in one pipeline.
pub const DECISIONS_MAX: usize = 256;

/// The most charges in one pipeline. Redis closes the half-closed connection once it has read all,
/// and what the socket cannot hold by then is lost. The longest replies to this many charges are
/// 160 kB, which every socket of a default Linux holds.
pub const PIPELINE_CHARGES_MAX: usize = 2_048;

/// Integers about the store before those about levels, and integers about one level.
const INTEGERS_FIRST: usize = 5;
const INTEGERS_PER_LEVEL: usize = 5;

/// A command of a Redis Cluster: what follows is meant although the keys are still on their way.
const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// How the script is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptCall {
    /// By its hash alone. Answers [`StoreError::NoScript`] where the store does not have it.
    Cached,
    /// By its hash, after its text has been sent.
    Load,
    /// The same, for keys that are on their way to the node of a Redis Cluster that is called.
    Asking,
}

/// How many of `decisions`, from the first on, one pipeline takes: at most [`DECISIONS_MAX`], with
/// at most [`PIPELINE_CHARGES_MAX`] charges in all. The others are not sent and have no answer.
#[must_use]
pub fn pipeline_len(decisions: &[impl Borrow<Decision>]) -> usize {
    let charges = decisions.iter().take(DECISIONS_MAX).scan(0usize, |sum, decision| {
        *sum = sum.saturating_add(decision.borrow().charges.len());
        Some(*sum)
    });
    charges.take_while(|sum| *sum <= PIPELINE_CHARGES_MAX).count()
}

/// The pipeline that asks the store for the first [`pipeline_len`] of `decisions`.
#[must_use]
pub fn encode(
    policy: &StorePolicy,
    decisions: &[impl Borrow<Decision>],
    call: ScriptCall,
) -> Vec<u8> {
    let mut pipeline = Vec::new();
    push_auth(policy, &mut pipeline);
    if call != ScriptCall::Cached {
        let mut load = Command::default();
        load.text("SCRIPT");
        load.text("LOAD");
        load.text(SCRIPT);
        load.write_to(&mut pipeline);
    }
    for decision in decisions.iter().take(pipeline_len(decisions)) {
        if call == ScriptCall::Asking {
            pipeline.extend_from_slice(ASKING);
        }
        evaluation(decision.borrow(), call).write_to(&mut pipeline);
    }
    pipeline
}

/// Reads the replies to what [`encode`] wrote for the same arguments. Returns exactly one result
/// for each decision, whatever `body` holds, and an answer only where the store gave one.
#[must_use]
pub fn decode(
    policy: &StorePolicy,
    decisions: &[impl Borrow<Decision>],
    call: ScriptCall,
    body: &[u8],
) -> Vec<Result<Answer, StoreError>> {
    read_all(policy, decisions, call, &mut Reader::new(body))
        .unwrap_or_else(|error| decisions.iter().map(|_| Err(error)).collect())
}

fn evaluation(decision: &Decision, call: ScriptCall) -> Command {
    let mut command = Command::default();
    command.text("EVALSHA");
    command.text(SCRIPT_SHA1);
    let keys = decision.charges.len().saturating_add(1);
    command.number(u64::try_from(keys).unwrap_or(u64::MAX));
    command.text(&decision.record);
    for charge in &decision.charges {
        command.text(&charge.key);
    }
    script::push_operation(&mut command, decision, call == ScriptCall::Load);
    for (place, charge) in decision.charges.iter().enumerate() {
        script::push_charge(&mut command, charge);
        script::push_extra(&mut command, &decision.operation, place);
    }
    command
}

/// One result for each decision, or the error that all of them share.
fn read_all(
    policy: &StorePolicy,
    decisions: &[impl Borrow<Decision>],
    call: ScriptCall,
    reader: &mut Reader<'_>,
) -> Result<Vec<Result<Answer, StoreError>>, StoreError> {
    read_auth(policy, reader)?;
    let load_error = match call {
        ScriptCall::Cached => None,
        ScriptCall::Load | ScriptCall::Asking => read_load(reader)?,
    };
    let mut lost = None;
    let read_one = |decision: &_| {
        if let Some(error) = lost {
            return Err(error);
        }
        let reply = read_next(reader, call).inspect_err(|error| lost = Some(*error))?;
        answer(Borrow::borrow(decision), &reply).map_err(|error| match load_error {
            // The script is missing because it could not be sent: that is what to report.
            Some(cause) if error == StoreError::NoScript => cause,
            _ => error,
        })
    };
    let mut results: Vec<_> =
        decisions.iter().take(pipeline_len(decisions)).map(read_one).collect();
    if lost.is_none() && !reader.is_at_end() {
        // More replies than questions: nobody knows which belongs to which.
        return Err(StoreError::Malformed);
    }
    results.resize(decisions.len(), Err(StoreError::Truncated));
    Ok(results)
}

/// Where there is a password, it comes first.
pub(super) fn push_auth(policy: &StorePolicy, pipeline: &mut Vec<u8>) {
    if !has_password(policy) {
        return;
    }
    let mut auth = Command::default();
    auth.text("AUTH");
    if !policy.username.is_empty() {
        auth.text(&policy.username);
    }
    auth.text(&policy.password.0);
    auth.write_to(pipeline);
}

/// A store that wants another password, or none, is a mistake in the configuration. Its commands
/// may have run all the same, but nothing is granted by them.
pub(super) fn read_auth(policy: &StorePolicy, reader: &mut Reader<'_>) -> Result<(), StoreError> {
    if !has_password(policy) {
        return Ok(());
    }
    match reader.reply()? {
        Reply::Simple(b"OK") => Ok(()),
        Reply::Error(line) => Err(match StoreError::of_reply(line) {
            StoreError::Other => StoreError::WrongPass,
            error => error,
        }),
        _ => Err(StoreError::Malformed),
    }
}

/// The next decision's reply. Whether the store took the `ASKING` before it shows there.
fn read_next<'a>(reader: &mut Reader<'a>, call: ScriptCall) -> Result<Reply<'a>, StoreError> {
    if call == ScriptCall::Asking {
        reader.reply()?;
    }
    reader.reply()
}

/// The redirections among the replies to what [`encode`] wrote, for one decision after the other.
#[derive(Debug)]
pub struct Redirections<'a> {
    reader: Reader<'a>,
    call: ScriptCall,
    lost: bool,
}

impl<'a> Redirections<'a> {
    /// Takes the same arguments as [`decode`].
    #[must_use]
    pub fn new(policy: &StorePolicy, call: ScriptCall, body: &'a [u8]) -> Self {
        let mut reader = Reader::new(body);
        let mut before = read_auth(policy, &mut reader);
        if call != ScriptCall::Cached {
            before = before.and_then(|()| read_load(&mut reader).map(drop));
        }
        Self { reader, call, lost: before.is_err() }
    }

    /// Where the next decision is to go, if it is to go elsewhere.
    pub fn take(&mut self) -> Option<Redirection> {
        if self.lost {
            return None;
        }
        let reply = read_next(&mut self.reader, self.call);
        self.lost = reply.is_err();
        match reply {
            Ok(Reply::Error(line)) => Redirection::parse(line),
            _ => None,
        }
    }
}

/// The error for which the script was not taken, if it was not.
fn read_load(reader: &mut Reader<'_>) -> Result<Option<StoreError>, StoreError> {
    match reader.reply()? {
        Reply::Bulk(_) => Ok(None),
        Reply::Error(line) => Ok(Some(StoreError::of_reply(line))),
        _ => Err(StoreError::Malformed),
    }
}

fn has_password(policy: &StorePolicy) -> bool {
    !policy.password.0.is_empty()
}

/// The answer to `decision`, if `reply` is one in every respect.
fn answer(decision: &Decision, reply: &Reply<'_>) -> Result<Answer, StoreError> {
    let integers = match reply {
        Reply::Array(integers) => integers,
        Reply::Error(line) => return Err(StoreError::of_reply(line)),
        _ => return Err(StoreError::Malformed),
    };
    let (first, rest) =
        integers.split_first_chunk::<INTEGERS_FIRST>().ok_or(StoreError::Malformed)?;
    let [epoch, changes, why, clock_us, admitted] = first;
    let (replies, odd) = rest.as_chunks::<INTEGERS_PER_LEVEL>();
    if replies.len() != decision.charges.len() || !odd.is_empty() {
        return Err(StoreError::Malformed);
    }
    let (mut levels, mut units) = (Vec::new(), Vec::new());
    for (charge, [granted, rest @ ..]) in zip(&decision.charges, replies) {
        units.push(natural(granted)?);
        levels.push(verdict(charge, rest)?);
    }
    let answer = Answer {
        admitted: boolean(admitted)?,
        levels,
        units,
        clock_us: ordinal(clock_us)?,
        state: State { epoch: ordinal(epoch)?, changes: ordinal(changes)? },
        why: natural(why)?,
    };
    match answer.is_sound(decision) {
        true => Ok(answer),
        false => Err(StoreError::Malformed),
    }
}

impl Answer {
    /// Whether units are charged on every key, at least the cost and at most what was wanted, or on
    /// none, as it says.
    fn is_sound(&self, decision: &Decision) -> bool {
        let mut charged = zip(&self.units, &decision.charges);
        let charged = match (&decision.operation, self.admitted) {
            (Operation::Decide, true) => charged.all(|(units, charge)| *units == charge.cost),
            (Operation::Lease(wants), true) => {
                let requests = self.requests(decision.charges.iter().map(|charge| charge.cost));
                zip(charged, wants).all(|((units, charge), want)| {
                    let firm = match charge.cost {
                        0 => want.firm,
                        cost => cost.saturating_mul(requests).min(cost.max(want.firm)),
                    };
                    (charge.cost..=firm.saturating_add(want.ahead)).contains(units)
                })
            }
            _ => charged.all(|(units, _)| *units == 0),
        };
        let told = self.levels.iter().all(|level| level.admitted);
        charged && (decision.operation != Operation::Decide || self.admitted == told)
    }
}

fn verdict(
    charge: &StoreCharge,
    [admitted, remaining, retry_after_us, reset_after_us]: &[Reply<'_>; INTEGERS_PER_LEVEL - 1],
) -> Result<Verdict, StoreError> {
    let verdict = Verdict {
        admitted: boolean(admitted)?,
        capacity: charge.quota.capacity(),
        remaining: natural(remaining)?,
        retry_after: Span::from_micros(natural(retry_after_us)?),
        reset_after: Span::from_micros(natural(reset_after_us)?),
    };
    // Whoever has room need not wait, and whoever has none must.
    match verdict.admitted == verdict.retry_after.is_zero() {
        true => Ok(verdict),
        false => Err(StoreError::Malformed),
    }
}

fn boolean(reply: &Reply<'_>) -> Result<bool, StoreError> {
    match reply {
        Reply::Integer(0) => Ok(false),
        Reply::Integer(1) => Ok(true),
        _ => Err(StoreError::Malformed),
    }
}

/// A number that the script can have said: it counts in doubles, which are exact up to 2^53.
fn natural(reply: &Reply<'_>) -> Result<u64, StoreError> {
    const NATURAL_MAX: u64 = 1 << 53;
    let Reply::Integer(number) = reply else { return Err(StoreError::Malformed) };
    u64::try_from(*number).ok().filter(|number| *number <= NATURAL_MAX).ok_or(StoreError::Malformed)
}

/// A number to which others are to follow, for a long time: epochs are numbered by the microsecond, and
/// will be below this one until the year 2112. The node says it back to the store, which refuses what it
/// cannot count on from; so one reply that is no reply of the script must not be believed.
fn ordinal(reply: &Reply<'_>) -> Result<u64, StoreError> {
    const ORDINAL_MAX: u64 = 1 << 52;
    natural(reply).ok().filter(|number| *number <= ORDINAL_MAX).ok_or(StoreError::Malformed)
}

#[cfg(test)]
mod tests;
