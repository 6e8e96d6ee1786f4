//! The ring: every worker goes on with its neighbours' shares until all are done.
//!
//! # Construction
//! Share `j` belongs to worker `j`. Worker `q` computes `q, q+1, ..` (mod `n`), at most `reach` of
//! them, without those that another worker has finished by then.
//!
//! # Guarantee
//! Any `reach - 1` stragglers, and any pattern without `reach` consecutive silent workers. A worker
//! needs only its `reach` shares.
//!
//! # Cost
//! A pull is O(reach).
//!
//! # Numerics
//! All weights are 1.
//!
//! # Source
//! Own; the useful core of nested gradient codes (arXiv 2212.08580) and of codes for partial
//! stragglers (arXiv 2405.19509).

use super::claims::Claims;
use crate::codes::family::{Family, Recipe, Traits};
use crate::codes::sequential::{
    FastForward, Horizon, Outlook, ResultUse, RoundEvent, Scheme, SchemeFacts, UNCODED,
};
use crate::codes::{ParameterError, Report};
use crate::ids::{Job, Part, Run, Task, WeightedResult, Worker, WorkerSet};
use std::ops::Range;

/// Neighbours that help.
pub(in crate::codes) const FAMILY: Family = Family {
    name: "ring",
    examples: &["ring:reach=3"],
    summary: "for workers that have the data of reach shares: each does its own, then helps those \
        before it",
    traits: Traits { feedback: true, pulls: true, ..Traits::NONE },
    ..Family::new(|fields| {
        let reach = fields.need("reach")?;
        Ok(Recipe::scheme(move |horizon| Ring::new(reach, horizon)))
    })
};

/// The ring of one job per round; the piece of a task is the number of its share.
///
/// # Formula
/// ```text
/// worker q: shares q, q+1 .. q+reach-1 (mod n), each of load 1/n
/// ```
///
/// ```
/// use codedgrad::codes::{
///     feedback::Ring,
///     sequential::{Accept, Horizon, Scheme},
/// };
/// use codedgrad::ids::{Job, Task, Worker};
/// let horizon =
///     Horizon { workers: 3, units: None, jobs: Job(0)..Job(1), accept: Accept::Lookahead };
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
    claims: Claims,
    /// How far every worker has come from its own share.
    offset: Vec<usize>,
}

impl Ring {
    /// A ring in which every worker reaches over `reach` shares.
    ///
    /// # Errors
    /// [`ParameterError::NoWorkers`], [`ParameterError::Conditions`] unless `1 <= reach <= n`,
    /// [`ParameterError::Cut`] when the batch has fewer units than workers.
    ///
    /// ```
    /// use codedgrad::codes::{
    ///     feedback::Ring,
    ///     sequential::{Accept, Horizon},
    /// };
    /// use codedgrad::ids::Job;
    /// let horizon =
    ///     Horizon { workers: 4, units: None, jobs: Job(0)..Job(1), accept: Accept::Lookahead };
    /// assert!(Ring::new(4, horizon.clone()).is_ok() && Ring::new(5, horizon).is_err());
    /// ```
    pub fn new(reach: usize, horizon: Horizon) -> Result<Self, ParameterError> {
        let Horizon { workers, units, jobs, .. } = horizon;
        let parts = super::equal_parts(workers, workers, units)?;
        if reach == 0 || reach > workers {
            let problem =
                format!("reach={reach} of {workers} workers: reach must be from 1 to {workers}");
            return Err(ParameterError::Conditions { scheme: "ring", problem });
        }
        let mut facts =
            super::facts(workers, units.unwrap_or(workers as u32), 0, 1.0 / workers as f64);
        facts.tolerance = reach - 1;
        Ok(Self {
            facts,
            claims: Claims::new(workers, parts, jobs),
            offset: vec![0; workers],
            reach,
        })
    }

