//! The wait for somebody to hold what was decoded.

use crate::ids::{Step, Worker, WorkerSet};

/// Since when decoded vectors wait for their holders, and what went wrong meanwhile.
#[derive(Debug)]
pub(super) struct Holding {
    since: f64,
    /// The step that nobody held in time once, and since when it was waited then.
    overdue: Option<(Step, f64)>,
    /// Workers that died since the round was closed.
    died_since_close: WorkerSet,
}

impl Holding {
    pub(super) fn new(workers: usize) -> Self {
        Self { since: 0.0, overdue: None, died_since_close: WorkerSet::empty(workers) }
    }

    /// A round is closed.
    pub(super) fn begin(&mut self, now: f64) {
        self.since = now;
        self.died_since_close.clear();
    }

    /// Something is made or asked for again: it is waited as long again.
    pub(super) fn begin_again(&mut self, now: f64) {
        self.since = now;
    }

    pub(super) fn patience_ends(&self, max_wait_seconds: f64) -> f64 {
        self.since + max_wait_seconds
    }

    /// A worker died, and its results with it.
    pub(super) fn lost(&mut self, worker: Worker) {
        self.died_since_close.insert(worker);
    }

    /// Workers that died since the round was closed.
    pub(super) fn died_since_close(&self) -> &WorkerSet {
        &self.died_since_close
    }

    /// Nobody holds a step in time: the first time it is waited once more; the second time gives
    /// since when it was waited the first.
    pub(super) fn overdue(&mut self, step: Step, now: f64) -> Option<f64> {
        if let Some((_, since)) = self.overdue.filter(|(overdue, _)| *overdue == step) {
            return Some(since);
        }
        self.overdue = Some((step, self.since));
        self.since = now;
        None
    }
}
