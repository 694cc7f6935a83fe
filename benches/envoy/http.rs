//! As much of HTTP/1.1 as a load generator needs: a request's bytes, and where a response ends.

/// Headers beyond the tenant and credential, so that a request looks like one of a real client.
const ORDINARY_HEADERS: &str = "user-agent: bench/1\r\naccept: */*\r\n";

/// What was answered, and how many bytes the answer took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) length: usize,
}

/// Writes a request of one tenant and credential, with more lines of headers behind.
pub(crate) fn write_request(bytes: &mut Vec<u8>, path: &str, subject: &str, more: &str) {
    bytes.clear();
    for part in [
        "GET ",
        path,
        " HTTP/1.1\r\nhost: bench.test\r\n",
        ORDINARY_HEADERS,
        "x-tenant-id: ",
        subject,
        "\r\nx-api-key: key-of-",
        subject,
        "\r\n",
        more,
        "\r\n",
    ] {
        bytes.extend_from_slice(part.as_bytes());
    }
}

/// The first response in `bytes`, once it is whole. Only responses with a length are understood,
/// which is all that is ever measured.
pub(crate) fn answer(bytes: &[u8]) -> Option<Answer> {
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let status = std::str::from_utf8(&bytes[9..12]).ok()?.parse().expect("a status");
    let body = content_length(&bytes[..head]).unwrap_or(0);
    let length = head + body;
    (bytes.len() >= length).then_some(Answer { status, length })
}

fn content_length(head: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"\ncontent-length:";
    let at = head.windows(NAME.len()).position(|window| window.eq_ignore_ascii_case(NAME))?;
    let value = &head[at + NAME.len()..];
    let end = value.iter().position(|byte| *byte == b'\r')?;
    std::str::from_utf8(&value[..end]).ok()?.trim().parse().ok()
}

/// Checked at each start, because `cargo test` does not run what stands in a benchmark.
pub(crate) fn check() {
    let whole = b"HTTP/1.1 429 Too Many\r\nContent-Length: 2\r\n\r\nok";
    assert_eq!(answer(whole), Some(Answer { status: 429, length: whole.len() }));
    assert_eq!(answer(&whole[..whole.len() - 1]), None);
    assert_eq!(answer(&whole[..20]), None);
}
