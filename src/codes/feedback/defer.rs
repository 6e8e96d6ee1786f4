//! Deferred shares: what is late is dealt to fast workers one round later.
//!
//! # Construction
//! Every worker has one share of every job, `cut` units. A round closes when at most `cap` workers
//! have not finished theirs. What they had finished by then counts; what they still owe is dealt in
//! bundles to the workers that were fast, in front of their next share, due by round `job + T`.
//!
//! # Guarantee
//! Every job is complete by the end of round `job + T`, whatever the delays; every unit counts
//! exactly once. There is no straggler model and nothing is refused.
//!
//! # Cost
//! A round is O(n log n + u) for `u` units left over. Redundancy only for copies of due bundles.
//!
//! # Numerics
//! All weights are 1.
//!
//! # Source
//! Own. The stream of jobs with a delay is that of Krishnan, Ebrahimi, Khisti (arXiv 2211.13802);
//! moving leftovers to other workers is known from Work Exchange and FlexRR; closing on the fastest
//! `n - cap` from backup workers, which drop the rest (Chen et al., arXiv 1604.00981).

mod bundles;
mod scores;

use crate::codes::family::{Family, Recipe, Space, Traits, doublings, keyed};
use crate::codes::sequential::{Fold, Horizon, Scheme, SchemeFacts, UNCODED};
use crate::codes::{ParameterError, Report};
use crate::ids::{Job, Part, Run, Task, Units, Worker, WorkerSet};
use bundles::Bundles;
use scores::Scores;
use std::collections::VecDeque;
use std::ops::Range;

/// Most copies of what is owed that the planner tries.
const COPIES_TRIED_MAX: usize = 4;

/// Deferred shares.
pub(in crate::codes) const FAMILY: Family = Family {
    name: "defer",
    examples: &["defer:T=1,cap=2,cut=4,copies=1"],
    summary: "what up to cap late workers owe is done by others in the next T rounds, cut times \
        as fine; no more work than uncoded",
    traits: Traits { feedback: true, delay: true, ..Traits::NONE },
    spaces: Some(|limits| {
        vec![Space::of([
            keyed("T", 1..=limits.max_delay),
            keyed("cap", 1..limits.workers),
            keyed("cut", doublings(limits.cut)),
            keyed("copies", 1..=COPIES_TRIED_MAX),
        ])]
    }),
    ..Family::new(|fields| {
        let parameters = DeferParameters {
            delay: fields.take("T")?.unwrap_or(1),
            cap: fields.need("cap")?,
            cut: fields.take("cut")?.unwrap_or(1),
            copies: fields.take("copies")?.unwrap_or(1),
        };
        let make = move |horizon| Defer::new(parameters, horizon);
        let next = Recipe::scheme(move |horizon| Ok(make(horizon)?.to_next_step()));
        Ok(Recipe::scheme(make).deferring_to_next_step(next))
    })
};

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

/// Deferred shares over a range of jobs. Piece `i cut + u` is unit `u` of worker `i`'s share;
/// higher pieces are bundles of units that were left.
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
/// let horizon =
///     Horizon { workers: 3, units: None, jobs: Job(0)..Job(2), accept: Accept::Lookahead };
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
    /// Batch units of every worker's share.
    share_units: Vec<u32>,
    /// Jobs of which units may be left, oldest first.
    open: VecDeque<Open>,
    bundles: Bundles,
    scores: Scores,
    jobs: Range<Job>,
    round: Job,
    assigned: WorkerSet,
    /// Workers that have not finished their own share and may still do so.
    late: usize,
    /// Workers that will do nothing more in this round.
    gone: WorkerSet,
    begun: bool,
    /// Where late units count for the next step.
    next_step: Option<NextStep>,
}

/// What passes from one step to the next where late units count for that.
struct NextStep {
    /// What the last step is made of, and how many batch units that is.
    taken: (Vec<Fold>, u32),
    /// What was left when the last round to begin began.
    carried: (Job, VecDeque<Open>),
}

