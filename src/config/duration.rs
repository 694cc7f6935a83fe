//! Durations: a whole number and a unit, such as `"250ms"` or `"1m"`. Nothing finer than a
//! microsecond can be written, so that the node and the store count in the same steps.

use super::error::{Fault, quoted};
use super::nearest;
use crate::units::Span;

/// The longest duration that a document may hold: a leap year.
pub(super) const MAX: Span = Span::from_secs(366 * 86_400);

/// The units and their lengths in microseconds.
const UNITS: [(&str, u64); 6] = [
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];

/// A duration above zero and of at most [`MAX`]. `proposed_unit` serves the hint where there is no
/// unit.
pub(super) fn parse(text: &str, proposed_unit: &str) -> Result<Span, Fault> {
    let units = UNITS.map(|(name, _)| name);
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at_checked(split).unwrap_or((text, ""));
    if digits.is_empty() {
        return Err(Fault::new("is not a duration", "write a whole number and a unit: \"10s\""));
    }
    if unit.is_empty() {
        let example = if digits.len() <= 9 { digits } else { "10" };
        let fix =
            format!("add one of {}, as in \"{example}{proposed_unit}\"", nearest::listed(&units));
        return Err(Fault::new("has no unit", fix));
    }
    let Some((_, micros)) = UNITS.into_iter().find(|(name, _)| *name == unit) else {
        return Err(unknown_unit(unit, &units));
    };
    let span = digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(micros))
        .map_or(Span::from_nanos(u64::MAX), Span::from_micros);
    if span.is_zero() {
        return Err(Fault::new("is no time at all", "write a duration above zero"));
    }
    if span > MAX {
        return Err(Fault::new(
            format!("is longer than {MAX}"),
            format!("write at most \"{MAX}\""),
        ));
    }
    Ok(span)
}

fn unknown_unit(unit: &str, units: &[&str]) -> Fault {
    if unit.starts_with('.') {
        let fix = "write it in a smaller unit: \"1500ms\" is one and a half seconds";
        return Fault::new("is not a whole number and a unit", fix);
    }
    if unit.bytes().any(|byte| byte.is_ascii_digit()) {
        let fix = "write it in one unit: \"90m\" is an hour and a half";
        return Fault::new("is more than one number and one unit", fix);
    }
    let fix = match unit {
        "ns" => "write microseconds, \"us\"; nothing finer is counted",
        "w" | "mo" | "y" => "write days, as in \"30d\"",
        _ if ["week", "month", "year"].iter().any(|name| unit.trim().starts_with(name)) => {
            "write days, as in \"30d\""
        }
        _ => "write a whole number and one of these units, as in \"10s\"",
    };
    Fault::new(format!("has the unit {}, none of {}", quoted(unit), nearest::listed(units)), fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_exact() {
        let cases = [
            ("1us", 1_000),
            ("250ms", 250_000_000),
            ("1s", 1_000_000_000),
            ("5m", 300_000_000_000),
            ("24h", 86_400_000_000_000),
            ("366d", 31_622_400_000_000_000),
            ("0010s", 10_000_000_000),
        ];
        for (text, nanos) in cases {
            assert_eq!(parse(text, "s").unwrap().as_nanos(), nanos, "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        let cases = [
            "",
            "s",
            "10",
            "-1s",
            "+1s",
            "1.5s",
            "1h30m",
            "10 s",
            "10S",
            "1ns",
            "1month",
            "0s",
            "0d",
            "367d",
            "99999999999999999999999s",
            "१s",
            "10s ",
            "1e3s",
            "∞",
        ];
        for text in cases {
            assert!(parse(text, "s").is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_printed_can_be_read_back() {
        for text in ["1us", "250ms", "90s", "366d"] {
            assert_eq!(parse(text, "s").unwrap().to_string(), text);
        }
    }
}
