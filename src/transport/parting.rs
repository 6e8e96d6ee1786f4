//! A worker's last word in a run that goes on.

use crate::ids::Job;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// A unit that a worker could not compute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedUnit {
    /// Of which batch.
    pub job: Job,
    /// Which of its units.
    pub unit: u32,
    /// Its samples, as numbers within the batch.
    pub samples: Range<usize>,
}

impl fmt::Display for FailedUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job: Job(job), unit, samples } = self;
        write!(f, "unit {unit} of batch {job} (")?;
        match samples.end.saturating_sub(samples.start) {
            0 | 1 => write!(f, "sample {})", samples.start),
            _ => write!(f, "samples {} to {})", samples.start, samples.end - 1),
        }
    }
}

/// Why a worker ends its part in a run that goes on: the last thing it says.
///
/// Who says nothing counts as lost, and may come back. So does who could not compute a unit; the
/// coordinator counts how often that happens to one unit of one step. Who leaves for good is not
/// waited for.
///
/// ```
/// use codedgrad::transport::Parting;
/// assert_eq!(Parting::for_good("it has learned enough").to_string(), "it has learned enough");
/// let failed = Parting::failed(None, "OSError: no space left\nTraceback");
/// assert_eq!(failed.to_string(), "OSError: no space left");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parting {
    /// What it could not compute, if that is why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedUnit>,
    /// Whether it does not come back.
    #[serde(default)]
    pub for_good: bool,
    /// Why, in a line.
    pub reason: String,
}

impl Parting {
    /// Most bytes of a reason.
    const REASON_MAX: usize = 500;

    /// The word of a worker that does not come back.
    #[must_use]
    pub fn for_good(reason: impl AsRef<str>) -> Self {
        Self { failed: None, for_good: true, reason: line(reason.as_ref()) }
    }

    /// The word of a worker that something went wrong with: while it computed a unit, or elsewhere.
    #[must_use]
    pub fn failed(failed: Option<FailedUnit>, reason: impl AsRef<str>) -> Self {
        Self { failed, for_good: false, reason: line(reason.as_ref()) }
    }

    /// The same with a reason that can be shown, also if another program wrote it.
    #[cfg(any(feature = "tcp", test))]
    #[must_use]
    pub(super) fn checked(self) -> Self {
        Self { reason: line(&self.reason), ..self }
    }
}

/// The first line of a text, without what would change a terminal, and not too long.
fn line(text: &str) -> String {
    let first = text.trim().lines().next().unwrap_or_default();
    let mut shown = String::new();
    for character in first.chars() {
        let character = if character.is_control() { ' ' } else { character };
        if shown.len() + character.len_utf8() > Parting::REASON_MAX {
            shown.push_str(" ...");
            break;
        }
        shown.push(character);
    }
    shown
}

impl fmt::Display for Parting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.failed {
            Some(failed) => write!(f, "{failed}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partings_are_told_in_a_line() {
        let failed = |samples| Some(FailedUnit { job: Job(10), unit: 1, samples });
        let parting = Parting::failed(failed(8..16), "ValueError: corrupt\u{1b}[2J sample\nmore");
        let told = "unit 1 of batch 10 (samples 8 to 15): ValueError: corrupt [2J sample";
        assert_eq!(parting.to_string(), told);
        let one = Parting::failed(failed(8..9), "x");
        assert_eq!(one.to_string(), "unit 1 of batch 10 (sample 8): x");
        let long = Parting { reason: "é".repeat(1000), ..one }.checked();
        assert_eq!(long.reason, format!("{} ...", "é".repeat(250)));
    }
}
