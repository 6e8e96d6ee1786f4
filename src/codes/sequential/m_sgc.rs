//! M-SGC: most of a job uncoded with repeats, a small rest coded, multiplexed over rounds.
//!
//! # Construction
//! Worker `i` owns `W-1` chunks of every job outright and has coded shares of `B` small groups of
//! chunks. In round `r` slot `j` of `0..W-1+B` works on job `r-j`: the first `W-1` slots try the
//! own chunks one by one; the last `B` repeat a chunk that was lost, or, if none was, answer one
//! coded group each.
//!
//! # Guarantee
//! Every `(B, W, lambda)`-bursty pattern, and every `(B, W-1+B, lambda)`-arbitrary one; every job
//! is decoded by the end of round `job + W-2+B`. The load is at most `2/n`, whatever `lambda`.
//!
//! # Cost
//! A round is O(n (W-1+B)); whether a set of stragglers may be left out, O(n (W-1+B)).
//!
//! # Numerics
//! Chunks have weight 1; the coded groups have the numerics of the slot code, by default
//! [`MinLoad`](crate::codes::MinLoad).
//!
//! # Source
//! Krishnan, Ebrahimi, Khisti, "Sequential Gradient Coding For Straggler Mitigation", ICLR 2023
//! (arXiv 2211.13802). The look-ahead rule is our own.

use super::models::{Admission, Bursty};
use super::scheme::{FastForward, Outlook, ResultUse, RoundEvent, Scheme};
use super::slots::{SlotCode, SlotKind, atoms_to_units};
use super::stream::JobStream;
use super::{Horizon, SchemeFacts, UNCODED};
use crate::codes::family::{Family, Recipe, Space, Traits, keyed};
use crate::codes::{ParameterError, Report};
use crate::ids::{Job, Part, Run, Task, WeightedResult, Worker, WorkerSet};
use std::ops::Range;
use std::sync::Arc;

/// Multiplexed coding.
pub(in crate::codes) const FAMILY: Family = Family {
    name: "m-sgc",
    examples: &["m-sgc:B=1,W=2,lambda=4"],
    summary: "over rounds, for bursts of B rounds within W: jobs are interleaved, at less load; \
        lambda workers may be late within W (rep: clusters; cyclic: random coefficients)",
    traits: Traits { delay: true, ..Traits::NONE },
    spaces: Some(|limits| {
        let shapes = || -> Vec<String> {
            let shapes = shapes(limits.max_delay).into_iter();
            shapes.map(|(burst, window)| format!("B={burst},W={window}")).collect()
        };
        let clusters = limits.cluster_stragglers().map(|s| format!("lambda={s},rep"));
        vec![
            Space::with_deadline([shapes(), keyed("lambda", 1..=limits.workers)]),
            Space::with_deadline([shapes(), clusters.collect()]),
        ]
    }),
    ..Family::new(|fields| {
        let (burst, window) = (fields.need("B")?, fields.need("W")?);
        let distinct = fields.need("lambda")?;
        let slots = SlotKind::read(fields)?;
        let parameters = MSgcParameters { burst, window, distinct, slots };
        let recipe = Recipe::scheme(move |horizon| MSgc::new(parameters, horizon));
        Ok(recipe
            .guarantee(move |workers| Bursty { burst, window, distinct }.guarantee(workers))
            .warning(move |workers| slots.warning(workers))
            .label(move |workers, task, age| label(window, workers, task, age)))
    })
};

/// `(B, W)` with `W - 2 + B <= T`.
fn shapes(max_delay: usize) -> Vec<(usize, usize)> {
    let windows =
        (2..=max_delay + 1).flat_map(|window| (1..window).map(move |burst| (burst, window)));
    windows.filter(|(burst, window)| window - 2 + burst <= max_delay).collect()
}

/// `a` the first attempt of a chunk, `r` a repeat, `c` the coded answer of a group.
fn label(window: usize, workers: usize, task: Task, age: usize) -> String {
    let row = task.piece as usize / workers;
    match row.checked_sub(window - 1) {
        Some(group) => format!("c{group}"),
        None if row == age => format!("a{row}"),
        None => format!("r{row}"),
    }
}

