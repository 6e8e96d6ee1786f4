//! What the engine does once a sum that it has asked for is held, or cannot be had.
//!
//! A result that is not finite is erased, whatever its worker says of it; the coordinator sees
//! whose it was, if need be by making the sum itself. A step that no finite results can cover is
//! refused for all workers alike, and its units are named.

use super::super::events::{Action, EngineError, Refusal, SumFailure};
use super::Engine;
use crate::ids::{Step, Units};

impl Engine {
    /// The sum of a step that was asked for cannot be had.
    pub(super) fn sum_failed(
        &mut self,
        now: f64,
        step: Step,
        why: SumFailure,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        // All may have left since, or begun again.
        if self.round.phase().is_over() || !self.open_steps.is_summing(step) {
            return Ok(());
        }
        match why {
            SumFailure::Interrupted => {
                // Also those can hold it now who have come since it was asked for.
                self.sum(step, out);
                Ok(())
            }
            SumFailure::ResultLost => self.make_again(step, now, out),
            SumFailure::ResultNotFinite(worker) => {
                // Asked again, its worker might say the same of the next one: it is left alone
                // until the step is decided.
                out.push(Action::Erase { worker, step });
                self.round.erased(worker);
                self.open_steps.erase(worker, step);
                self.make_again(step, now, out)
            }
            SumFailure::NotFinite => {
                // All results are finite: no worker could make a better sum.
                let everything = Units { start: 0, end: self.plan.facts().units };
                self.open_steps.refuse(step, vec![everything], Refusal::Overflow);
                self.advance(now, out)
            }
        }
    }

    /// Goes on with the steps after a round if a worker is there.
    pub(super) fn close_steps(
        &mut self,
        now: f64,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        if self.roster.first_alive().is_none() {
            if self.states.may_return(&self.roster, &self.leaving) {
                self.states.await_returns(self.round.at(now));
                return Ok(());
            }
            return Err(self.plan.too_many_lost(self.steps.next, &self.roster, &self.leaving));
        }
        if self.round.phase().is_summing() { self.advance(now, out) } else { Ok(()) }
    }
}
