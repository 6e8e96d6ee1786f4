//! Under which scheme a run goes on, decided while it runs.

use super::StepRecord;
use crate::codes::SchemeSpec;
use serde::{Deserialize, Serialize};

/// Decides under which scheme a run goes on: the coordinator that was given one by
/// [`Coordinator::planned_by`](super::Coordinator::planned_by) tells it of every decided step, in
/// order, and carries its choice out.
///
/// A choice takes effect where a step begins. The next one has begun already when a step is told
/// of, so that it is the next but one at the earliest; later, while workers are lost that the
/// chosen scheme cannot do without. [`UnderRecord::using`](super::UnderRecord::using) says what
/// each step was computed under: a policy goes by that, not by what it has chosen. It may choose
/// again before a choice has taken effect; the last one holds.
pub trait Policy: Send {
    /// A step is decided; the scheme for those to come, where another is wanted or there is
    /// something to be said of this one.
    fn decided(&mut self, record: &StepRecord) -> Option<SchemeChoice>;
}

/// A scheme that is to be used from now on.
#[derive(Clone, Debug, PartialEq)]
pub struct SchemeChoice {
    /// Which; without delay, and for the run's units.
    pub scheme: SchemeSpec,
    /// Seconds per step that are expected of it, if any are.
    pub predicted: Option<f64>,
    /// Why, for people.
    pub why: Option<String>,
}

/// What a step was computed under, where a policy decides that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SchemeInUse {
    /// A scheme text.
    pub scheme: String,
    /// Seconds per step that were expected of it; none while nothing was.
    pub predicted: Option<f64>,
    /// Why it was chosen or kept, with the first step after that was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether workers were lost, came or took over states at the step or the one before it: how
    /// long it took then says little.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disturbed: bool,
}

impl SchemeInUse {
    /// Uncoded steps, of which nothing is expected.
    #[must_use]
    pub fn uncoded() -> Self {
        Self {
            scheme: SchemeSpec::uncoded().to_string(),
            predicted: None,
            why: None,
            disturbed: false,
        }
    }
}

impl From<SchemeChoice> for SchemeInUse {
    fn from(choice: SchemeChoice) -> Self {
        let SchemeChoice { scheme, predicted, why } = choice;
        Self { scheme: scheme.to_string(), predicted, why, disturbed: false }
    }
}