#[derive(Clone)]
struct Open {
    job: Job,
    /// Units nobody has finished: all but those of the current round's own shares.
    left: Vec<u32>,
    /// How many units of its own share every worker has finished.
    finished: Vec<u32>,
    /// Units that were dealt in bundles, round after round, and their parts.
    dealt: Vec<u32>,
    parts: Vec<Part>,
    /// Bundles that were finished: by whom, and which of the dealt units.
    bundles: Vec<(Worker, Task, Range<usize>)>,
    /// Units that were finished and lost again; left at the close of the round.
    lost: Vec<u32>,
    decoded: bool,
    refused: bool,
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
            return wrong(format!(
                "cap={cap} of {workers} workers: cap must be at most {}",
                workers - 1
            ));
        }
        if delay.saturating_mul(copies) > workers {
            let (t, c) = ((workers / copies).max(1), workers / delay);
            return wrong(format!(
                "T={delay} x copies={copies} is more than {workers} workers: take T={t} or \
                 copies={}",
                c.max(1)
            ));
        }
        let own = super::equal_parts(workers, super::pieces("defer", workers, cut)?, units)?;
        Ok(Self {
            // All that a worker has to do goes with the order that opens the round.
            facts: SchemeFacts {
                pulls: false,
                ..super::facts(
                    workers,
                    units.unwrap_or((workers * cut) as u32),
                    delay,
                    1.0 / workers as f64,
                )
            },
            parameters,
            share_units: own
                .chunks(cut)
                .map(|share| share[cut - 1][0].units.end - share[0][0].units.start)
                .collect(),
            own,
            open: VecDeque::new(),
            bundles: Bundles::new(workers),
            scores: Scores::new(workers),
            round: jobs.start,
            jobs,
            assigned: WorkerSet::empty(workers),
            late: 0,
            gone: WorkerSet::empty(workers),
            begun: false,
            next_step: None,
        })
    }

    /// The same for one model without accumulation: what is late counts for the next step, computed
    /// at its parameters. Step `t` is the sum of what was finished in its round, divided by how
    /// much that is, so that steps differ in how many samples they have; the last one waits for
    /// everybody. Every sample counts exactly once, and the delay is 0.
    ///
    /// ```
    /// use codedgrad::codes::{
    ///     feedback::{Defer, DeferParameters},
    ///     sequential::{Accept, Horizon, Scheme},
    /// };
    /// use codedgrad::ids::{Job, Worker, WorkerSet};
    /// let horizon =
    ///     Horizon { workers: 2, units: None, jobs: Job(0)..Job(2), accept: Accept::Lookahead };
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
        self.next_step =
            Some(NextStep { taken: (Vec::new(), 0), carried: (self.jobs.start, VecDeque::new()) });
        self.facts.delay = 0;
        self
    }

    /// Whether nothing can be left for a next step.
    fn is_last(&self) -> bool {
        self.next_step.is_some() && self.round.next() == self.jobs.end
    }

    /// Workers whose own share need not be finished in this round.
    fn cap(&self) -> usize {
        if self.has_own() && !self.is_last() { self.parameters.cap } else { 0 }
    }

    /// Everything that was finished in a round, for its step, and how many batch units that is.
    fn take_step(&mut self) -> (Vec<Fold>, u32) {
        let mut folds = Vec::new();
        self.open.iter().for_each(|open| self.won(open, &mut folds));
        let own = folds
            .iter()
            .filter_map(|fold| self.own.get(fold.task.piece as usize))
            .map(|part| part[0].units.count());
        let bundles = self.open.iter().flat_map(|open| {
            open.bundles.iter().flat_map(|(_, _, range)| &open.parts[range.clone()])
        });
        let units = own.sum::<u32>() + bundles.map(|part| part.units.count()).sum::<u32>();
        for open in &mut self.open {
            open.finished.fill(0);
            open.bundles.clear();
        }
        (folds, units)
    }

    /// What was finished of a job, in the order of its units.
    fn won(&self, open: &Open, folds: &mut Vec<Fold>) {
        let (cut, job) = (self.parameters.cut as u32, open.job);
        let mut won: Vec<(u32, Worker, Task)> = open
            .bundles
            .iter()
            .map(|(worker, task, units)| (open.dealt[units.start], *worker, *task))
            .collect();
        for (worker, finished) in Worker::all(self.facts.workers).zip(&open.finished) {
            let pieces = worker.0 * cut..worker.0 * cut + finished;
            won.extend(pieces.map(|piece| (piece, worker, Task { job, piece, plan: 0 })));
        }
        won.sort_unstable();
        folds.extend(won.into_iter().map(|(_, worker, task)| Fold { worker, task, weight: 1.0 }));
    }

    /// Whether anything was finished in this round.
    fn has_some(&self) -> bool {
        self.open.iter().any(|open| {
            !open.bundles.is_empty() || open.finished.iter().any(|finished| *finished > 0)
        })
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
        if let Some(next_step) = &mut self.next_step {
            next_step.carried = (self.round, self.open.clone());
        }
        self.deal();
        self.late = 0;
        if self.has_own() {
            self.late = self.facts.workers;
            self.open.push_back(Open {
                job: self.round,
                left: Vec::new(),
                finished: vec![0; self.facts.workers],
                dealt: Vec::new(),
                parts: Vec::new(),
                bundles: Vec::with_capacity(self.slots()),
                lost: Vec::new(),
                decoded: false,
                refused: false,
            });
        }
    }

    fn slots(&self) -> usize {
        (self.parameters.delay * self.parameters.copies)
            .max(self.facts.workers - self.parameters.cap)
    }

    /// Hands out a worker's bundle and its own share, as far as there are any.
    fn hand_out(&mut self, worker: Worker, mut give: impl FnMut(Run)) {
        self.open();
        let first = self.assigned.insert(worker);
        let nothing_yet = !self.has_own() && self.bundles.of(worker).is_none();
        if (!first || nothing_yet) && !self.bundles.adopt(worker) {
            return;
        }
        if let Some(bundle) = self.bundles.of(worker) {
            give(Run::one(worker, bundle.task, bundle.units));
        }
        if first && self.has_own() {
            let count = self.parameters.cut as u32;
            give(Run {
                worker,
                first: Task { job: self.round, piece: worker.0 * count, plan: 0 },
                count,
                units: self.share_units[worker.index()],
            });
        }
    }

    /// Takes in the next tasks of a worker's own share.
    fn own_returned(&mut self, worker: Worker, first: Task, count: u32) -> bool {
        let (cut, round) = (self.parameters.cut as u32, self.round);
        let Some(open) =
            self.open.back_mut().filter(|open| open.job == round && first.job == round)
        else {
            return false;
        };
        let finished = &mut open.finished[worker.index()];
        if first.piece != worker.0 * cut + *finished || *finished + count > cut {
            return false;
        }
        *finished += count;
        self.late -= usize::from(*finished == cut);
        true
    }
}

