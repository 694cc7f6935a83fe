//! What a Redis Cluster says about which of its nodes has which keys.
//!
//! Its words end up in a header that chooses where a connection goes, so nothing is taken over but
//! an address and a port. Names of hosts cannot be called; where nodes go by names, the addresses that
//! stand beside them in the answer to `CLUSTER SLOTS` are taken.

use std::rc::Rc;

use super::StoreError;
use super::pipeline::{push_auth, read_auth};
use super::resp::{Reader, Reply, integer};
use crate::policy::StorePolicy;

/// The largest port.
const PORT_MAX: u64 = 65_535;

/// The longest text of an address.
const ADDRESS_BYTES_MAX: usize = 45;

const SLOTS: &[u8] = b"*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n";

/// A node's address and port: `192.0.2.7:6379` or `[2001:db8::7]:6379`.
pub type Node = Rc<str>;

/// "Ask another node."
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirection {
    /// The slot that it is about.
    pub slot: i64,
    /// Whom to ask.
    pub node: Node,
    /// Whether only this question is to go there, while its keys are on their way.
    pub only_now: bool,
}

/// Slots in a row, and the node that serves them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The first slot.
    pub first: i64,
    /// The last slot.
    pub last: i64,
    /// The primary.
    pub node: Node,
}

impl Redirection {
    /// Reads `MOVED <slot> <address>:<port>` or `ASK …`, an error reply without its leading `-`.
    #[must_use]
    pub fn parse(line: &[u8]) -> Option<Self> {
        let mut words = str::from_utf8(line).ok()?.split(' ');
        let only_now = match words.next()? {
            "MOVED" => false,
            "ASK" => true,
            _ => return None,
        };
        let slot = integer(words.next()?.as_bytes()).ok()?;
        let (address, port) = words.next()?.rsplit_once(':')?;
        let node = node(address, integer(port.as_bytes()).ok()?)?;
        words.next().is_none().then_some(Self { slot, node, only_now })
    }
}

/// The pipeline that asks a node which nodes serve which slots.
#[must_use]
pub fn encode_slots(policy: &StorePolicy) -> Vec<u8> {
    let mut pipeline = Vec::new();
    push_auth(policy, &mut pipeline);
    pipeline.extend_from_slice(SLOTS);
    pipeline
}

/// Reads the answer to [`encode_slots`] and hands on its entries. Those that cannot be used are left
/// out.
///
/// # Errors
///
/// What was answered instead.
pub fn decode_slots(
    policy: &StorePolicy,
    body: &[u8],
    serves: impl FnMut(Served),
) -> Result<(), StoreError> {
    let mut reader = Reader::new(body);
    read_auth(policy, &mut reader)?;
    match reader.reply()? {
        Reply::Array(entries) => entries.iter().filter_map(served).for_each(serves),
        Reply::Error(line) => return Err(StoreError::of_reply(line)),
        _ => return Err(StoreError::Malformed),
    }
    Ok(())
}

/// One entry: the first and the last slot, the primary, and then its replicas.
fn served(entry: &Reply<'_>) -> Option<Served> {
    let Reply::Array(parts) = entry else { return None };
    let [Reply::Integer(first), Reply::Integer(last), Reply::Array(primary), ..] = &**parts else {
        return None;
    };
    let [host, Reply::Integer(port), more @ ..] = &**primary else { return None };
    let node = text(host).and_then(|host| node(host, *port)).or_else(|| {
        // Its number, and then what else is known about it, by name.
        let [_, Reply::Array(known), ..] = more else { return None };
        let address = known.windows(2).find(|pair| matches!(pair, [Reply::Bulk(b"ip"), _]))?;
        node(text(address.last()?)?, *port)
    })?;
    Some(Served { first: *first, last: *last, node })
}

fn text<'a>(reply: &Reply<'a>) -> Option<&'a str> {
    let Reply::Bulk(text) = reply else { return None };
    str::from_utf8(text).ok()
}

