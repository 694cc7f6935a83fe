use proptest::prelude::*;

use super::*;
use crate::policy::{Attributes, Digester, HeaderMap};

/// Envoy's own address, which it appends for a peer on its machine.
const OWN: &str = "192.0.2.2";

fn client(trusted_hops: usize, peer: &[u8], lines: &[&[u8]]) -> String {
    let policy = ClientPolicy { trusted_hops, ipv6_prefix: 64 };
    let pairs: Vec<(&[u8], &[u8])> =
        lines.iter().map(|line| (FORWARDED_FOR.as_bytes(), *line)).collect();
    let bytes = HeaderMap::serialize(&pairs);
    match policy.find(&RequestView::new(HeaderMap::new(&bytes), &Attributes::NONE), peer) {
        Client::Address(address) => address.to_string(),
        Client::Other(name) => String::from_utf8_lossy(name).into_owned(),
    }
}

fn of(trusted_hops: usize, peer: &str, list: &str) -> String {
    client(trusted_hops, peer.as_bytes(), &[list.as_bytes()])
}

#[test]
fn crd_3_hops_are_counted_from_the_right() {
    for fake in ["1.1.1.1", "2.2.2.2", "3.3.3.3, 4.4.4.4"] {
        let list = format!("{fake}, 203.0.113.5,10.0.0.9");
        assert_eq!(of(1, "10.0.0.9:4711", &list), "203.0.113.5");
        assert_eq!(of(0, "10.0.0.9:4711", &list), "10.0.0.9");
    }
    assert_eq!(of(2, "10.0.0.9:4711", "1.1.1.1, 203.0.113.5, 10.0.0.8, 10.0.0.9"), "203.0.113.5");
}

/// Goal: what Envoy does to the list in each of its modes is told apart by what it calls the peer.
#[test]
fn what_envoy_appended_is_left_out() {
    let cases = [
        // With use_remote_address: the peer, or Envoy itself where the peer is on its machine.
        ("10.0.0.9:4711", "203.0.113.5,10.0.0.9", "203.0.113.5"),
        ("127.0.0.1:4711", "203.0.113.5,192.0.2.2", "203.0.113.5"),
        ("[::1]:4711", "203.0.113.5,192.0.2.2", "203.0.113.5"),
        ("10.0.0.9:4711", "10.0.0.9", "10.0.0.9"),
        ("127.0.0.1:4711", OWN, "127.0.0.1"),
        // Without: the client that Envoy found at the list's end.
        ("203.0.113.5:0", "1.1.1.1, 203.0.113.5", "203.0.113.5"),
        ("[2001:db8::1]:0", "1.1.1.1, 2001:db8::1", "2001:db8::1"),
        // Without, where Envoy could not read the list's end, and so appended nothing.
        ("127.0.0.1:4711", "1.1.1.1, 203.0.113.5:99", "203.0.113.5"),
        ("127.0.0.1:4711", "1.1.1.1, unknown", "127.0.0.1"),
        // Envoy counted hops by itself, and appended the peer or not.
        ("203.0.113.5:0", "1.1.1.1, 203.0.113.5,10.0.0.9", "203.0.113.5"),
        ("203.0.113.5:0", "203.0.113.5, 10.0.0.8", "203.0.113.5"),
        ("203.0.113.5:0", "", "203.0.113.5"),
        // A Unix socket has no address to append.
        ("/run/envoy.sock", "1.1.1.1, 203.0.113.5", "203.0.113.5"),
    ];
    for (peer, list, expected) in cases {
        assert_eq!(of(1, peer, list), expected, "{peer} with {list:?}");
    }
}

#[test]
fn too_few_or_no_addresses_leave_the_peer() {
    for list in ["", "unknown", "203.0.113.5, ", "203.0.113.5, unknown", "203.0.113.5, 1.2.3.4:x"] {
        assert_eq!(of(1, "10.0.0.9:4711", &format!("{list},10.0.0.9")), "10.0.0.9", "{list:?}");
    }
    assert_eq!(of(3, "10.0.0.9:4711", "203.0.113.5,10.0.0.9"), "10.0.0.9");
    assert_eq!(client(1, b"10.0.0.9:4711", &[]), "10.0.0.9");
    assert_eq!(client(16, b"/run/envoy.sock", &[]), "/run/envoy.sock");
    assert_eq!(client(1, b"", &[]), "");
}

#[test]
fn several_lines_are_one_list() {
    let lines: [&[u8]; 2] = [b"1.1.1.1, 203.0.113.5", b"10.0.0.8, 10.0.0.9"];
    assert_eq!(client(2, b"10.0.0.9:4711", &lines), "203.0.113.5");
}

