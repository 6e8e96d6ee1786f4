//! Deferred shares: what is late is dealt to fast workers one round later.
//!
//! # Construction
//! Every worker has one share of every job, `cut` units. A round closes when at most `cap` workers have not
//! finished theirs. What they had finished by then counts; what they still owe is dealt in bundles to the
//! workers that were fast, in front of their next share, due by round `job + T`.
//!
//! # Guarantee
//! Every job is complete by the end of round `job + T`, whatever the delays; every unit counts exactly
//! once. There is no straggler model and nothing is refused.
//!
//! # Cost
//! A round is O(n log n + n cut). Redundancy only for copies of due bundles.
//!
//! # Numerics
//! All weights are 1.
//!
//! # Source
//! Own. The stream of jobs with a delay is that of Krishnan, Ebrahimi, Khisti (arXiv 2211.13802); moving
//! leftovers to other workers is known from Work Exchange and FlexRR; closing on the fastest `n - cap` from
//! backup workers, which drop the rest (Chen et al., arXiv 1604.00981).

use crate::codes::sequential::{Fold, Horizon, Scheme, SchemeFacts, UNCODED};
use crate::codes::{ParameterError, Report};
use crate::ids::{Job, Part, Task, Units, Worker, WorkerSet};
use std::collections::VecDeque;
use std::ops::Range;

/// Weight of the past in a worker's score.
const MEMORY: f64 = 0.7;
/// Score of a round that a worker did not finish in time.
const LATE: f64 = 2.0;

/// Parameters of deferred shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeferParameters {
    /// `T`: rounds a job may take beyond its first.
    pub delay: usize,
    /// Workers whose share need not be finished for a round to close.
    pub cap: usize,
    /// Units of a share.
    pub cut: usize,
    /// Holders of a bundle that is due.
    pub copies: usize,
}

/// Deferred shares over a range of jobs. Piece `i cut + u` is unit `u` of worker `i`'s share; higher pieces
/// are bundles of units that were left.
///
/// # Formula
/// ```text
/// slots = max(T copies, n - cap)     total = units left of all jobs     c_j = copies if job j is due, else 1
/// k_j = min(m_j, max(1, floor(floor(slots m_j / total) / c_j)))   bundles for the m_j units left of job j
/// score = 0.7 score + 0.3 (finishing time / closing time, or 2 if late)
/// ```
///
/// ```
/// use codedgrad::codes::feedback::{Defer, DeferParameters};
/// use codedgrad::codes::sequential::{Accept, Horizon, Scheme};
/// use codedgrad::ids::{Job, Worker, WorkerSet};
/// let horizon = Horizon { workers: 3, units: None, jobs: Job(0)..Job(2), accept: Accept::Lookahead };
/// let mut defer = Defer::new(DeferParameters { delay: 1, cap: 1, cut: 2, copies: 1 }, horizon)?;
/// let (mut tasks, mut decoded) = (Vec::new(), Vec::new());
/// for worker in [0, 1, 2].map(Worker) {
///     tasks.clear();
///     defer.assign(worker, &mut tasks);
///     let finished = if worker == Worker(2) { 1 } else { 2 };
///     tasks[..finished].iter().for_each(|task| assert!(defer.returned(worker, *task)));
/// }
/// let late = WorkerSet::of(3, [Worker(2)]);
/// assert!(defer.admits(&late));
/// defer.close(&late, &mut decoded);
/// assert!(decoded.is_empty(), "one unit is left");
/// tasks.clear();
/// defer.assign(Worker(0), &mut tasks);
/// assert_eq!(tasks.len(), 3, "worker 0 was fast: it takes the unit on");
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
pub struct Defer {
    facts: SchemeFacts,
    parameters: DeferParameters,
    own: Vec<[Part; 1]>,
    /// Jobs of which units may be left, oldest first.
    open: VecDeque<Open>,
    bundles: Vec<Bundle>,
    /// The bundle of every worker, and who has not yet finished its own.
    bundle_of: Vec<Option<usize>>,
    at_bundle: WorkerSet,
    score: Vec<f64>,
    jobs: Range<Job>,
    round: Job,
    assigned: WorkerSet,
    /// Workers that have not finished their own share and may still do so.
    late: usize,
    /// Workers that will do nothing more in this round.
    gone: WorkerSet,
    /// Due bundles whose holders are all gone.
    orphans: Vec<usize>,
    due_open: usize,
    begun: bool,
    /// Late units count for the next step.
    next_step: bool,
    /// Where they do: what the last step is made of, and how many batch units that is.
    taken: (Vec<Fold>, u32),
}

