//! Any one-round code as a scheme: job `t` is computed and decoded in round `t`.

use super::{Fold, Scheme, SchemeFacts, unheld, weigh};
use crate::codes::{Decoder, GradientCode, Report, Status};
use crate::ids::{Cut, Job, Part, Share, Task, Units, Worker, WorkerSet};
use std::ops::Range;

/// A one-round code, one job per round, delay 0.
///
/// The piece of a task is its worker's number. Results of earlier rounds are not wanted: their job
/// is closed.
///
/// ```
/// use codedgrad::codes::{sequential::{Lift, Scheme}, Groups};
/// use codedgrad::ids::{Cut, Job, Worker};
/// let code = Groups::new(4, 2)?;
/// let mut scheme = Lift::new(Box::new(code), Cut::new(8, 2)?, Job(0)..Job(10));
/// let mut tasks = Vec::new();
/// scheme.assign(Worker(3), &mut tasks);
/// assert_eq!(scheme.parts(Worker(3), tasks[0])[0].units.count(), 4);
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
pub struct Lift {
    code: Box<dyn GradientCode>,
    decoder: Box<dyn Decoder>,
    facts: SchemeFacts,
    parts: Vec<Vec<Part>>,
    shares: Vec<Units>,
    job: Job,
    end: Job,
    returned: WorkerSet,
    decodable: bool,
    closed: bool,
}

impl Lift {
    /// A code over a range of jobs whose batches are cut by `cut`.
    ///
    /// # Panics
    /// When the cut has another number of shares than the code.
    #[must_use]
    pub fn new(code: Box<dyn GradientCode>, cut: Cut, jobs: Range<Job>) -> Self {
        let facts = code.facts();
        assert_eq!(
            cut.shares() as usize,
            facts.shares(),
            "the batch is cut into the code's shares"
        );
        let parts: Vec<Vec<Part>> =
            Worker::all(facts.workers).map(|worker| parts_of(code.row(worker), cut)).collect();
        let touched = |parts: &Vec<Part>| parts.iter().map(|part| part.units.count()).sum::<u32>();
        let facts = SchemeFacts {
            workers: facts.workers,
            units: cut.units(),
            delay: 0,
            load: f64::from(parts.iter().map(touched).max().unwrap_or(0)) / f64::from(cut.units()),
            tolerance: facts.tolerance,
            error_max: facts.error_max,
            partial: false,
            pulls: false,
            plain: false,
            wrong: 0,
            mixture: false,
        };
        Self {
            decoder: code.decoder(),
            returned: WorkerSet::empty(facts.workers),
            shares: (0..cut.shares()).map(|j| cut.share(Share(j))).collect(),
            code,
            facts,
            parts,
            job: jobs.start,
            end: jobs.end,
            decodable: false,
            closed: false,
        }
    }

    /// The same code for tasks that are mixtures of their parts' data, with `wrong` wrong workers
    /// to be found out by whoever receives the results: all results are then folded, also those of
    /// weight 0.
    #[must_use]
    pub fn mixing(mut self, wrong: usize) -> Self {
        (self.facts.mixture, self.facts.wrong, self.facts.load) =
            (true, wrong, self.code.facts().load);
        self
    }

    fn task(&self, worker: Worker) -> Task {
        Task { job: self.job, piece: worker.0, plan: 0 }
    }

    /// The decoder as it would be if everybody but `missing` had answered.
    fn supposed(&self, missing: &WorkerSet) -> (Box<dyn Decoder>, bool) {
        let mut decoder = self.code.decoder();
        let mut decodable = false;
        for worker in missing.complement().iter() {
            decodable |= decoder.arrive(worker) == Status::Decodable;
        }
        (decoder, decodable)
    }

    fn open_next(&mut self) {
        self.job = self.job.next();
        self.returned = WorkerSet::empty(self.facts.workers);
        self.decoder.reset();
        self.decodable = false;
        self.closed = false;
    }
}

fn parts_of(row: &[(Share, f64)], cut: Cut) -> Vec<Part> {
    row.iter().map(|&(share, coefficient)| Part { units: cut.share(share), coefficient }).collect()
}

impl Scheme for Lift {
    fn facts(&self) -> &SchemeFacts {
        &self.facts
    }

    fn open(&mut self) {
        if self.closed {
            self.open_next();
        }
    }

    fn assign(&mut self, worker: Worker, out: &mut Vec<Task>) {
        self.open();
        if self.job < self.end && !self.returned.contains(worker) {
            out.push(self.task(worker));
        }
    }

    fn parts(&self, worker: Worker, _: Task) -> &[Part] {
        &self.parts[worker.index()]
    }

    /// A mixture of blocks is computed as one of them.
    fn units(&self, worker: Worker, _: Task) -> u32 {
        let counts = self.parts[worker.index()].iter().map(|part| part.units.count());
        if self.facts.mixture { counts.max().unwrap_or(0) } else { counts.sum() }
    }

    fn returned(&mut self, worker: Worker, task: Task) -> bool {
        if self.closed || task != self.task(worker) || !self.returned.insert(worker) {
            return false;
        }
        self.decodable |= self.decoder.arrive(worker) == Status::Decodable;
        true
    }

    fn admits(&self, missing: &WorkerSet) -> bool {
        let exact_match = self.returned.len() + missing.len() == self.facts.workers
            && missing.iter().all(|w| !self.returned.contains(w));
        if exact_match { self.decodable } else { self.supposed(missing).1 }
    }

    fn suffices_at(&self, times: &[f64]) -> Option<f64> {
        self.code.decodable_at(times)
    }

