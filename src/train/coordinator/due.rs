//! What a coordinator waits for, and how long.

use super::super::pace::Next;
use super::{Coordinator, RunError};
use crate::ids::{Worker, WorkerSet};
use crate::transport::Transport;
use std::time::Duration;

impl<T: Transport> Coordinator<T> {
    /// What is due by the clock. While decoded vectors are on their way to their holders, answers
    /// are not delivered: they count in the next round.
    pub(super) fn due(&mut self) -> Result<Next, RunError> {
        let folding = self.engine.is_folding();
        let by = self.engine.deadline();
        if self.pace.is_virtual() && (folding || !self.unsettled().is_empty()) {
            return self.due_by_the_wall(by.filter(|_| folding));
        }
        Ok(match by {
            Some(by) if folding => self.pace.nothing_until(by),
            by => self.pace.next(by),
        })
    }

    /// A modelled clock stands still until what is decided is held and applied. If nothing comes
    /// for long by the wall's clock, it goes on to the deadline there is.
    fn due_by_the_wall(&mut self, deadline: Option<f64>) -> Result<Next, RunError> {
        let left = self.config.max_wait_seconds - self.idle_seconds;
        if left > 0.0 {
            return Ok(Next::Wait(Some(Duration::from_secs_f64(left.min(1e9)))));
        }
        let waited_seconds = std::mem::take(&mut self.idle_seconds);
        match deadline {
            Some(deadline) => {
                self.pace.go_on_to(deadline);
                Ok(Next::Deadline)
            }
            None => Err(RunError::Unsettled {
                step: self.step,
                workers: self.unsettled(),
                waited_seconds,
            }),
        }
    }

    /// Who has not applied all it was sent, or is to hand over its state or to take over another's.
    fn unsettled(&self) -> WorkerSet {
        let behind =
            Worker::all(self.shape.workers).filter(|worker| self.unapplied[worker.index()] > 0);
        let donors = self.resyncs.iter().map(|resync| resync.from);
        WorkerSet::of(
            self.shape.workers,
            behind.chain(donors).chain(self.sent_states.keys().copied()),
        )
    }
}
