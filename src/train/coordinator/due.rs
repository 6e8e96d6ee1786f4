//! What a coordinator waits for, and how long.

use super::super::run_clock::ClockMove;
use super::{Coordinator, RunError};
use crate::transport::Transport;
use std::time::Duration;

/// How long it is waited: while nothing comes, and for the last to apply what is decided.
#[derive(Debug)]
pub(super) struct Patience {
    max_wait_seconds: f64,
    /// For how long no worker has sent anything, in the wall's time.
    idle_seconds: f64,
    /// Once all steps are decided: until when it is waited for those who have not applied them.
    settles_by: Option<f64>,
}

impl Patience {
    pub(super) fn new(max_wait_seconds: f64) -> Self {
        Self { max_wait_seconds, idle_seconds: 0.0, settles_by: None }
    }

    /// Notes that nothing came for this long.
    pub(super) fn nothing_came(&mut self, within: Duration) {
        self.idle_seconds += within.as_secs_f64();
    }

    /// Something came, or there was nothing to wait for.
    pub(super) fn something_came(&mut self) {
        self.idle_seconds = 0.0;
    }

    /// All steps are decided.
    pub(super) fn all_decided(&mut self, now: f64) {
        self.settles_by = Some(now + self.max_wait_seconds);
    }

    /// Once all steps are decided, how much longer those who have not applied them may take.
    pub(super) fn left_to_settle(&self, now: f64) -> Option<f64> {
        self.settles_by.map(|by| by - now)
    }
}

impl<T: Transport> Coordinator<T> {
    /// What is due by the clock. While sums are on their way to their holders, answers
    /// are not delivered: they count in the next round.
    pub(super) fn due(&mut self) -> Result<ClockMove, RunError> {
        let summing = self.engine.is_summing();
        let by = self.gradients.sums.deadline(&self.engine);
        if self.run_clock.is_virtual() && (summing || !self.replicas.unsettled().is_empty()) {
            return self.due_by_the_wall(by.filter(|_| summing));
        }
        Ok(match by {
            Some(by) if summing => self.run_clock.nothing_until(by),
            by => self.run_clock.next(by),
        })
    }

    /// A modelled clock stands still until what is decided is held and applied. If nothing comes
    /// for long by the wall's clock, it goes on to the deadline there is.
    fn due_by_the_wall(&mut self, deadline: Option<f64>) -> Result<ClockMove, RunError> {
        let left = self.patience.max_wait_seconds - self.patience.idle_seconds;
        if left > 0.0 {
            return Ok(ClockMove::Wait(Some(Duration::from_secs_f64(left.min(1e9)))));
        }
        let waited_seconds = std::mem::take(&mut self.patience.idle_seconds);
        match deadline {
            Some(deadline) => {
                self.run_clock.go_on_to(deadline);
                Ok(ClockMove::Deadline)
            }
            None => Err(RunError::Unsettled {
                step: self.journal.step,
                workers: self.replicas.unsettled(),
                waited_seconds,
            }),
        }
    }
}
