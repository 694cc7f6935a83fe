use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use crate::{blocks, code_spans, expect_none, pages, prose, tree};

/// What builds and runs leave behind; it need not be there.
const GENERATED: [&str; 2] = ["target", ".tools"];

/// `path` without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            component => normal.push(component),
        }
    }
    normal
}

/// The anchors of a page's headings, as code hosts make them.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().chars();
        let kept = kept.filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        let directory = Path::new(&page.path).parent().unwrap().to_owned();
        for (number, line) in prose(&page) {
            for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                if link.starts_with("https://") {
                    continue;
                }
                let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
                let target = match file {
                    "" => PathBuf::from(&page.path),
                    file => normal(&directory.join(file)),
                };
                let exists = tree::root().join(&target).exists();
                let found = exists
                    && (anchor.is_empty()
                        || anchors(&tree::read(target.to_str().unwrap()).text)
                            .contains(&anchor.to_owned()));
                if !found {
                    broken.push(format!("{}:{number}: {link}", page.path));
                }
            }
        }
    }
    expect_none("links lead nowhere", &broken);
}

/// A path in backticks begins with a name of the repository's root and has a slash, or names a file
/// there.
#[test]
fn paths_exist() {
    let entries = std::fs::read_dir(tree::root()).unwrap().map(|entry| entry.unwrap().file_name());
    let top: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    let mut missing = Vec::new();
    for page in pages() {
        for (number, line) in prose(&page) {
            for span in code_spans(line) {
                let path = span.split(' ').next().unwrap().trim_start_matches("./");
                let first = path.split('/').next().unwrap();
                let is_ours = path.contains('/') && top.iter().any(|name| name == first);
                let is_file = path.ends_with(".md") || path.ends_with(".sh");
                let is_pattern = path.contains(['*', '<', '…', 'N']);
                if (!is_ours && !is_file) || is_pattern || GENERATED.contains(&first) {
                    continue;
                }
                if !tree::root().join(path).exists() {
                    missing.push(format!("{}:{number}: {path}", page.path));
                }
            }
        }
    }
    expect_none("paths that do not exist", &missing);
}

/// What is between backticks is looked for line by line.
#[test]
fn code_spans_end_on_their_line() {
    let mut open = Vec::new();
    for page in pages() {
        for (number, line) in prose(&page) {
            if !line.matches('`').count().is_multiple_of(2) {
                open.push(format!("{}:{number}: {line}", page.path));
            }
        }
    }
    expect_none("a code span goes on after the end of its line", &open);
}

#[test]
fn commands_exist_and_can_be_run() {
    let mut missing = Vec::new();
    for page in pages() {
        let shell = blocks(&page).into_iter().filter(|block| block.language == "sh");
        let mut texts: Vec<(String, String)> =
            shell.map(|block| (block.place, block.text)).collect();
        texts.extend(prose(&page).into_iter().flat_map(|(number, line)| {
            let place = format!("{}:{number}", page.path);
            code_spans(line).map(move |span| (place.clone(), span.to_owned())).collect::<Vec<_>>()
        }));
        for (place, text) in texts {
            for word in text.split_whitespace().filter(|word| word.starts_with("./")) {
                let file = tree::root().join(word.trim_end_matches(';'));
                let mode = file.metadata().map(|file| file.permissions().mode());
                if mode.is_err() || mode.is_ok_and(|mode| mode & 0o111 == 0) {
                    missing.push(format!("{place}: {word}"));
                }
            }
        }
    }
    expect_none("commands that are no programs", &missing);
}
