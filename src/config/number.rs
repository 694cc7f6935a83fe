//! Numbers, read exactly: whole ones, and decimals as fractions.

use std::ops::RangeInclusive;

use serde_json::Number;

use super::document::Value;
use super::error::Fault;

/// The most digits that a number may have after its point.
const MAX_DECIMALS: usize = 6;

/// The longest number that is worth repeating in an error: what the largest whole number takes.
const MAX_SHORT: usize = 20;

/// The largest whole number that a double tells from both its neighbours.
pub(super) const MAX_EXACT: u64 = (1 << 53) - 1;

/// A number above zero as a fraction in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fraction {
    pub(super) numerator: u64,
    /// A divisor of a million.
    pub(super) denominator: u64,
}

/// A whole number within `bounds`.
pub(super) fn whole(number: &Number, bounds: &RangeInclusive<u64>) -> Result<u64, Fault> {
    let (low, high) = (bounds.start(), bounds.end());
    let digits = plain(number);
    let value = digits.parse::<u64>().ok().filter(|value| bounds.contains(value));
    value.ok_or_else(|| match digits.parse::<u64>() {
        _ if digits.contains('.') => {
            Fault::new("is not a whole number", format!("write one from {low} to {high}"))
        }
        Ok(value) if value < *low => below(*low),
        Err(_) if digits.starts_with('-') => below(*low),
        _ => Fault::new(format!("is above {high}"), format!("lower it to at most {high}")),
    })
}

fn below(low: u64) -> Fault {
    Fault::new(format!("is below {low}"), format!("raise it to at least {low}"))
}

/// A number above zero with at most six decimals.
pub(super) fn fraction(number: &Number) -> Result<Fraction, Fault> {
    let digits = plain(number);
    let (before, after) = digits.split_once('.').unwrap_or((&digits, ""));
    if digits.starts_with('-') || digits.bytes().all(|byte| b"0.".contains(&byte)) {
        return Err(Fault::new("is not above zero", "write a number above zero"));
    }
    if after.len() > MAX_DECIMALS {
        let rule = format!("has more than {MAX_DECIMALS} decimals");
        return Err(Fault::new(rule, format!("round it to {MAX_DECIMALS} decimals")));
    }
    let too_large = || Fault::new("has more digits than are read exactly", "write fewer digits");
    let scaled = format!("{before}{after}").parse::<u64>().map_err(|_| too_large())?;
    if !after.is_empty() && scaled > MAX_EXACT {
        return Err(too_large());
    }
    let scale = after.bytes().fold(1_u64, |scale, _| scale.saturating_mul(10));
    let common = greatest_common_divisor(scaled, scale);
    Ok(Fraction {
        numerator: scaled.checked_div(common).unwrap_or(scaled),
        denominator: scale.checked_div(common).unwrap_or(scale),
    })
}

/// Whether the text is a number of ordinary length. Read from a slice, as the document is: the parser of
/// strings would be a second one, of 7 kB of the module.
pub(super) fn is_short(text: &str) -> bool {
    text.len() <= MAX_SHORT
        && matches!(serde_json::from_slice(text.as_bytes()), Ok(Value::Number(_)))
}

/// The number in digits, without an exponent, and with a point only where a fraction follows.
/// Doubles come out as the shortest decimal that means them, so `0.1` is one tenth.
///
/// The parser's own text of a double has an exponent where it is long. The standard library writes
/// none, but to print doubles with it takes 16 kB of the module.
fn plain(number: &Number) -> String {
    let text = number.to_string();
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, mantissa) = mantissa.split_at(usize::from(mantissa.starts_with('-')));
    let (before, after) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent = exponent.parse::<i16>().unwrap_or(0);
    let shift = usize::from(exponent.unsigned_abs());
    let zeros = "0".repeat(shift);
    let (digits, point) = match exponent {
        ..0 => (format!("{zeros}{before}{after}"), before.len()),
        0.. => (format!("{before}{after}{zeros}"), before.len().saturating_add(shift)),
    };
    let (whole, fraction) = digits.split_at_checked(point).unwrap_or((&digits, ""));
    let fraction = fraction.trim_end_matches('0');
    let whole = whole.trim_start_matches('0');
    let whole = if whole.is_empty() { "0" } else { whole };
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{whole}{point}{fraction}")
}

pub(super) fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Number {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn whole_numbers_may_come_as_doubles() {
        let all = 0..=u64::MAX;
        for (text, value) in
            [("5", 5), ("5.0", 5), ("1e3", 1000), ("18446744073709551615", u64::MAX)]
        {
            assert_eq!(whole(&number(text), &all).unwrap(), value, "{text}");
        }
        for text in ["-1", "0.5", "18446744073709551616", "1e300", "-0.0"] {
            assert!(whole(&number(text), &all).is_err(), "{text}");
        }
    }

    #[test]
    fn decimals_are_exact_fractions() {
        let fractions = [
            ("6", 6, 1),
            ("6.0", 6, 1),
            ("0.5", 1, 2),
            ("0.1", 1, 10),
            ("2.25", 9, 4),
            ("0.000001", 1, 1_000_000),
            ("1e-6", 1, 1_000_000),
            ("999999999.999999", 999_999_999_999_999, 1_000_000),
            ("18446744073709551615", u64::MAX, 1),
        ];
        for (text, numerator, denominator) in fractions {
            let read = fraction(&number(text)).unwrap();
            assert_eq!(read, Fraction { numerator, denominator }, "{text}");
        }
        for text in ["0", "0.0", "-0.0", "-1", "-0.5", "1e-7", "1e300", "123456789012.123456"] {
            assert!(fraction(&number(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn every_decimal_of_six_places_is_read_as_it_is_written() {
        for numerator in (1..1_000_000_u64).step_by(7) {
            let read = fraction(&number(&format!("0.{numerator:06}"))).unwrap();
            let back = u128::from(read.numerator) * 1_000_000 / u128::from(read.denominator);
            assert_eq!(back, u128::from(numerator));
        }
    }

    proptest::proptest! {
        #[test]
        fn every_double_is_written_out_and_can_be_read_back(bits in proptest::num::u64::ANY) {
            for double in [f64::from_bits(bits), f64::from(u32::try_from(bits >> 40).unwrap()) / 1000.0] {
                if let Some(number) = Number::from_f64(double) {
                    let written = plain(&number);
                    proptest::prop_assert!(!written.contains(['e', 'E']), "{}", written);
                    proptest::prop_assert_eq!(written.parse::<f64>(), Ok(double));
                }
            }
        }
    }
}
