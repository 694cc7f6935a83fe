//! What the host tells of a request beside its headers.

use super::Policy;

/// Where the peer's address and port stand.
const PEER: [&str; 2] = ["source", "address"];

/// Which attributes the policy looks at. Each costs a call of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The peer's address.
    pub peer: bool,
}

/// A request's attributes, as far as the policy looks at them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The peer as the proxy sees it: mostly `address:port`.
    pub peer: Option<Vec<u8>>,
}

impl Policy {
    /// Reads the attributes that the policy looks at, and no other, by `property`.
    pub fn attributes(&self, mut property: impl FnMut(&[&str]) -> Option<Vec<u8>>) -> Attributes {
        // Where the host cannot tell the peer, there still is one, with no name.
        let peer = self.wanted.peer.then(|| property(&PEER).unwrap_or_default());
        Attributes { peer }
    }
}
