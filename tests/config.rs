//! The configuration: what is understood, and what is said about what is not.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::arithmetic_side_effects,
    reason = "a test may fail"
)]

/// Cases from the field, each named after its id; what they ask for must stay so.
#[path = "config/cases.rs"]
mod cases;
/// The command `fairshare check`, run as a process.
#[cfg(feature = "cli")]
#[path = "config/check.rs"]
mod check;
/// What `docs/config.md` shows is what happens.
#[path = "config/docs.rs"]
mod docs;
/// The exact texts for the documents under `tests/data/config`. A new rule gets a document there.
#[path = "config/golden.rs"]
mod golden;
/// What holds for every document, however broken.
#[path = "config/properties.rs"]
mod properties;
/// What each field compiles to, and its default.
#[path = "config/values.rs"]
mod values;

use fairshare::config::{self, ConfigError};
use fairshare::policy::Policy;

/// The policy of a document that is expected to be right.
fn valid(document: &str) -> Policy {
    config::parse(document.as_bytes())
        .unwrap_or_else(|errors| panic!("{}", config::render_errors(&errors)))
}

/// The errors of a document that is expected to be wrong.
fn invalid(document: &str) -> Vec<ConfigError> {
    config::parse(document.as_bytes()).expect_err("the document is wrong")
}

/// The lines that `document` gets as errors.
fn lines(document: &str) -> Vec<String> {
    invalid(document).iter().map(ToString::to_string).collect()
}