impl Scheme for Defer {
    fn facts(&self) -> &SchemeFacts {
        &self.facts
    }

    fn open(&mut self) {
        if !self.begun {
            self.begin();
        }
    }

    fn dropped(&mut self, worker: Worker) {
        self.assigned.remove(worker);
    }

    fn is_final(&self, _: Task) -> bool {
        self.next_step.is_none()
    }

    fn assign(&mut self, worker: Worker, out: &mut Vec<Task>) {
        self.hand_out(worker, |run| out.extend(run.tasks()));
    }

    fn assign_runs(&mut self, worker: Worker, out: &mut Vec<Run>) {
        self.hand_out(worker, |run| out.push(run));
    }

    fn parts(&self, worker: Worker, task: Task) -> &[Part] {
        match self.own.get(task.piece as usize) {
            Some(part) => part,
            None => self
                .bundles
                .of(worker)
                .map_or(&[], |bundle| &self.open[bundle.open].parts[bundle.range.clone()]),
        }
    }

    fn run_start(&self, run: Run, count: u32) -> Run {
        let first = run.first.piece as usize;
        let units = match self.own.get(first..first + count as usize) {
            Some([first, .., last]) => last[0].units.end - first[0].units.start,
            _ => run.tasks().take(count as usize).map(|task| self.units(run.worker, task)).sum(),
        };
        Run { count, units, ..run }
    }

    /// `n` a unit of an own share, `d` a bundle of deferred ones.
    fn label(&self, task: Task, age: usize) -> String {
        format!("{}.{}", if age == 0 { "n" } else { "d" }, task.job.0 + 1)
    }

