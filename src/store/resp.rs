//! RESP2, the protocol of Redis: commands are written, replies are read.
//!
//! Replies are read as if they came from an enemy: nesting is bounded, nothing is allocated on the
//! strength of a length that is only claimed, and texts are borrowed from the input.

use super::StoreError;

/// The deepest array in an array in an array that is read.
const MAX_DEPTH: usize = 4;

/// The most elements of one array: a Redis Cluster that names the node of each slot by itself. An
/// answer of the script to the largest decision has fewer.
const MAX_ELEMENTS: usize = 16_384;

/// The shortest reply: a type, no text, and the line's end.
const MIN_REPLY_BYTES: usize = 3;

const LINE_END: &[u8] = b"\r\n";

/// A command in the making: its arguments, and how many there are.
#[derive(Debug, Default)]
pub(super) struct Command {
    arguments: Vec<u8>,
    count: usize,
}

/// A reply, its texts borrowed from the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply<'a> {
    Simple(&'a [u8]),
    /// Without the leading `-`.
    Error(&'a [u8]),
    Integer(i64),
    Bulk(&'a [u8]),
    Nil,
    Array(Vec<Reply<'a>>),
}

/// Reads replies one after the other.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl Command {
    /// Adds a text.
    pub(super) fn text(&mut self, text: &str) {
        self.arguments.push(b'$');
        push_decimal(&mut self.arguments, text.len());
        self.arguments.extend_from_slice(LINE_END);
        self.arguments.extend_from_slice(text.as_bytes());
        self.arguments.extend_from_slice(LINE_END);
        self.count = self.count.saturating_add(1);
    }

    /// Adds a number, in decimal.
    pub(super) fn number(&mut self, number: u64) {
        self.text(&number.to_string());
    }

    /// Appends the command to a pipeline.
    pub(super) fn write_to(&self, pipeline: &mut Vec<u8>) {
        pipeline.push(b'*');
        push_decimal(pipeline, self.count);
        pipeline.extend_from_slice(LINE_END);
        pipeline.extend_from_slice(&self.arguments);
    }
}

impl<'a> Reader<'a> {
    pub(super) const fn new(input: &'a [u8]) -> Self {
        Self { rest: input }
    }

    /// Whether all input has been read.
    pub(super) const fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next reply. After an error the borders of the replies are lost, so nothing that follows
    /// can be trusted.
    pub(super) fn reply(&mut self) -> Result<Reply<'a>, StoreError> {
        self.reply_within(MAX_DEPTH)
    }

    fn reply_within(&mut self, depth: usize) -> Result<Reply<'a>, StoreError> {
        let (kind, text) = self.line()?.split_first().ok_or(StoreError::Malformed)?;
        match kind {
            b'+' => Ok(Reply::Simple(text)),
            b'-' => Ok(Reply::Error(text)),
            b':' => Ok(Reply::Integer(integer(text)?)),
            b'$' => self.bulk(length(text)?),
            b'*' => self.array(length(text)?, depth.checked_sub(1).ok_or(StoreError::Malformed)?),
            _ => Err(StoreError::Malformed),
        }
    }

    fn bulk(&mut self, length: Option<usize>) -> Result<Reply<'a>, StoreError> {
        let Some(length) = length else { return Ok(Reply::Nil) };
        let (text, rest) = self.rest.split_at_checked(length).ok_or(StoreError::Truncated)?;
        self.rest = match rest.strip_prefix(LINE_END) {
            Some(rest) => rest,
            None if LINE_END.starts_with(rest) => return Err(StoreError::Truncated),
            None => return Err(StoreError::Malformed),
        };
        Ok(Reply::Bulk(text))
    }

    fn array(&mut self, length: Option<usize>, depth: usize) -> Result<Reply<'a>, StoreError> {
        let Some(length) = length else { return Ok(Reply::Nil) };
        if length > MAX_ELEMENTS {
            return Err(StoreError::Malformed);
        }
        if length.saturating_mul(MIN_REPLY_BYTES) > self.rest.len() {
            return Err(StoreError::Truncated);
        }
        (0..length).map(|_| self.reply_within(depth)).collect::<Result<_, _>>().map(Reply::Array)
    }

    /// The input up to the next line's end.
    fn line(&mut self) -> Result<&'a [u8], StoreError> {
        let end = self.rest.windows(LINE_END.len()).position(|window| window == LINE_END);
        let (line, rest) =
            end.and_then(|end| self.rest.split_at_checked(end)).ok_or(StoreError::Truncated)?;
        self.rest = rest.strip_prefix(LINE_END).unwrap_or(rest);
        Ok(line)
    }
}

