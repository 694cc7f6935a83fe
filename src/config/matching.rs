//! The sections `exempt` and `match`: which requests are meant.

use super::error::Fault;
use super::names;
use super::reader::{Fields, Node};
use crate::policy::Matcher;

/// The most entries of `exempt`. Each request is compared with all of them.
const MAX_EXEMPT: usize = 64;

/// The most methods or headers of one predicate.
const MAX_PARTS: usize = 32;

const FIELDS: [&str; 5] = ["path", "path_prefix", "methods", "headers", "route"];

/// Reads the section `exempt`.
pub(super) fn read_exempt(section: &Node<'_>) -> Vec<Matcher> {
    let items = section.list(MAX_EXEMPT, None).unwrap_or_default();
    items.iter().filter_map(read_exemption).collect()
}

fn read_exemption(item: &Node<'_>) -> Option<Matcher> {
    let fields = item.object(&FIELDS)?;
    if !FIELDS.iter().any(|name| fields.has(name)) {
        let fix = "say which requests are meant; to let everything pass write \"mode\": \"off\"";
        fields.fail_whole(Fault::new("exempts every request", fix));
    }
    let matcher = read_fields(&fields);
    let alone = !["path", "methods", "headers", "route"].iter().any(|name| fields.has(name));
    if alone && matcher.path_prefix.as_deref() == Some("/") {
        let fix = "write a longer prefix; to let everything pass write \"mode\": \"off\"";
        fields.fail("path_prefix", Fault::new("exempts every request", fix));
    }
    Some(matcher)
}

/// Reads the section `match` of a limit.
pub(super) fn read(section: &Node<'_>) -> Matcher {
    section.object(&FIELDS).as_ref().map(read_fields).unwrap_or_default()
}

fn read_fields(fields: &Fields<'_>) -> Matcher {
    if fields.has("path") && fields.has("path_prefix") {
        let fix = "keep \"path\" for that path alone, or \"path_prefix\" for all below it";
        fields.fail("path_prefix", Fault::new("stands beside \"path\"", fix));
    }
    let path = |name| fields.get(name).and_then(|node| node.text(names::path));
    Matcher {
        path: path("path"),
        path_prefix: path("path_prefix"),
        methods: fields.get("methods").map(|node| read_methods(&node)).unwrap_or_default(),
        headers: fields.get("headers").map(|node| read_headers(&node)).unwrap_or_default(),
        route: fields.get("route").and_then(|node| node.text(names::reference)).map(str::to_owned),
    }
}

fn read_methods(node: &Node<'_>) -> Vec<String> {
    let fix = "name at least one method, or remove it to mean every method";
    let items = node.list(MAX_PARTS, Some(fix)).unwrap_or_default();
    items.iter().filter_map(|item| item.text(names::method)).collect()
}

fn read_headers(node: &Node<'_>) -> Vec<(String, String)> {
    let Some(fields) = node.as_secret().map() else { return Vec::new() };
    let fix = "name at least one header and its value, or remove it";
    if fields.is_empty() {
        node.fail(Fault::new("is empty", fix));
    }
    if fields.len() > MAX_PARTS {
        let rule = format!("has {} headers, more than {MAX_PARTS}", fields.len());
        node.fail(Fault::new(rule, format!("keep at most {MAX_PARTS}")));
    }
    let mut headers: Vec<(String, String)> = Vec::new();
    for (name, value) in fields.iter().take(MAX_PARTS) {
        // A header's value may be a credential.
        let value = value.as_secret();
        let name = match names::header(name) {
            Ok(name) => name,
            Err(fault) => {
                fields.fail_name(name, fault);
                continue;
            }
        };
        if headers.iter().any(|(earlier, _)| *earlier == name) {
            let fix = "keep one of them; names of headers have no case";
            value.fail(Fault::new("names a header that is already there", fix));
        }
        let text = value.text(names::header_value);
        headers.push((name, text.unwrap_or_default()));
    }
    headers
}
