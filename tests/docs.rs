//! What the pages say is so. `docs/config.md` has tests of its own in `tests/config/docs.rs`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::arithmetic_side_effects,
    clippy::disallowed_methods,
    reason = "a test may fail, and reads files"
)]

/// What pages tell a reader to run.
#[path = "docs/commands.rs"]
mod commands;
/// Examples: configurations, commands, what the README shows.
#[path = "docs/examples.rs"]
mod examples;
/// Names of metrics, codes, tests, and numbers that the code fixes.
#[path = "docs/facts.rs"]
mod facts;
/// A host of the tests' own.
mod fake_host;
/// Paths and links.
#[path = "docs/places.rs"]
mod places;
/// The repository's files.
mod tree;

use tree::SourceFile;

/// A fenced block.
struct Block {
    /// Where it stands, as `page:line`.
    place: String,
    /// The word behind the opening fence.
    language: String,
    text: String,
}

/// All pages of the project.
fn pages() -> Vec<SourceFile> {
    let mut pages = tree::everything();
    pages.retain(|page| page.path.ends_with(".md"));
    pages
}

/// The fenced blocks of a page.
fn blocks(page: &SourceFile) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (index, line) in page.text.lines().enumerate() {
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(language)) => {
                let place = format!("{}:{}", page.path, index + 1);
                open = Some(Block { place, language: language.to_owned(), text: String::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{}: a block is not closed", page.path);
    blocks
}

/// The lines outside of fenced blocks, with their numbers.
fn prose(page: &SourceFile) -> Vec<(usize, &str)> {
    let mut inside = false;
    let mut prose = Vec::new();
    for (index, line) in page.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            prose.push((index + 1, line));
        }
    }
    prose
}

/// What stands between backticks on a line.
fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Reports all that is wrong at once.
fn expect_none(rule: &str, broken: &[String]) {
    assert!(broken.is_empty(), "{rule}:\n{}", broken.join("\n"));
}
