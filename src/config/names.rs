//! Which texts may serve as names: of headers, methods, paths, limits and tenants.

use super::error::{Fault, quoted};

/// The longest name of a limit, a namespace or a key prefix.
const MAX_NAME_BYTES: usize = 64;

/// The longest name of a header. Real ones are far shorter.
const MAX_HEADER_NAME_BYTES: usize = 128;

/// The one pseudo-header that may be named where a header is.
const AUTHORITY: &str = ":authority";

/// A limit's name or a namespace. The letters are those that need no escape in keys and metrics.
pub(super) fn plain_name(text: &str) -> Result<&str, Fault> {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    if (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed) {
        return Ok(text);
    }
    let fix = "use lower-case letters, digits, \"_\" and \"-\"";
    let rule = format!("is not a name of 1 to {MAX_NAME_BYTES} of the letters a-z 0-9 _ -");
    Err(Fault::new(rule, fix))
}

/// A limit's name. Metrics and the log say "none" where no limit is to blame.
pub(super) fn limit_name(text: &str) -> Result<&str, Fault> {
    if text == "none" {
        let rule = "stands in metrics for requests that no limit is to blame for";
        return Err(Fault::new(rule, "choose another name"));
    }
    plain_name(text)
}

/// The first part of every key in the store. Braces are the hash tag's, which keeps all keys of one
/// decision together in a cluster.
pub(super) fn key_prefix(text: &str) -> Result<&str, Fault> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
    if (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed) {
        return Ok(text);
    }
    let rule =
        format!("is not a prefix of 1 to {MAX_NAME_BYTES} of the letters A-Z a-z 0-9 _ . : -");
    Err(Fault::new(rule, "leave out everything else; braces are set around it by the store"))
}

/// A header's name, in lower case: names are compared without case (RFC 9110, section 5.1), and the
/// host hands them out in lower case.
pub(super) fn header(text: &str) -> Result<String, Fault> {
    let name = text.to_ascii_lowercase();
    match name.as_str() {
        AUTHORITY => return Ok(name),
        "host" => {
            let rule = "is never seen: Envoy turns it into \":authority\"";
            return Err(Fault::new(rule, "write \":authority\""));
        }
        ":method" => return Err(pseudo_header("\"methods\"")),
        ":path" => return Err(pseudo_header("\"path\" or \"path_prefix\"")),
        _ if name.starts_with(':') => {
            let fix = "write the name of an ordinary header, or \":authority\"";
            return Err(Fault::new("is a pseudo-header that cannot be used here", fix));
        }
        _ => {}
    }
    if is_token(&name) && name.len() <= MAX_HEADER_NAME_BYTES {
        return Ok(name);
    }
    let fix = "write it as it stands before the colon, as in \"x-tenant-id\"";
    Err(Fault::new("is not a header name", fix))
}

fn pseudo_header(instead: &str) -> Fault {
    let fix = format!("match on it with {instead}; elsewhere write an ordinary header's name");
    Fault::new("is a pseudo-header that cannot be used here", fix)
}

/// An authentication scheme, in lower case: schemes are compared without case (RFC 9110, 11.1).
pub(super) fn scheme(text: &str) -> Result<String, Fault> {
    if is_token(text) {
        return Ok(text.to_ascii_lowercase());
    }
    let fix = "write the one word before the credential: \"bearer\"";
    Err(Fault::new("is not an authentication scheme", fix))
}

/// A method. Methods have case (RFC 9110, section 9.1), so `get` would match no ordinary request.
pub(super) fn method(text: &str) -> Result<String, Fault> {
    if !is_token(text) {
        return Err(Fault::new("is not a method", "write one method, as in \"GET\""));
    }
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        let fix = format!("write {}", quoted(&text.to_ascii_uppercase()));
        return Err(Fault::new("is not in upper case, so it would match no request", fix));
    }
    Ok(text.to_owned())
}

/// A path, or a path's beginning, as it is after Envoy has normalised it.
pub(super) fn path(text: &str) -> Result<String, Fault> {
    if !text.starts_with('/') {
        return Err(Fault::new(
            "does not begin with \"/\"",
            "write the path from its first \"/\" on",
        ));
    }
    if text.contains(['?', '#']) {
        let fix = "leave out \"?\" or \"#\" and all that follows; the query is never looked at";
        return Err(Fault::new("is more than a path", fix));
    }
    if text.split('/').any(|segment| segment == "." || segment == "..") {
        let fix = "write the path that they lead to";
        return Err(Fault::new("has dot segments, which no normalised path has", fix));
    }
    if text.as_bytes().windows(2).any(|pair| pair == b"//") {
        let fix = "write one slash, as requests have once slashes are merged";
        return Err(Fault::new("has two slashes in a row, which no normalised path has", fix));
    }
    if let Some(plain) = needlessly_encoded(text) {
        let fix = format!("write \"{plain}\" itself, as requests have once they are normalised");
        return Err(Fault::new("encodes a character that no normalised path encodes", fix));
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let fix = "write other characters percent-encoded, as they are in requests: \"%20\"";
        return Err(Fault::new("has characters that no path has", fix));
    }
    Ok(text.to_owned())
}

/// The first character that `text` percent-encodes without need: one that Envoy decodes before a
/// path is matched (RFC 3986, 2.3: unreserved characters, and slashes where it is set up to).
fn needlessly_encoded(text: &str) -> Option<char> {
    text.split('%').skip(1).find_map(|rest| {
        let code = u8::from_str_radix(rest.get(..2)?, 16).ok()?;
        let decoded = char::from(code);
        let plain = decoded.is_ascii_alphanumeric() || "-._~/\\".contains(decoded);
        plain.then_some(decoded)
    })
}

/// A header's value to compare with: what it can be once the host has trimmed it.
pub(super) fn header_value(text: &str) -> Result<String, Fault> {
    let fix = "write the exact value, without blanks around it";
    if text.is_empty() {
        return Err(Fault::new("is an empty value", fix));
    }
    if text.trim_matches([' ', '\t']) != text || has_control_characters(text) {
        return Err(Fault::new("is a value that no header has", fix));
    }
    Ok(text.to_owned())
}

/// A tenant's name as requests can carry it, of at most `max_length` bytes.
pub(super) fn tenant(text: &str, max_length: u64) -> Result<(), Fault> {
    let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
    if length > max_length {
        let rule =
            format!("is {length} bytes long, above identity.tenant.max_length ({max_length})");
        return Err(Fault::new(rule, "shorten it, or raise identity.tenant.max_length"));
    }
    let trimmed = text.trim_matches([' ', '\t']);
    if text.is_empty() || trimmed != text || text.chars().any(char::is_control) {
        let fix = "write the tenant as it stands in the header, without blanks around it";
        return Err(Fault::new("is no tenant that a request can name", fix));
    }
    Ok(())
}

/// A name that stands elsewhere in Envoy's configuration: of a route, or of a key of metadata.
pub(super) fn reference(text: &str) -> Result<&str, Fault> {
    if text.is_empty() || text.contains(char::is_control) {
        let fix = "write it as it stands in Envoy's configuration";
        return Err(Fault::new("is no name", fix));
    }
    Ok(text)
}

/// The name of an Envoy cluster.
pub(super) fn cluster(text: &str) -> Result<&str, Fault> {
    if text.trim().is_empty() || has_control_characters(text) {
        let fix = "write the name of the cluster that leads to the store";
        return Err(Fault::new("is not the name of a cluster", fix));
    }
    Ok(text)
}

/// Whether the text is a token (RFC 9110, section 5.6.2).
fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

fn has_control_characters(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t')
}