fn push_decimal(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(number.to_string().as_bytes());
}

pub(super) fn integer(text: &[u8]) -> Result<i64, StoreError> {
    let text = str::from_utf8(text).map_err(|_| StoreError::Malformed)?;
    text.parse().map_err(|_| StoreError::Malformed)
}

/// A length, or none for the one that stands for nil.
fn length(text: &[u8]) -> Result<Option<usize>, StoreError> {
    match integer(text)? {
        -1 => Ok(None),
        length => usize::try_from(length).map(Some).map_err(|_| StoreError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: &[u8]) -> Result<Reply<'_>, StoreError> {
        Reader::new(input).reply()
    }

    #[test]
    fn commands_are_arrays_of_bulk_strings() {
        let mut command = Command::default();
        command.text("AUTH");
        command.text("pä\r\nss");
        command.number(7);
        let mut pipeline = b"+before".to_vec();
        command.write_to(&mut pipeline);
        let want = "+before*3\r\n$4\r\nAUTH\r\n$7\r\npä\r\nss\r\n$1\r\n7\r\n";
        assert_eq!(pipeline, want.as_bytes());
    }

    #[test]
    fn every_kind_of_reply_is_read() {
        assert_eq!(read(b"+OK\r\n"), Ok(Reply::Simple(b"OK")));
        assert_eq!(read(b"-ERR x\r\n"), Ok(Reply::Error(b"ERR x")));
        assert_eq!(read(b":-42\r\n"), Ok(Reply::Integer(-42)));
        assert_eq!(read(b"$2\r\n\r\n\r\n"), Ok(Reply::Bulk(b"\r\n")));
        assert_eq!(read(b"$-1\r\n"), Ok(Reply::Nil));
        assert_eq!(read(b"*-1\r\n"), Ok(Reply::Nil));
        assert_eq!(read(b"*0\r\n"), Ok(Reply::Array(Vec::new())));
        let nested = Reply::Array(vec![Reply::Integer(1), Reply::Array(vec![Reply::Nil])]);
        assert_eq!(read(b"*2\r\n:1\r\n*1\r\n$-1\r\n"), Ok(nested));
    }

    #[test]
    fn what_ends_early_is_told_from_what_is_wrong() {
        for whole in [&b"+OK\r\n"[..], b":1\r\n", b"$3\r\nabc\r\n", b"*2\r\n:1\r\n$1\r\na\r\n"] {
            for end in 0..whole.len() {
                assert_eq!(read(&whole[..end]), Err(StoreError::Truncated), "{whole:?} to {end}");
            }
        }
        for wrong in [
            &b"\r\n"[..],
            b"?\r\n",
            b":\r\n",
            b":1x\r\n",
            b":9223372036854775808\r\n",
            b"$-2\r\n",
            b"$1\r\nabc\r\n",
            b"*-7\r\n",
            b"\xff\xff\r\n",
            b"%1\r\n+a\r\n+b\r\n",
        ] {
            assert_eq!(read(wrong), Err(StoreError::Malformed), "{}", wrong.escape_ascii());
        }
    }

    #[test]
    fn claims_allocate_nothing_and_nesting_is_bounded() {
        assert_eq!(read(b"*1000000000\r\n"), Err(StoreError::Malformed));
        assert_eq!(read(b"*700\r\n:1\r\n"), Err(StoreError::Truncated));
        assert_eq!(read(b"$9223372036854775807\r\n"), Err(StoreError::Truncated));
        assert_eq!(read(&b"*1\r\n".repeat(100_000)), Err(StoreError::Malformed));
        assert!(read(b"*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n").is_ok());
        assert_eq!(read(b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n"), Err(StoreError::Malformed));
    }
}
