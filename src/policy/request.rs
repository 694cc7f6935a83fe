//! What the policy sees of a request.

use super::{Attributes, HeaderMap};

/// A request, as far as policy looks at it. Everything is bytes: a header may hold any.
#[derive(Clone, Copy, Debug)]
pub struct RequestView<'a> {
    headers: HeaderMap<'a>,
    attributes: &'a Attributes,
    method: &'a [u8],
    path: &'a [u8],
    grpc: bool,
    preflight: bool,
}

/// The values of one header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values<'a> {
    /// The request does not have it.
    None,
    /// Exactly one, without the blanks around it.
    One(&'a [u8]),
    /// More than one line, whether or not they are equal.
    Several,
}

impl<'a> Values<'a> {
    /// Exactly one, without the blanks around it.
    #[must_use]
    pub fn one(value: &'a [u8]) -> Self {
        Self::One(trim(value))
    }
}

impl<'a> RequestView<'a> {
    /// Reads the whole map once for what every request is asked.
    #[must_use]
    pub fn new(headers: HeaderMap<'a>, attributes: &'a Attributes) -> Self {
        let (mut method, mut path, mut grpc): (&[u8], &[u8], bool) = (b"", b"", false);
        let (mut origin, mut asks_for_method) = (false, false);
        for (name, value) in headers.pairs() {
            match name {
                b":method" => method = value,
                b":path" => path = without_query(value),
                b"content-type" => grpc = is_grpc(value),
                b"origin" => origin = true,
                b"access-control-request-method" => asks_for_method = true,
                _ => {}
            }
        }
        let preflight = method == b"OPTIONS" && origin && asks_for_method;
        Self { headers, attributes, method, path, grpc, preflight }
    }

    /// What the host told beside the headers.
    #[must_use]
    pub const fn attributes(&self) -> &'a Attributes {
        self.attributes
    }

    /// The method, as sent.
    #[must_use]
    pub const fn method(&self) -> &'a [u8] {
        self.method
    }

    /// The path without its query. Envoy has normalized it, where it is set up to.
    #[must_use]
    pub const fn path(&self) -> &'a [u8] {
        self.path
    }

    /// Whether the answer must be a gRPC one. The same test as Envoy's own.
    #[must_use]
    pub const fn is_grpc(&self) -> bool {
        self.grpc
    }

    /// Whether a browser asks for permission (Fetch standard, "CORS-preflight request").
    #[must_use]
    pub const fn is_preflight(&self) -> bool {
        self.preflight
    }

    /// The values of the header called `name`, in lower case.
    #[must_use]
    pub fn values(&self, name: &str) -> Values<'a> {
        let mut lines = self.lines(name);
        match (lines.next(), lines.next()) {
            (None, _) => Values::None,
            (Some(value), None) => Values::one(value),
            (Some(_), Some(_)) => Values::Several,
        }
    }

    /// The lines of the header called `name`, in the order of the wire, as sent.
    pub fn lines(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let pairs = self.headers.pairs();
        pairs.filter(move |(key, _)| *key == name.as_bytes()).map(|(_, value)| value)
    }

    /// Whether some line of the header has just this value.
    #[must_use]
    pub fn has_header(&self, name: &str, wanted: &[u8]) -> bool {
        self.lines(name).any(|value| trim(value) == wanted)
    }
}

fn without_query(path: &[u8]) -> &[u8] {
    let end = path.iter().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(path.len());
    path.get(..end).unwrap_or(path)
}

/// `application/grpc`, alone or with a `+` suffix; not `application/grpc-web`.
fn is_grpc(content_type: &[u8]) -> bool {
    content_type
        .strip_prefix(b"application/grpc")
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"+"))
}

/// `value` without blanks and tabs at its ends (RFC 9110, 5.5: they are no part of the value).
pub(super) fn trim(value: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let Some(start) = value.iter().position(|byte| !blank(byte)) else { return &[] };
    let end = value.iter().rposition(|byte| !blank(byte)).map_or(0, |last| last.saturating_add(1));
    value.get(start..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view_of(pairs: &[(&[u8], &[u8])], check: impl FnOnce(RequestView<'_>)) {
        let bytes = HeaderMap::serialize(pairs);
        check(RequestView::new(HeaderMap::new(&bytes), &Attributes::NONE));
    }

    #[test]
    fn idn_1_two_lines_are_several_values_even_when_equal() {
        view_of(&[(b"x", b"a"), (b"x", b"a"), (b"y", b" a\t")], |view| {
            assert_eq!(view.values("x"), Values::Several);
            assert_eq!(view.values("y"), Values::One(b"a"));
            assert_eq!(view.values("z"), Values::None);
        });
    }

    #[test]
    fn cfg_5_a_query_is_no_part_of_the_path() {
        view_of(&[(b":path", b"/health?x=1")], |view| assert_eq!(view.path(), b"/health"));
    }

    #[test]
    fn rsp_3_grpc_is_told_by_its_content_type() {
        for (content_type, grpc) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc-web+proto", false),
            ("application/grpcx", false),
            ("application/json", false),
        ] {
            view_of(&[(b"content-type", content_type.as_bytes())], |view| {
                assert_eq!(view.is_grpc(), grpc, "{content_type}");
            });
        }
    }

    #[test]
    fn rsp_5_only_a_genuine_preflight_is_one() {
        let asks: (&[u8], &[u8]) = (b"access-control-request-method", b"GET");
        view_of(&[(b":method", b"OPTIONS"), (b"origin", b"https://a"), asks], |view| {
            assert!(view.is_preflight());
        });
        view_of(&[(b":method", b"OPTIONS")], |view| assert!(!view.is_preflight()));
        view_of(&[(b":method", b"GET"), (b"origin", b"https://a"), asks], |view| {
            assert!(!view.is_preflight());
        });
    }
}
