//! What the engine does when a worker comes back or must take over a state, and how long it waits
//! for either.

use super::super::events::{Action, EngineError};
use super::super::roster::Activity;
use super::Engine;
use crate::codes::sequential::RoundEvent;
use crate::ids::{Step, Worker, WorkerSet};

impl Engine {
    /// A worker that was dead is there again.
    pub(super) fn joined(
        &mut self,
        now: f64,
        worker: Worker,
        next: Option<Step>,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        if !self.roster.is_lost(worker) {
            return Ok(());
        }
        // A state that is too old is as good as none.
        let next = next.filter(|next| self.steps.are_recent(*next));
        self.roster.joined(worker, next.is_some());
        self.leaving.joined(worker);
        self.states.replaced(worker, next.unwrap_or(Step(0)));
        if self.round.phase().is_open() {
            self.round.joined(worker);
            // The scheme has given its tasks to others: it waits for the next round.
            if !self.plan.scheme.on(RoundEvent::Back(worker)) {
                self.round.rest(worker);
            }
        }
        self.up_to_date(now, worker, out)?;
        if self.round.phase().is_summing() { self.close_steps(now, out) } else { Ok(()) }
    }

    /// A worker has taken over a state.
    pub(super) fn synced(
        &mut self,
        now: f64,
        worker: Worker,
        next: Step,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        let Activity::Syncing { from } = *self.roster.doing(worker) else { return Ok(()) };
        self.roster.synced(worker);
        self.states.replaced(worker, next);
        self.trust.agreement.copied(worker, from);
        // Not believed before it is computed with: the worker may find it damaged.
        self.states.sent_state(worker, from);
        if !self.steps.are_recent(next) {
            self.roster.mark_stale(worker);
            if from.is_none() && self.states.provider(worker, &self.roster, &self.leaving).is_none()
            {
                return Err(EngineError::NoState { worker });
            }
        }
        self.up_to_date(now, worker, out)
    }

    /// Sends a worker what it has missed, or has it take over a state; then it can do what there is
    /// to do, and others can take over its state.
    fn up_to_date(
        &mut self,
        now: f64,
        worker: Worker,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        if !self.roster.is_stale(worker) {
            let steps = self.states.unsent(worker, self.steps.next);
            steps.iter().for_each(|step| self.trust.agreement.sent(*step, &[worker]));
            out.extend(steps.into_iter().map(|step| Action::Apply { worker, step }));
        }
        self.states.returns_by = None;
        self.states.resync_idle(self.round.at(now), &mut self.roster, &self.leaving, out)?;
        if self.round.phase().is_open() {
            // What was lost with a worker may be too much to be made up for in the rounds that are
            // left, even by itself.
            if self.plan.facts().delay > 0
                && !self.plan.can_close(&self.roster.dead(), &self.roster)
            {
                return self.begin_again(now, out);
            }
            self.check_outlook(now, out)?;
        }
        self.give(vec![worker], out);
        self.try_close(now, out)
    }

    /// Where the round cannot close without those who are gone since the scheme keeps something for
    /// who comes back: it is given to those who are there. Whether it was so.
    pub(super) fn await_nobody(
        &mut self,
        now: f64,
        gone: &WorkerSet,
        out: &mut Vec<Action>,
    ) -> bool {
        if !self.round.phase().is_open() || self.plan.can_close(gone, &self.roster) {
            return false;
        }
        self.plan.scheme.on(RoundEvent::NoReturns);
        let given = self.plan.can_close(gone, &self.roster);
        if given {
            // They have as long for it as for what they were given when the round began.
            self.round.reopen(now);
            self.give(self.roster.ready(), out);
        }
        given
    }

    /// Ends the run if it cannot go on without those who are gone.
    pub(super) fn nobody_returned(
        &mut self,
        now: f64,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        self.states.returns_by = None;
        let dead = self.roster.dead();
        let given = self.await_nobody(now, &dead, out);
        if self.roster.first_alive().is_none()
            || self.round.phase().is_open() && !self.plan.can_close(&dead, &self.roster)
        {
            // Some may be busy with the states that they take over, and then be enough.
            let goes_on = self.narrow(now, out)? || self.plan.gets_enough(&self.roster);
            return if goes_on {
                Ok(())
            } else {
                Err(self.plan.too_many_lost(self.steps.next, &self.roster, &self.leaving))
            };
        }
        if let Some(&worker) = self.roster.stale_idle().first() {
            return Err(EngineError::NoState { worker });
        }
        // Those who are there may be of no use in this round.
        if given { self.check_outlook(now, out) } else { Ok(()) }
    }
}