struct Open {
    job: Job,
    /// Units nobody has finished: all but those of the current round's own shares.
    left: Vec<u32>,
    /// How many units of its own share every worker has finished.
    finished: Vec<u32>,
    /// Bundles that were finished: by whom, and their units.
    bundles: Vec<(Worker, Task, Vec<u32>)>,
    /// Units that were finished and lost again; left at the close of the round.
    lost: Vec<u32>,
    decoded: bool,
    refused: bool,
}

struct Bundle {
    task: Task,
    units: Vec<u32>,
    parts: Vec<Part>,
    due: bool,
    finished: bool,
}

impl Defer {
    /// # Errors
    /// [`ParameterError::Conditions`] unless `T >= 1`, `cap < n`, `cut >= 1`, `copies >= 1` and
    /// `T copies <= n`; [`ParameterError::Cut`] when the batch has fewer units than `n cut`.
    pub fn new(parameters: DeferParameters, horizon: Horizon) -> Result<Self, ParameterError> {
        let DeferParameters { delay, cap, cut, copies } = parameters;
        let Horizon { workers, units, jobs, .. } = horizon;
        let wrong = |problem: String| Err(ParameterError::Conditions { scheme: "defer", problem });
        if workers == 0 {
            return Err(ParameterError::NoWorkers);
        }
        if delay == 0 || cut == 0 || copies == 0 {
            return wrong(format!("T={delay}, cut={cut}, copies={copies}: each must be 1 or more"));
        }
        if cap >= workers {
            return wrong(format!("cap={cap} of {workers} workers: cap must be at most {}", workers - 1));
        }
        if delay.saturating_mul(copies) > workers {
            let (t, c) = ((workers / copies).max(1), workers / delay);
            return wrong(format!("T={delay} x copies={copies} is more than {workers} workers: take T={t} or copies={}", c.max(1)));
        }
        let own = super::equal_parts(workers, super::pieces("defer", workers, cut)?, units)?;
        Ok(Self {
            facts: super::facts(workers, units.unwrap_or((workers * cut) as u32), delay, 1.0 / workers as f64),
            parameters,
            own,
            open: VecDeque::new(),
            bundles: Vec::new(),
            bundle_of: vec![None; workers],
            at_bundle: WorkerSet::empty(workers),
            score: vec![0.0; workers],
            round: jobs.start,
            jobs,
            assigned: WorkerSet::empty(workers),
            late: 0,
            gone: WorkerSet::empty(workers),
            orphans: Vec::new(),
            due_open: 0,
            begun: false,
            next_step: false,
            taken: (Vec::new(), 0),
        })
    }

    /// The same for one model without accumulation: what is late counts for the next step, computed at its
    /// parameters. Step `t` is the sum of what was finished in its round, divided by how much that is, so that steps
    /// differ in how many samples they have; the last one waits for everybody. Every sample counts exactly once, and
    /// the delay is 0.
    ///
    /// ```
    /// use codedgrad::codes::{feedback::{Defer, DeferParameters}, sequential::{Accept, Horizon, Scheme}};
    /// use codedgrad::ids::{Job, Worker, WorkerSet};
    /// let horizon = Horizon { workers: 2, units: None, jobs: Job(0)..Job(2), accept: Accept::Lookahead };
    /// let parameters = DeferParameters { delay: 1, cap: 1, cut: 2, copies: 1 };
    /// let mut defer = Defer::new(parameters, horizon)?.to_next_step();
    /// let (mut tasks, mut decoded, mut folds) = (Vec::new(), Vec::new(), Vec::new());
    /// for (worker, finished) in [(Worker(0), 2), (Worker(1), 1)] {
    ///     tasks.clear();
    ///     defer.assign(worker, &mut tasks);
    ///     tasks[..finished].iter().for_each(|task| assert!(defer.returned(worker, *task)));
    /// }
    /// defer.close(&WorkerSet::of(2, [Worker(1)]), &mut decoded);
    /// assert_eq!((defer.settle(Job(0), &mut folds).coverage, folds[0].weight), (0.75, 4.0 / 3.0));
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    #[must_use]
    pub fn to_next_step(mut self) -> Self {
        self.next_step = true;
        self.facts.delay = 0;
        self
    }

