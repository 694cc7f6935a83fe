//! What `docs/config.md` shows is what happens.

use std::collections::BTreeSet;
use std::fs;

use fairshare::config;

use super::{golden, valid};

/// The fenced blocks of the page whose language is `language`.
fn blocks(language: &str) -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/config.md");
    let page = fs::read_to_string(page).unwrap();
    let mut blocks = Vec::new();
    let mut open: Option<(bool, String)> = None;
    for line in page.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => open = Some((info == language, String::new())),
            (Some(_), Some(_)) => {
                blocks.extend(open.take().filter(|(wanted, _)| *wanted).map(|(_, text)| text));
            }
            (Some((_, text)), None) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed");
    blocks
}

#[test]
fn every_document_on_the_page_is_valid() {
    let documents = blocks("json");
    assert!(documents.len() >= 3);
    for document in documents {
        if let Err(errors) = config::parse(document.as_bytes()) {
            panic!("{document}\n{}", config::render_errors(&errors));
        }
    }
}

/// Blocks of text show errors and descriptions; each line is one that some document of the golden
/// tests really gets.
#[test]
fn every_message_on_the_page_is_real() {
    let mut real = BTreeSet::new();
    for kind in ["good", "bad"] {
        for path in golden::documents(kind) {
            let text = fs::read_to_string(path.with_extension("txt")).unwrap();
            real.extend(text.lines().map(str::to_owned));
        }
    }
    let shown = blocks("text");
    assert!(!shown.is_empty());
    for line in shown.iter().flat_map(|block| block.lines()) {
        assert!(real.contains(line), "no document gets this line: {line}");
    }
}

#[test]
fn the_defaults_on_the_page_are_the_defaults() {
    let documents = blocks("json");
    let written_out = documents.last().unwrap();
    let left_out = r#"{"limits": [{"name": "all", "scope": "global", "tenant": {"rate": 100}}],
        "store": {"cluster": "fairshare_redis"}}"#;
    let description = |document: &str| config::describe(&valid(document));
    assert_eq!(description(written_out), description(left_out));
}
