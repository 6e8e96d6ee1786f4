//! From the jobs that are decoded to the sum that enough workers hold.

use super::super::events::{Action, EngineError, Refusal, SumFailure};
use super::{Engine, Phase};
use crate::codes::sequential::Settle;
use crate::ids::{Job, Step, Units};

impl Engine {
    /// Writes down what a decoded job is made of; gives its step.
    pub(super) fn settle(&mut self, job: Job) -> Result<Step, EngineError> {
        let (folds, report) = self.plan.scheme.settle(Settle::Job(job));
        self.plan.check(job.step(self.config.jobs.micro_steps), &report)?;
        Ok(self.open_steps.decoded(job, report, folds))
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
                out.extend(self.open_steps.sum(step, self.roster.able_to_hold()));
                Ok(())
            }
            SumFailure::ResultLost => self.make_again(step, now, out),
            SumFailure::ResultNotFinite(worker) => self.sum_not_finite(now, worker, step, out),
            SumFailure::NotFinite => {
                // All results are finite: nobody could make a better sum.
                let everything = Units { start: 0, end: self.plan.scheme.facts().units };
                self.open_steps.refuse(step, vec![everything], Refusal::Overflow);
                self.go_on(now, out)
            }
        }
    }

    /// Goes on with the steps after a round if somebody is there.
    pub(super) fn close_steps(
        &mut self,
        now: f64,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        if self.roster.is_deserted() {
            if self.recovery.may_return(&self.roster) {
                self.recovery.await_returns(self.at(now));
                return Ok(());
            }
            return Err(self.too_many_lost());
        }
        if self.phase == Phase::Folding { self.go_on(now, out) } else { Ok(()) }
    }
}