/// A node by its address, which holds no byte that an address cannot hold. Whether it is one, the
/// proxy finds out.
fn node(address: &str, port: i64) -> Option<Node> {
    let long = address.contains(':');
    let fits = |byte: u8| match byte {
        b'0'..=b'9' | b'.' => true,
        b':' => long,
        byte => long && byte.is_ascii_hexdigit(),
    };
    let port = u64::try_from(port).ok().filter(|port| (1..=PORT_MAX).contains(port))?;
    let is_one = (2..=ADDRESS_BYTES_MAX).contains(&address.len()) && address.bytes().all(fits);
    let [open, shut] = if long { ["[", "]:"] } else { ["", ":"] };
    is_one.then(|| [open, address, shut, &port.to_string()].concat().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Secret, Topology};
    use crate::units::Span;

    fn policy(password: &str) -> StorePolicy {
        StorePolicy {
            cluster: "redis".to_owned(),
            timeout: Span::from_millis(50),
            key_prefix: "f".to_owned(),
            username: String::new(),
            password: Secret(password.to_owned()),
            topology: Topology::Cluster,
        }
    }

    fn read(password: &str, body: &[u8]) -> Result<Vec<Served>, StoreError> {
        let mut all = Vec::new();
        decode_slots(&policy(password), body, |served| all.push(served)).map(|()| all)
    }

    #[test]
    fn redirections_are_read() {
        let parse = |line: &str| Redirection::parse(line.as_bytes());
        let moved = parse("MOVED 3999 127.0.0.1:6381").unwrap();
        assert_eq!((moved.slot, &*moved.node, moved.only_now), (3999, "127.0.0.1:6381", false));
        let ask = parse("ASK 3999 2001:db8::7:6381").unwrap();
        assert_eq!((&*ask.node, ask.only_now), ("[2001:db8::7]:6381", true));
    }

    /// Goal: no reply chooses anything but an address and a port, and none gets bytes of its own into
    /// a header.
    #[test]
    fn hostile_addresses_are_not_followed() {
        for line in [
            "MOVED",
            "MOVED 1",
            "MOVED 1 ",
            "MOVED x 127.0.0.1:1",
            "MOVED 1 127.0.0.1",
            "MOVED 1 127.0.0.1:",
            "MOVED 1 127.0.0.1:0",
            "MOVED 1 127.0.0.1:65536",
            "MOVED 1 :6379",
            "MOVED 1 redis-7.example:6379",
            "MOVED 1 face:6379",
            "MOVED 1 127.0.0.1\r\nx-evil: 1:6379",
            "MOVED 1 127.0.0.1:6379 more",
            "MOVED 1 [::1]:6379",
            "MOVED 1 ::1%eth0:6379",
            "MOVED 1 127.0.0.1,10.0.0.1:6379",
            "moved 1 127.0.0.1:6379",
            "ASKED 1 127.0.0.1:6379",
        ] {
            assert_eq!(Redirection::parse(line.as_bytes()), None, "{line}");
        }
        assert_eq!(Redirection::parse(b"MOVED 1 \xff:6379"), None);
        let long = format!("MOVED 1 {}:6379", "1".repeat(ADDRESS_BYTES_MAX + 1));
        assert_eq!(Redirection::parse(long.as_bytes()), None);
    }

    #[test]
    fn slots_are_read_with_their_primaries() {
        let body = b"+OK\r\n*3\r\n\
            *4\r\n:0\r\n:5460\r\n\
            *4\r\n$9\r\n127.0.0.1\r\n:30001\r\n$2\r\nid\r\n*0\r\n\
            *3\r\n$9\r\n127.0.0.1\r\n:30004\r\n$2\r\nid\r\n\
            *3\r\n:5461\r\n:9\r\n\
            *4\r\n$6\r\nredis2\r\n:30002\r\n$2\r\nid\r\n*2\r\n$2\r\nip\r\n$3\r\n::7\r\n\
            *3\r\n:7\r\n:8\r\n*2\r\n$-1\r\n:30002\r\n";
        let served = |first, last, node: &str| Served { first, last, node: node.into() };
        let expected = vec![served(0, 5460, "127.0.0.1:30001"), served(5461, 9, "[::7]:30002")];
        assert_eq!(read("secret", body), Ok(expected));
        for end in 0..body.len() {
            assert_eq!(read("secret", &body[..end]), Err(StoreError::Truncated), "{end}");
        }
    }

    #[test]
    fn other_answers_are_errors_and_odd_entries_are_left_out() {
        let read = |body: &str| read("", body.as_bytes());
        assert_eq!(read("-NOAUTH x\r\n"), Err(StoreError::NoAuth));
        assert_eq!(read("+OK\r\n"), Err(StoreError::Malformed));
        assert_eq!(read("*2\r\n:1\r\n*2\r\n:1\r\n:2\r\n"), Ok(vec![]));
        assert_eq!(read("*1\r\n*3\r\n:1\r\n:2\r\n*2\r\n$3\r\n::1\r\n:0\r\n"), Ok(vec![]));
    }

    #[test]
    fn the_question_comes_after_the_password() {
        let bytes = encode_slots(&policy("pw"));
        let text = "*2\r\n$4\r\nAUTH\r\n$2\r\npw\r\n*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n";
        assert_eq!(bytes, text.as_bytes());
    }
}