/// Parameters of M-SGC as they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MSgcParameters {
    /// `B`, below `W`.
    pub burst: usize,
    /// `W`.
    pub window: usize,
    /// `lambda`: distinct stragglers per window; `n` leaves the coded part out.
    pub distinct: usize,
    /// The code of the small groups.
    pub slots: SlotKind,
}

/// M-SGC over a range of jobs.
///
/// Piece `c n + i` is chunk `c` of worker `i`; piece `(W-1+m) n + i` its answer for group `m`.
///
/// # Formula
/// ```text
/// q = n (B + (W-1)(lambda+1))     chunk = (lambda+1)/q     group m = n chunks of 1/q     T = W-2+B
/// load = (lambda+1)(W-1+B)/q for lambda < n,  (W-1+B)/(n(W-1)) for lambda = n
/// ```
///
/// ```
/// use codedgrad::codes::sequential::{Accept, Horizon, MSgc, MSgcParameters, Scheme, SlotKind};
/// use codedgrad::ids::Job;
/// let parameters = MSgcParameters { burst: 1, window: 2, distinct: 27, slots: SlotKind::MinLoad };
/// let horizon =
///     Horizon { workers: 256, units: None, jobs: Job(0)..Job(480), accept: Accept::Lookahead };
/// let facts = MSgc::new(parameters, horizon)?.facts().clone();
/// assert!((facts.load - 0.007543).abs() < 1e-6 && facts.delay == 1);
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
#[derive(Clone)]
pub struct MSgc {
    facts: SchemeFacts,
    burst: usize,
    window: usize,
    pub(super) admission: Admission,
    slots: Option<SlotCode>,
    /// By piece.
    parts: Vec<Vec<Part>>,
    units: Arc<[u32]>,
    /// Jobs in their `W-1+B` rounds.
    stream: JobStream<OpenJob>,
}

#[derive(Clone, Debug)]
struct OpenJob {
    job: Job,
    /// Chunks and coded answers that are in, by piece.
    returned: Vec<bool>,
    /// Own chunks a worker has tried and lost.
    owed: Vec<u32>,
    /// The same when the round began.
    owed_before: Vec<u32>,
    decoded: bool,
    refused: bool,
}

impl OpenJob {
    fn has(&self, piece: u32) -> bool {
        self.returned.get(piece as usize).is_some_and(|returned| *returned)
    }

    fn is_over(&self) -> bool {
        self.decoded || self.refused
    }
}

impl MSgc {
    /// # Errors
    /// [`ParameterError::Conditions`] unless `1 <= B < W` and `lambda <= n`, and what the slot code
    /// asks.
    pub fn new(parameters: MSgcParameters, horizon: Horizon) -> Result<Self, ParameterError> {
        let MSgcParameters { burst, window, distinct, slots } = parameters;
        let Horizon { workers, units, jobs, accept } = horizon;
        let wrong = |problem: String| Err(ParameterError::Conditions { scheme: "m-sgc", problem });
        super::check_window("m-sgc", workers, (burst, window))?;
        if burst == 0 || window <= burst {
            return wrong(format!(
                "B={burst}, W={window}: B must be from 1 to W-1; for this B take W={} or more",
                burst.max(1) + 1
            ));
        }
        if distinct > workers || distinct == workers && slots == SlotKind::Clusters {
            let most = workers - usize::from(slots == SlotKind::Clusters);
            return wrong(format!(
                "lambda={distinct} of {workers} workers: lambda must be at most {most}"
            ));
        }
        if workers.saturating_mul(window - 1 + burst) > super::ROWS_MAX
            || workers.saturating_mul((window - 1) * (distinct + 1)) > u32::MAX as usize / 2
        {
            return wrong(format!(
                "W={window}, lambda={distinct} of {workers} workers cut a batch into too many \
                 pieces; a smaller W fits"
            ));
        }
        let slots = if distinct < workers {
            Some(SlotCode::new(slots, workers, distinct, "m-sgc")?)
        } else {
            None
        };
        let (chunk, coded) = if slots.is_some() { (distinct + 1, burst) } else { (1, 0) };
        let atoms = workers * ((window - 1) * chunk + coded);
        let units = units.unwrap_or(atoms as u32);
        let own = |c: usize, i: usize| (i * (window - 1) + c) * chunk;
        let mut parts = Vec::with_capacity(workers * (window - 1 + coded));
        for c in 0..window - 1 {
            let units = |i| atoms_to_units(own(c, i)..own(c, i) + chunk, atoms, units);
            parts.extend((0..workers).map(|i| vec![Part { units: units(i), coefficient: 1.0 }]));
        }
        for (m, slots) in (0..burst).filter_map(|m| Some((m, slots.as_ref()?))) {
            let start = workers * ((window - 1) * chunk + m);
            parts.extend(
                Worker::all(workers)
                    .map(|worker| slots.parts(worker, units, &(start..start + workers), atoms)),
            );
        }
        let load = (chunk * (window - 1 + burst)) as f64 / atoms as f64;
        let facts = SchemeFacts {
            delay: window - 2 + burst,
            tolerance: distinct.min(workers - 1),
            plain: slots.is_none(),
            ..SchemeFacts::new(workers, units, load)
        };
        let model = Bursty { burst, window, distinct };
        Ok(Self {
            admission: Admission { accept, model, history: Vec::new() },
            stream: JobStream::new(workers, jobs),
            units: parts.iter().map(|parts| facts.units_of(parts)).collect(),
            facts,
            burst,
            window,
            slots,
            parts,
        })
    }

