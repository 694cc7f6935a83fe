//! Every document under `tests/data/config` has a text beside it: what was understood of a good
//! one, the errors of a bad one. `UPDATE_GOLDEN=1 cargo test --test config` writes the texts anew;
//! read the difference before you keep it.

use std::fs;
use std::path::{Path, PathBuf};

use fairshare::config;

/// The documents of one kind, in order.
pub(crate) fn documents(kind: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/config").join(kind);
    let entries = fs::read_dir(directory).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    assert!(!paths.is_empty());
    paths
}

fn compare(path: &Path, text: &str) {
    let golden = path.with_extension("txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&golden, text).unwrap();
    }
    let expected = fs::read_to_string(&golden).unwrap_or_default();
    assert_eq!(text, expected, "the text of {}", path.display());
}

#[test]
fn good_documents_are_understood_as_their_texts_say() {
    for path in documents("good") {
        match config::parse(&fs::read(&path).unwrap()) {
            Ok(policy) => compare(&path, &config::describe(&policy)),
            Err(errors) => panic!("{}: {}", path.display(), config::render_errors(&errors)),
        }
    }
}

#[test]
fn bad_documents_are_refused_with_the_errors_in_their_texts() {
    for path in documents("bad") {
        match config::parse(&fs::read(&path).unwrap()) {
            Ok(_) => panic!("{} was taken", path.display()),
            Err(errors) => compare(&path, &format!("{}\n", config::render_errors(&errors))),
        }
    }
}
