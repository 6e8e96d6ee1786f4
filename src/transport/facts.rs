//! What a run trains, as far as one side can say.

use crate::ids::Step;
use crate::run::{Jobs, RunConfig, Shape};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use thiserror::Error;

/// What both sides of a run must agree on for its gradients to mean anything; `None` where a side
/// does not know.
///
/// Two workers that cut a batch into units of different sizes would train on different samples, and
/// their messages would not show it. When a worker joins, the coordinator compares all facts that
/// both know.
///
/// ```
/// use codedgrad::transport::RunFacts;
/// let mut run = RunFacts { length: Some(300), ..RunFacts::default() };
/// run.agree(&RunFacts { unit_samples: Some(8), ..RunFacts::default() })?;
/// let error = run.agree(&RunFacts { unit_samples: Some(16), ..RunFacts::default() }).unwrap_err();
/// assert_eq!(error.to_string(), "samples per unit: 16 here, 8 in the run");
/// # Ok::<(), codedgrad::transport::Disagreement>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunFacts {
    /// Numbers in a gradient.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<usize>,
    /// Units of a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub units: Option<u32>,
    /// Samples of a unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit_samples: Option<usize>,
    /// Jobs whose sum is one step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micro_steps: Option<u64>,
    /// Models trained in turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<u64>,
    /// Steps of the run, over all models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Number format of the parameters, such as `f32`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// A hash of the names and shapes of the parameters, in the order of the gradient.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<u64>,
    /// A digest of the parameters that are not trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frozen: Option<u64>,
    /// The replica that a worker begins with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
    /// What else the workers' loops are told, by the names of the arguments, such as `seed`; empty
    /// where that is not known.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

/// A replica with which a worker begins. Those of two workers are compared if they are of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The first step that is not applied in it.
    pub step: Step,
    /// A digest of its parameters, and of all else that replicas must have in common.
    pub digest: u64,
}

impl fmt::Display for Start {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, digest } = self;
        write!(out, "{digest:016x} before {step}")
    }
}

/// A fact on which two sides differ.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{fact}: {here} here, {run} in the run")]
pub struct Disagreement {
    /// Which.
    pub fact: String,
    /// What the one who joins says.
    pub here: String,
    /// What the run says.
    pub run: String,
}

impl RunFacts {
    /// All that a run's description says.
    #[must_use]
    pub fn of(run: &RunConfig) -> Self {
        let Shape { units, unit_samples, .. } = run.shape;
        let Jobs { models, micro_steps } = run.jobs;
        Self {
            length: Some(run.length),
            units: Some(units),
            unit_samples: Some(unit_samples),
            micro_steps: Some(micro_steps),
            models: Some(models),
            steps: Some(run.end.0),
            ..Self::default()
        }
    }

    /// Compares what both know and takes over what only the other knows; nothing is taken over
    /// where they differ.
    ///
    /// # Errors
    /// [`Disagreement`] names the first fact on which they differ.
    pub fn agree(&mut self, other: &Self) -> Result<(), Disagreement> {
        let mut agreed = self.clone();
        merge("numbers in a gradient", &mut agreed.length, other.length.as_ref())?;
        merge("units of a batch", &mut agreed.units, other.units.as_ref())?;
        merge("samples per unit", &mut agreed.unit_samples, other.unit_samples.as_ref())?;
        merge("micro_steps", &mut agreed.micro_steps, other.micro_steps.as_ref())?;
        merge("models", &mut agreed.models, other.models.as_ref())?;
        merge("steps", &mut agreed.steps, other.steps.as_ref())?;
        // Before the hashes: this difference can be named.
        merge_settings(&mut agreed.settings, &other.settings)?;
        merge("number format of the parameters", &mut agreed.dtype, other.dtype.as_ref())?;
        merge("hash of the parameters' layout", &mut agreed.layout, other.layout.as_ref())?;
        merge("digest of what is not trained", &mut agreed.frozen, other.frozen.as_ref())?;
        let start = other.start.filter(|start| {
            // Who goes on from a checkpoint begins elsewhere.
            agreed.start.is_none_or(|known| known.step == start.step)
        });
        merge("parameters to begin with", &mut agreed.start, start.as_ref())?;
        *self = agreed;
        Ok(())
    }
}

/// Merges settings: the side that says any first says all; a later one adds none.
fn merge_settings(
    run: &mut BTreeMap<String, String>,
    here: &BTreeMap<String, String>,
) -> Result<(), Disagreement> {
    if run.is_empty() {
        run.clone_from(here);
    }
    if here.is_empty() {
        return Ok(());
    }
    let differing = run.keys().chain(here.keys()).find(|name| run.get(*name) != here.get(*name));
    let Some(name) = differing else { return Ok(()) };
    let said = |by: &BTreeMap<String, String>| by.get(name).map_or("not said", |it| it).to_owned();
    Err(Disagreement { fact: name.clone(), here: said(here), run: said(run) })
}

fn merge<T: Clone + PartialEq + ToString>(
    fact: &str,
    run: &mut Option<T>,
    here: Option<&T>,
) -> Result<(), Disagreement> {
    let Some(here) = here else { return Ok(()) };
    let known = run.get_or_insert_with(|| here.clone());
    if known == here {
        return Ok(());
    }
    Err(Disagreement { fact: fact.to_owned(), here: here.to_string(), run: known.to_string() })
}

#[cfg(test)]
mod tests;
