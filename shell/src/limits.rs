//! Numbers that a run may have, wherever they come from: flags, or a file that a user edited.

use crate::failure::Failure;
use crate::units::seconds;
use anyhow::anyhow;
use clap::Args;
use codedgrad::run::{Limits, Shape};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::path::Path;

/// Workers that one coordinator is asked to serve.
pub const WORKERS: RangeInclusive<u64> = Shape::WORKERS;
/// As many as one likes.
pub const ANY: RangeInclusive<u64> = 1..=u64::MAX;
/// Thirty years. Longer times are slips, and the sum of two of them no clock can hold.
pub const SECONDS_MAX: f64 = 1e9;

/// Limits that a run over threads and one over processes have, as flags and in its file.
#[derive(Clone, Copy, Debug, Args, Serialize, Deserialize)]
pub struct LimitArgs {
    /// Fail a worker that has not returned a result after this many seconds [default: 60]
    #[arg(
        long = "max-wait", value_name = "SECONDS", value_parser = seconds,
        help_heading = "Time and limits", hide_short_help = true
    )]
    pub max_wait_seconds: Option<f64>,
    /// With MIN below MAX: seconds to wait for a lost worker to restart before planning without it
    /// [default: 10]
    #[arg(
        long = "settle", value_name = "SECONDS", value_parser = seconds,
        help_heading = "Time and limits", hide_short_help = true
    )]
    pub settle_seconds: Option<f64>,
}

impl LimitArgs {
    /// Seconds after which a worker has failed.
    pub fn max_wait(&self) -> f64 {
        self.max_wait_seconds.unwrap_or(Limits::default().max_wait_seconds)
    }

    /// Seconds for which a lost worker is planned with.
    pub fn settle(&self) -> f64 {
        self.settle_seconds.unwrap_or(Limits::SETTLE_SECONDS)
    }
}

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
