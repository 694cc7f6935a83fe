//! The repository's own files, for tests that read them.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of this")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

/// Directories that hold what was built, fetched or found.
const NOT_OURS: [&str; 5] = [".git", ".tools", "artifacts", "corpus", "target"];

/// A file and what stands in it.
pub struct SourceFile {
    /// The path from the repository's root.
    pub path: String,
    /// Everything in it.
    pub text: String,
}

/// The repository's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Reads one file.
pub fn read(path: &str) -> SourceFile {
    let text = fs::read_to_string(root().join(path)).unwrap_or_else(|error| {
        panic!("cannot read {path}: {error}");
    });
    SourceFile { path: path.to_owned(), text }
}

/// All text files below the directories and files of `starts`, in order.
pub fn below(starts: &[&str]) -> Vec<SourceFile> {
    let mut paths = Vec::new();
    for start in starts {
        collect(&root().join(start), &mut paths);
    }
    paths.sort();
    assert!(!paths.is_empty(), "nothing is below {starts:?}");
    let text_of = |path: PathBuf| {
        let relative = path.strip_prefix(root()).expect("a path of the repository");
        let name = relative.to_str().expect("a path in UTF-8").to_owned();
        fs::read_to_string(&path).ok().map(|text| SourceFile { path: name, text })
    };
    paths.into_iter().filter_map(text_of).collect()
}

/// Every text file of the repository.
pub fn everything() -> Vec<SourceFile> {
    below(&[""])
}

/// Every Rust file of the repository.
pub fn rust() -> Vec<SourceFile> {
    let mut files = below(&["src", "tests", "tools", "examples", "benches", "fuzz"]);
    files.retain(|file| file.path.ends_with(".rs"));
    files
}

fn collect(path: &Path, paths: &mut Vec<PathBuf>) {
    if path.is_file() {
        paths.push(path.to_owned());
        return;
    }
    for entry in fs::read_dir(path).expect("a directory") {
        let entry = entry.expect("an entry");
        if !NOT_OURS.iter().any(|name| entry.file_name() == *name) {
            collect(&entry.path(), paths);
        }
    }
}
