//! From the jobs that are decoded to the sum that enough workers hold.

use super::super::events::{Action, EngineError, SumFailure};
use super::{Engine, Phase};
use crate::codes::Report;
use crate::codes::sequential::{Fold, Settle};
use crate::ids::{Job, Step};

impl Engine {
    pub(super) fn check(&self, step: Step, report: &Report) -> Result<(), EngineError> {
        self.plan.scheme.check(report).map_err(|source| EngineError::Gate { step, source })
    }

    /// Writes down what a decoded job is made of.
    pub(super) fn settle(&mut self, job: Job) -> Result<(), EngineError> {
        let (folds, report) = self.plan.scheme.settle(Settle::Job(job));
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

    /// Has a step summed if all its jobs are decoded.
    pub(super) fn sum(&mut self, step: Step, out: &mut Vec<Action>) {
        out.extend(self.open_steps.sum(step, self.roster.able_to_hold()));
    }

    /// Enough workers hold the sum of a step.
    pub(super) fn summed(
        &mut self,
        now: f64,
        step: Step,
        digest: u64,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        // All may have begun again since.
        if !self.open_steps.is_summing(step) {
            return Ok(());
        }
        self.open_steps.summed(step, digest);
        self.close_steps(now, out)
    }

    /// The sum of a step that was asked for cannot be had.
    pub(super) fn sum_failed(
        &mut self,
        now: f64,
        step: Step,
        why: SumFailure,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        // All may have left since, or begun again.
        if self.phase == Phase::Finished || !self.open_steps.is_summing(step) {
            return Ok(());
        }
        match why {
            SumFailure::Interrupted => {
                // Also those can hold it now who have come since it was asked for.
                self.sum(step, out);
                Ok(())
            }
            SumFailure::ResultLost => self.make_again(step, now, out),
            SumFailure::ResultNotFinite(worker) => self.sum_not_finite(now, worker, step, out),
            SumFailure::NotFinite => self.overflowed(now, step, out),
        }
    }

    /// Goes on with the steps after a round if somebody is there.
    pub(super) fn close_steps(
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
        if self.phase == Phase::Folding { self.go_on(now, out) } else { Ok(()) }
    }
}