    /// The next share of an idle worker, as long as there is one.
    fn pull(&mut self, worker: Worker) -> Option<Task> {
        if !self.claims.is_free(worker) {
            return None;
        }
        let workers = self.facts.workers;
        let share = |offset: usize| (worker.index() + offset) % workers;
        let next = (self.offset[worker.index()]..self.reach)
            .find(|offset| self.claims.winner[share(*offset)].is_none());
        self.offset[worker.index()] = next.map_or(self.reach, |offset| offset + 1);
        Some(self.claims.give(worker, share(next?) as u32))
    }

    /// A worker does nothing more in this round.
    fn leave(&mut self, worker: Worker) {
        self.claims.busy[worker.index()] = None;
        self.offset[worker.index()] = self.reach;
    }

    /// A worker will begin again with the share it was at.
    fn step_back(&mut self, worker: Worker) {
        if let Some(share) = self.claims.busy[worker.index()].take() {
            let workers = self.facts.workers;
            let distance = (share as usize + workers - worker.index()) % workers;
            // Shares before it may have been opened again meanwhile.
            let offset = &mut self.offset[worker.index()];
            *offset = distance.min(*offset);
        }
    }

    fn lost(&mut self, worker: Worker, from: Option<Job>, reopened: &mut Vec<Task>) {
        self.leave(worker);
        let open = self.claims.reopen(worker, from);
        let workers = self.facts.workers;
        // A worker that has passed such a share by comes back to it.
        for (other, offset) in self.offset.iter_mut().enumerate() {
            if other == worker.index() {
                continue;
            }
            let distance = |task: &Task| (task.piece as usize + workers - other) % workers;
            *offset = open
                .iter()
                .map(distance)
                .filter(|distance| *distance < self.reach)
                .fold(*offset, usize::min);
        }
        reopened.extend(open);
    }
}

impl Scheme for Ring {
    fn facts(&self) -> &SchemeFacts {
        &self.facts
    }

    fn assign(&mut self, worker: Worker, out: &mut Vec<Task>) {
        out.extend(self.pull(worker));
    }

    fn parts(&self, _: Worker, task: Task) -> &[Part] {
        self.claims.parts(task)
    }

    fn returned(&mut self, worker: Worker, task: Task) -> ResultUse {
        let first = self.claims.returned(worker, task) == Some(true);
        if first { ResultUse::Wanted } else { ResultUse::Unwanted }
    }

    fn on(&mut self, event: RoundEvent<'_>) -> bool {
        match event {
            RoundEvent::Opened { dead } => {
                if self.claims.open_next() {
                    self.offset.fill(0);
                }
                dead.iter().for_each(|worker| self.leave(worker));
            }
            RoundEvent::Gone(worker) => self.leave(worker),
            RoundEvent::Back(worker) => self.offset[worker.index()] = 0,
            RoundEvent::Dropped(worker) => self.step_back(worker),
            RoundEvent::Lost { worker, from, reopened } => self.lost(worker, from, reopened),
            RoundEvent::GivenUp(_) => self.claims.give_up(),
            RoundEvent::NoReturns => {}
        }
        true
    }

    fn admits(&self, _: &WorkerSet) -> bool {
        self.claims.complete()
    }

    fn quality(&mut self) -> Report {
        UNCODED
    }

    fn outlook(&self, gone: &WorkerSet) -> Outlook {
        let workers = self.facts.workers;
        let holder =
            |share: usize, back: usize| Worker(((share + workers - back) % workers) as u32);
        self.claims.blocked(|share| (0..self.reach).all(|back| gone.contains(holder(share, back))))
    }

    fn close(&mut self, _: &WorkerSet, _: &[Option<f64>], decoded: &mut Vec<Job>) {
        self.claims.close(decoded);
    }

    fn settle(&mut self, job: Job, out: &mut Vec<WeightedResult>) -> Report {
        self.claims.settle(job, out)
    }

    fn restart(&mut self, jobs: Range<Job>) {
        self.claims.restart(jobs);
        self.offset.fill(0);
    }

    fn fast_forward(&mut self) -> Option<&mut dyn FastForward> {
        Some(self)
    }
}

impl FastForward for Ring {
    fn runs(&mut self, worker: Worker, out: &mut Vec<Run>) {
        let task = self.pull(worker);
        out.extend(task.map(|task| self.claims.run(worker, task)));
    }
}
