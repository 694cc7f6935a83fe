//! What the host tells of a request beside its headers.

use super::{Policy, TenantSource};

/// Where the peer's address and port stand.
const PEER: [&str; 2] = ["source", "address"];

/// Where the name of the route stands.
const ROUTE: [&str; 2] = ["xds", "route_name"];

/// Where other filters' metadata stands.
const METADATA: [&str; 2] = ["metadata", "filter_metadata"];

/// Which attributes the policy looks at, beside the tenant's source. Each costs a call of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The peer's address.
    pub peer: bool,
    /// The name of the route.
    pub route: bool,
}

/// A request's attributes, as far as the policy looks at them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The peer as the proxy sees it, mostly `address:port`. Where the proxy cannot tell, there still
    /// is one, without a name.
    pub peer: Option<Vec<u8>>,
    /// The name of the route.
    pub route: Option<Vec<u8>>,
    /// The tenant that another filter has found.
    pub tenant: Option<Vec<u8>>,
}

impl Attributes {
    /// Of a request of which nothing was asked.
    pub const NONE: Self = Self { peer: None, route: None, tenant: None };
}

impl Policy {
    /// Reads the attributes that the policy looks at, and no other, by `property`.
    pub fn attributes(&self, mut property: impl FnMut(&[&str]) -> Option<Vec<u8>>) -> Attributes {
        let Wanted { peer, route } = self.wanted;
        let tenant = match &self.identity.tenant.source {
            TenantSource::Header(_) => None,
            TenantSource::Metadata(keys) => {
                let path: Vec<&str> =
                    METADATA.into_iter().chain(keys.iter().map(String::as_str)).collect();
                property(&path)
            }
        };
        Attributes {
            peer: peer.then(|| property(&PEER).unwrap_or_default()),
            route: if route { property(&ROUTE) } else { None },
            tenant,
        }
    }
}
