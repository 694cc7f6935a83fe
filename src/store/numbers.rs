//! Numbers that no two callers in the process get.

use super::shared_data::{SharedData, SharedDataFailure, Swap};

/// Tries for a number of one's own. Only callers that start at the same moment compete.
const TRIES: u32 = 64;

/// The next number that is counted under `key`; the first one is 1.
///
/// # Errors
///
/// [`SharedDataFailure`] where the host fails, or others came first every time.
pub fn next_number(shared: &mut impl SharedData, key: &str) -> Result<u64, SharedDataFailure> {
    for _ in 0..TRIES {
        let last = shared.get(key)?;
        let number = u64::from_le_bytes(last.bytes.first_chunk().copied().unwrap_or_default());
        let next = number.wrapping_add(1);
        if shared.swap(key, &next.to_le_bytes(), last.version)? == Swap::Done {
            return Ok(next);
        }
    }
    Err(SharedDataFailure)
}