    /// Workers whose own share need not be finished in this round.
    fn cap(&self) -> usize {
        let last = self.next_step && self.round.next() == self.jobs.end;
        if self.has_own() && !last { self.parameters.cap } else { 0 }
    }

    /// Takes everything that was finished in a round for its step.
    fn take_step(&mut self, folds: Vec<Fold>) {
        let units = folds.iter().flat_map(|fold| self.parts(fold.worker, fold.task)).map(|part| part.units.count()).sum();
        self.taken = (folds, units);
    }

    /// Whether the current round has a job of its own.
    fn has_own(&self) -> bool {
        self.jobs.contains(&self.round)
    }

    fn begin(&mut self) {
        self.begun = true;
        self.assigned.clear();
        self.gone.clear();
        self.open.retain(|open| !open.decoded);
        self.deal();
        if self.has_own() {
            let finished = vec![0; self.facts.workers];
            self.open.push_back(Open {
                job: self.round,
                left: Vec::new(),
                finished,
                bundles: Vec::new(),
                lost: Vec::new(),
                decoded: false,
                refused: false,
            });
            self.late = self.facts.workers;
        } else {
            self.late = 0;
        }
        let holders = Worker::all(self.facts.workers).filter(|worker| self.bundle_of[worker.index()].is_some());
        self.at_bundle = WorkerSet::of(self.facts.workers, holders);
        self.due_open = self.bundles.iter().filter(|bundle| bundle.due).count();
    }

    /// Cuts what is left into bundles and gives them to the workers with the best scores.
    fn deal(&mut self) {
        let copies = self.parameters.copies;
        self.bundles.clear();
        self.bundle_of.fill(None);
        let sizes = self.bundle_counts();
        for (open, &(count, due)) in self.open.iter().zip(&sizes) {
            let age = (self.round.0 - open.job.0) as usize;
            let first_piece = self.own.len() + (age - 1) * self.slots();
            let (size, longer) = (open.left.len() / count, open.left.len() % count);
            let mut start = 0;
            for place in 0..count {
                let end = start + size + usize::from(place < longer);
                let units = open.left[start..end].to_vec();
                let task = Task { job: open.job, piece: (first_piece + place) as u32 };
                let parts = units.iter().map(|unit| self.own[*unit as usize][0]).collect();
                self.bundles.push(Bundle { task, units, parts, due, finished: false });
                start = end;
            }
        }
        let mut ranked: Vec<usize> = (0..self.facts.workers).collect();
        ranked.sort_by(|a, b| self.score[*a].total_cmp(&self.score[*b]).then(a.cmp(b)));
        let due = self.bundles.iter().filter(|bundle| bundle.due).count();
        for (q, worker) in ranked.iter().take(self.bundles.len()).enumerate() {
            self.bundle_of[*worker] = Some(q);
        }
        let copied = (1..copies).flat_map(|_| 0..due);
        for (worker, q) in ranked.iter().skip(self.bundles.len()).zip(copied) {
            self.bundle_of[*worker] = Some(q);
        }
        self.orphans = (self.facts.workers..self.bundles.len()).collect();
    }

    fn slots(&self) -> usize {
        (self.parameters.delay * self.parameters.copies).max(self.facts.workers - self.parameters.cap)
    }

    /// How many bundles each open job's units go into, and whether it is due.
    fn bundle_counts(&self) -> Vec<(usize, bool)> {
        let total: usize = self.open.iter().map(|open| open.left.len()).sum();
        let slots = self.slots();
        let last = self.next_step && self.round.next() == self.jobs.end;
        let due = |open: &Open| !self.has_own() || last || self.round.0 - open.job.0 >= self.parameters.delay as u64;
        let copies = |due: bool| if due { self.parameters.copies } else { 1 };
        let count = |open: &Open| {
            let (left, due) = (open.left.len(), due(open));
            (left.min((slots * left / total / copies(due)).max(1)), due)
        };
        let mut counts: Vec<(usize, bool)> = self.open.iter().map(count).collect();
        while counts.iter().map(|&(count, due)| count * copies(due)).sum::<usize>() > slots {
            let most = counts.iter().map(|count| count.0).max().unwrap_or(0);
            // Only after losses is there more due than fits: then there are fewer copies.
            let Some(largest) = counts.iter_mut().find(|count| count.0 == most && most > 1) else { break };
            largest.0 -= 1;
        }
        counts
    }
}

