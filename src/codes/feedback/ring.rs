//! The ring: every worker goes on with its neighbours' shares until all are done.
//!
//! # Construction
//! Share `j` belongs to worker `j`; worker `q` computes `q, q+1, ..` (mod `n`), at most `reach` of them,
//! leaving out those that somebody has finished when it would start them.
//!
//! # Guarantee
//! Any `reach - 1` stragglers, and any pattern without `reach` consecutive silent workers. A worker needs
//! only its `reach` shares.
//!
//! # Cost
//! A pull is O(reach).
//!
//! # Numerics
//! All weights are 1.
//!
//! # Source
//! Own; the useful core of nested gradient codes (arXiv 2212.08580) and of codes for partial stragglers
//! (arXiv 2405.19509).

use super::EXACT;
use crate::codes::sequential::{Fold, Horizon, Scheme, SchemeFacts};
use crate::codes::{ParameterError, Report};
use crate::ids::{Job, Part, Task, Units, Worker, WorkerSet};
use std::ops::Range;

/// The ring of one job per round; the piece of a task is the number of its share.
///
/// # Formula
/// ```text
/// worker q: shares q, q+1 .. q+reach-1 (mod n), each of load 1/n
/// ```
///
/// ```
/// use codedgrad::codes::{feedback::Ring, sequential::{Accept, Horizon, Scheme}};
/// use codedgrad::ids::{Job, Task, Worker};
/// let horizon = Horizon { workers: 3, units: None, jobs: Job(0)..Job(1), accept: Accept::Lookahead };
/// let mut ring = Ring::new(3, horizon)?;
/// let mut tasks = Vec::new();
/// (0..3).for_each(|i| ring.assign(Worker(i), &mut tasks));
/// ring.returned(Worker(1), tasks[1]);
/// ring.returned(Worker(0), tasks[0]);
/// ring.assign(Worker(0), &mut tasks);
/// assert_eq!(tasks[3].piece, 2, "share 1 is done, worker 2 is not");
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
pub struct Ring {
    facts: SchemeFacts,
    reach: usize,
    parts: Vec<[Part; 1]>,
    job: Job,
    jobs: Range<Job>,
    /// How far every worker has come from its own share.
    offset: Vec<usize>,
    busy: Vec<Option<u32>>,
    winner: Vec<Option<Worker>>,
    won: usize,
    closed: bool,
}

impl Ring {
    /// A ring in which every worker reaches over `reach` shares.
    ///
    /// # Errors
    /// [`ParameterError::NoWorkers`], [`ParameterError::Sequential`] unless `1 <= reach <= n`,
    /// [`ParameterError::Cut`] when the batch has fewer units than workers.
    ///
    /// ```
    /// use codedgrad::codes::{feedback::Ring, sequential::{Accept, Horizon}};
    /// use codedgrad::ids::Job;
    /// let horizon = Horizon { workers: 4, units: None, jobs: Job(0)..Job(1), accept: Accept::Lookahead };
    /// assert!(Ring::new(4, horizon.clone()).is_ok() && Ring::new(5, horizon).is_err());
    /// ```
    pub fn new(reach: usize, horizon: Horizon) -> Result<Self, ParameterError> {
        let Horizon { workers, units, jobs, .. } = horizon;
        let parts = super::equal_parts(workers, workers, units)?;
        if reach == 0 || reach > workers {
            let problem = format!("reach={reach} of {workers} workers: reach must be from 1 to {workers}");
            return Err(ParameterError::Sequential { scheme: "ring", problem });
        }
        let mut facts = super::facts(workers, units.unwrap_or(workers as u32), 0, 1.0 / workers as f64);
        facts.tolerance = reach - 1;
        Ok(Self {
            facts,
            offset: vec![0; workers],
            busy: vec![None; workers],
            winner: vec![None; workers],
            job: jobs.start,
            won: 0,
            closed: false,
            reach,
            parts,
            jobs,
        })
    }
}

impl Scheme for Ring {
    fn facts(&self) -> &SchemeFacts {
        &self.facts
    }

    fn assign(&mut self, worker: Worker, out: &mut Vec<Task>) {
        if self.closed {
            self.job = self.job.next();
            self.offset.fill(0);
            self.busy.fill(None);
            self.winner.fill(None);
            self.won = 0;
            self.closed = false;
        }
        if !self.jobs.contains(&self.job) || self.busy[worker.index()].is_some() {
            return;
        }
        let workers = self.facts.workers;
        let share = |offset: usize| (worker.index() + offset) % workers;
        let next = (self.offset[worker.index()]..self.reach).find(|offset| self.winner[share(*offset)].is_none());
        self.offset[worker.index()] = next.map_or(self.reach, |offset| offset + 1);
        if let Some(offset) = next {
            let piece = share(offset) as u32;
            self.busy[worker.index()] = Some(piece);
            out.push(Task { job: self.job, piece });
        }
    }

    fn parts(&self, _: Worker, task: Task) -> &[Part] {
        &self.parts[task.piece as usize]
    }

    fn returned(&mut self, worker: Worker, task: Task) -> bool {
        if self.closed || task.job != self.job || self.busy[worker.index()] != Some(task.piece) {
            return false;
        }
        self.busy[worker.index()] = None;
        let winner = &mut self.winner[task.piece as usize];
        if winner.is_some() {
            return false;
        }
        *winner = Some(worker);
        self.won += 1;
        true
    }

    fn admits(&self, _: &WorkerSet) -> bool {
        self.won == self.parts.len()
    }

    fn hopes(&self, gone: &WorkerSet) -> bool {
        self.uncovered(gone).is_empty()
    }

    fn gone(&mut self, worker: Worker) {
        self.busy[worker.index()] = None;
        self.offset[worker.index()] = self.reach;
    }

    fn quality(&mut self) -> Report {
        EXACT
    }

    fn close(&mut self, _: &WorkerSet, decoded: &mut Vec<Job>) {
        self.closed = true;
        if self.won == self.parts.len() {
            decoded.push(self.job);
        }
    }

    fn settle(&mut self, job: Job, folds: &mut Vec<Fold>) -> Report {
        let won = (0..).zip(&self.winner).filter_map(|(piece, winner)| Some((piece, (*winner)?)));
        folds.extend(won.map(|(piece, worker)| Fold { worker, task: Task { job, piece }, weight: 1.0 }));
        EXACT
    }

    fn lost(&mut self, worker: Worker, reopened: &mut Vec<Task>) {
        self.gone(worker);
        for piece in 0..self.parts.len() as u32 {
            if self.winner[piece as usize] != Some(worker) {
                continue;
            }
            self.winner[piece as usize] = None;
            self.won -= 1;
            self.closed = false;
            reopened.push(Task { job: self.job, piece });
            // Whoever has passed this share by comes back to it.
            for (other, offset) in self.offset.iter_mut().enumerate().filter(|(other, _)| *other != worker.index()) {
                let distance = (piece as usize + self.parts.len() - other) % self.parts.len();
                *offset = if distance < self.reach { distance.min(*offset) } else { *offset };
            }
        }
    }

    fn uncovered(&self, missing: &WorkerSet) -> Vec<Units> {
        let workers = self.facts.workers;
        let reachable = |share: usize| (0..self.reach).any(|back| !missing.contains(Worker(((share + workers - back) % workers) as u32)));
        let open = |share: &usize| self.winner[*share].is_none() && !reachable(*share);
        (0..workers).filter(open).map(|share| self.parts[share][0].units).collect()
    }
}
