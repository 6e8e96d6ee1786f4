//! A stream of jobs that are open for several rounds.

use crate::ids::{Job, Worker, WorkerSet};
use std::collections::VecDeque;
use std::ops::Range;

/// The jobs of a scheme over rounds: one begins in every round until there are no more.
///
/// [`JobStream::begin`] opens a round, [`JobStream::close`] ends it; in between every worker is
/// given its tasks once ([`JobStream::takes`]), unless it is [let go](JobStream::release).
#[derive(Clone, Debug)]
pub(in crate::codes) struct JobStream<T> {
    /// The jobs that are not past their last round, oldest first.
    pub(in crate::codes) open: VecDeque<T>,
    /// The current round, in numbers of the jobs that begin in it.
    pub(in crate::codes) round: Job,
    jobs: Range<Job>,
    /// Those who have been given its tasks of this round.
    assigned: WorkerSet,
    begun: bool,
}

impl<T> JobStream<T> {
    pub(in crate::codes) fn new(workers: usize, jobs: Range<Job>) -> Self {
        Self {
            open: VecDeque::new(),
            round: jobs.start,
            jobs,
            assigned: WorkerSet::empty(workers),
            begun: false,
        }
    }

    /// Opens a round.
    pub(in crate::codes) fn begin(&mut self) {
        assert!(!self.begun, "a round is opened once");
        self.begun = true;
        self.assigned.clear();
    }

    /// Whether a round is open.
    pub(in crate::codes) fn is_begun(&self) -> bool {
        self.begun
    }

    /// Ends the round.
    pub(in crate::codes) fn close(&mut self) {
        self.begun = false;
        self.round = self.round.next();
    }

    /// Goes on with other jobs.
    pub(in crate::codes) fn restart(&mut self, jobs: Range<Job>) {
        self.open.clear();
        self.begun = false;
        self.round = jobs.start;
        self.jobs = jobs;
    }

    /// Whether a job begins in the current round.
    pub(in crate::codes) fn has_own(&self) -> bool {
        self.jobs.contains(&self.round)
    }

    /// Whether the job that begins in the current round is the last one.
    pub(in crate::codes) fn is_last(&self) -> bool {
        self.round.next() == self.jobs.end
    }

    /// In which of its rounds a job is, from 0.
    pub(in crate::codes) fn age(&self, job: Job) -> usize {
        (self.round.0 - job.0) as usize
    }

    /// Whether a worker is given its tasks now: once per round.
    pub(in crate::codes) fn takes(&mut self, worker: Worker) -> bool {
        self.begun && self.assigned.insert(worker)
    }

    /// A worker can be given its tasks of this round once more.
    pub(in crate::codes) fn release(&mut self, worker: Worker) {
        self.assigned.remove(worker);
    }
}
