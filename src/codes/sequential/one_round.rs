//! Any one-round code as a scheme: job `t` is computed and decoded in round `t`.

use super::scheme::{FastForward, Outlook, ResultUse, RoundEvent, Scheme};
use super::{SchemeFacts, unheld};
use crate::codes::judged::{CodeJudge, Rows};
use crate::codes::{Decoder, GradientCode, Groups, Report, Status};
use crate::ids::{Cut, Job, Part, Run, Share, Task, Units, WeightedResult, Worker, WorkerSet};
use std::ops::Range;
use std::sync::Arc;

/// A one-round code, one job per round, delay 0.
///
/// The piece of a task is its worker's number. Results of earlier rounds are not wanted: their job
/// is closed.
///
/// ```
/// use codedgrad::codes::{sequential::{OneRound, RoundEvent, Scheme}, Groups};
/// use codedgrad::ids::{Cut, Job, Worker, WorkerSet};
/// let code = Groups::new(4, 2)?;
/// let mut scheme = OneRound::new(Box::new(code), Cut::new(8, 2)?, Job(0)..Job(10));
/// let mut tasks = Vec::new();
/// scheme.on(RoundEvent::Opened { dead: &WorkerSet::empty(4) });
/// scheme.assign(Worker(3), &mut tasks);
/// assert_eq!(scheme.parts(Worker(3), tasks[0])[0].units.count(), 4);
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
pub struct OneRound {
    code: Box<dyn GradientCode>,
    decoder: Box<dyn Decoder>,
    judge: CodeJudge,
    facts: SchemeFacts,
    parts: Vec<Vec<Part>>,
    shares: Vec<Units>,
    job: Job,
    end: Job,
    returned: WorkerSet,
    decodable: bool,
    closed: bool,
}

