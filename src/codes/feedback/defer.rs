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
use crate::codes::sequential::{
    FastForward, Horizon, JobStream, Outlook, ResultUse, RoundEvent, Scheme, SchemeFacts, UNCODED,
};
use crate::codes::{ParameterError, Report};
use crate::ids::{Job, Part, Run, Task, Units, WeightedResult, Worker, WorkerSet};
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
    summary: "other workers finish the shards (cut pieces each) of up to cap late workers in the \
        next T rounds; no more work than uncoded",
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
        let recipe = Recipe::scheme(make).deferring_to_next_step(next);
        // A unit of an own share, or a bundle of deferred ones.
        Ok(recipe.label(|_, _, age| String::from(if age == 0 { "n" } else { "d" })))
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
/// slots = max(T copies, n - cap)     total = units left of all jobs     c_j = copies if job j is
/// due, else 1 k_j = min(m_j, max(1, floor(floor(slots m_j / total) / c_j)))   bundles for the m_j
/// units left of job j score = 0.7 score + 0.3 (finishing time / closing time, or 2 if late)
/// ```
///
/// ```
/// use codedgrad::codes::feedback::{Defer, DeferParameters};
/// use codedgrad::codes::sequential::{Accept, RoundEvent, Horizon, ResultUse, Scheme};
/// use codedgrad::ids::{Job, Worker, WorkerSet};
/// let horizon =
///     Horizon { workers: 3, units: None, jobs: Job(0)..Job(2), accept: Accept::Lookahead };
/// let mut defer = Defer::new(DeferParameters { delay: 1, cap: 1, cut: 2, copies: 1 }, horizon)?;
/// let (mut tasks, mut decoded) = (Vec::new(), Vec::new());
/// let nobody = WorkerSet::empty(3);
/// defer.on(RoundEvent::Opened { dead: &nobody });
/// for worker in [0, 1, 2].map(Worker) {
///     tasks.clear();
///     defer.assign(worker, &mut tasks);
///     let finished = if worker == Worker(2) { 1 } else { 2 };
///     for task in &tasks[..finished] {
///         assert_eq!(defer.returned(worker, *task), ResultUse::Wanted);
///     }
/// }
/// let late = WorkerSet::of(3, [Worker(2)]);
/// assert!(defer.admits(&late));
/// defer.close(&late, &[Some(0.5), Some(1.0), None], &mut decoded);
/// assert!(decoded.is_empty(), "one unit is left");
/// defer.on(RoundEvent::Opened { dead: &nobody });
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
    /// Jobs of which units may be left.
    stream: JobStream<OpenJob>,
    bundles: Bundles,
    scores: Scores,
    /// Workers that have not finished their own share and may still do so.
    late: usize,
    /// Workers that will do nothing more in this round.
    gone: WorkerSet,
    /// Where late units count for the next step.
    next_step: Option<NextStep>,
}

/// What passes from one step to the next where late units count for that.
struct NextStep {
    /// What the last step is made of, and how many batch units that is.
    taken: (Vec<WeightedResult>, u32),
    /// What was left when the last round to begin began.
    carried: (Job, VecDeque<OpenJob>),
}

