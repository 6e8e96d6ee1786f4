//! What the engine does about sums that are not finite: it leaves out whose result it was, if it
//! was anybody's.
//!
//! A result that is not finite is erased, whatever its worker says of it; the coordinator sees
//! whose it was, if need be by making the sum itself (`transport::exchange::doubts`). A step that
//! no finite results can cover is refused for all workers alike, and its units are named.

use super::super::events::{Action, EngineError};
use super::Engine;
use crate::codes::sequential::RoundEvent;
use crate::ids::{Step, Worker};

impl Engine {
    /// A result that was said to be finite is not. Its worker is missing for the step, which is
    /// folded again from the others'; asked again, it might say the same of the next one, so that
    /// it is left alone until the step is decided.
    pub(super) fn sum_not_finite(
        &mut self,
        now: f64,
        worker: Worker,
        step: Step,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        out.push(Action::Erase { worker, step });
        self.trust.bar(step, worker);
        self.round.erase(worker);
        self.round.unanswered(worker);
        self.open_steps.erase(worker, step);
        self.make_again(step, now, out)
    }

    /// A worker counts for nothing more in this round.
    pub(super) fn leave_out(&mut self, worker: Worker) {
        self.round.erase(worker);
        self.plan.scheme.on(RoundEvent::Gone(worker));
    }

    /// A worker that is barred counts as erased in every round that opens.
    pub(super) fn leave_out_barred(&mut self) {
        let barred: Vec<Worker> = self.trust.barred().collect();
        barred.into_iter().for_each(|worker| self.leave_out(worker));
    }
}
