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

/// Asks the script about one level.
pub(crate) fn ask(
    redis: &mut EmbeddedRedis,
    policy: &StorePolicy,
    quota: Quota,
    cost: u64,
    operation: Operation,
) -> Answer {
    let (key, level) = ("{}:1:dns:s".to_owned(), Level::Shared);
    let charges = vec![StoreCharge { key, level, quota, cost, hold: false }];
    let record = record_key("{}");
    let decision = [Decision { group: 0, operation, charges, record, known: State::NONE }];
    let replies = redis.exchange(&encode(policy, &decision, ScriptCall::Load));
    decode(policy, &decision, ScriptCall::Load, &replies).remove(0).expect("an answer")
}
