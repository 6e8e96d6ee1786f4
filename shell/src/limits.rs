//! Numbers that a run may have, wherever they come from: flags, or a file that somebody edited.

use crate::failure::Failure;
use anyhow::anyhow;
use codedgrad::run::Shape;
use std::ops::RangeInclusive;
use std::path::Path;

/// Workers that one coordinator is asked to serve.
pub const WORKERS: RangeInclusive<u64> = Shape::WORKERS;
/// As many as one likes.
pub const ANY: RangeInclusive<u64> = 1..=u64::MAX;
/// Thirty years. Longer times are slips, and the sum of two of them no clock can hold.
pub const SECONDS_MAX: f64 = 1e9;

/// Refuses a count out of bounds, by the name of its flag.
pub fn count(flag: &str, number: u64, range: RangeInclusive<u64>) -> Result<(), Failure> {
    let (least, most) = range.into_inner();
    if number < least {
        return Err(refused(format!("{flag} {number}: at least {least} is needed")));
    }
    if number > most {
        return Err(refused(format!("{flag} {number}: at most {most} is possible")));
    }
    Ok(())
}

/// Refuses what is no number above 0.
pub fn positive(flag: &str, number: f64) -> Result<(), Failure> {
    if !(number.is_finite() && number > 0.0) {
        return Err(refused(format!("{flag} {number}: a number above 0 is needed")));
    }
    Ok(())
}

/// Refuses what is no number of 0 or more, and what no clock can hold.
pub fn not_negative(flag: &str, number: f64) -> Result<(), Failure> {
    if !(number.is_finite() && number >= 0.0) {
        return Err(refused(format!("{flag} {number}: a number of 0 or more is needed")));
    }
    if number > SECONDS_MAX {
        return Err(refused(format!("{flag} {number:e}: at most {SECONDS_MAX:e} is possible")));
    }
    Ok(())
}

/// What was given and cannot be right.
pub fn refused(why: String) -> Failure {
    Failure::Input(anyhow!(why))
}

impl Failure {
    /// The same of a file that asks for what cannot be.
    pub fn asked_by(self, file: &Path) -> Self {
        match self {
            Self::Input(error) => {
                let file = file.display();
                Self::Input(error.context(format!("{file} asks for what no run can do")))
            }
            other => other,
        }
    }
}