    fn begin(&mut self) {
        let stream = &mut self.stream;
        stream.begin();
        if stream.open.front().is_some_and(|open| stream.age(open.job) > self.facts.delay) {
            stream.open.pop_front();
        }
        for open in &mut stream.open {
            open.owed_before.clone_from(&open.owed);
        }
        if stream.has_own() {
            let owed = vec![0; self.facts.workers];
            stream.open.push_back(OpenJob {
                job: stream.round,
                returned: vec![false; self.parts.len()],
                owed_before: owed.clone(),
                owed,
                decoded: false,
                refused: false,
            });
        }
    }

    fn piece(&self, row: usize, worker: Worker) -> u32 {
        (row * self.facts.workers) as u32 + worker.0
    }

    /// The row of the task of a worker in a slot: a chunk, or `W-1` and the number of a group.
    fn row(&self, open: &OpenJob, slot: usize, worker: Worker) -> Option<usize> {
        let lost = |c: &usize| !open.has(self.piece(*c, worker));
        if slot + 1 < self.window {
            Some(slot)
        } else if open.owed[worker.index()] > 0 {
            (0..self.window - 1).find(lost)
        } else {
            self.slots.is_some().then_some(slot)
        }
    }

    /// Whether enough of the workers that pass are there for one group to be decoded.
    fn group_suffices(&self, answers: impl Fn(Worker) -> bool) -> bool {
        self.slots.as_ref().is_none_or(|slots| slots.suffices(answers))
    }

    /// Whether a job can still be completed if the current round loses `missing` and no later one
    /// loses a worker.
    fn survives(&self, open: &OpenJob, missing: &WorkerSet) -> bool {
        let slot = self.stream.age(open.job);
        let repeating = slot + 1 >= self.window;
        // What a worker has returned counts, even if it will not finish its other tasks.
        let returned = |worker: Worker| {
            let (owed, before) = (open.owed[worker.index()], open.owed_before[worker.index()]);
            if repeating && before > 0 { owed < before } else { open.has(self.piece(slot, worker)) }
        };
        let lost = |worker: Worker| missing.contains(worker) && !returned(worker);
        if repeating
            && !self.group_suffices(|worker| open.owed_before[worker.index()] == 0 && !lost(worker))
        {
            return false;
        }
        let owed = |worker: Worker| {
            let (before, lost) = (open.owed_before[worker.index()], lost(worker));
            if repeating {
                before - u32::from(!lost && before > 0)
            } else {
                before + u32::from(lost)
            }
        };
        let next = (self.window - 1).max(slot + 1);
        let left = self.window - 1 + self.burst - next;
        let most = Worker::all(self.facts.workers).map(owed).max().unwrap_or(0) as usize;
        most <= left
            && (0..most.min(left))
                .all(|ahead| self.group_suffices(|worker| owed(worker) as usize <= ahead))
    }

    fn complete(&self, open: &OpenJob) -> bool {
        let workers = self.facts.workers;
        let chunks = (self.window - 1) * workers;
        let mut groups = open.returned[chunks..].chunks(workers);
        open.returned[..chunks].iter().all(|returned| *returned)
            && groups.all(|group| self.group_suffices(|worker| group[worker.index()]))
    }