    fn answers_needed(&self, order: &[Worker]) -> usize {
        let mut decoder = self.code.decoder();
        let last = order.iter().position(|worker| decoder.arrive(*worker) == Status::Decodable);
        last.unwrap_or(order.len()) + 1
    }

    fn salvages(&self, missing: &WorkerSet) -> bool {
        self.supposed(missing).0.salvages()
    }

    fn quality(&mut self) -> Report {
        weigh(&mut *self.decoder, &mut vec![0.0; self.facts.workers])
    }

    fn close(&mut self, missing: &WorkerSet, decoded: &mut Vec<Job>) {
        assert!(!self.closed && self.job < self.end, "a round is open");
        assert!(
            missing.iter().all(|worker| !self.returned.contains(worker)),
            "the missing have not answered"
        );
        self.closed = true;
        decoded.push(self.job);
    }

    fn settle(&mut self, _: Job, folds: &mut Vec<Fold>) -> Report {
        assert!(self.closed, "weights are final when the round is closed");
        let mut weights = vec![0.0; self.facts.workers];
        let report = weigh(&mut *self.decoder, &mut weights);
        let counts = |(worker, weight): &(Worker, &f64)| {
            **weight != 0.0 || self.facts.mixture && self.returned.contains(*worker)
        };
        let used = Worker::all(weights.len()).zip(&weights).filter(counts);
        folds.extend(used.map(|(worker, &weight)| Fold {
            worker,
            task: self.task(worker),
            weight,
        }));
        report
    }

    fn lost(&mut self, worker: Worker, from: Option<Job>, reopened: &mut Vec<Task>) {
        let safe = self.closed && from.is_none_or(|from| self.job < from);
        if safe || !self.returned.remove(worker) {
            return;
        }
        (self.decoder, self.decodable) = self.supposed(&self.returned.complement());
        if !self.decodable || !self.closed {
            self.closed = false;
            reopened.push(self.task(worker));
        }
    }

    fn blocked(&self, _: &WorkerSet) -> Vec<Job> {
        vec![self.job]
    }

    fn give_up(&mut self, _: Job) {}

    fn restart(&mut self, jobs: Range<Job>) {
        self.open_next();
        (self.job, self.end) = (jobs.start, jobs.end);
    }

    fn uncovered(&self, missing: &WorkerSet) -> Vec<Units> {
        unheld(&*self.code, missing).map(|share| self.shares[share.index()]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::Groups;

    fn lift() -> Lift {
        Lift::new(Box::new(Groups::new(4, 2).unwrap()), Cut::new(4, 2).unwrap(), Job(5)..Job(7))
    }

    fn answer(scheme: &mut Lift, worker: u32) -> bool {
        let mut tasks = Vec::new();
        scheme.assign(Worker(worker), &mut tasks);
        tasks.pop().is_some_and(|task| scheme.returned(Worker(worker), task))
    }

    #[test]
    fn late_and_repeated_results_are_not_wanted() {
        let mut scheme = lift();
        let old = Task { job: Job(5), piece: 1, plan: 0 };
        assert!(answer(&mut scheme, 0) && answer(&mut scheme, 2));
        assert!(!scheme.returned(Worker(0), Task { job: Job(5), piece: 0, plan: 0 }));
        let missing = WorkerSet::of(4, [Worker(1), Worker(3)]);
        assert!(scheme.admits(&missing));
        let mut decoded = Vec::new();
        scheme.close(&missing, &mut decoded);
        assert_eq!(decoded, [Job(5)]);
        assert!(!scheme.returned(Worker(1), old), "closed");
        assert!(answer(&mut scheme, 1), "the next round has begun");
        assert!(!scheme.returned(Worker(1), old));
    }

    #[test]
    fn a_lost_holder_reopens_only_what_nobody_else_has() {
        let mut scheme = lift();
        for worker in 0..3 {
            assert!(answer(&mut scheme, worker));
        }
        let (mut decoded, mut reopened, mut folds) = (Vec::new(), Vec::new(), Vec::new());
        scheme.close(&WorkerSet::of(4, [Worker(3)]), &mut decoded);
        scheme.lost(Worker(0), Some(Job(5)), &mut reopened);
        assert!(reopened.is_empty(), "worker 1 holds the same share");
        scheme.settle(Job(5), &mut folds);
        assert_eq!(folds.iter().map(|fold| fold.worker.0).collect::<Vec<_>>(), [1, 2]);
        scheme.lost(Worker(2), Some(Job(5)), &mut reopened);
        assert_eq!(reopened, [Task { job: Job(5), piece: 2, plan: 0 }]);
        assert!(!scheme.admits(&WorkerSet::of(4, [0, 2, 3].map(Worker))));
        assert!(answer(&mut scheme, 3) && scheme.admits(&WorkerSet::of(4, [0, 2].map(Worker))));
    }

    #[test]
    fn jobs_end() {
        let mut scheme = lift();
        for _ in 0..2 {
            assert!(answer(&mut scheme, 0) && answer(&mut scheme, 3));
            scheme.close(&WorkerSet::of(4, [Worker(1), Worker(2)]), &mut Vec::new());
        }
        assert!(!answer(&mut scheme, 0));
    }

    #[test]
    fn uncovered_units_are_named() {
        let scheme = lift();
        assert_eq!(scheme.uncovered(&WorkerSet::of(4, [Worker(0), Worker(2)])), []);
        assert_eq!(
            scheme.uncovered(&WorkerSet::of(4, [Worker(2), Worker(3)])),
            [Units { start: 2, end: 4 }]
        );
    }
}
