//! What stands in the cell of a table of times.

use crate::cells::plain;
pub use crate::cells::{Comma, Commas};

/// Words for a value that is not there.
const MISSING: [&str; 8] = ["", "nan", "null", "none", "na", "n/a", "<na>", "-"];
/// Words for an answer that never came.
const NEVER: [&str; 4] = ["inf", "+inf", "infinity", "+infinity"];
/// What some write in place of the time of an answer that was not waited for.
const NOT_RECEIVED: f64 = -1.0;

/// The time that a cell tells: a finite number of 0 or more, infinity for an answer that was not
/// received (`-1`, `inf`), or no number where the value is missing (empty, `nan`, `null`). None if
/// it is neither.
///
/// ```
/// use codedgrad::delays::{Comma, time_in};
/// let time = |text| time_in(text, Comma::Decimal);
/// assert_eq!((time("9.8e-2"), time("0,98")), (Some(0.098), Some(0.98)));
/// assert_eq!(time("1.013,9"), Some(1013.9));
/// assert_eq!((time("-1.000"), time("-2"), time("x")), (Some(f64::INFINITY), None, None));
/// assert!(time("NaN").is_some_and(f64::is_nan));
/// assert_eq!(time_in("1,013.9", Comma::Thousands), Some(1013.9));
/// ```
#[must_use]
pub fn time_in(cell: &str, comma: Comma) -> Option<f64> {
    match cell.parse::<f64>() {
        Ok(time) if time.is_finite() && time >= 0.0 => Some(time),
        parsed => unusual(cell, parsed.ok(), comma),
    }
}

/// The same of what is no plain number.
fn unusual(cell: &str, parsed: Option<f64>, comma: Comma) -> Option<f64> {
    let text = cell.trim().trim_matches(['"', '\'']).trim();
    let word = text.to_ascii_lowercase();
    if MISSING.contains(&&*word) {
        return Some(f64::NAN);
    }
    if NEVER.contains(&&*word) || parsed.or_else(|| text.parse().ok()) == Some(NOT_RECEIVED) {
        return Some(f64::INFINITY);
    }
    let plain = plain(text, comma);
    let time: f64 = plain.as_deref().unwrap_or(text).parse().ok()?;
    if time == NOT_RECEIVED {
        return Some(f64::INFINITY);
    }
    (time.is_finite() && time >= 0.0).then_some(time)
}

#[cfg(test)]
mod tests;
