//! Any bytes are a header map, and whoever sent it has one identity or none.

use std::collections::BTreeSet;

use fairshare::policy::{HeaderMap, KnownDigests, RequestView};

use crate::bytes::Bytes;
use crate::policies::policy;

/// Reads bytes as a policy's number, an attribute and a header map.
pub fn run(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let policy = policy(bytes.below(3));
    let length = bytes.below(64);
    let attribute = bytes.take(length).to_vec();
    let headers = HeaderMap::new(bytes.0);
    let pairs: Vec<_> = headers.pairs().collect();
    let sum: usize = pairs.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    assert!(sum <= bytes.0.len(), "more came out than went in");
    let again = HeaderMap::serialize(&pairs);
    assert_eq!(HeaderMap::new(&again).pairs().collect::<Vec<_>>(), pairs);

    let attributes = policy.attributes(|_| Some(attribute.clone()));
    let request = RequestView::new(headers, &attributes);
    let mut known = KnownDigests::new(7);
    let client = policy.identity.client(&request, &mut known);
    let Ok(identity) = policy.identity.identify(&request, client, &mut known) else { return };
    let plan = policy.plan(&request, &identity, policy.mode);
    let charges = [&plan.node, &plan.leased, &plan.strict];
    let mut seen = BTreeSet::new();
    for charge in charges.into_iter().flatten() {
        let subject = charge.subject.map(|subject| subject.0);
        assert!(seen.insert((format!("{:?}", charge.id), charge.level as u8, subject)), "twice");
    }
}
