//! What the engine does when a worker is lost, and its results with it.
//!
//! Results die with their worker. The scheme is told (`RoundEvent::Lost`) and says which tasks are
//! open again; a step of several jobs, some of which are decoded, begins again. Whether a sum that
//! was asked for survives is known where sums are looked after
//! ([`StepSums`](crate::sums::StepSums)); one that does not is decoded again from what is left.

use super::super::events::{Action, EngineError};
use super::Engine;
use crate::codes::sequential::RoundEvent;
use crate::ids::Worker;

impl Engine {
    /// A worker is not there any more, and what it had is not either.
    pub(super) fn forget(&mut self, worker: Worker, now: f64) {
        self.roster.lost(worker);
        self.leaving.lost(worker);
        // The run does not wait for a seat that is empty when it begins.
        let at = if self.round.phase().has_begun() { now } else { f64::NEG_INFINITY };
        self.plan.lost(worker, at);
        self.open_steps.lost(worker);
    }

    pub(super) fn lost(
        &mut self,
        now: f64,
        worker: Worker,
        kept: bool,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        if self.roster.is_lost(worker) {
            return Ok(());
        }
        // The first is enough: where a step can be opened again by itself, no other is summed; else
        // all begin again.
        let unsummed = if kept { None } else { self.open_steps.summing().next() };
        self.forget(worker, now);
        self.died_since_close.insert(worker);
        self.states.resync_those_waiting_for(
            worker,
            self.round.at(now),
            &mut self.roster,
            &self.leaving,
            out,
        )?;
        if !self.round.phase().has_begun() || self.round.phase().is_over() {
            return Ok(());
        }
        let last = self.states.sent_all(self.steps.next);
        if self.leaving.end_it_together(&self.roster, &last, &self.steps) {
            out.push(self.round.finish());
            return Ok(());
        }
        // A decoded job of a step that has several is in its workers' sums already, from which it
        // cannot be taken out again.
        let again = if self.config.jobs.micro_steps > 1 {
            unsummed.is_some() || self.open_steps.is_halfway(self.steps.next)
        } else {
            self.plan.facts().delay > 0 || unsummed.is_some() && !self.plan.facts().reopens
        };
        // Also where all begins again: a scheme may know by it what costs workers.
        if unsummed.is_none() && (!again || self.plan.facts().delay == 0) {
            let reopened = &mut Vec::new();
            self.plan.scheme.on(RoundEvent::Lost { worker, from: None, reopened });
        }
        if again {
            return self.begin_again(now, out);
        }
        self.round.unanswered(worker);
        if let Some(first) = unsummed {
            return self.make_again(first, now, out);
        }
        self.proceed(now, out)
    }

    /// Starts all that is not decided from its first job, where results that are gone cannot be had
    /// again in time: of jobs already decoded in a step of several, or of jobs that would then take
    /// more rounds than they may, so that the next step of their model would begin without them.
    pub(super) fn begin_again(
        &mut self,
        now: f64,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        self.end_round(now, out);
        out.extend(self.plan.restart(&mut self.steps, &mut self.open_steps));
        self.open_round(now, out)
    }
}
