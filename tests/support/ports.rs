//! Free TCP ports on the loopback interface.

use std::net::{Ipv4Addr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Ports from here on, so many, are given away by nobody else: systems choose higher ones where a
/// connection or a listener leaves the choice to them.
const FIRST: u32 = 10_000;
const COUNT: u32 = 22_000;

/// A port that nothing listens on at the moment, and that no other call has returned.
///
/// Envoy and the upstream choose their own ports and report them, which cannot collide. This is for
/// servers that have to be told, and for addresses at which nobody is to answer.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Tests of other processes begin elsewhere.
    let start = process::id().wrapping_mul(101);
    let ports = (0..COUNT).map(|_| {
        let number = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        u16::try_from(FIRST + number).expect("a port")
    });
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    ports.into_iter().find(is_free).expect("a free port")
}
