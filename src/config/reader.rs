//! Reads the tree and collects everything that is wrong with it.
//!
//! Each getter either returns what it read or reports why it could not and returns `None`, so that
//! a caller goes on with its default and the other errors are found as well. Whoever called
//! [`super::parse`] sees a policy only if nothing was reported at all.

use std::ops::RangeInclusive;

use super::document::Value;
use super::error::{ErrorSink, Fault, shown};
use super::place::{Place, Step, with_field};
use super::{duration, nearest, number};
use crate::map::seeded;
use crate::units::Span;

/// What an error shows instead of a value that is a secret.
const HIDDEN: &str = "(hidden)";

/// A value, and where in the document it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node<'a> {
    value: &'a Value,
    place: Place,
    errors: &'a ErrorSink<'a>,
    secret: bool,
}

/// An object's fields, and where in the document it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    entries: &'a [(String, Value)],
    place: Place,
    errors: &'a ErrorSink<'a>,
}

impl<'a> Node<'a> {
    pub(super) const fn root(value: &'a Value, errors: &'a ErrorSink<'a>) -> Self {
        Self { value, place: Place::ROOT, errors, secret: false }
    }

    /// The same place; errors do not show the value. What is got out of an object is shown again,
    /// unless it is marked as well.
    pub(super) fn as_secret(&self) -> Self {
        Self { secret: true, ..*self }
    }

    pub(super) fn path(&self) -> String {
        self.errors.path(self.place)
    }

    /// Reports what is wrong with the value.
    pub(super) fn fail(&self, fault: Fault) {
        let value = if self.secret { Some(HIDDEN.to_owned()) } else { shown(self.value) };
        self.errors.push(fault.at(self.path(), value));
    }

    fn fail_type(&self, wanted: &str, fix: impl Into<String>) {
        self.fail(Fault::new(format!("is {}, not {wanted}", self.value.kind()), fix));
    }

    /// What `check` makes of the value, or a report.
    fn checked<T>(&self, result: Result<T, Fault>) -> Option<T> {
        result.map_err(|fault| self.fail(fault)).ok()
    }

    /// An object with none but the `known` fields, each at most once.
    pub(super) fn object(&self, known: &[&str]) -> Option<Fields<'a>> {
        self.object_explaining(known, |_| None)
    }

    /// The same, where `explain` knows what to say about some of the other fields.
    pub(super) fn object_explaining(
        &self,
        known: &[&str],
        explain: impl Fn(&str) -> Option<Fault>,
    ) -> Option<Fields<'a>> {
        let fields = self.map()?;
        for (name, _) in fields.iter() {
            if !known.contains(&name) {
                let fault = explain(name).unwrap_or_else(|| unknown_field(name, known));
                fields.fail_name(name, fault);
            }
        }
        Some(fields)
    }

    /// An object whose field names are the user's, each at most once.
    pub(super) fn map(&self) -> Option<Fields<'a>> {
        let Value::Object(entries) = self.value else {
            self.fail_type("an object", "write {…} with its fields");
            return None;
        };
        let fields = Fields { entries, place: self.place, errors: self.errors };
        let mut seen = seeded(0);
        for (name, _) in entries {
            if seen.insert(name.as_str(), ()).is_some() {
                fields.fail_name(name, Fault::new("is given more than once", "keep one of them"));
            }
        }
        Some(fields)
    }

    /// A list of at most `longest` items, and of at least one where there is a fix for an empty one.
    pub(super) fn list(&self, longest: usize, fix_if_empty: Option<&str>) -> Option<Vec<Self>> {
        let Value::Array(items) = self.value else {
            self.fail_type("a list", "write [ … ] around the items");
            return None;
        };
        if let Some(fix) = fix_if_empty.filter(|_| items.is_empty()) {
            self.fail(Fault::new("is empty", fix));
        }
        if items.len() > longest {
            let rule = format!("has {} items, more than {longest}", items.len());
            self.fail(Fault::new(rule, format!("keep at most {longest}")));
        }
        let node = |(index, value)| {
            let place = self.errors.place(self.place, Step::Item(index));
            Self { value, place, ..*self }
        };
        Some(items.iter().take(longest).enumerate().map(node).collect())
    }

    /// A string that `check` makes something of.
    pub(super) fn text<T>(&self, check: impl FnOnce(&'a str) -> Result<T, Fault>) -> Option<T> {
        match self.value {
            Value::String(text) => self.checked(check(text)),
            Value::Number(number) if !self.secret => {
                self.fail_type("a string", format!("put it in quotes: \"{number}\""));
                None
            }
            _ => {
                self.fail_type("a string", "write a string, \"…\"");
                None
            }
        }
    }

    /// One of the names in `options`.
    pub(super) fn choice<T: Copy>(&self, options: &[(&str, T)]) -> Option<T> {
        match self.value {
            Value::String(text) => self.checked(choose(text, options)),
            _ => {
                let names: Vec<&str> = options.iter().map(|(name, _)| *name).collect();
                let wanted = format!("one of {}", nearest::listed(&names));
                self.fail_type(&wanted, "write one of them, in quotes");
                None
            }
        }
    }

    /// The value, where it is a string; nothing is reported.
    pub(super) fn as_text(&self) -> Option<&'a str> {
        match self.value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn boolean(&self) -> Option<bool> {
        match self.value {
            Value::Bool(flag) => Some(*flag),
            Value::String(text) if text == "true" || text == "false" => {
                self.fail_type("a boolean", format!("write {text} without quotes"));
                None
            }
            _ => {
                self.fail_type("a boolean", "write true or false");
                None
            }
        }
    }

    /// A whole number within `bounds`. 5.0 is one, too: a number that went through Envoy's Struct
    /// comes back in that form.
    pub(super) fn whole(&self, bounds: RangeInclusive<u64>) -> Option<u64> {
        self.number(|number| number::whole(number, &bounds))
    }

    /// A number that `check` makes something of.
    pub(super) fn number<T>(
        &self,
        check: impl FnOnce(&serde_json::Number) -> Result<T, Fault>,
    ) -> Option<T> {
        match self.value {
            Value::Number(number) => self.checked(check(number)),
            Value::String(text) if number::is_short(text) => {
                self.fail_type("a number", format!("write {text} without quotes"));
                None
            }
            _ => {
                self.fail_type("a number", "write a number");
                None
            }
        }
    }

    /// A duration, as [`duration::parse`] has it. `unit` is the one that is proposed where there is
    /// none.
    pub(super) fn duration(&self, unit: &str) -> Option<Span> {
        let path = self.path();
        let name = path.rsplit('.').next().unwrap_or_default();
        match self.value {
            Value::String(text) => self.checked(duration::parse(text, unit)),
            Value::Number(number) => {
                let fix = format!("add one, as in \"{name}\": \"{number}{unit}\"");
                self.fail(Fault::new("is a number without a unit", fix));
                None
            }
            _ => {
                let fix = format!("write a number and a unit, as in \"{name}\": \"10{unit}\"");
                self.fail_type("a duration", fix);
                None
            }
        }
    }
}

