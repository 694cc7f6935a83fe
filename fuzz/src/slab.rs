//! Whatever stands in shared data, the node decides, and what it writes is bounded.

use fairshare::store::node::NodeStore;
use fairshare::store::shared_data::{SharedData, SharedDataFailure, Swap, Version, Versioned};
use fairshare::store::slab::{Fingerprint, SLOT_BYTES_MAX, Slot};
use fairshare::units::{Instant, Span};

use crate::bytes::Bytes;
use crate::policies::{plan, policy};

/// The one value of all keys, and the largest that was written.
struct OneValue {
    value: Vec<u8>,
    version: u32,
    largest: usize,
}

impl SharedData for OneValue {
    fn get(&mut self, _key: &str) -> Result<Versioned, SharedDataFailure> {
        Ok(Versioned { bytes: self.value.clone(), version: Version::At(self.version) })
    }

    fn swap(&mut self, _key: &str, bytes: &[u8], seen: Version) -> Result<Swap, SharedDataFailure> {
        if seen != Version::At(self.version) {
            return Ok(Swap::Lost);
        }
        self.value = bytes.to_vec();
        self.version += 1;
        self.largest = self.largest.max(bytes.len());
        Ok(Swap::Done)
    }
}

/// Reads bytes as times and a slot.
pub fn run(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let policy = policy(2);
    let mut now = Instant::from_nanos(bytes.number());
    let step = Span::from_nanos(bytes.number());
    let mut shared = OneValue { value: bytes.0.to_vec(), version: 1, largest: 0 };
    if let Ok(mut slot) = Slot::decode(bytes.0.to_vec()) {
        let (own, other) = (Fingerprint::new(10), Fingerprint::new(9));
        let record = slot.record(other, now);
        slot.put(own, &record, now);
        let (length, written) = (slot.bytes().len(), slot.record(own, now));
        let mut again = Slot::decode(slot.bytes().to_vec()).expect("what was written is read");
        assert_eq!(again.record(own, now), written);
        assert_eq!(again.put(own, &record, now), 0, "there was room before");
        // An overflow of rows that held nothing is over at once.
        assert!(again.bytes().len() <= length, "it grew by what stood there already");
        assert_eq!(again.record(own, now), written);
    }
    let charges = plan(&policy, "/").node;
    let mut node = NodeStore::new(&policy.namespace, 7);
    for _ in 0..4 {
        let outcome = node.decide(&mut shared, &charges, now);
        assert_eq!(outcome.verdicts.len(), charges.len());
        if outcome.admitted {
            assert!(outcome.verdicts.iter().all(|verdict| verdict.admitted));
            node.release(&mut shared, &charges, now);
        }
        for verdict in &outcome.verdicts {
            assert_eq!(verdict.admitted, verdict.retry_after.is_zero());
        }
        now = now.plus(step);
        node.renew(&mut shared, now);
        node.tally(&mut shared, 1, now);
    }
    assert!(shared.largest <= SLOT_BYTES_MAX.max(bytes.0.len()), "{} bytes", shared.largest);
}
