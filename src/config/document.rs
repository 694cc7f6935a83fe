//! The document as a tree that keeps the order of fields and every duplicate, so that a field which
//! is given twice can be refused instead of one of the two being ignored.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;
use serde_json::error::Category;

use super::error::{ConfigError, Fault};

/// The largest document that is read.
pub const MAX_DOCUMENT_BYTES: usize = 2 * 1024 * 1024;

/// A JSON value.
#[derive(Debug)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    Array(Vec<Self>),
    /// Fields in the order of the document, duplicates included.
    Object(Vec<(String, Self)>),
}

/// Builds a [`Value`] from whatever the parser meets.
struct ValueVisitor;

/// Reads the document's syntax. Nesting is bounded by the parser (128 levels).
pub(super) fn parse(bytes: &[u8]) -> Result<Value, ConfigError> {
    let fault = if bytes.len() > MAX_DOCUMENT_BYTES {
        Fault::new(
            format!("is {} bytes long, more than {MAX_DOCUMENT_BYTES}", bytes.len()),
            "shorten it, for instance by leaving out overrides that equal the default",
        )
    } else if bytes.iter().all(u8::is_ascii_whitespace) {
        Fault::new("is empty", "give a JSON object with \"limits\", or {\"mode\": \"off\"}")
    } else {
        match serde_json::from_slice(bytes) {
            Ok(value) => return Ok(value),
            Err(error) => syntax_fault(&error),
        }
    };
    Err(fault.at(String::new(), None))
}

fn syntax_fault(error: &serde_json::Error) -> Fault {
    let (line, column) = (error.line(), error.column());
    let text = error.to_string();
    let place = format!(" at line {line} column {column}");
    let reason = text.strip_suffix(&place).unwrap_or(&text);
    let fix = match error.classify() {
        Category::Eof => "the document is cut off: close what is still open",
        _ if line == 1 && column <= 1 => "the document must be one JSON object, {…}",
        _ => "correct the JSON there; comments and trailing commas are not allowed",
    };
    Fault::new(format!("is not JSON at line {line}, column {column} ({reason})"), fix)
}

impl Value {
    /// The value's kind in words, with its article.
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::String(_) => "a string",
            Self::Array(_) => "a list",
            Self::Object(_) => "an object",
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Value::Object(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_duplicates_are_kept() {
        let Ok(Value::Object(entries)) = parse(br#"{"b": 1, "a": null, "b": [true, "x"]}"#) else {
            panic!("an object");
        };
        let names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["b", "a", "b"]);
    }

    #[test]
    fn deep_nesting_is_refused_rather_than_followed() {
        let deep = "[".repeat(MAX_DOCUMENT_BYTES / 2);
        assert!(parse(deep.as_bytes()).unwrap_err().rule.contains("recursion limit"));
    }

    #[test]
    fn the_size_is_bounded() {
        let large = vec![b' '; MAX_DOCUMENT_BYTES + 1];
        let error = parse(&large).unwrap_err();
        assert_eq!(error.rule, "is 2097153 bytes long, more than 2097152");
    }
}
