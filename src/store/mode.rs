//! The mode that operators set in the store for every node.
//!
//! `{<prefix>}:1:mode` holds `<mode> by=<who> at=<when>`, where they like with ` reason=<text>` behind
//! it, and expires. The keys of limits end in a level's letter, so none of them has this name. An
//! operator writes it by hand, so it is read as if it came from an enemy; what is of any other form
//! counts as nothing. [`encode`] asks, [`decode`] reads.

use super::StoreError;
use super::pipeline::{push_auth, read_auth};
use super::resp::{Command, Reader, Reply};
use crate::policy::{Mode, StorePolicy};
use crate::units::Span;

/// The longest text that is followed.
pub const TEXT_BYTES_MAX: usize = 256;

/// The longest time for which a word stands that is not heard again: so long after the store has gone, no
/// switch is in force any more, however far away its expiry is.
const STANDS_MAX: Span = Span::from_secs(24 * 3600);

/// What the store says about the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word<'a> {
    /// Nothing.
    Silent,
    /// This mode holds. The text is the key's: printable ASCII, at most [`TEXT_BYTES_MAX`] of it.
    Set(Mode, &'a str),
    /// Something of another form.
    Ignored,
}

/// What the mode's key begins with, the part that a Redis Cluster hashes.
#[must_use]
pub fn tag(prefix: &str) -> String {
    ["{", prefix, "}"].concat()
}

/// The key that holds the mode.
#[must_use]
pub fn key(prefix: &str) -> String {
    format!("{}:1:mode", tag(prefix))
}

/// The pipeline that asks for the mode.
#[must_use]
pub fn encode(policy: &StorePolicy) -> Vec<u8> {
    let mut pipeline = Vec::new();
    push_auth(policy, &mut pipeline);
    let key = key(&policy.key_prefix);
    for verb in ["GET", "PTTL"] {
        let mut command = Command::default();
        command.text(verb);
        command.text(&key);
        command.write_to(&mut pipeline);
    }
    pipeline
}

/// Reads the replies to what [`encode`] wrote: the key's bytes, none where it is not there, and for
/// how long it stands, zero where it never expires.
///
/// # Errors
///
/// Why the store has not said anything.
pub fn decode<'a>(policy: &StorePolicy, body: &'a [u8]) -> Result<(&'a [u8], Span), StoreError> {
    let mut reader = Reader::new(body);
    read_auth(policy, &mut reader)?;
    let (value, left) = (reader.reply()?, reader.reply()?);
    let text: &[u8] = match value {
        Reply::Nil => &[],
        // Empty, or of another type, it is there all the same.
        Reply::Bulk(b"") => b"?",
        Reply::Bulk(bytes) => bytes,
        Reply::Error(line) => match StoreError::of_reply(line) {
            StoreError::WrongType => b"?",
            error => return Err(error),
        },
        _ => return Err(StoreError::Malformed),
    };
    match left {
        Reply::Integer(millis) if reader.is_at_end() => Ok(match (millis, u64::try_from(millis)) {
            // It has expired between the two questions.
            (-2, _) => (&[], Span::ZERO),
            (_, millis) => (text, Span::from_millis(millis.unwrap_or(0)).min(STANDS_MAX)),
        }),
        Reply::Error(line) => Err(StoreError::of_reply(line)),
        _ => Err(StoreError::Malformed),
    }
}

impl<'a> Word<'a> {
    /// Reads what stands in the key, if anything does.
    #[must_use]
    pub fn read(bytes: &'a [u8], expires: bool) -> Self {
        if bytes.is_empty() {
            return Self::Silent;
        }
        match parse(bytes).filter(|_| expires) {
            Some((mode, text)) => Self::Set(mode, text),
            None => Self::Ignored,
        }
    }
}

