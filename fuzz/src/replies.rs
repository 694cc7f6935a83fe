//! Whatever the store says, nobody is given what was not asked for.

use fairshare::store::epoch::Known;
use fairshare::store::{
    Decision, Operation, PARTS_MAX, Part, ScriptCall, Want, decode, record_key,
};

use crate::bytes::Bytes;
use crate::policies::{plan, policy};

/// Reads bytes as what is asked, and the rest as the body of the store's answer.
pub fn run(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let policy = policy(2);
    let store = policy.store.as_ref().expect("it has a store");
    let leased = plan(&policy, "/leased").leased;
    let call = [ScriptCall::Cached, ScriptCall::Load][bytes.below(2)];
    let decisions: Vec<Decision> = (0..1 + bytes.below(4))
        .map(|_| match bytes.below(6) {
            0 => Decision::decide(&leased, &policy),
            1 => Decision::strict(&leased, u64::from(bytes.byte() % 4), &policy),
            2 => Decision::give_back(&leased, vec![bytes.number(); leased.len()], &policy),
            3 => Decision::restore(&leased[0], [Part::default(); PARTS_MAX], &policy),
            4 => Decision::poll(&Known::new("", 0, record_key("{f}"))),
            _ => {
                let want = Want { firm: bytes.byte().into(), ahead: bytes.byte().into() };
                Decision::lease(&leased, vec![want; leased.len()], &policy)
            }
        })
        .collect();
    let results = decode(store, &decisions, call, bytes.0);
    assert_eq!(results.len(), decisions.len());
    for (decision, result) in decisions.iter().zip(results) {
        let Ok(answer) = result else { continue };
        if let Operation::Decide = decision.operation {
            let all = answer.levels.iter().all(|level| level.admitted);
            assert_eq!((answer.admitted, answer.levels.len()), (all, decision.charges.len()));
        }
        let Operation::Lease(wants) = &decision.operation else {
            let charged = answer.admitted && decision.operation == Operation::Decide;
            assert!(charged || answer.units.iter().all(|units| *units == 0));
            continue;
        };
        assert_eq!((answer.units.len(), answer.levels.len()), (wants.len(), wants.len()));
        for ((units, want), charge) in answer.units.into_iter().zip(wants).zip(&decision.charges) {
            assert_eq!(answer.admitted, units >= charge.cost);
            assert!(units <= charge.cost.max(want.firm) + want.ahead, "{units} for {want:?}");
        }
    }
}
