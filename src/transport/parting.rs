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
/// A worker that says nothing counts as lost, and may come back. So does one that could not compute
/// a unit; the coordinator counts how often that happens to one unit of one step, and to one worker
/// at one place. A worker that leaves for good is not waited for, unless it was told to and the run
/// may be made by others. A script that is wrong ends the run.
///
/// ```
/// use codedgrad::transport::ExitReason;
/// assert_eq!(ExitReason::for_good("it has learned enough").to_string(), "it has learned enough");
/// let failed = ExitReason::failed(None, "OSError: no space left\nTraceback");
/// assert_eq!(failed.to_string(), "OSError: no space left");
/// assert!(ExitReason::told("SIGTERM").told && ExitReason::misuse("lr was changed").misuse);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitReason {
    /// What it could not compute, if that is why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedUnit>,
    /// Whether it does not come back.
    #[serde(default)]
    pub for_good: bool,
    /// Whether it was told to end: what it was at is not done, and others may go on with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub told: bool,
    /// Whether its script uses the library in a way that cannot come to anything, on no worker.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub misuse: bool,
    /// Where in its program something went wrong, by which it is known when that happens again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// Why, in a line.
    pub reason: String,
}

impl ExitReason {
    fn of(reason: &str) -> Self {
        let reason = line(reason);
        Self { failed: None, for_good: false, told: false, misuse: false, place: None, reason }
    }

    /// The word of a worker that does not come back.
    #[must_use]
    pub fn for_good(reason: impl AsRef<str>) -> Self {
        Self { for_good: true, ..Self::of(reason.as_ref()) }
    }

    /// The word of a worker that was told to end, and does not come back by itself.
    #[must_use]
    pub fn told(reason: impl AsRef<str>) -> Self {
        Self { told: true, ..Self::for_good(reason) }
    }

    /// The word of a worker that something went wrong with: while it computed a unit, or elsewhere.
    #[must_use]
    pub fn failed(failed: Option<FailedUnit>, reason: impl AsRef<str>) -> Self {
        Self { failed, ..Self::of(reason.as_ref()) }
    }

    /// The word of a worker whose script is wrong: it ends the run.
    #[must_use]
    pub fn misuse(reason: impl AsRef<str>) -> Self {
        Self { misuse: true, ..Self::of(reason.as_ref()) }
    }

    /// The same of what went wrong at this place, such as `train.py:12 ValueError`.
    #[must_use]
    pub fn at(self, place: impl AsRef<str>) -> Self {
        Self { place: Some(line(place.as_ref())), ..self }
    }

    /// The same with texts that can be shown, also if another program wrote them.
    #[cfg(any(feature = "tcp", test))]
    #[must_use]
    pub(super) fn checked(self) -> Self {
        let place = self.place.as_deref().map(line);
        Self { reason: line(&self.reason), place, ..self }
    }
}

/// The first line of a text, without what would change a terminal, and not too long.
fn line(text: &str) -> String {
    let first = text.trim().lines().next().unwrap_or_default();
    let shown = |character: char| if character.is_control() { ' ' } else { character };
    both_ends(&first.chars().map(shown).collect::<String>())
}

/// A text of which no more is shown than its first and its last 400 characters: what went wrong
/// stands first in a message, and what helps stands last.
///
/// ```
/// use codedgrad::transport::both_ends;
/// assert_eq!(both_ends("lr was changed"), "lr was changed");
/// let long = both_ends(&"what ".repeat(1000));
/// assert!(long.len() == 805 && long.starts_with("what ") && long.ends_with("what "));
/// ```
#[must_use]
pub fn both_ends(text: &str) -> String {
    const KEPT: usize = 400;
    let characters: Vec<char> = text.chars().collect();
    match characters.len() {
        all if all <= 2 * KEPT => text.to_owned(),
        all => {
            String::from_iter(&characters[..KEPT])
                + " ... "
                + &String::from_iter(&characters[all - KEPT..])
        }
    }
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.failed {
            Some(failed) => write!(f, "{failed}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

#[cfg(test)]
mod tests;