#[test]
fn an_address_has_one_spelling() {
    let spellings = [
        ("203.0.113.5", "203.0.113.5"),
        (" 203.0.113.5\t", "203.0.113.5"),
        ("203.0.113.5:99", "203.0.113.5"),
        ("::ffff:203.0.113.5", "203.0.113.5"),
        ("[::FFFF:203.0.113.5]:99", "203.0.113.5"),
        ("2001:DB8:0:0::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:99", "2001:db8::1"),
        ("[fe80::1%eth0]:99", "fe80::1"),
        ("fe80::1%eth0", "fe80::1"),
    ];
    for (text, expected) in spellings {
        let found = parse_hop(text.as_bytes()).map(|address| address.to_string());
        assert_eq!(found.as_deref(), Some(expected), "{text}");
    }
    let odd = ["", " ", "1.2.3", "01.2.3.4", "1.2.3.4:", "1.2.3.4:99999", "1.2.3.4:+5", "[1.2.3.4"];
    let odd = odd.into_iter().chain(["::1]:80", "[::1]80", "[::1]:", "localhost"]);
    for text in odd {
        assert_eq!(parse_hop(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn an_ipv6_client_is_a_prefix_and_an_ipv4_client_an_address() {
    let subject = |prefix, text: &str| {
        let policy = ClientPolicy { trusted_hops: 0, ipv6_prefix: prefix };
        let address = parse_hop(text.as_bytes()).unwrap();
        policy.subject(Client::Address(address), |bytes| Digester::new(None).digest(bytes))
    };
    let same = |prefix, one, other| subject(prefix, one) == subject(prefix, other);
    assert!(same(64, "2001:db8::1", "2001:db8::ffff:1:2:3"));
    assert!(!same(64, "2001:db8::1", "2001:db8:0:1::1"));
    assert!(same(48, "2001:db8::1", "2001:db8:0:1::1"));
    assert!(!same(128, "2001:db8::1", "2001:db8::2"));
    assert!(same(1, "2001:db8::1", "::2"));
    assert!(!same(1, "203.0.113.5", "203.0.113.6"));
    assert!(same(64, "203.0.113.5", "::ffff:203.0.113.5"));
}

/// Text that looks like a list of addresses, whole or broken.
fn list() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        any::<[u8; 4]>().prop_map(|octets| IpAddr::from(octets).to_string()),
        any::<[u8; 16]>().prop_map(|octets| IpAddr::from(octets).to_string()),
        "[0-9a-f.:%\\[\\], ]{0,20}",
        "\\PC{0,8}",
    ];
    let text = prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.join(",").into_bytes());
    prop_oneof![text, prop::collection::vec(any::<u8>(), 0..40)]
}

proptest! {
    /// Goal: no bytes of a header or of the host ever trap the filter.
    #[test]
    fn any_bytes_name_some_client(
        peer in list(), lines in prop::collection::vec(list(), 0..4), hops in 0..=16_usize,
    ) {
        let lines: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
        client(hops, &peer, &lines);
    }

    /// Goal: whatever a client puts in front of the list, in lines of its own or before a comma, it
    /// is taken for whoever the trusted proxies saw.
    #[test]
    fn forged_prefixes_never_change_the_result(
        forged in list(), seen in any::<[u8; 4]>(), inner in any::<[u8; 4]>(), hops in 1..=4_usize,
        mode in 0..4_u8, own_line in any::<bool>(),
    ) {
        let (seen, inner) = (IpAddr::from(seen), IpAddr::from(inner));
        let peer = IpAddr::from([10, 0, 0, 9]);
        let mut trusted = vec![seen.to_string()];
        trusted.extend((1..hops).map(|_| inner.to_string()));
        let last = if hops == 1 { seen } else { inner };
        let peer = match mode {
            0 => {
                trusted.push(peer.to_string());
                format!("{peer}:4711")
            }
            1 => {
                trusted.push(OWN.to_owned());
                "127.0.0.1:4711".to_owned()
            }
            2 => format!("{last}:0"),
            _ => "/run/envoy.sock".to_owned(),
        };
        let trusted = trusted.join(", ").into_bytes();
        let joined = [forged.as_slice(), b",", &trusted].concat();
        let lines: Vec<&[u8]> =
            if own_line { vec![&forged, &trusted] } else { vec![joined.as_slice()] };
        prop_assert_eq!(client(hops, peer.as_bytes(), &lines), seen.to_canonical().to_string());
    }
}
