//! Who is at which piece of one job, and who finished it first.

use crate::codes::Report;
use crate::codes::sequential::{Outlook, UNCODED};
use crate::ids::{Job, Part, Run, Task, Units, WeightedResult, Worker};
use std::ops::Range;

/// The pieces of one job after the other, each claimed once.
#[derive(Clone, Debug)]
pub(super) struct Claims {
    job: Job,
    jobs: Range<Job>,
    parts: Vec<[Part; 1]>,
    /// The piece every worker is at.
    pub(super) busy: Vec<Option<u32>>,
    /// Who finished each piece first.
    pub(super) winner: Vec<Option<Worker>>,
    won: usize,
    closed: bool,
}

impl Claims {
    /// The pieces of every job are these.
    pub(super) fn new(workers: usize, parts: Vec<[Part; 1]>, jobs: Range<Job>) -> Self {
        Self {
            job: jobs.start,
            jobs,
            busy: vec![None; workers],
            winner: vec![None; parts.len()],
            parts,
            won: 0,
            closed: false,
        }
    }

    /// What a piece consists of.
    pub(super) fn parts(&self, task: Task) -> &[Part] {
        &self.parts[task.piece as usize]
    }

    /// One piece, as a run.
    pub(super) fn run(&self, worker: Worker, task: Task) -> Run {
        Run::one(worker, task, self.parts[task.piece as usize][0].units.count())
    }

    /// Goes on to the next job if this one is closed; true if it did.
    pub(super) fn open_next(&mut self) -> bool {
        if !self.closed {
            return false;
        }
        self.job = self.job.next();
        self.busy.fill(None);
        self.winner.fill(None);
        self.won = 0;
        self.closed = false;
        true
    }

    /// The current job.
    pub(super) fn job(&self) -> Job {
        self.job
    }

    /// Whether a worker could be given a piece now.
    pub(super) fn is_free(&self, worker: Worker) -> bool {
        !self.closed && self.jobs.contains(&self.job) && self.busy[worker.index()].is_none()
    }

    pub(super) fn give(&mut self, worker: Worker, piece: u32) -> Task {
        self.busy[worker.index()] = Some(piece);
        Task { job: self.job, piece, plan: 0 }
    }

    /// Takes a finished piece in: none if this worker was not at it, else whether it is the first.
    pub(super) fn returned(&mut self, worker: Worker, task: Task) -> Option<bool> {
        if self.closed || task.job != self.job || self.busy[worker.index()] != Some(task.piece) {
            return None;
        }
        self.busy[worker.index()] = None;
        let winner = &mut self.winner[task.piece as usize];
        if winner.is_some() {
            return Some(false);
        }
        *winner = Some(worker);
        self.won += 1;
        Some(true)
    }

    /// Whether the current job is open and all its pieces are in.
    pub(super) fn complete(&self) -> bool {
        !self.closed && self.won == self.winner.len()
    }

    /// What the round can come to when some pieces cannot be had any more, unless they are done.
    pub(super) fn blocked(&self, lost: impl Fn(usize) -> bool) -> Outlook {
        let lost = |piece: &usize| self.winner[*piece].is_none() && lost(*piece);
        let units: Vec<Units> =
            (0..self.parts.len()).filter(lost).map(|piece| self.parts[piece][0].units).collect();
        if units.is_empty() {
            return Outlook::Open;
        }
        Outlook::Blocked { jobs: vec![self.job], units }
    }

    /// Ends the job's round: workers that are still at a piece drop it.
    pub(super) fn close(&mut self, decoded: &mut Vec<Job>) {
        if self.complete() {
            decoded.push(self.job);
        }
        self.give_up();
    }

    /// Every piece of the current job counts once.
    pub(super) fn settle(&self, job: Job, out: &mut Vec<WeightedResult>) -> Report {
        let won = (0..).zip(&self.winner);
        let won = won.filter_map(|(piece, winner)| Some((piece, (*winner)?)));
        out.extend(won.map(|(piece, worker)| WeightedResult {
            worker,
            task: Task { job, piece, plan: 0 },
            weight: 1.0,
        }));
        UNCODED
    }

    /// Ends the current job although pieces are missing.
    pub(super) fn give_up(&mut self) {
        self.closed = true;
        self.busy.fill(None);
    }

    /// Goes on with other jobs.
    pub(super) fn restart(&mut self, jobs: Range<Job>) {
        self.closed = true;
        self.open_next();
        self.job = jobs.start;
        self.jobs = jobs;
    }

    /// Opens the pieces again that a worker had won, and names them; not those of a decoded job
    /// before `from`.
    pub(super) fn reopen(&mut self, worker: Worker, from: Option<Job>) -> Vec<Task> {
        let mut reopened = Vec::new();
        if self.closed && from.is_none_or(|from| self.job < from) {
            return reopened;
        }
        for (piece, winner) in
            (0..).zip(&mut self.winner).filter(|(_, winner)| **winner == Some(worker))
        {
            *winner = None;
            self.won -= 1;
            self.closed = false;
            reopened.push(Task { job: self.job, piece, plan: 0 });
        }
        reopened
    }
}