#[derive(Clone)]
struct OpenJob {
    job: Job,
    /// Unfinished units: all but those of the current round's own shares.
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
            stream: JobStream::new(workers, jobs),
            bundles: Bundles::new(workers),
            scores: Scores::new(workers),
            late: 0,
            gone: WorkerSet::empty(workers),
            next_step: None,
        })
    }

    /// The same for one model without accumulation: what is late counts for the next step, computed
    /// at its parameters. Step `t` is the sum of what was finished in its round, divided by how
    /// much that is. Steps differ in how many samples they have, and the last one waits for all
    /// workers. Every sample counts exactly once, and the delay is 0.
    ///
    /// ```
    /// use codedgrad::codes::{
    ///     feedback::{Defer, DeferParameters},
    ///     sequential::{Accept, RoundEvent, Horizon, ResultUse, Scheme},
    /// };
    /// use codedgrad::ids::{Job, Worker, WorkerSet};
    /// let horizon =
    ///     Horizon { workers: 2, units: None, jobs: Job(0)..Job(2), accept: Accept::Lookahead };
    /// let parameters = DeferParameters { delay: 1, cap: 1, cut: 2, copies: 1 };
    /// let mut defer = Defer::new(parameters, horizon)?.to_next_step();
    /// let mut tasks = Vec::new();
    /// let mut decoded = Vec::new();
    /// let mut results = Vec::new();
    /// defer.on(RoundEvent::Opened { dead: &WorkerSet::empty(2) });
    /// for (worker, finished) in [(Worker(0), 2), (Worker(1), 1)] {
    ///     tasks.clear();
    ///     defer.assign(worker, &mut tasks);
    ///     for task in &tasks[..finished] {
    ///         assert_eq!(defer.returned(worker, *task), ResultUse::Wanted);
    ///     }
    /// }
    /// defer.close(&WorkerSet::of(2, [Worker(1)]), &[Some(1.0), None], &mut decoded);
    /// let report = defer.settle(Job(0), &mut results);
    /// assert_eq!((report.coverage, results[0].weight), (0.75, 4.0 / 3.0));
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    #[must_use]
    pub fn to_next_step(mut self) -> Self {
        self.next_step = Some(NextStep {
            taken: (Vec::new(), 0),
            carried: (self.stream.round, VecDeque::new()),
        });
        self.facts.delay = 0;
        self.facts.reopens = false;
        self
    }

    /// Whether nothing can be left for a next step.
    fn is_last(&self) -> bool {
        self.next_step.is_some() && self.stream.is_last()
    }

    /// Workers whose own share need not be finished in this round.
    fn cap(&self) -> usize {
        if self.stream.has_own() && !self.is_last() { self.parameters.cap } else { 0 }
    }

    /// Everything that was finished in a round, for its step, and how many batch units that is.
    fn take_step(&mut self) -> (Vec<WeightedResult>, u32) {
        let mut results = Vec::new();
        self.stream.open.iter().for_each(|open| self.won(open, &mut results));
        let own = results
            .iter()
            .filter_map(|result| self.own.get(result.task.piece as usize))
            .map(|part| part[0].units.count());
        let bundles = self.stream.open.iter().flat_map(|open| {
            open.bundles.iter().flat_map(|(_, _, range)| &open.parts[range.clone()])
        });
        let units = own.sum::<u32>() + bundles.map(|part| part.units.count()).sum::<u32>();
        for open in &mut self.stream.open {
            open.finished.fill(0);
            open.bundles.clear();
        }
        (results, units)
    }

    /// What was finished of a job, in the order of its units.
    fn won(&self, open: &OpenJob, results: &mut Vec<WeightedResult>) {
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
        results.extend(won.into_iter().map(|(_, worker, task)| WeightedResult {
            worker,
            task,
            weight: 1.0,
        }));
    }

    /// Whether anything was finished in this round.
    fn has_some(&self) -> bool {
        self.stream.open.iter().any(|open| {
            !open.bundles.is_empty() || open.finished.iter().any(|finished| *finished > 0)
        })
    }

    fn begin(&mut self) {
        self.stream.begin();
        self.gone.clear();
        self.stream.open.retain(|open| !open.decoded);
        if let Some(next_step) = &mut self.next_step {
            next_step.carried = (self.stream.round, self.stream.open.clone());
        }
        self.deal();
        self.late = 0;
        if self.stream.has_own() {
            self.late = self.facts.workers;
            self.stream.open.push_back(OpenJob {
                job: self.stream.round,
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
        if !self.stream.is_begun() {
            return;
        }
        let first = self.stream.takes(worker);
        let nothing_yet = !self.stream.has_own() && self.bundles.of(worker).is_none();
        if (!first || nothing_yet) && !self.bundles.adopt(worker) {
            return;
        }
        if let Some(bundle) = self.bundles.of(worker) {
            give(Run::one(worker, bundle.task, bundle.units));
        }
        if first && self.stream.has_own() {
            let count = self.parameters.cut as u32;
            give(Run {
                worker,
                first: Task { job: self.stream.round, piece: worker.0 * count, plan: 0 },
                count,
                units: self.share_units[worker.index()],
            });
        }
    }

    /// Takes in the next tasks of a worker's own share.
    fn own_returned(&mut self, worker: Worker, first: Task, count: u32) -> bool {
        let (cut, round) = (self.parameters.cut as u32, self.stream.round);
        let Some(open) =
            self.stream.open.back_mut().filter(|open| open.job == round && first.job == round)
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

    /// Leaves a worker's bundle, and in the last round its own share, to another worker: it will
    /// finish nothing more in this round.
    fn leave(&mut self, worker: Worker) {
        if !self.stream.is_begun() || !self.gone.insert(worker) {
            return;
        }
        let cut = self.parameters.cut as u32;
        let own = self.stream.open.back().filter(|open| open.job == self.stream.round);
        let unfinished = own.is_some_and(|open| open.finished[worker.index()] < cut);
        self.late -= usize::from(unfinished);
        self.bundles.leave(worker);
        if self.is_last() {
            let first = worker.0 * cut;
            let current = self.stream.open.back();
            let finished = current.map_or(cut, |open| open.finished[worker.index()]);
            self.pass_on(first + finished..first + cut);
        }
        self.bundles.find_orphans();
    }

    fn lost(&mut self, worker: Worker, from: Option<Job>, reopened: &mut Vec<Task>) {
        let cut = self.parameters.cut as u32;
        let begun = self.stream.is_begun();
        let round = self.stream.round;
        let was_gone = self.gone.contains(worker);
        let mut again_now = 0..0;
        let endangered =
            |open: &&mut OpenJob| !open.decoded || from.is_some_and(|from| open.job >= from);
        for open in self.stream.open.iter_mut().filter(endangered) {
            let finished = std::mem::take(&mut open.finished[worker.index()]);
            let own = worker.0 * cut..worker.0 * cut + finished;
            let current = begun && open.job == round;
            self.late += usize::from(current && finished == cut && !was_gone);
            if current {
                again_now = own.clone();
            }
            reopened.extend(own.clone().map(|piece| Task { job: open.job, piece, plan: 0 }));
            // What the current round's bundles and own shares lose is left at its close by itself.
            let mut again: Vec<u32> = if current { Vec::new() } else { own.collect() };
            for (_, task, units) in open.bundles.extract_if(.., |bundle| bundle.0 == worker) {
                reopened.push(task);
                if !(begun && self.bundles.reopen(task)) {
                    again.extend(&open.dealt[units]);
                }
            }
            open.decoded &= again.is_empty();
            if begun { &mut open.lost } else { &mut open.left }.extend(again);
            open.left.sort_unstable();
        }
        self.leave(worker);
        if was_gone && begun {
            if self.is_last() {
                self.pass_on(again_now);
            }
            self.bundles.find_orphans();
        }
    }

    fn give_up(&mut self, job: Job) {
        self.bundles.give_up(job);
        let open = self.stream.open.iter_mut().filter(|open| open.job == job);
        open.for_each(|open| open.refused = true);
        if self.stream.is_begun() && self.stream.round == job {
            self.late = 0;
        }
    }

    /// Jobs and units that are due in this round and not done.
    fn blocked(&self) -> Outlook {
        let mut jobs: Vec<Job> = self.bundles.due_open().map(|bundle| bundle.task.job).collect();
        let own = self.stream.has_own();
        jobs.extend(Some(self.stream.round).filter(|_| jobs.is_empty() && own));
        jobs.sort_unstable();
        jobs.dedup();
        let mut units: Vec<Units> = self
            .bundles
            .due_open()
            .flat_map(|bundle| &self.stream.open[bundle.open].parts[bundle.range.clone()])
            .map(|part| part.units)
            .collect();
        if let (true, Some(current)) = (units.is_empty() && own, self.stream.open.back()) {
            let shares = self.own.chunks(self.parameters.cut).zip(&current.finished);
            let left = shares.flat_map(|(share, finished)| &share[*finished as usize..]);
            units.extend(left.map(|part| part[0].units));
        }
        Outlook::Blocked { jobs, units }
    }

    /// Writes down what is left of every job at the end of a round.
    fn collect_left(&mut self) {
        let stream = &mut self.stream;
        stream.open.iter_mut().for_each(|open| open.left.clear());
        for bundle in self.bundles.all().iter().filter(|bundle| !bundle.finished) {
            let open = &mut stream.open[bundle.open];
            open.left.extend(&open.dealt[bundle.range.clone()]);
        }
        for open in &mut stream.open {
            open.left.append(&mut open.lost);
            open.left.sort_unstable();
        }
        if let (true, Some(open)) = (stream.has_own(), stream.open.back_mut()) {
            let cut = self.parameters.cut as u32;
            for (owner, finished) in
                (0..).zip(&open.finished).filter(|(_, finished)| **finished < cut)
            {
                open.left.extend(owner * cut + finished..(owner + 1) * cut);
            }
        }
    }
}

impl Scheme for Defer {
    fn facts(&self) -> &SchemeFacts {
        &self.facts
    }

    fn assign(&mut self, worker: Worker, out: &mut Vec<Task>) {
        self.hand_out(worker, |run| out.extend(run.tasks()));
    }

    fn parts(&self, worker: Worker, task: Task) -> &[Part] {
        match self.own.get(task.piece as usize) {
            Some(part) => part,
            None => self
                .bundles
                .of(worker)
                .map_or(&[], |bundle| &self.stream.open[bundle.open].parts[bundle.range.clone()]),
        }
    }

    fn returned(&mut self, worker: Worker, task: Task) -> ResultUse {
        if !self.stream.is_begun() || self.gone.contains(worker) {
            return ResultUse::Unwanted;
        }
        if (task.piece as usize) < self.own.len() {
            if !self.own_returned(worker, task, 1) {
                return ResultUse::Unwanted;
            }
        } else {
            let Some(bundle) = self.bundles.finish(worker, task) else {
                return ResultUse::Unwanted;
            };
            let range = bundle.range.clone();
            self.stream.open[bundle.open].bundles.push((worker, task, range));
        }
        // A step of which only a part is there divides by how much that is.
        ResultUse::Wanted
    }

    fn on(&mut self, event: RoundEvent<'_>) -> bool {
        match event {
            RoundEvent::Opened { dead } => {
                self.begin();
                dead.iter().for_each(|worker| self.leave(worker));
            }
            RoundEvent::Gone(worker) => self.leave(worker),
            // What it had is dealt to others.
            RoundEvent::Back(_) => return false,
            RoundEvent::Dropped(worker) => self.stream.release(worker),
            RoundEvent::Lost { worker, from, reopened } => self.lost(worker, from, reopened),
            RoundEvent::GivenUp(job) => self.give_up(job),
            RoundEvent::NoReturns => {}
        }
        true
    }

    fn admits(&self, _: &WorkerSet) -> bool {
        self.bundles.are_done()
            && self.late <= self.cap()
            && (self.next_step.is_none() || self.has_some())
    }

    fn quality(&mut self) -> Report {
        UNCODED
    }

    fn outlook(&self, gone: &WorkerSet) -> Outlook {
        let open = gone.len() < self.facts.workers || self.admits(gone);
        if open { Outlook::Open } else { self.blocked() }
    }

    fn close(&mut self, missing: &WorkerSet, late: &[Option<f64>], decoded: &mut Vec<Job>) {
        for (worker, ratio) in Worker::all(self.facts.workers).zip(late) {
            if ratio.is_some() || missing.contains(worker) {
                self.scores.observe(worker, *ratio);
            }
        }
        self.collect_left();
        for open in &mut self.stream.open {
            if open.refused {
                open.left.clear();
            }
            let complete = !open.refused && open.left.is_empty();
            decoded.extend((complete && self.next_step.is_none()).then_some(open.job));
            open.decoded = open.left.is_empty();
        }
        if let Some(before) = self.next_step.take() {
            self.next_step = Some(NextStep { taken: self.take_step(), ..before });
            let round = self.stream.round;
            let current = self.stream.open.back();
            let current = current.filter(|open| open.job == round && !open.refused);
            decoded.extend(current.map(|open| open.job));
        }
        self.stream.close();
    }

    fn settle(&mut self, job: Job, out: &mut Vec<WeightedResult>) -> Report {
        if let Some(NextStep { taken, .. }) = &self.next_step {
            let coverage = f64::from(taken.1) / f64::from(self.facts.units);
            out.extend(
                taken.0.iter().map(|result| WeightedResult { weight: 1.0 / coverage, ..*result }),
            );
            return Report { coverage, amplification: coverage.sqrt().recip(), ..UNCODED };
        }
        if let Some(open) = self.stream.open.iter().find(|open| open.job == job) {
            self.won(open, out);
        }
        UNCODED
    }

    fn restart(&mut self, jobs: Range<Job>) {
        let first = jobs.start;
        self.stream.restart(jobs);
        // What earlier steps have left is still to be done when a step begins again.
        if let Some(NextStep { carried, .. }) = &self.next_step
            && carried.0 == first
        {
            self.stream.open.clone_from(&carried.1);
        }
        self.bundles.clear();
    }

    fn fast_forward(&mut self) -> Option<&mut dyn FastForward> {
        Some(self)
    }
}

impl FastForward for Defer {
    fn runs(&mut self, worker: Worker, out: &mut Vec<Run>) {
        self.hand_out(worker, |run| out.push(run));
    }

    fn returned_run(&mut self, run: Run) {
        if run.count == 1 {
            self.returned(run.worker, run.first);
        } else if self.stream.is_begun() && !self.gone.contains(run.worker) {
            self.own_returned(run.worker, run.first, run.count);
        }
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
}
