//! What a person is told about a document that is not understood.

use std::cell::{Cell, RefCell};
use std::fmt;

use super::document::Value;
use super::place::{Place, Places, Step};

/// The most errors that are listed; a last entry counts those beyond it.
pub const MAX_ERRORS: usize = 100;

/// The most characters of a value or a key that an error shows.
const MAX_SHOWN_CHARS: usize = 60;

/// One thing that is wrong with a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Where it is, such as `limits[0].tenant.window`. Empty for the document as a whole.
    pub path: String,
    /// What stands there, escaped and shortened. None where nothing does, or where it is too large
    /// to help.
    pub value: Option<String>,
    /// The rule that it breaks.
    pub rule: String,
    /// What to do about it.
    pub fix: String,
}

/// A broken rule and the way out, before it is known where in the document it is. Boxed, because
/// every check may return one and hardly any does.
#[derive(Debug)]
pub(super) struct Fault(Box<(String, String)>);

/// Collects errors while the document is read. Shared by everything that reads it.
#[derive(Debug, Default)]
pub(super) struct ErrorSink<'a> {
    errors: RefCell<Vec<ConfigError>>,
    left_out: Cell<usize>,
    places: RefCell<Places<'a>>,
}

impl fmt::Display for ConfigError {
    /// One line: path, value, rule, fix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.path.is_empty() { "document" } else { &self.path })?;
        if let Some(value) = &self.value {
            write!(f, ": {value}")?;
        }
        write!(f, ": {}; {}", self.rule, self.fix)
    }
}

impl std::error::Error for ConfigError {}

/// The errors as lines of text, one each, in the order in which they were found. This is the form
/// for a terminal and for Envoy's log.
#[must_use]
pub fn render_errors(errors: &[ConfigError]) -> String {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

impl Fault {
    pub(super) fn new(rule: impl Into<String>, fix: impl Into<String>) -> Self {
        Self(Box::new((rule.into(), fix.into())))
    }

    pub(super) fn at(self, path: String, value: Option<String>) -> ConfigError {
        let (rule, fix) = *self.0;
        ConfigError { path, value, rule, fix }
    }
}

impl<'a> ErrorSink<'a> {
    /// The place that a step leads to.
    pub(super) fn place(&self, from: Place, step: Step<'a>) -> Place {
        self.places.borrow_mut().add(from, step)
    }

    /// Where a place is, in words.
    pub(super) fn path(&self, place: Place) -> String {
        self.places.borrow().path(place)
    }

    pub(super) fn push(&self, error: ConfigError) {
        let mut errors = self.errors.borrow_mut();
        if errors.len() < MAX_ERRORS {
            errors.push(error);
        } else {
            self.left_out.set(self.left_out.get().saturating_add(1));
        }
    }

    pub(super) fn take_errors(&self) -> Vec<ConfigError> {
        let mut errors = self.errors.take();
        let left_out = self.left_out.get();
        if left_out > 0 {
            let rule = format!("has {left_out} more errors than are listed here");
            errors.push(Fault::new(rule, "mend the ones above first").at(String::new(), None));
        }
        errors
    }
}

/// A value as an error shows it: on one line, escaped and shortened. Objects and lists are shown
/// only where they are empty, because their parts have paths of their own.
pub(super) fn shown(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some("null".to_owned()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) => Some(quoted(text)),
        Value::Array(items) if items.is_empty() => Some("[]".to_owned()),
        Value::Object(entries) if entries.is_empty() => Some("{}".to_owned()),
        Value::Array(_) | Value::Object(_) => None,
    }
}

/// Text in quotes, with everything escaped that could break the line or be mistaken for another
/// character, and cut after sixty characters.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", text.get(..end).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_of_path_value_rule_and_fix() {
        let error = Fault::new("is too large", "lower it to 5").at("a.b".into(), Some("7".into()));
        assert_eq!(error.to_string(), "a.b: 7: is too large; lower it to 5");
        let error = Fault::new("is missing", "write it").at(String::new(), None);
        assert_eq!(error.to_string(), "document: is missing; write it");
    }

    #[test]
    fn shown_text_is_escaped_and_short() {
        assert_eq!(quoted("a\nb\"\u{202e}"), r#""a\nb\"\u{202e}""#);
        let long = quoted(&"é".repeat(100_000));
        assert_eq!(long, format!("\"{}\"…", "é".repeat(60)));
    }

    #[test]
    fn errors_beyond_the_bound_are_counted() {
        let sink = ErrorSink::default();
        for _ in 0..MAX_ERRORS + 3 {
            sink.push(Fault::new("is wrong", "mend it").at("a".into(), None));
        }
        let errors = sink.take_errors();
        assert_eq!(errors.len(), MAX_ERRORS + 1);
        assert_eq!(errors[MAX_ERRORS].rule, "has 3 more errors than are listed here");
    }
}
