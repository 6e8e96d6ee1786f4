//! `run.jsonl`, the record of a plan's runs: what a line of it says, and how far it is read again.

use super::attack::DetectionCounts;
use super::checkpoint::Place;
use codedgrad::train::StepRecord;
use codedgrad_shell::failure::Failure;
use codedgrad_shell::folder::RunFolder;
use serde::{Deserialize, Serialize};

/// One line of `run.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// Which of the plan's schemes, from 0.
    pub(crate) run: usize,
    pub(crate) scheme: String,
    /// Mean loss per token of the decoded batch; null for a refused step, and where it is not
    /// finite.
    pub(crate) loss: Option<f64>,
    /// Largest difference from the gradient of the whole batch at the same parameters, relative to
    /// that gradient's largest entry; null where it was not checked.
    pub(crate) gradient_difference: Option<f64>,
    /// Length of that difference, relative to that gradient's; null where it was not checked.
    #[serde(default)]
    pub(crate) gradient_error: Option<f64>,
    /// Which workers were found out, where one is wrong or looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) caught: Option<DetectionCounts>,
    /// Where schemes take turns: which one it was, and the step time measured for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) turn: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) step_seconds: Option<f64>,
    /// Unix time of its commit; absent under a virtual clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<f64>,
    #[serde(flatten)]
    pub(crate) record: StepRecord,
}

/// The lines of a record up to a place; what comes after, or was cut off, is left out.
pub(crate) fn read(folder: &RunFolder, place: &Place) -> Result<Vec<Line>, Failure> {
    folder.recorded(|line: &Line, before| {
        // In turns, a place is known by how many steps were made before it.
        if place.made.is_empty() {
            (line.run, line.record.step) < (place.run, place.next_step)
        } else {
            (before as u64) < place.made.iter().sum()
        }
    })
}

/// A line for tests: a step that took so long, and nothing more.
#[cfg(test)]
pub(crate) fn line_of(run: usize, step: u64, seconds: f64) -> Line {
    use codedgrad::train::{DecodeRecord, DoubtRecord, UnderRecord};
    Line {
        run,
        scheme: String::new(),
        loss: None,
        gradient_difference: None,
        gradient_error: None,
        caught: None,
        turn: None,
        step_seconds: None,
        at: None,
        record: StepRecord {
            step,
            committed: seconds,
            seconds,
            rounds: Vec::new(),
            survivors: Vec::new(),
            weights: Vec::new(),
            decode: DecodeRecord { residual: 0.0, amplification: 1.0, coverage: 1.0, error: 0.0 },
            work: 1.0,
            refused: Vec::new(),
            refused_because: None,
            doubts: DoubtRecord::default(),
            under: UnderRecord::default(),
            aux: Vec::new(),
            digest: String::new(),
            spent: Vec::new(),
        },
    }
}
