//! Units that cost one worker after the other: a run ends rather than try them for ever.

use super::RunError;
use crate::ids::{Job, Step, Worker};
use crate::run::RunConfig;
use crate::transport::Parting;
use std::collections::BTreeMap;

/// How often workers were lost for a unit of a step that is not decided.
#[derive(Debug, Default)]
pub(super) struct Failures {
    counts: BTreeMap<(Job, u32), u32>,
    /// Why the run ends, once that is so.
    fatal: Option<RunError>,
}

impl Failures {
    /// The last word of a worker that is lost during a step.
    pub(super) fn heard(&mut self, worker: Worker, step: Step, word: Parting, run: &RunConfig) {
        let Some(unit) = word.failed else { return };
        let of = unit.job.step(run.jobs.micro_steps);
        // What a worker says must not fill the memory.
        let open = step.0..=step.0.saturating_add(run.jobs.models);
        if unit.unit >= run.shape.units || !open.contains(&of.0) {
            return;
        }
        let tries = self.counts.entry((unit.job, unit.unit)).or_default();
        *tries += 1;
        if *tries >= run.limits.unit_tries {
            let (tries, reason) = (*tries, word.reason);
            self.fatal = Some(RunError::UnitFailed { step: of, unit, tries, worker, reason });
        }
    }

    /// Why the run cannot go on.
    pub(super) fn take_fatal(&mut self) -> Option<RunError> {
        self.fatal.take()
    }

    /// Jobs before this one are decided.
    pub(super) fn release(&mut self, end: Job) {
        self.counts.retain(|(job, _), _| *job >= end);
    }

    /// Units that are counted.
    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }
}