    fn returned(&mut self, worker: Worker, task: Task) -> bool {
        if !self.begun || self.gone.contains(worker) {
            return false;
        }
        if (task.piece as usize) < self.own.len() {
            return self.own_returned(worker, task, 1);
        }
        let Some(bundle) = self.bundles.finish(worker, task) else { return false };
        self.open[bundle.open].bundles.push((worker, task, bundle.range.clone()));
        true
    }

    fn returned_runs(&mut self, runs: &[Run]) {
        for run in runs {
            if run.count == 1 {
                self.returned(run.worker, run.first);
            } else if self.begun && !self.gone.contains(run.worker) {
                self.own_returned(run.worker, run.first, run.count);
            }
        }
    }

    fn admits(&self, _: &WorkerSet) -> bool {
        self.bundles.are_done()
            && self.late <= self.cap()
            && (self.next_step.is_none() || self.has_some())
    }

    fn closes_at(&self, runs: &[Run], ends: &[f64]) -> Option<f64> {
        if !self.gone.is_empty() || self.bundles.has_orphans() {
            return None;
        }
        let mut own = Vec::with_capacity(self.facts.workers);
        let mut bundles = vec![f64::INFINITY; self.bundles.all().len()];
        for (run, end) in runs.iter().zip(ends) {
            if (run.first.piece as usize) < self.own.len() {
                own.push(*end);
            } else if let Some(q) = self.bundles.number_of(run.worker) {
                bundles[q] = end.min(bundles[q]);
            }
        }
        let due = self
            .bundles
            .all()
            .iter()
            .zip(bundles)
            .filter(|(bundle, _)| bundle.due)
            .fold(0.0, |last, (_, end)| end.max(last));
        let needed = self.late.saturating_sub(self.cap());
        let enough = needed.checked_sub(1).map_or(Some(0.0), |place| {
            (place < own.len()).then(|| *own.select_nth_unstable_by(place, f64::total_cmp).1)
        });
        Some(due.max(enough?))
    }

    fn hopes(&self, gone: &WorkerSet) -> bool {
        gone.len() < self.facts.workers || self.admits(gone)
    }

    fn blocked(&self, _: &WorkerSet) -> Vec<Job> {
        let mut jobs: Vec<Job> = self.bundles.due_open().map(|bundle| bundle.task.job).collect();
        jobs.extend(Some(self.round).filter(|_| jobs.is_empty() && self.has_own()));
        jobs.sort_unstable();
        jobs.dedup();
        jobs
    }

    fn give_up(&mut self, job: Job) {
        self.bundles.give_up(job);
        self.open.iter_mut().filter(|open| open.job == job).for_each(|open| open.refused = true);
        if self.begun && self.round == job {
            self.late = 0;
        }
    }

    fn undoes(&self) -> bool {
        self.next_step.is_none()
    }

    fn back(&mut self, _: Worker) -> bool {
        false
    }

    fn restart(&mut self, jobs: Range<Job>) {
        self.open.clear();
        // What earlier steps have left is still to be done when a step begins anew.
        if let Some(NextStep { carried, .. }) = &self.next_step
            && carried.0 == jobs.start
        {
            self.open.clone_from(&carried.1);
        }
        self.bundles.clear();
        self.begun = false;
        self.round = jobs.start;
        self.jobs = jobs;
    }

    fn gone(&mut self, worker: Worker) {
        if !self.begun || !self.gone.insert(worker) {
            return;
        }
        let unfinished = |open: &&Open| {
            open.job == self.round && open.finished[worker.index()] < self.parameters.cut as u32
        };
        self.late -= usize::from(self.open.back().filter(unfinished).is_some());
        self.bundles.leave(worker);
        if self.is_last() {
            let (first, cut) = (worker.0 * self.parameters.cut as u32, self.parameters.cut as u32);
            let finished = self.open.back().map_or(cut, |open| open.finished[worker.index()]);
            self.pass_on(first + finished..first + cut);
        }
        self.bundles.find_orphans();
    }

    fn quality(&mut self) -> Report {
        UNCODED
    }

    fn observe(&mut self, worker: Worker, ratio: Option<f64>) {
        self.scores.observe(worker, ratio);
    }

