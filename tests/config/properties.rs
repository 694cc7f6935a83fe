//! What holds for every document, however broken: nothing panics, and each error is one line of
//! bounded length about a place that exists.

use std::fs;

use fairshare::config::{self, ConfigError, MAX_ERRORS};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::golden;

/// No error is longer than this, whatever the document holds.
const LONGEST_LINE_BYTES: usize = 2000;

fn good_documents() -> Vec<Vec<u8>> {
    golden::documents("good").iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Parses, and checks what holds for all errors.
fn errors_of(document: &[u8]) -> Vec<ConfigError> {
    let errors = match config::parse(document) {
        Ok(policy) => {
            assert!(config::describe(&policy).ends_with('\n'));
            return Vec::new();
        }
        Err(errors) => errors,
    };
    assert!(!errors.is_empty() && errors.len() <= MAX_ERRORS + 1);
    for error in &errors {
        let line = error.to_string();
        assert!(!line.contains(char::is_control), "{line:?}");
        assert!(line.len() <= LONGEST_LINE_BYTES, "{line}");
    }
    assert_eq!(config::render_errors(&errors).lines().count(), errors.len());
    errors
}

/// The place that a path names, or nothing.
fn find<'v>(document: &'v Value, path: &str) -> Option<&'v Value> {
    steps(path).iter().try_fold(document, |value, step| match step {
        Step::Field(name) => value.get(name),
        Step::Item(index) => value.get(index),
    })
}

enum Step {
    Field(String),
    Item(usize),
}

/// The steps of a path: `a.b[0]["c d"]`.
fn steps(path: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix("[\"") {
            let (name, after) = quoted.split_once("\"]").expect("a closed quote");
            steps.push(Step::Field(name.replace("\\\"", "\"")));
            rest = after;
        } else if let Some(index) = rest.strip_prefix('[') {
            let end = index.find(']').expect("a closed bracket");
            steps.push(Step::Item(index[..end].parse().unwrap()));
            rest = &index[end + 1..];
        } else {
            let name = rest.strip_prefix('.').unwrap_or(rest);
            let end = name.find(['.', '[']).unwrap_or(name.len());
            steps.push(Step::Field(name[..end].to_owned()));
            rest = &name[end..];
        }
    }
    steps
}

/// The path without its last step.
fn parent(path: &str) -> &str {
    let end = if path.ends_with("\"]") { path.rfind("[\"") } else { path.rfind(['.', '[']) };
    &path[..end.unwrap_or(0)]
}

/// Every place in the document, as JSON pointers.
fn places(value: &Value, pointer: &str, places: &mut Vec<String>) {
    places.push(pointer.to_owned());
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                self::places(item, &format!("{pointer}/{index}"), places);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                self::places(field, &format!("{pointer}/{name}"), places);
            }
        }
        _ => {}
    }
}

/// A value that may stand where it does not belong.
fn odd_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,80}".prop_map(Value::from),
        "[0-9]{1,3}(us|ms|s|m|h|d|month|)".prop_map(Value::from),
        prop::sample::select(vec!["global", "node", "leased", "off", "/", "host", "dns", "s3cr3t"])
            .prop_map(Value::from),
        prop::sample::select(vec![
            json!([]),
            json!({}),
            json!([{}]),
            json!({"requests": 21, "window": "1s"}),
            json!({"rate": 0.5}),
            json!({"name": "dns", "shared": {"rate": 1}}),
            json!({"dns": {"tenant": {"requests": 5, "window": "1s"}}}),
        ]),
    ]
}

#[derive(Clone, Debug)]
enum Change {
    Replace(Value),
    Remove,
    Add(String, Value),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        odd_value().prop_map(Change::Replace),
        Just(Change::Remove),
        (
            prop_oneof![
                "[a-z_ ]{0,12}",
                prop::sample::select(vec![
                    "scope", "cost", "tenant", "burst", "dns", "a b", "mode"
                ])
                .prop_map(str::to_owned)
            ],
            odd_value()
        )
            .prop_map(|(name, value)| Change::Add(name, value)),
    ]
}

/// Makes the change at one of the document's places.
fn make(document: &mut Value, place: prop::sample::Index, change: Change) {
    let mut pointers = Vec::new();
    places(document, "", &mut pointers);
    let pointer = &pointers[place.index(pointers.len())];
    match change {
        Change::Replace(value) => {
            if let Some(old) = document.pointer_mut(pointer) {
                *old = value;
            }
        }
        Change::Remove => {
            let Some((parent, last)) = pointer.rsplit_once('/') else { return };
            match document.pointer_mut(parent) {
                Some(Value::Array(items)) => {
                    items.remove(last.parse().unwrap());
                }
                Some(Value::Object(fields)) => {
                    fields.remove(last);
                }
                _ => {}
            }
        }
        Change::Add(name, value) => match document.pointer_mut(pointer) {
            Some(Value::Array(items)) => items.push(value),
            Some(Value::Object(fields)) => {
                fields.insert(name, value);
            }
            _ => {}
        },
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        errors_of(&bytes);
    }

    #[test]
    fn no_damage_to_a_good_document_makes_it_panic(
        which in any::<prop::sample::Index>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let documents = good_documents();
        let mut document = documents[which.index(documents.len())].clone();
        for (place, byte) in damage {
            let place = place.index(document.len());
            document[place] = byte;
        }
        errors_of(&document);
    }

    #[test]
    fn every_error_is_about_a_place_that_exists(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), change()), 1..5),
    ) {
        let documents = good_documents();
        let document = &documents[which.index(documents.len())];
        let mut document: Value = serde_json::from_slice(document).unwrap();
        for (place, change) in changes {
            make(&mut document, place, change);
        }
        for error in errors_of(document.to_string().as_bytes()) {
            match error.value {
                // An object or a list, or something that is missing in the place around it.
                None => prop_assert!(find(&document, parent(&error.path)).is_some(), "{}", error),
                Some(_) => prop_assert!(find(&document, &error.path).is_some(), "{}", error),
            }
        }
    }

    #[test]
    fn a_tenant_window_is_refused_exactly_if_it_is_above_the_shared_one(
        tenant in 0..50_u64, shared in 0..50_u64, tenant_s in 1..3_u8, shared_s in 1..3_u8,
    ) {
        let document = json!({"limits": [{"name": "x",
            "shared": {"requests": shared, "window": format!("{shared_s}s")},
            "tenant": {"requests": tenant, "window": format!("{tenant_s}s")}}]});
        let errors = errors_of(document.to_string().as_bytes());
        prop_assert_eq!(errors.is_empty(), tenant_s != shared_s || tenant <= shared);
    }

    #[test]
    fn a_tenant_rate_is_refused_exactly_if_it_is_above_the_shared_one(
        tenant in 1..40_u64, shared in 1..40_u64, tenant_per in 1..4_u64, shared_per in 1..4_u64,
    ) {
        let level = |tenths: u64, per: u64| {
            let (whole, rest) = (tenths / 10, tenths % 10);
            let rate: Value = serde_json::from_str(&format!("{whole}.{rest}")).unwrap();
            json!({"rate": rate, "per": format!("{per}s"), "burst": 5})
        };
        let document = json!({"limits": [{"name": "x",
            "shared": level(shared, shared_per), "tenant": level(tenant, tenant_per)}]});
        let errors = errors_of(document.to_string().as_bytes());
        prop_assert_eq!(errors.is_empty(), tenant * shared_per <= shared * tenant_per);
    }
}
