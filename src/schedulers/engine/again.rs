//! Sums that are made again from what is left of their results.

use super::super::events::{Action, EngineError};
use super::Engine;
use crate::codes::sequential::RoundEvent;
use crate::ids::{Step, Task};

impl Engine {
    /// Makes decoded steps from `first` on again, without the results of those who died meanwhile
    /// or whose are not finite.
    pub(super) fn make_again(
        &mut self,
        first: Step,
        now: f64,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        if !self.plan.opens_again() {
            return self.begin_again(now, out);
        }
        // Workers that died while another held the vector are missed only now, also if they are
        // there again.
        let mut without = self.roster.dead();
        without.unite(&self.died_since_close);
        for worker in self.open_steps.barred() {
            without.insert(worker);
        }
        let mut reopened: Vec<Task> = Vec::new();
        for dead in without.iter() {
            let from = Some(first.jobs(1).start);
            self.plan.scheme.on(RoundEvent::Lost { worker: dead, from, reopened: &mut reopened });
        }
        let steps: Vec<Step> = self.open_steps.summing().filter(|step| *step >= first).collect();
        for step in steps {
            self.open_steps.again(step);
            // From what is left; where results are open again, once they are in.
            if reopened.iter().any(|task| task.job.step(1) == step) {
                self.round.reopen(now);
            } else {
                let (results, report) = self.plan.decode(step.jobs(1).start)?;
                self.open_steps.decoded(step.jobs(1).start, report, results);
                self.sum(step, out);
            }
        }
        if self.round.phase().is_summing() {
            self.advance(now, out)?;
        }
        if self.round.phase().is_open() {
            let there = self.roster.alive();
            for worker in self.died_since_close.iter().filter(|worker| there.contains(*worker)) {
                // A worker that is there again can do its tasks again.
                if !self.plan.scheme.on(RoundEvent::Back(worker)) {
                    self.round.rest(worker);
                }
            }
            self.round.erase(self.open_steps.barred(), &mut self.plan.scheme);
        }
        self.proceed(now, out)
    }
}
