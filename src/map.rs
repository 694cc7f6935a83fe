//! The hash map of everything that a worker looks up while it serves requests.
//!
//! A B-tree would take ten kilobytes of the module for each pair of types, this one takes two.

use std::collections::HashMap;

use foldhash::fast::FixedState;

/// A map whose hashes depend on a seed.
pub type Map<K, V> = HashMap<K, V, FixedState>;

/// An empty map. Where outsiders have a say in the keys, `seed` must be one that they do not know,
/// lest they find keys that collide.
#[must_use]
pub const fn seeded<K, V>(seed: u64) -> Map<K, V> {
    Map::with_hasher(FixedState::with_seed(seed))
}
