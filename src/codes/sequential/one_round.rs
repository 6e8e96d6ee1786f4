//! Any one-round code as a scheme: job `t` is computed and decoded in round `t`.

use super::scheme::{FastForward, Outlook, ResultUse, RoundEvent, Scheme, Settle};
use super::{SchemeFacts, UNCODED, unheld};
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

    fn settle(&mut self, what: Settle, out: &mut Vec<WeightedResult>) -> Report {
        assert!(self.closed, "weights are final when the round is closed");
        if what == Settle::Round {
            return UNCODED;
        }
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
mod tests {
    use super::*;

    fn one_round() -> OneRound {
        OneRound::new(Box::new(Groups::new(4, 2).unwrap()), Cut::new(4, 2).unwrap(), Job(5)..Job(7))
    }

    fn answer(scheme: &mut OneRound, worker: u32) -> bool {
        let mut tasks = Vec::new();
        scheme.assign(Worker(worker), &mut tasks);
        let wanted = |task| scheme.returned(Worker(worker), task) == ResultUse::Wanted;
        tasks.pop().is_some_and(wanted)
    }

    fn close(scheme: &mut OneRound, missing: &[u32]) -> Vec<Job> {
        let mut decoded = Vec::new();
        let missing = WorkerSet::of(4, missing.iter().copied().map(Worker));
        scheme.close(&missing, &[None; 4], &mut decoded);
        decoded
    }

    fn open(scheme: &mut OneRound) {
        assert!(scheme.on(RoundEvent::Opened { dead: &WorkerSet::empty(4) }));
    }

    fn lose(scheme: &mut OneRound, worker: u32) -> Vec<Task> {
        let mut reopened = Vec::new();
        let (worker, from) = (Worker(worker), Some(Job(5)));
        scheme.on(RoundEvent::Lost { worker, from, reopened: &mut reopened });
        reopened
    }

    #[test]
    fn late_and_repeated_results_are_not_wanted() {
        let mut scheme = one_round();
        let old = Task { job: Job(5), piece: 1, plan: 0 };
        assert!(answer(&mut scheme, 0) && answer(&mut scheme, 2));
        let again = Task { job: Job(5), piece: 0, plan: 0 };
        assert_eq!(scheme.returned(Worker(0), again), ResultUse::Unwanted);
        assert!(scheme.admits(&WorkerSet::of(4, [Worker(1), Worker(3)])));
        assert_eq!(close(&mut scheme, &[1, 3]), [Job(5)]);
        assert_eq!(scheme.returned(Worker(1), old), ResultUse::Unwanted, "closed");
        assert!(!answer(&mut scheme, 1), "no round is open");
        open(&mut scheme);
        assert!(answer(&mut scheme, 1), "the next round has begun");
        assert_eq!(scheme.returned(Worker(1), old), ResultUse::Unwanted);
    }

    #[test]
    fn a_lost_holder_reopens_only_what_nobody_else_has() {
        let mut scheme = one_round();
        for worker in 0..3 {
            assert!(answer(&mut scheme, worker));
        }
        close(&mut scheme, &[3]);
        assert_eq!(lose(&mut scheme, 0), [], "worker 1 holds the same share");
        let mut results = Vec::new();
        scheme.settle(Settle::Job(Job(5)), &mut results);
        assert_eq!(results.iter().map(|result| result.worker.0).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(lose(&mut scheme, 2), [Task { job: Job(5), piece: 2, plan: 0 }]);
        assert!(!scheme.admits(&WorkerSet::of(4, [0, 2, 3].map(Worker))));
        assert!(answer(&mut scheme, 3) && scheme.admits(&WorkerSet::of(4, [0, 2].map(Worker))));
    }

    #[test]
    fn jobs_end() {
        let mut scheme = one_round();
        for _ in 0..2 {
            assert!(answer(&mut scheme, 0) && answer(&mut scheme, 3));
            close(&mut scheme, &[1, 2]);
            open(&mut scheme);
        }
        assert!(!answer(&mut scheme, 0));
    }

    #[test]
    fn units_that_nobody_can_supply_are_named() {
        let scheme = one_round();
        assert_eq!(scheme.outlook(&WorkerSet::of(4, [Worker(0), Worker(2)])), Outlook::Open);
        assert_eq!(
            scheme.outlook(&WorkerSet::of(4, [Worker(2), Worker(3)])),
            Outlook::Blocked { jobs: vec![Job(5)], units: vec![Units { start: 2, end: 4 }] }
        );
    }
}
