//! Places in a document, as numbers. Whoever reads it hands them on freely; they are put into words
//! only where there is an error.

use super::error::quoted;

/// A place in the document.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place(usize);

/// What leads from a value to a part of it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step<'a> {
    Field(&'a str),
    Item(usize),
}

/// Every place that was looked at: where it was reached from, and how.
#[derive(Debug, Default)]
pub(super) struct Places<'a>(Vec<(Place, Step<'a>)>);

impl Place {
    /// The document itself.
    pub(super) const ROOT: Self = Self(usize::MAX);
}

impl<'a> Places<'a> {
    pub(super) fn add(&mut self, from: Place, step: Step<'a>) -> Place {
        self.0.push((from, step));
        Place(self.0.len().saturating_sub(1))
    }

    /// The way to the place, such as `limits[0].tenant.window`. Empty for the document itself.
    pub(super) fn path(&self, place: Place) -> String {
        match self.0.get(place.0) {
            None => String::new(),
            Some((from, Step::Field(name))) => with_field(self.path(*from), name),
            Some((from, Step::Item(index))) => format!("{}[{index}]", self.path(*from)),
        }
    }
}

/// The way to the field `name` of what is at `path`.
pub(super) fn with_field(path: String, name: &str) -> String {
    let plain = name.len() <= 64
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    match (plain, path.is_empty()) {
        (true, true) => name.to_owned(),
        (true, false) => format!("{path}.{name}"),
        (false, _) => format!("{path}[{}]", quoted(name)),
    }
}