impl Scheme for Defer {
    fn facts(&self) -> &SchemeFacts {
        &self.facts
    }

    fn assign(&mut self, worker: Worker, out: &mut Vec<Task>) {
        if !self.begun {
            self.begin();
        }
        if !self.assigned.insert(worker) {
            if let Some(q) = self.orphans.pop() {
                self.bundle_of[worker.index()] = Some(q);
                self.at_bundle.insert(worker);
                out.push(self.bundles[q].task);
            }
            return;
        }
        out.extend(self.bundle_of[worker.index()].map(|q| self.bundles[q].task));
        if self.has_own() {
            let (cut, job) = (self.parameters.cut as u32, self.round);
            out.extend((worker.0 * cut..(worker.0 + 1) * cut).map(|piece| Task { job, piece }));
        }
    }

    fn parts(&self, worker: Worker, task: Task) -> &[Part] {
        match self.own.get(task.piece as usize) {
            Some(part) => part,
            None => self.bundle_of[worker.index()].map_or(&[], |q| &self.bundles[q].parts),
        }
    }

    fn decisive(&self, _: Worker, task: Task) -> bool {
        let piece = task.piece as usize;
        piece >= self.own.len() || (piece + 1).is_multiple_of(self.parameters.cut)
    }

    /// `n` a unit of an own share, `d` a bundle of deferred ones.
    fn label(&self, task: Task, age: usize) -> String {
        format!("{}.{}", if age == 0 { "n" } else { "d" }, task.job.0 + 1)
    }

    fn returned(&mut self, worker: Worker, task: Task) -> bool {
        if !self.begun || self.gone.contains(worker) {
            return false;
        }
        if task.piece as usize >= self.own.len() {
            let held = self.bundle_of[worker.index()].map(|q| &mut self.bundles[q]);
            let Some(bundle) = held.filter(|bundle| bundle.task == task) else { return false };
            if !self.at_bundle.remove(worker) || bundle.finished {
                return false;
            }
            bundle.finished = true;
            self.due_open -= usize::from(bundle.due);
            let units = bundle.units.clone();
            if let Some(open) = self.open.iter_mut().find(|open| open.job == task.job) {
                open.bundles.push((worker, task, units));
            }
            return true;
        }
        let cut = self.parameters.cut as u32;
        let current = task.job == self.round;
        let Some(open) = self.open.back_mut().filter(|open| current && open.job == task.job) else { return false };
        let finished = &mut open.finished[worker.index()];
        if *finished == cut || task.piece != worker.0 * cut + *finished {
            return false;
        }
        *finished += 1;
        self.late -= usize::from(*finished == cut);
        true
    }

    fn admits(&self, _: &WorkerSet) -> bool {
        self.due_open == 0 && self.late <= self.cap()
    }

    fn hopes(&self, gone: &WorkerSet) -> bool {
        gone.len() < self.facts.workers || self.admits(gone)
    }

    fn blocked(&self, _: &WorkerSet) -> Vec<Job> {
        let mut jobs: Vec<Job> =
            self.bundles.iter().filter(|bundle| bundle.due && !bundle.finished).map(|bundle| bundle.task.job).collect();
        jobs.extend(Some(self.round).filter(|_| jobs.is_empty() && self.has_own()));
        jobs.sort_unstable();
        jobs.dedup();
        jobs
    }

    fn give_up(&mut self, job: Job) {
        for bundle in self.bundles.iter_mut().filter(|bundle| bundle.task.job == job && !bundle.finished) {
            bundle.finished = true;
            self.due_open -= usize::from(bundle.due);
        }
        self.orphans.retain(|q| !self.bundles[*q].finished);
        self.open.retain(|open| open.job != job);
        if self.begun && self.round == job {
            self.late = 0;
        }
    }

    fn restart(&mut self, jobs: Range<Job>) {
        self.open.clear();
        self.bundles.clear();
        self.orphans.clear();
        self.begun = false;
        self.round = jobs.start;
        self.jobs = jobs;
    }

