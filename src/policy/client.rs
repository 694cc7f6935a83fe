//! Whose address a request comes from: the peer's, or the one that trusted proxies reported.
//!
//! `x-forwarded-for` is a list that every proxy appends the address of its own peer to. What a
//! client sends stands at the left, so only the right end can be trusted, and only as far as the
//! proxies that wrote it. Envoy may itself have taken part before the filter sees the list; how that
//! is told is in [`ClientPolicy::find`].

use core::net::{IpAddr, Ipv6Addr};

use super::request::trim;
use super::{RequestView, Subject};

/// The list that proxies append to.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// How a request's client is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientPolicy {
    /// Proxies in front of Envoy whose word counts. Zero: the peer is the client.
    pub trusted_hops: usize,
    /// Leading bits of an IPv6 address that make a client; 1 to 128.
    pub ipv6_prefix: u8,
}

/// A client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client<'a> {
    /// An address; one of IPv6 is in its canonical form, without mapped IPv4.
    Address(IpAddr),
    /// A peer that has no IP address, by what Envoy calls it.
    Other(&'a [u8]),
}

impl ClientPolicy {
    /// The client of the request: the address that the outermost trusted proxy saw, or the peer
    /// where there is none or none that can be read.
    ///
    /// Envoy's word for the peer tells what it did with the list:
    ///
    /// - A port other than 0: Envoy speaks of the connection. With `use_remote_address` it has
    ///   appended the peer's address to the list, or its own where the peer is on this machine;
    ///   that element is nobody's claim and is left out.
    /// - The port 0, and the list's last address: Envoy took the client from there and appended
    ///   nothing.
    /// - The port 0, and another address: Envoy was told how to find the client, and has.
    /// - No IP address: Envoy appended nothing.
    #[must_use]
    pub fn find<'a>(&self, request: &RequestView<'a>, peer: &'a [u8]) -> Client<'a> {
        let socket = parse_socket(peer);
        let itself = socket.map_or(Client::Other(peer), |(address, _)| Client::Address(address));
        let Some(inner_hops) = self.trusted_hops.checked_sub(1) else { return itself };
        let list = request.lines(FORWARDED_FOR).collect::<Vec<_>>().join(&b',');
        let mut hops = list.rsplit(|byte| *byte == b',');
        if let Some((address, port)) = socket {
            let last = hops.clone().next().unwrap_or_default();
            if port != 0 && is_appended(last, address) {
                hops.next();
            } else if port == 0 && parse_hop(last) != Some(address) {
                return itself;
            }
        }
        hops.nth(inner_hops).and_then(parse_hop).map_or(itself, Client::Address)
    }

    /// What stands for the client: the `digest` of its address's bytes as far as they count.
    #[must_use]
    pub fn subject(&self, client: Client<'_>, digest: impl FnOnce(&[u8]) -> Subject) -> Subject {
        match client {
            Client::Address(IpAddr::V4(address)) => digest(&address.octets()),
            Client::Address(IpAddr::V6(address)) => {
                let ignored = 128_u32.saturating_sub(self.ipv6_prefix.into());
                let mask = u128::MAX.checked_shl(ignored).unwrap_or(0);
                digest(&Ipv6Addr::from_bits(address.to_bits() & mask).octets())
            }
            Client::Other(name) => digest(name),
        }
    }
}

/// Whether Envoy itself has put `last` at the list's end, for the connection from `peer`. In place
/// of an address that means nothing to others it writes its own, always a plain one.
fn is_appended(last: &[u8], peer: IpAddr) -> bool {
    text(last).and_then(parse_plain).is_some_and(|address| peer.is_loopback() || address == peer)
}

/// An address of the list, whatever its port.
fn parse_hop(hop: &[u8]) -> Option<IpAddr> {
    parse_socket(hop).map(|(address, _)| address)
}

/// An address, and its port or 0: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`,
/// `[2001:db8::1]:80`.
fn parse_socket(hop: &[u8]) -> Option<(IpAddr, u16)> {
    let text = text(hop)?;
    if let Some(address) = parse_plain(text) {
        return Some((address, 0));
    }
    let (address, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => text.split_at_checked(text.rfind(':')?)?,
    };
    let port = match port.strip_prefix(':') {
        Some(digits) if !digits.starts_with('+') => digits.parse().ok()?,
        None if port.is_empty() => 0,
        _ => return None,
    };
    Some((parse_plain(address)?, port))
}

/// An address alone, in its one form. A scope (`%eth0`) says where the peer's network is, not who
/// the peer is.
fn parse_plain(text: &str) -> Option<IpAddr> {
    let (address, _) = text.split_once('%').unwrap_or((text, ""));
    address.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

fn text(hop: &[u8]) -> Option<&str> {
    str::from_utf8(trim(hop)).ok()
}

#[cfg(test)]
mod tests;
