//! Workers that leave with notice, or are to be done without: until when they are needed.
//!
//! A worker that is about to go finishes its task, and what it holds stays until what is made of it
//! is decided. Where the run may be planned for fewer, the plan that opens the next round is
//! without it, if those that stay are enough. The run lets it go as soon as it is idle and no
//! worker takes over its state. Where all workers make the run, it is let go between two steps and
//! is missing from then on like one that is lost.

use super::super::events::{Action, EngineError};
use super::Engine;
use crate::ids::{Worker, WorkerSet};

impl Engine {
    /// Does without these workers from the next step on, and lets those in again that were done
    /// without before; it is carried out where the run can go on without all of them. Who is
    /// there of them is let go ([`Action::LetGo`]); to let it in again, tell that it has joined.
    ///
    /// # Errors
    /// Those of them that are not done without, where the run could not go on: the others stay as
    /// they are.
    ///
    /// ```
    /// use codedgrad::codes::SchemeSpec;
    /// use codedgrad::ids::{Worker, WorkerSet};
    /// use codedgrad::run::{RunConfig, Shape};
    /// use codedgrad::schedulers::{Engine, Settings};
    /// let groups = "groups:s=1".parse::<SchemeSpec>()?.scheme(4, 4, 0..9)?;
    /// let run = RunConfig::new(Shape::new(4, 4), 1000, 9);
    /// let mut engine = Engine::new(groups, run, Settings::default())?;
    /// let of = |workers: &[u32]| WorkerSet::of(4, workers.iter().copied().map(Worker));
    /// assert_eq!(engine.drain(of(&[2])), Ok(()));
    /// assert_eq!(engine.drain(of(&[2, 3])), Err(of(&[3])), "they have the same samples");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drain(&mut self, workers: WorkerSet) -> Result<(), WorkerSet> {
        let (all, before) = (workers.capacity(), self.leaving.drained().clone());
        let others = WorkerSet::of(all, workers.iter().filter(|worker| !before.contains(*worker)));
        if others.is_empty() || self.plan.bears(&workers, &self.roster, &self.leaving) {
            self.leaving.drain(workers);
            return Ok(());
        }
        let still = workers.iter().filter(|worker| before.contains(*worker));
        self.leaving.drain(WorkerSet::of(all, still));
        Err(others)
    }

    /// Before the first round of a step opens, in a run that is always made by all: lets go who is
    /// about to leave or to be taken out. Whether that has ended the run.
    pub(super) fn part_between_steps(&mut self, now: f64, out: &mut Vec<Action>) -> bool {
        let parting = self.plan.parting(&self.roster, &self.leaving);
        if parting.is_empty() {
            return false;
        }
        // Its results of jobs that take several rounds go with it.
        if self.plan.facts().delay > 0 {
            out.extend(self.plan.restart(&mut self.steps, &mut self.open_steps));
        }
        for worker in parting.iter() {
            if self.leaving.is_leaving(worker) {
                self.leaving.left(worker, true, false);
            }
            self.part(worker, now, out);
        }
        let last = self.states.sent_all(self.steps.next);
        let ends = self.leaving.end_it_together(&self.roster, &last, &self.steps);
        out.extend(ends.then(|| self.round.finish()));
        ends
    }

    /// Lets go who is about to leave or to be taken out, and has no part in the plan.
    pub(super) fn let_go(&mut self, now: f64, out: &mut Vec<Action>) -> Result<(), EngineError> {
        // Until a sum is decided it may be one of two that hold it.
        if !self.round.phase().is_open() || !self.open_steps.are_decoding() {
            return Ok(());
        }
        let unneeded = self.plan.unneeded(&self.roster, &self.leaving);
        if unneeded.is_empty() {
            return Ok(());
        }
        unneeded.into_iter().for_each(|worker| self.part(worker, now, out));
        self.try_close(now, out)
    }

    /// A worker goes, of which nothing more is needed.
    fn part(&mut self, worker: Worker, now: f64, out: &mut Vec<Action>) {
        let leaves = self.leaving.is_leaving(worker);
        self.trust.agreement.excuse(worker, None);
        self.forget(worker, now);
        out.push(Action::LetGo { worker, leaves });
    }
}
