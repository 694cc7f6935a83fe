//! Free TCP ports on the loopback interface.

use std::net::{Ipv4Addr, TcpListener};

/// A port that nothing listens on at the moment.
///
/// Envoy and the upstream choose their own ports and report them, which cannot collide. This is for
/// servers that have to be told, and for addresses at which nobody is to answer.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a bound socket has an address").port()
}