fn parse(bytes: &[u8]) -> Option<(Mode, &str)> {
    let plain = |byte: &u8| *byte == b' ' || byte.is_ascii_graphic();
    if bytes.len() > TEXT_BYTES_MAX || !bytes.iter().all(plain) {
        return None;
    }
    let text = str::from_utf8(bytes).ok()?;
    let mut words = text.split(' ');
    let mode = match words.next()? {
        "enforce" => Mode::Enforce,
        "shadow" => Mode::Shadow,
        "off" => Mode::Off,
        _ => return None,
    };
    let mut says = |label: &str| words.next()?.strip_prefix(label).filter(|rest| !rest.is_empty());
    says("by=")?;
    says("at=")?;
    match words.next() {
        Some(word) if !word.starts_with("reason=") => None,
        _ => Some((mode, text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Secret, Topology};

    const WORD: &str = "off by=alice at=2026-11-30T12:00:00Z reason=incident 4711";

    fn policy(password: &str) -> StorePolicy {
        StorePolicy {
            cluster: "redis".to_owned(),
            timeout: Span::from_millis(50),
            key_prefix: "fairshare".to_owned(),
            username: String::new(),
            password: Secret(password.to_owned()),
            topology: Topology::Single,
        }
    }

    fn read(replies: &[u8]) -> Result<(Word<'_>, Span), StoreError> {
        let (bytes, left) = decode(&policy(""), replies)?;
        Ok((Word::read(bytes, !left.is_zero()), left))
    }

    fn bulk(text: &[u8], left: &str) -> Vec<u8> {
        [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n", left.as_bytes(), b"\r\n"]
            .concat()
    }

    #[test]
    fn a_question_is_two_plain_commands() {
        let want = "*2\r\n$3\r\nGET\r\n$18\r\n{fairshare}:1:mode\r\n\
                    *2\r\n$4\r\nPTTL\r\n$18\r\n{fairshare}:1:mode\r\n";
        assert_eq!(encode(&policy("")), want.as_bytes());
        let auth = "*2\r\n$4\r\nAUTH\r\n$1\r\np\r\n";
        assert_eq!(encode(&policy("p")), [auth, want].concat().as_bytes());
    }

    #[test]
    fn a_mode_holds_with_its_author_for_its_time() {
        for (text, mode) in [
            (WORD, Mode::Off),
            ("shadow by=a at=b", Mode::Shadow),
            ("enforce by=ops@example.org at=now reason=", Mode::Enforce),
        ] {
            let (replies, left) = (bulk(text.as_bytes(), ":59999"), Span::from_millis(59_999));
            assert_eq!(read(&replies), Ok((Word::Set(mode, text), left)));
        }
    }

    #[test]
    fn a_mode_stands_for_a_day_at_most() {
        for left in [":86400000", ":86400001", ":9223372036854775807"] {
            let replies = bulk(WORD.as_bytes(), left);
            assert_eq!(read(&replies).unwrap().1, Span::from_secs(86_400), "{left}");
        }
    }

    #[test]
    fn no_key_says_nothing() {
        let nothing = Ok((Word::Silent, Span::ZERO));
        assert_eq!(read(b"$-1\r\n:-2\r\n"), nothing);
        assert_eq!(read(&bulk(WORD.as_bytes(), ":-2")), nothing, "expired in between");
    }

    #[test]
    fn what_is_of_another_form_is_ignored() {
        let long = format!("off by=a at=b reason={}", "x".repeat(TEXT_BYTES_MAX));
        for text in [
            &b""[..],
            b" ",
            b"off by=a at=b reason=\xff",
            b"off by=a at=b reason=\n[critical] forged",
            long.as_bytes(),
            b"OFF by=a at=b",
            b" off by=a at=b",
            b"offby=a at=b",
            b"w1 1000000 1796036868113222 3",
            b"off",
            b"off by=a",
            b"off at=b by=a",
            b"off by= at=b",
            b"off by=a  at=b",
            b"off by=Alice Smith at=b",
            b"off by=a at=b because",
            b"off by=a at=b ",
        ] {
            let replies = bulk(text, ":5");
            let ignored = Ok((Word::Ignored, Span::from_millis(5)));
            assert_eq!(read(&replies), ignored, "{}", text.escape_ascii());
        }
        let ignored = Ok((Word::Ignored, Span::ZERO));
        assert_eq!(read(&bulk(WORD.as_bytes(), ":-1")), ignored, "it never expires");
        assert_eq!(read(b"-WRONGTYPE Operation against a key\r\n:-1\r\n"), ignored);
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for (replies, error) in [
            (&b"-LOADING x\r\n-LOADING x\r\n"[..], StoreError::Loading),
            (b"-NOPERM x\r\n:5\r\n", StoreError::NoPermission),
            (b"$-1\r\n-NOPERM x\r\n", StoreError::NoPermission),
            (b"$-1\r\n", StoreError::Truncated),
            (b"$-1\r\n:-2\r\n:1\r\n", StoreError::Malformed),
            (b":1\r\n:1\r\n", StoreError::Malformed),
            (b"", StoreError::Truncated),
        ] {
            assert_eq!(read(replies), Err(error), "{}", replies.escape_ascii());
        }
        let refused = decode(&policy("p"), b"-WRONGPASS x\r\n$-1\r\n:-2\r\n");
        assert_eq!(refused, Err(StoreError::WrongPass));
    }
}
