//! Finds what was probably meant where a name is misspelt.

use super::error::quoted;

/// The longest name for which a suggestion is sought, which bounds the work on hostile input.
const MAX_NAME_BYTES: usize = 64;

/// The most names that are listed: a limit's fields fit.
const MAX_LISTED: usize = 24;

/// The one of `names` that `given` is closest to, if it is close enough to be meant.
pub(super) fn to<'n>(given: &str, names: &[&'n str]) -> Option<&'n str> {
    if given.len() > MAX_NAME_BYTES {
        return None;
    }
    let given = given.to_ascii_lowercase();
    let distances = names.iter().map(|name| (edit_distance(&given, name), *name));
    let (distance, name) = distances.min_by_key(|(distance, _)| *distance)?;
    let allowed = if name.len() <= 4 { 1 } else { 2 };
    (distance <= allowed).then_some(name)
}

/// The names in quotes, separated by commas; the first of them where they are many.
pub(super) fn listed(names: &[&str]) -> String {
    let shown: Vec<String> = names.iter().take(MAX_LISTED).map(|name| quoted(name)).collect();
    let rest = if names.len() > MAX_LISTED { ", …" } else { "" };
    format!("{}{rest}", shown.join(", "))
}

/// How many bytes must be inserted, removed or replaced to make `a` into `b` (Levenshtein).
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (line, left) in a.bytes().enumerate() {
        let mut diagonal = line;
        let mut before = line.saturating_add(1);
        if let Some(first) = row.first_mut() {
            *first = before;
        }
        for (cell, right) in row.iter_mut().skip(1).zip(b.bytes()) {
            let replaced = diagonal.saturating_add(usize::from(left != right));
            diagonal = *cell;
            before = replaced.min(diagonal.saturating_add(1)).min(before.saturating_add(1));
            *cell = before;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_levenshtein() {
        let cases = [("", "", 0), ("a", "", 1), ("", "ab", 2), ("windw", "window", 1)];
        for (a, b, distance) in cases {
            assert_eq!(edit_distance(a, b), distance, "{a} {b}");
        }
        assert_eq!(edit_distance("kitten", "sitting"), 3);
    }

    #[test]
    fn only_what_is_close_is_suggested() {
        let names = ["requests", "window", "per"];
        assert_eq!(to("windw", &names), Some("window"));
        assert_eq!(to("Request", &names), Some("requests"));
        assert_eq!(to("query_per_day", &names), None);
        assert_eq!(to(&"w".repeat(1_000_000), &names), None);
    }
}
