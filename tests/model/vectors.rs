use fairshare::limiter::{GcraQuota, Quota, WindowQuota};
use fairshare::policy::{Level, Secret, StorePolicy, Topology};
use fairshare::store::epoch::State;
use fairshare::store::{
    Answer, Decision, Operation, ScriptCall, StoreCharge, decode, encode, record_key,
};
use fairshare::units::Span;

use crate::embedded_redis::EmbeddedRedis;
use crate::rng::Rng;

pub(crate) fn policy() -> StorePolicy {
    StorePolicy {
        cluster: String::new(),
        timeout: Span::from_millis(50),
        key_prefix: String::new(),
        username: String::new(),
        password: Secret::default(),
        topology: Topology::Single,
    }
}

/// What the script may be asked about.
pub(crate) fn quota(rng: &Rng) -> Quota {
    let period = Span::from_millis(rng.pick(&[16, 340, 1600]));
    let units = rng.within(1, 40);
    match rng.in_thousand(500) {
        true => Quota::Window(WindowQuota { requests: units, window: period }),
        false => Quota::Gcra(GcraQuota { rate: 1_000, per: period, burst: units }),
    }
}

/// A level of a question: its number, its quota and what is charged or given back.
pub(crate) type Part = (usize, Quota, u64);

/// Asks the script about levels of one limit.
pub(crate) fn ask(
    redis: &mut EmbeddedRedis,
    policy: &StorePolicy,
    levels: &[Part],
    operation: Operation,
) -> Answer {
    let charges = levels.iter().map(|(number, quota, cost)| StoreCharge {
        key: format!("{{}}:{number}:dns:s"),
        level: Level::Shared,
        quota: *quota,
        cost: *cost,
        hold: false,
    });
    let (charges, record) = (charges.collect(), record_key("{}"));
    // The epoch of a store that is in use.
    let known = State { epoch: 1, changes: 0 };
    let decision = [Decision { group: 0, operation, charges, record, known }];
    let replies = redis.exchange(&encode(policy, &decision, ScriptCall::Load));
    decode(policy, &decision, ScriptCall::Load, &replies).remove(0).expect("an answer")
}
