//! What a page tells its readers to do, done by a test.

use std::fs;

use super::tools::repository;

/// The words of the command on a page that begins with `start`, as a shell would split them.
pub fn command(page: &str, start: &str) -> Vec<String> {
    let text = text(page).replace("\\\n", " ");
    let line = text.lines().find(|line| line.starts_with(start));
    let line = line.unwrap_or_else(|| panic!("{page} has no command {start}"));
    let mut words = Vec::new();
    for (index, part) in line.split('\'').enumerate() {
        if index % 2 == 0 {
            words.extend(part.split_whitespace().map(str::to_owned));
        } else {
            words.push(part.to_owned());
        }
    }
    words
}

/// The fenced block of a page whose first line is `first`, without that line.
pub fn block(page: &str, first: &str) -> String {
    let text = text(page);
    let block = text.split("```").find_map(|block| block.split_once('\n')?.1.strip_prefix(first));
    let block = block.unwrap_or_else(|| panic!("{page} has no block {first}"));
    block.trim_matches('\n').to_owned()
}

fn text(page: &str) -> String {
    fs::read_to_string(repository().join(page)).expect("a page")
}
