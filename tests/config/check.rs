//! The commands `fairshare check` and `fairshare digest`, run as processes.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/config");

fn fairshare(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_fairshare"))
        .args(arguments)
        .current_dir(DATA)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read its input may be gone by now.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn golden(name: &str) -> String {
    fs::read_to_string(Path::new(DATA).join(name)).unwrap()
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

#[test]
fn a_valid_file_is_described_on_standard_output() {
    let output = fairshare(&["check", "good/full.json"], b"");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stdout), golden("good/full.txt"));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn an_invalid_file_gets_a_line_for_each_error_and_their_number() {
    let output = fairshare(&["check", "bad/root-values.json"], b"");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "");
    let errors = golden("bad/root-values.txt");
    assert_eq!(text(&output.stderr), format!("{errors}bad/root-values.json: 4 errors\n"));
}

#[test]
fn a_dash_reads_standard_input() {
    let output = fairshare(&["check", "-"], br#"{"mode": "off"}"#);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).starts_with("mode: off"));
    let output = fairshare(&["check", "-"], b"{}");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).ends_with("\n-: 1 error\n"));
}

#[test]
fn what_cannot_be_carried_out_is_told_apart_from_bad_input() {
    let output = fairshare(&["check", "no-such-file.json"], b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("fairshare: cannot read no-such-file.json: "));
    assert_eq!(fairshare(&["check", "good"], b"").status.code(), Some(2));
    assert_eq!(fairshare(&["check"], b"").status.code(), Some(2));
    assert_eq!(fairshare(&["chekc", "x"], b"").status.code(), Some(2));
}

#[test]
fn no_more_than_a_document_is_read() {
    let output = fairshare(&["check", "/dev/zero"], b"");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("more than 2097152"), "{}", text(&output.stderr));
}

#[test]
fn a_digest_is_the_one_that_is_counted_under() {
    let digest = |arguments: &[&str], document: &str| {
        let output =
            fairshare(&[&["digest", "--config", "-"], arguments].concat(), document.as_bytes());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout).trim_end().to_owned()
    };
    let plain = r#"{"mode": "off", "identity": {"client": {"trusted_hops": 2}}}"#;
    let keyed = r#"{"mode": "off", "identity": {"hash_key": "correct horse battery"}}"#;
    // As sha256sum and openssl print them.
    let sha256 = "822b33ad87c148a0a20a5ba7cd5ebcaa68d36a18e7aad165554903f52ca82757";
    let hmac = "fd6d0064f88ed4dfd522fb56d16b74a85c6bb6a86a2aad97e06bcb8e219f2844";
    assert_eq!((digest(&["acme"], plain), digest(&["acme"], keyed)), (sha256.into(), hmac.into()));
    let client = |address| digest(&["--client", address], plain);
    assert_eq!(client("203.0.113.5"), client("::ffff:203.0.113.5"));
    assert_eq!(client("2001:db8::1"), client("2001:db8::2"));
    assert_ne!(client("203.0.113.5"), client("203.0.113.6"));
    assert_eq!(fairshare(&["digest", "acme", "--config", "-"], b"{}").status.code(), Some(1));
    assert_eq!(fairshare(&["digest", "acme"], b"").status.code(), Some(2));
}