impl<'a> Fields<'a> {
    pub(super) const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) const fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn path(&self) -> String {
        self.errors.path(self.place)
    }

    /// Where the field `name` is, or would be.
    pub(super) fn path_of(&self, name: &str) -> String {
        with_field(self.path(), name)
    }

    /// The field `name`, where it is given.
    pub(super) fn get(&self, name: &str) -> Option<Node<'a>> {
        self.entries.iter().find(|(given, _)| given == name).map(|entry| self.node(entry))
    }

    fn node(&self, (name, value): &'a (String, Value)) -> Node<'a> {
        let place = self.errors.place(self.place, Step::Field(name));
        Node { value, place, errors: self.errors, secret: false }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|(given, _)| given == name)
    }

    /// The field `name`; reports where it is not given.
    pub(super) fn required(&self, name: &str, fix: &str) -> Option<Node<'a>> {
        let node = self.get(name);
        if node.is_none() {
            self.fail(name, Fault::new("is missing", fix));
        }
        node
    }

    /// Every field with its name, in the order of the document, duplicates left out.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a str, Node<'a>)> {
        let mut seen = seeded(0);
        let fields = *self;
        self.entries.iter().filter_map(move |entry| {
            let name = entry.0.as_str();
            seen.insert(name, ()).is_none().then(|| (name, fields.node(entry)))
        })
    }

    /// Reports what is wrong with the field `name`, whether it is given or not.
    pub(super) fn fail(&self, name: &str, fault: Fault) {
        match self.get(name) {
            Some(node) => node.fail(fault),
            None => self.errors.push(fault.at(self.path_of(name), None)),
        }
    }

    /// Reports what is wrong with the field `name` itself, whatever its value.
    pub(super) fn fail_name(&self, name: &str, fault: Fault) {
        self.errors.push(fault.at(self.path_of(name), None));
    }

    /// Reports what is wrong with the object as a whole.
    pub(super) fn fail_whole(&self, fault: Fault) {
        let value = self.entries.is_empty().then(|| "{}".to_owned());
        self.errors.push(fault.at(self.path(), value));
    }
}

/// What stands for `text` in `options`.
pub(super) fn choose<T: Copy>(text: &str, options: &[(&str, T)]) -> Result<T, Fault> {
    let found = options.iter().find(|(name, _)| *name == text);
    found.map(|(_, option)| *option).ok_or_else(|| {
        let names: Vec<&str> = options.iter().map(|(name, _)| *name).collect();
        let listed = nearest::listed(&names);
        let fix = match nearest::to(text, &names) {
            Some(name) => format!("write \"{name}\""),
            None => format!("write {}", if names.len() == 1 { &listed } else { "one of them" }),
        };
        let one_of = if names.len() == 1 { "" } else { "one of " };
        Fault::new(format!("is not {one_of}{listed}"), fix)
    })
}

fn unknown_field(name: &str, known: &[&str]) -> Fault {
    let rule = format!("is not a field of this version; known here are {}", nearest::listed(known));
    match nearest::to(name, known) {
        Some(near) => Fault::new(rule, format!("write \"{near}\", or remove it")),
        None => Fault::new(rule, "remove it"),
    }
}