    fn gone(&mut self, worker: Worker) {
        if !self.begun || !self.gone.insert(worker) {
            return;
        }
        let unfinished = |open: &&Open| open.job == self.round && open.finished[worker.index()] < self.parameters.cut as u32;
        self.late -= usize::from(self.open.back().filter(unfinished).is_some());
        self.at_bundle.remove(worker);
        let Some(q) = self.bundle_of[worker.index()].filter(|q| self.bundles[*q].due && !self.bundles[*q].finished) else { return };
        let held = Worker::all(self.facts.workers).any(|other| self.bundle_of[other.index()] == Some(q) && self.at_bundle.contains(other));
        if !held && !self.orphans.contains(&q) {
            self.orphans.push(q);
        }
    }

    fn quality(&mut self) -> Report {
        UNCODED
    }

    fn observe(&mut self, worker: Worker, ratio: Option<f64>) {
        let score = &mut self.score[worker.index()];
        *score = MEMORY * *score + (1.0 - MEMORY) * ratio.unwrap_or(LATE);
    }

    fn close(&mut self, _: &WorkerSet, decoded: &mut Vec<Job>) {
        if !self.begun {
            self.begin();
        }
        self.begun = false;
        self.open.iter_mut().for_each(|open| open.left.clear());
        for bundle in self.bundles.iter().filter(|bundle| !bundle.finished) {
            if let Some(open) = self.open.iter_mut().find(|open| open.job == bundle.task.job) {
                open.left.extend(&bundle.units);
            }
        }
        for open in &mut self.open {
            open.left.append(&mut open.lost);
            open.left.sort_unstable();
        }
        if let (true, Some(open)) = (self.has_own(), self.open.back_mut()) {
            let cut = self.parameters.cut as u32;
            let owed = |(i, done): (u32, &u32)| i * cut + done..(i + 1) * cut;
            open.left = (0..).zip(&open.finished).flat_map(owed).collect();
        }
        for open in self.open.iter_mut().filter(|open| open.left.is_empty()) {
            open.decoded = true;
            decoded.push(open.job);
        }
        self.round = self.round.next();
    }

    fn settle(&mut self, job: Job, folds: &mut Vec<Fold>) -> Report {
        let Some(open) = self.open.iter().find(|open| open.job == job) else { return UNCODED };
        let cut = self.parameters.cut as u32;
        let mut won: Vec<(u32, Worker, Task)> = open.bundles.iter().map(|(worker, task, units)| (units[0], *worker, *task)).collect();
        for (worker, finished) in Worker::all(self.facts.workers).zip(&open.finished) {
            let pieces = worker.0 * cut..worker.0 * cut + finished;
            won.extend(pieces.map(|piece| (piece, worker, Task { job, piece })));
        }
        won.sort_unstable();
        folds.extend(won.into_iter().map(|(_, worker, task)| Fold { worker, task, weight: 1.0 }));
        UNCODED
    }

    fn lost(&mut self, worker: Worker, from: Option<Job>, reopened: &mut Vec<Task>) {
        let cut = self.parameters.cut as u32;
        let endangered = |open: &&mut Open| !open.decoded || from.is_some_and(|from| open.job >= from);
        for open in self.open.iter_mut().filter(endangered) {
            let finished = std::mem::take(&mut open.finished[worker.index()]);
            let own = worker.0 * cut..worker.0 * cut + finished;
            let current = self.begun && open.job == self.round;
            self.late += usize::from(current && finished == cut);
            reopened.extend(own.clone().map(|piece| Task { job: open.job, piece }));
            // What the current round's bundles and own shares lose is left at its close by itself.
            let mut again: Vec<u32> = if current { Vec::new() } else { own.collect() };
            for (_, task, units) in open.bundles.extract_if(.., |bundle| bundle.0 == worker) {
                reopened.push(task);
                match self.bundles.iter_mut().find(|bundle| self.begun && bundle.task == task) {
                    Some(bundle) => {
                        bundle.finished = false;
                        self.due_open += usize::from(bundle.due);
                    }
                    None => again.extend(units),
                }
            }
            open.decoded &= again.is_empty();
            if self.begun { &mut open.lost } else { &mut open.left }.extend(again);
            open.left.sort_unstable();
        }
        self.gone(worker);
    }

    fn uncovered(&self, _: &WorkerSet) -> Vec<Units> {
        self.open.iter().flat_map(|open| &open.left).map(|unit| self.own[*unit as usize][0].units).collect()
    }
}