    fn answers(&self, open: &OpenJob, group: usize) -> WorkerSet {
        let workers = self.facts.workers;
        let row = &open.returned[(self.window - 1 + group) * workers..][..workers];
        WorkerSet::of(workers, Worker::all(workers).filter(|worker| row[worker.index()]))
    }

    fn decode(&self, open: &OpenJob, out: &mut Vec<WeightedResult>) -> Report {
        let (workers, job) = (self.facts.workers as u32, open.job);
        out.extend((0..(self.window as u32 - 1) * workers).map(|piece| WeightedResult {
            worker: Worker(piece % workers),
            task: Task { job, piece, plan: 0 },
            weight: 1.0,
        }));
        super::worst((0..self.burst).map(|group| self.decode_group(open, group, out)))
    }

    fn decode_group(&self, open: &OpenJob, group: usize, out: &mut Vec<WeightedResult>) -> Report {
        let Some(slots) = &self.slots else { return UNCODED };
        slots.decode(&self.answers(open, group), |worker, weight| {
            out.push(self.result_of_group(open, group, worker, weight));
        })
    }

    fn result_of_group(
        &self,
        open: &OpenJob,
        group: usize,
        worker: Worker,
        weight: f64,
    ) -> WeightedResult {
        let piece = self.piece(self.window - 1 + group, worker);
        WeightedResult { worker, task: Task { job: open.job, piece, plan: 0 }, weight }
    }

    /// The groups that are answered in a round.
    fn groups_of(&self, round: Job) -> impl Iterator<Item = (&OpenJob, usize)> {
        let open = self.stream.open.iter().filter(|open| self.slots.is_some() && !open.refused);
        let groups = open.filter_map(move |open| {
            Some((open, ((round.0 - open.job.0) as usize).checked_sub(self.window - 1)?))
        });
        groups.filter(|(_, group)| *group < self.burst)
    }

    /// Gives the tasks of a worker in this round, those of the newest job first.
    fn hand_out(&mut self, worker: Worker, mut give: impl FnMut(Task)) {
        if !self.stream.takes(worker) {
            return;
        }
        for open in self.stream.open.iter().rev().filter(|open| !open.is_over()) {
            if let Some(row) = self.row(open, self.stream.age(open.job), worker) {
                give(Task { job: open.job, piece: self.piece(row, worker), plan: 0 });
            }
        }
    }

    fn lost(&mut self, worker: Worker, from: Option<Job>, reopened: &mut Vec<Task>) {
        let workers = self.facts.workers;
        let round = self.stream.round;
        for open in &mut self.stream.open {
            if open.decoded && from.is_none_or(|from| open.job < from) {
                continue;
            }
            open.decoded = false;
            let slot = (round.0 - open.job.0) as usize;
            for piece in (worker.index()..open.returned.len()).step_by(workers) {
                if std::mem::replace(&mut open.returned[piece], false) {
                    reopened.push(Task { job: open.job, piece: piece as u32, plan: 0 });
                    let chunk = piece / workers;
                    let owed = u32::from(chunk + 1 < self.window && chunk < slot);
                    open.owed[worker.index()] += owed;
                    open.owed_before[worker.index()] += owed;
                }
            }
        }
    }
}

impl Scheme for MSgc {
    fn facts(&self) -> &SchemeFacts {
        &self.facts
    }

    fn assign(&mut self, worker: Worker, out: &mut Vec<Task>) {
        self.hand_out(worker, |task| out.push(task));
    }

    fn parts(&self, _: Worker, task: Task) -> &[Part] {
        &self.parts[task.piece as usize]
    }

    fn returned(&mut self, worker: Worker, task: Task) -> ResultUse {
        let workers = self.facts.workers;
        let piece = task.piece as usize;
        let stream = &mut self.stream;
        let first = stream.open.front().map_or(task.job.0, |open| open.job.0);
        let place = task.job.0.checked_sub(first).map(|at| at as usize);
        let Some(open) = place.and_then(|at| stream.open.get_mut(at)) else {
            return ResultUse::Unwanted;
        };
        if piece % workers != worker.index() || piece >= open.returned.len() || open.is_over() {
            return ResultUse::Unwanted;
        }
        let row = piece / workers;
        let slot = (stream.round.0 - task.job.0) as usize;
        let coded = row + 1 >= self.window;
        // A group is answered in its own round alone.
        if coded && row != slot || std::mem::replace(&mut open.returned[piece], true) {
            return ResultUse::Unwanted;
        }
        if !coded && slot > row {
            open.owed[worker.index()] -= 1;
        }
        ResultUse::Wanted
    }