impl OneRound {
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
        let load_of = |touched: u32| f64::from(touched) / f64::from(cut.units());
        let all: Vec<u32> = parts.iter().map(touched).collect();
        let load = load_of(all.iter().copied().max().unwrap_or(0));
        let alike = all.windows(2).all(|pair| pair[0] == pair[1]);
        let loads = if alike { Vec::new() } else { all.into_iter().map(load_of).collect() };
        let facts = SchemeFacts {
            tolerance: facts.tolerance,
            error_max: facts.error_max,
            loads,
            ..SchemeFacts::new(facts.workers, cut.units(), load)
        };
        Self {
            decoder: code.decoder(),
            judge: CodeJudge::new(Arc::new(Rows::new(&*code))),
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

    /// The same code for tasks that are mixtures of their parts' data, with `wrong` Byzantine
    /// workers to be found out by the receiver of the results: all results are then folded, also
    /// those of weight 0.
    #[must_use]
    pub fn mixing(mut self, wrong: usize) -> Self {
        self.facts.mixture = true;
        self.facts.byzantine = wrong;
        self.facts.load = self.code.facts().load;
        self.facts.loads.clear();
        self
    }

    /// Groups of which any `wrong` members each may return wrong results, to be found out by a
    /// [`Verifier`](crate::codes::Verifier): with only the results told to the scheme that it has
    /// accepted.
    #[must_use]
    pub fn voting(groups: Groups, wrong: usize, cut: Cut, jobs: Range<Job>) -> Self {
        let workers = Worker::all(groups.facts().workers);
        let voting_groups = workers.map(|worker| groups.group(worker)).collect();
        let mut scheme = Self::new(Box::new(groups), cut, jobs);
        scheme.facts.tolerance -= 2 * wrong;
        scheme.facts.byzantine = wrong;
        scheme.facts.voting_groups = voting_groups;
        scheme
    }

    fn task(&self, worker: Worker) -> Task {
        Task { job: self.job, piece: worker.0, plan: 0 }
    }

    /// Whether a worker has a task to do.
    fn is_open_to(&self, worker: Worker) -> bool {
        !self.closed && self.job < self.end && !self.returned.contains(worker)
    }

    /// The decoder as it would be if all but `missing` had answered.
    fn supposed(&self, missing: &WorkerSet) -> (Box<dyn Decoder>, bool) {
        let mut decoder = self.code.decoder();
        let mut decodable = false;
        for worker in missing.complement().iter() {
            decodable |= decoder.arrive(worker) == Status::Decodable;
        }
        (decoder, decodable)
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

    /// Decides on weights for what has come, and how good they are.
    fn decode(&mut self) -> Report {
        let decoder = &mut *self.decoder;
        let (report, defect) = self.judge.weigh(decoder, &self.returned);
        self.facts.defect = defect;
        report
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

impl Scheme for OneRound {
    fn facts(&self) -> &SchemeFacts {
        &self.facts
    }

    fn assign(&mut self, worker: Worker, out: &mut Vec<Task>) {
        if self.is_open_to(worker) {
            out.push(self.task(worker));
        }
    }

    fn parts(&self, worker: Worker, _: Task) -> &[Part] {
        &self.parts[worker.index()]
    }

    fn returned(&mut self, worker: Worker, task: Task) -> ResultUse {
        if self.closed || task != self.task(worker) || !self.returned.insert(worker) {
            return ResultUse::Unwanted;
        }
        self.decodable |= self.decoder.arrive(worker) == Status::Decodable;
        ResultUse::Wanted
    }

    fn on(&mut self, event: RoundEvent<'_>) -> bool {
        match event {
            RoundEvent::Opened { .. } if self.closed => self.open_next(),
            RoundEvent::Lost { worker, from, reopened } => self.lost(worker, from, reopened),
            _ => {}
        }
        true
    }

    fn admits(&self, missing: &WorkerSet) -> bool {
        let exact_match = self.returned.len() + missing.len() == self.facts.workers
            && missing.iter().all(|w| !self.returned.contains(w));
        if exact_match { self.decodable } else { self.supposed(missing).1 }
    }

    fn quality(&mut self) -> Report {
        self.decode()
    }

    fn outlook(&self, gone: &WorkerSet) -> Outlook {
        if self.admits(gone) {
            return Outlook::Open;
        }
        if self.supposed(gone).0.can_degrade() {
            return Outlook::Degradable;
        }
        let units = unheld(&*self.code, gone).map(|share| self.shares[share.index()]).collect();
        Outlook::Blocked { jobs: vec![self.job], units }
    }

    fn close(&mut self, missing: &WorkerSet, _: &[Option<f64>], decoded: &mut Vec<Job>) {
        assert!(!self.closed && self.job < self.end, "a round is open");
        assert!(
            missing.iter().all(|worker| !self.returned.contains(worker)),
            "the missing have not answered"
        );
        self.closed = true;
        decoded.push(self.job);
    }

    fn settle(&mut self, _: Job, out: &mut Vec<WeightedResult>) -> Report {
        assert!(self.closed, "weights are final when the round is closed");
        let report = self.decode();
        let counts = |(worker, weight): &(Worker, &f64)| {
            **weight != 0.0 || self.facts.mixture && self.returned.contains(*worker)
        };
        let used = Worker::all(self.facts.workers).zip(self.judge.weights()).filter(counts);
        out.extend(used.map(|(worker, &weight)| WeightedResult {
            worker,
            task: self.task(worker),
            weight,
        }));
        report
    }

    fn restart(&mut self, jobs: Range<Job>) {
        self.open_next();
        self.job = jobs.start;
        self.end = jobs.end;
    }

    fn fast_forward(&mut self) -> Option<&mut dyn FastForward> {
        Some(self)
    }
}

impl FastForward for OneRound {
    fn runs(&mut self, worker: Worker, out: &mut Vec<Run>) {
        if self.is_open_to(worker) {
            let units = self.facts.units_of(&self.parts[worker.index()]);
            out.push(Run::one(worker, self.task(worker), units));
        }
    }

    /// One of the answers' times, since every worker answers once. Where workers vote it is the
    /// [`Verifier`](crate::codes::Verifier) that decides.
    fn closes_at(&self, runs: &[Run], ends: &[f64]) -> Option<f64> {
        if runs.len() != self.facts.workers || !self.facts.voting_groups.is_empty() {
            return None;
        }
        if let Some(at) = self.code.decodable_at(ends) {
            return Some(at);
        }
        let mut order: Vec<Worker> = Worker::all(ends.len()).collect();
        order.sort_unstable_by(|a, b| ends[a.index()].total_cmp(&ends[b.index()]).then(a.cmp(b)));
        let mut decoder = self.code.decoder();
        let last = order.into_iter().find(|worker| decoder.arrive(*worker) == Status::Decodable);
        last.map(|worker| ends[worker.index()])
    }
}

#[cfg(test)]
mod tests;
