//! From the jobs that are decoded to the sum that enough workers hold.

use super::super::events::{Action, EngineError};
use super::{Engine, Phase};
use crate::codes::Report;
use crate::codes::sequential::{Fold, Settle};
use crate::ids::{Job, Step, Worker};

impl Engine {
    pub(super) fn check(&self, step: Step, report: &Report) -> Result<(), EngineError> {
        self.scheme.check(report).map_err(|source| EngineError::Gate { step, source })
    }

    /// Writes down what a decoded job is made of.
    pub(super) fn settle(&mut self, job: Job) -> Result<(), EngineError> {
        let (folds, report) = self.scheme.settle(Settle::Job(job));
        self.check(job.step(self.config.jobs.micro_steps), &report)?;
        let place = |fold: Fold| {
            let (start, summed) =
                self.given.get(&(fold.worker, fold.task)).expect("what counts was given out");
            (*start, *summed, fold)
        };
        // What is in its worker's sum is not a term of its own.
        let open = folds.into_iter().map(place).filter(|(_, summed, _)| !summed);
        self.open_steps.decoded(job, report, open.map(|(start, _, fold)| (start, fold)));
        Ok(())
    }

    /// Has a step folded if all its jobs are decoded.
    pub(super) fn fold(&mut self, step: Step, out: &mut Vec<Action>) {
        out.extend(self.open_steps.fold(step, &self.roster.counted()));
    }

    pub(super) fn held(
        &mut self,
        now: f64,
        worker: Worker,
        held: (Step, u32, u64),
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        let (step, attempt, digest) = held;
        // Of an attempt that was given up, or a step that is decided.
        if !self.open_steps.is_waiting(step, attempt) {
            return Ok(());
        }
        self.open_steps.held(step, worker, digest);
        self.check_held(now, out)
    }

    /// Settles what enough live workers hold.
    pub(super) fn check_held(
        &mut self,
        now: f64,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        if self.roster.is_deserted() {
            if self.may_return() {
                self.await_returns(now);
                return Ok(());
            }
            return Err(self.too_many_lost());
        }
        if let Some((step, worker)) = self.open_steps.settle_held() {
            return Err(EngineError::DifferentBytes { step, worker });
        }
        if self.phase == Phase::Folding { self.go_on(now, out) } else { Ok(()) }
    }
}
