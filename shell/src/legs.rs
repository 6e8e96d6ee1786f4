//! What of a run was computed under which scheme, where `--scheme auto` chooses it.

use codedgrad::train::StepRecord;
use serde::Serialize;

/// Steps in a row under one scheme: what was predicted and what came.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LegSummary {
    /// Its first step.
    pub first_step: u64,
    /// How many it has.
    pub steps: usize,
    /// The scheme of all of them.
    pub scheme: String,
    /// Seconds per step, where they were predicted.
    pub predicted_seconds: Option<f64>,
    /// Seconds per step as they came.
    pub measured_seconds: f64,
    /// Why that scheme was chosen.
    pub why: Option<String>,
}

/// The legs of a run, as far as it has any.
pub fn legs<'a>(records: impl IntoIterator<Item = &'a StepRecord>) -> Vec<LegSummary> {
    let mut legs: Vec<LegSummary> = Vec::new();
    for record in records {
        let Some(using) = &record.under.using else { continue };
        let last = legs
            .last_mut()
            .filter(|leg| leg.scheme == using.scheme && leg.predicted_seconds == using.predicted);
        if let Some(leg) = last {
            leg.steps += 1;
            leg.measured_seconds += record.seconds;
            continue;
        }
        legs.push(LegSummary {
            first_step: record.step,
            steps: 1,
            scheme: using.scheme.clone(),
            predicted_seconds: using.predicted,
            measured_seconds: record.seconds,
            why: using.why.clone(),
        });
    }
    legs.iter_mut().for_each(|leg| leg.measured_seconds /= leg.steps as f64);
    legs
}