    fn close(&mut self, _: &WorkerSet, decoded: &mut Vec<Job>) {
        self.open();
        self.begun = false;
        self.open.iter_mut().for_each(|open| open.left.clear());
        for bundle in self.bundles.all().iter().filter(|bundle| !bundle.finished) {
            let open = &mut self.open[bundle.open];
            open.left.extend(&open.dealt[bundle.range.clone()]);
        }
        for open in &mut self.open {
            open.left.append(&mut open.lost);
            open.left.sort_unstable();
        }
        if let (true, Some(open)) = (self.has_own(), self.open.back_mut()) {
            let cut = self.parameters.cut as u32;
            for (owner, finished) in
                (0..).zip(&open.finished).filter(|(_, finished)| **finished < cut)
            {
                open.left.extend(owner * cut + finished..(owner + 1) * cut);
            }
        }
        for open in &mut self.open {
            if open.refused {
                open.left.clear();
            }
            let complete = !open.refused && open.left.is_empty();
            decoded.extend((complete && self.next_step.is_none()).then_some(open.job));
            open.decoded = open.left.is_empty();
        }
        if let Some(before) = self.next_step.take() {
            self.next_step = Some(NextStep { taken: self.take_step(), ..before });
            let current = self.open.back().filter(|open| open.job == self.round && !open.refused);
            decoded.extend(current.map(|open| open.job));
        }
        self.round = self.round.next();
    }

    fn settle(&mut self, job: Job, folds: &mut Vec<Fold>) -> Report {
        if let Some(NextStep { taken, .. }) = &self.next_step {
            let coverage = f64::from(taken.1) / f64::from(self.facts.units);
            folds.extend(taken.0.iter().map(|fold| Fold { weight: 1.0 / coverage, ..*fold }));
            return Report { coverage, amplification: coverage.sqrt().recip(), ..UNCODED };
        }
        if let Some(open) = self.open.iter().find(|open| open.job == job) {
            self.won(open, folds);
        }
        UNCODED
    }

    fn lost(&mut self, worker: Worker, from: Option<Job>, reopened: &mut Vec<Task>) {
        let cut = self.parameters.cut as u32;
        let (was_gone, mut again_now) = (self.gone.contains(worker), 0..0);
        let endangered =
            |open: &&mut Open| !open.decoded || from.is_some_and(|from| open.job >= from);
        for open in self.open.iter_mut().filter(endangered) {
            let finished = std::mem::take(&mut open.finished[worker.index()]);
            let own = worker.0 * cut..worker.0 * cut + finished;
            let current = self.begun && open.job == self.round;
            self.late += usize::from(current && finished == cut && !was_gone);
            if current {
                again_now = own.clone();
            }
            reopened.extend(own.clone().map(|piece| Task { job: open.job, piece, plan: 0 }));
            // What the current round's bundles and own shares lose is left at its close by itself.
            let mut again: Vec<u32> = if current { Vec::new() } else { own.collect() };
            for (_, task, units) in open.bundles.extract_if(.., |bundle| bundle.0 == worker) {
                reopened.push(task);
                if !(self.begun && self.bundles.reopen(task)) {
                    again.extend(&open.dealt[units]);
                }
            }
            open.decoded &= again.is_empty();
            if self.begun { &mut open.lost } else { &mut open.left }.extend(again);
            open.left.sort_unstable();
        }
        self.gone(worker);
        if was_gone && self.begun {
            if self.is_last() {
                self.pass_on(again_now);
            }
            self.bundles.find_orphans();
        }
    }

    fn uncovered(&self, _: &WorkerSet) -> Vec<Units> {
        let mut open: Vec<Units> = self
            .bundles
            .due_open()
            .flat_map(|bundle| &self.open[bundle.open].parts[bundle.range.clone()])
            .map(|part| part.units)
            .collect();
        if let (true, Some(current)) = (open.is_empty() && self.has_own(), self.open.back()) {
            let own = self.own.chunks(self.parameters.cut).zip(&current.finished);
            open.extend(
                own.flat_map(|(share, finished)| &share[*finished as usize..])
                    .map(|part| part[0].units),
            );
        }
        open
    }
}