    fn on(&mut self, event: RoundEvent<'_>) -> bool {
        match event {
            RoundEvent::Opened { .. } => self.begin(),
            RoundEvent::Gone(_) | RoundEvent::NoReturns => {}
            RoundEvent::Back(worker) | RoundEvent::Dropped(worker) => self.stream.release(worker),
            RoundEvent::Lost { worker, from, reopened } => self.lost(worker, from, reopened),
            RoundEvent::GivenUp(job) => {
                let open = self.stream.open.iter_mut().filter(|open| open.job == job);
                open.for_each(|open| open.refused = true);
            }
        }
        true
    }

    fn admits(&self, missing: &WorkerSet) -> bool {
        let survives = |open: &OpenJob| open.is_over() || self.survives(open, missing);
        let by_model = self.admission.by_model(missing);
        by_model.unwrap_or_else(|| self.stream.open.iter().all(survives))
    }

    fn quality(&mut self) -> Report {
        let groups = self.groups_of(self.stream.round);
        let mut unseen = Vec::new();
        super::worst(groups.map(|(open, group)| self.decode_group(open, group, &mut unseen)))
    }

    fn outlook(&self, gone: &WorkerSet) -> Outlook {
        if self.admits(gone) {
            return Outlook::Open;
        }
        let blocked = |open: &&OpenJob| !open.is_over() && !self.survives(open, gone);
        let own = |worker: Worker| {
            (0..self.window - 1).flat_map(move |c| &self.parts[self.piece(c, worker) as usize])
        };
        Outlook::Blocked {
            jobs: self.stream.open.iter().filter(blocked).map(|open| open.job).collect(),
            units: gone.iter().flat_map(own).map(|part| part.units).collect(),
        }
    }

    fn close(&mut self, missing: &WorkerSet, _: &[Option<f64>], decoded: &mut Vec<Job>) {
        let workers = self.facts.workers;
        let round = self.stream.round;
        for open in &mut self.stream.open {
            let slot = (round.0 - open.job.0) as usize;
            if slot + 1 < self.window {
                let row = &open.returned[slot * workers..][..workers];
                for (owed, returned) in open.owed.iter_mut().zip(row) {
                    *owed += u32::from(!returned);
                }
            }
        }
        for at in 0..self.stream.open.len() {
            let open = &self.stream.open[at];
            let slot = self.stream.age(open.job);
            let may_be =
                self.slots.is_none() && slot + 2 >= self.window || slot == self.facts.delay;
            if may_be && !open.is_over() && self.complete(open) {
                decoded.push(open.job);
                self.stream.open[at].decoded = true;
            }
        }
        self.stream.close();
        self.admission.remember(missing);
    }

    fn settle(&mut self, job: Job, out: &mut Vec<WeightedResult>) -> Report {
        let open = self.stream.open.iter().find(|open| open.job == job);
        open.map_or(UNCODED, |open| self.decode(open, out))
    }

    fn restart(&mut self, jobs: Range<Job>) {
        self.stream.restart(jobs);
    }

    fn fast_forward(&mut self) -> Option<&mut dyn FastForward> {
        Some(self)
    }
}

impl FastForward for MSgc {
    fn runs(&mut self, worker: Worker, out: &mut Vec<Run>) {
        let units = Arc::clone(&self.units);
        self.hand_out(worker, |task| out.push(Run::one(worker, task, units[task.piece as usize])));
    }
}

#[cfg(test)]
impl super::closure::KeyedScheme for MSgc {
    fn admission(&self) -> &Admission {
        &self.admission
    }

    fn open(&self) -> Vec<(usize, String, bool)> {
        let state = |open: &OpenJob| format!("{:?}", (&open.returned, &open.owed));
        let open = |open: &OpenJob| (self.stream.age(open.job), state(open), open.decoded);
        self.stream.open.iter().map(open).collect()
    }
}
