//! SR-SGC: gradient coding whose missing answers are repeated `B` rounds later.
//!
//! # Construction
//! Every job is coded by an `(n, s)` gradient code, `s = ceil(B lambda / (W-1+B))`. In round `r`
//! the workers compute their answers for job `r`; but if more than `s` answers of job `r-B` are
//! missing, so many of the workers that owe one repeat it instead that `n-s` answers will be there.
//! A round may close before, once the slot code decodes what there is.
//!
//! # Guarantee
//! Every `(B, W, lambda)`-bursty pattern with `B | W-1`, and every pattern of at most `s`
//! stragglers per round; every job is decoded by the end of round `job + B`. Load `(s+1)/n`.
//!
//! # Cost
//! A round is O(n); whether a set of stragglers may be left out, O(n) words.
//!
//! # Numerics
//! Those of the slot code, by default [`MinLoad`](crate::codes::MinLoad).
//!
//! # Source
//! Krishnan, Ebrahimi, Khisti, "Sequential Gradient Coding For Straggler Mitigation", ICLR 2023
//! (arXiv 2211.13802). The variant over clusters (`rep`) repeats one member per cluster without any
//! answer.

use super::models::{Admission, Bursty};
use super::scheme::{Outlook, ResultUse, RoundEvent, Scheme};
use super::slots::{SlotCode, SlotKind};
use super::stream::JobStream;
use super::{Horizon, SchemeFacts};
use crate::codes::family::{Family, Recipe, Space, Traits, keyed};
use crate::codes::{ParameterError, Report};
use crate::ids::{Job, Part, Task, WeightedResult, Worker, WorkerSet};
use std::ops::Range;

/// Selective repetition.
pub(in crate::codes) const FAMILY: Family = Family {
    name: "sr-sgc",
    examples: &["sr-sgc:B=1,W=2,lambda=4"],
    summary: "over rounds, for bursts of B rounds within W: what was late is done again; lambda \
        workers may be late within W (rep: clusters of s+1; cyclic: random coefficients)",
    traits: Traits { delay: true, ..Traits::NONE },
    spaces: Some(|limits| {
        let shapes = || (1..=limits.max_delay).map(|burst| format!("B={burst},W={}", burst + 1));
        let clusters = limits.cluster_stragglers().map(|s| format!("s={s},rep"));
        // The look-ahead rule knows of B, W and lambda only B and s = ceil(lambda B / (W-1+B)).
        let lambdas = (1..=limits.workers / 2).map(|s| 2 * s);
        vec![
            Space::with_deadline([shapes().collect(), keyed("lambda", lambdas)]),
            Space::with_deadline([shapes().collect(), clusters.collect()]),
        ]
    }),
    ..Family::new(|fields| {
        let (burst, window) = (fields.need("B")?, fields.need("W")?);
        let distinct: Option<usize> = fields.take("lambda")?;
        let stragglers = fields.take("s")?;
        let slots = SlotKind::read(fields)?;
        if slots != SlotKind::Clusters && (distinct.is_none() || stragglers.is_some()) {
            return Err(
                fields.wrong("lambda= is needed, and s= follows from it (s= is for rep alone)")
            );
        }
        let recipe = Recipe::scheme(move |horizon| {
            let distinct = distinct.unwrap_or(horizon.workers);
            let parameters = SrSgcParameters { burst, window, distinct, stragglers, slots };
            SrSgc::new(parameters, horizon)
        });
        // With s= the workers that may be late do not follow from lambda.
        let promise = move |workers: usize| {
            Bursty { burst, window, distinct: distinct.unwrap_or(workers) }.guarantee(workers)
        };
        let recipe = if stragglers.is_none() { recipe.guarantee(promise) } else { recipe };
        Ok(recipe
            .warning(move |workers| slots.warning(workers))
            .label(|_, _, age| String::from(if age == 0 { "n" } else { "R" })))
    })
};

/// Parameters of SR-SGC as they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrSgcParameters {
    /// `B`: bursts of at most so many rounds, and the delay.
    pub burst: usize,
    /// `W`, with `B | W-1`.
    pub window: usize,
    /// `lambda`: distinct stragglers per window.
    pub distinct: usize,
    /// `s`, where it is not to follow from the others (clusters only).
    pub stragglers: Option<usize>,
    /// The code of a job.
    pub slots: SlotKind,
}

/// SR-SGC over a range of jobs; the piece of a task is its worker's number.
///
/// # Formula
/// ```text
/// s = ceil(B lambda / (W-1+B))     load = (s+1)/n     T = B
/// round r: v = answers missing of job r-B;  if v > s, the first v-s workers that owe one repeat it
/// ```
///
/// ```
/// use codedgrad::codes::sequential::{
///     Accept, RoundEvent, Horizon, Scheme, SlotKind, SrSgc, SrSgcParameters,
/// };
/// use codedgrad::ids::{Job, Task, Worker, WorkerSet};
/// let parameters = SrSgcParameters {
///     burst: 1,
///     window: 2,
///     distinct: 4,
///     stragglers: None,
///     slots: SlotKind::MinLoad,
/// };
/// let horizon =
///     Horizon { workers: 4, units: None, jobs: Job(0)..Job(4), accept: Accept::Lookahead };
/// let mut scheme = SrSgc::new(parameters, horizon)?;
/// assert_eq!((scheme.facts().load, scheme.facts().delay), (0.75, 1));
/// let nobody = WorkerSet::empty(4);
/// scheme.on(RoundEvent::Opened { dead: &nobody });
/// scheme.close(&nobody.complement(), &[None; 4], &mut Vec::new());
/// scheme.on(RoundEvent::Opened { dead: &nobody });
/// let mut tasks = Vec::new();
/// scheme.assign(Worker(1), &mut tasks);
/// assert_eq!(
///     tasks,
///     [Task { job: Job(0), piece: 1, plan: 0 }],
///     "all were lost; two repeat, two go on"
/// );
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
#[derive(Clone)]
pub struct SrSgc {
    facts: SchemeFacts,
    burst: usize,
    pub(super) admission: Admission,
    slots: SlotCode,
    parts: Vec<Vec<Part>>,
    stream: JobStream<OpenJob>,
    repeaters: WorkerSet,
    /// Workers that will do nothing more in this round.
    gone: WorkerSet,
}

#[derive(Clone, Debug)]
struct OpenJob {
    job: Job,
    answered: WorkerSet,
    decoded: bool,
}

impl SrSgc {
    /// # Errors
    /// [`ParameterError::Conditions`] unless `1 <= B`, `B | W-1`, `lambda <= n`, and what the slot
    /// code asks.
    pub fn new(parameters: SrSgcParameters, horizon: Horizon) -> Result<Self, ParameterError> {
        let SrSgcParameters { burst, window, distinct, stragglers, slots } = parameters;
        let Horizon { workers, units, jobs, accept } = horizon;
        let wrong = |problem: String| Err(ParameterError::Conditions { scheme: "sr-sgc", problem });
        super::check_window("sr-sgc", workers, (burst, window))?;
        if burst == 0 || window <= burst || !(window - 1).is_multiple_of(burst) {
            let fitting = 1 + burst.max(1) * (window.saturating_sub(1) / burst.max(1)).max(1);
            return wrong(format!(
                "B={burst}, W={window}: B must be 1 or more and divide W-1; for this B take \
                 W={fitting}"
            ));
        }
        if distinct > workers {
            return wrong(format!(
                "lambda={distinct} of {workers} workers: lambda must be at most {workers}"
            ));
        }
        let stragglers =
            stragglers.unwrap_or_else(|| (burst * distinct).div_ceil(window - 1 + burst));
        let slots = SlotCode::new(slots, workers, stragglers, "sr-sgc")?;
        let units = units.unwrap_or(workers as u32);
        let parts: Vec<Vec<Part>> = Worker::all(workers)
            .map(|worker| slots.parts(worker, units, &(0..workers), workers))
            .collect();
        let load = (stragglers + 1) as f64 / workers as f64;
        let model = Bursty { burst, window, distinct };
        Ok(Self {
            facts: SchemeFacts {
                delay: burst,
                tolerance: stragglers,
                ..SchemeFacts::new(workers, units, load)
            },
            admission: Admission { accept, model, history: Vec::new() },
            stream: JobStream::new(workers, jobs),
            repeaters: WorkerSet::empty(workers),
            gone: WorkerSet::empty(workers),
            burst,
            slots,
            parts,
        })
    }

    /// The job that is due in this round, if there is one.
    fn due(&self) -> Option<&OpenJob> {
        let job = Job(self.stream.round.0.checked_sub(self.burst as u64)?);
        self.stream.open.front().filter(|open| open.job == job)
    }

    fn begin(&mut self) {
        self.stream.begin();
        self.repeaters.clear();
        self.gone.clear();
        let stream = &mut self.stream;
        if stream.open.front().is_some_and(|open| stream.age(open.job) > self.burst) {
            stream.open.pop_front();
        }
        if stream.has_own() {
            stream.open.push_back(OpenJob {
                job: stream.round,
                answered: WorkerSet::empty(self.facts.workers),
                decoded: false,
            });
        }
        if let Some(due) = self.due() {
            self.repeaters = self.chosen(&due.answered);
        }
    }

    /// Who repeats, given who has answered.
    fn chosen(&self, answered: &WorkerSet) -> WorkerSet {
        let answers = |worker| answered.contains(worker);
        let able = |worker| !self.gone.contains(worker);
        WorkerSet::of(self.facts.workers, self.slots.to_complete(answers, able))
    }

    /// Lets others repeat where a worker that was to do so, or had answered, is lost.
    fn reinforce(&mut self) {
        let Some(due) = self.due().filter(|_| self.stream.is_begun()) else { return };
        let chosen = self.chosen(&due.answered);
        for worker in chosen.iter().filter(|worker| self.repeaters.insert(*worker)) {
            self.stream.release(worker);
        }
    }

    fn leave(&mut self, worker: Worker) {
        self.gone.insert(worker);
        self.reinforce();
    }

    fn lost(&mut self, worker: Worker, from: Option<Job>, reopened: &mut Vec<Task>) {
        for open in &mut self.stream.open {
            let safe = open.decoded && from.is_none_or(|from| open.job < from);
            if !safe && open.answered.remove(worker) {
                reopened.push(Task { job: open.job, piece: worker.0, plan: 0 });
                open.decoded = false;
            }
        }
        self.leave(worker);
    }

    fn find(&mut self, job: Job) -> Option<&mut OpenJob> {
        self.stream.open.iter_mut().find(|open| open.job == job)
    }
}

impl Scheme for SrSgc {
    fn facts(&self) -> &SchemeFacts {
        &self.facts
    }

    fn assign(&mut self, worker: Worker, out: &mut Vec<Task>) {
        if !self.stream.takes(worker) {
            return;
        }
        let own = Some(self.stream.round).filter(|_| self.stream.has_own());
        let job = if self.repeaters.contains(worker) { self.due().map(|due| due.job) } else { own };
        out.extend(job.map(|job| Task { job, piece: worker.0, plan: 0 }));
    }

    fn parts(&self, worker: Worker, _: Task) -> &[Part] {
        &self.parts[worker.index()]
    }

    fn returned(&mut self, worker: Worker, task: Task) -> ResultUse {
        let open = self.find(task.job).filter(|_| task.piece == worker.0);
        let wanted = open.is_some_and(|open| open.answered.insert(worker));
        if wanted { ResultUse::Wanted } else { ResultUse::Unwanted }
    }

    fn on(&mut self, event: RoundEvent<'_>) -> bool {
        match event {
            RoundEvent::Opened { dead } => {
                self.begin();
                dead.iter().for_each(|worker| self.leave(worker));
            }
            RoundEvent::Gone(worker) => self.leave(worker),
            RoundEvent::Back(worker) => {
                self.gone.remove(worker);
                self.stream.release(worker);
            }
            RoundEvent::Dropped(worker) => self.stream.release(worker),
            RoundEvent::Lost { worker, from, reopened } => self.lost(worker, from, reopened),
            RoundEvent::GivenUp(job) => self.stream.open.retain(|open| open.job != job),
            RoundEvent::NoReturns => {}
        }
        true
    }

    fn admits(&self, missing: &WorkerSet) -> bool {
        if let Some(admits) = self.admission.by_model(missing) {
            return admits;
        }
        let Some(due) = self.due() else { return true };
        self.slots.suffices(|worker| {
            due.answered.contains(worker)
                || self.repeaters.contains(worker)
                    && !missing.contains(worker)
                    && !self.gone.contains(worker)
        })
    }

    fn quality(&mut self) -> Report {
        let ready = |open: &&OpenJob| {
            !open.decoded && self.slots.suffices(|worker| open.answered.contains(worker))
        };
        let decode = |open: &OpenJob| self.slots.decode(&open.answered, |_, _| ());
        super::worst(self.stream.open.iter().filter(ready).map(decode))
    }

    fn outlook(&self, gone: &WorkerSet) -> Outlook {
        if self.admits(gone) {
            return Outlook::Open;
        }
        let jobs = self.due().map(|due| due.job).into_iter().collect();
        Outlook::Blocked { jobs, units: self.slots.uncovered(gone, self.facts.units) }
    }

    fn close(&mut self, missing: &WorkerSet, _: &[Option<f64>], decoded: &mut Vec<Job>) {
        for open in self.stream.open.iter_mut().filter(|open| !open.decoded) {
            open.decoded = self.slots.suffices(|worker| open.answered.contains(worker));
            decoded.extend(open.decoded.then_some(open.job));
        }
        self.stream.close();
        self.admission.remember(missing);
    }

    fn settle(&mut self, job: Job, out: &mut Vec<WeightedResult>) -> Report {
        let answered = self.find(job).map(|open| open.answered.clone()).unwrap_or_default();
        self.slots.decode(&answered, |worker, weight| {
            out.push(WeightedResult {
                worker,
                task: Task { job, piece: worker.0, plan: 0 },
                weight,
            });
        })
    }

    fn restart(&mut self, jobs: Range<Job>) {
        self.stream.restart(jobs);
    }
}

#[cfg(test)]
impl super::closure::KeyedScheme for SrSgc {
    fn admission(&self) -> &Admission {
        &self.admission
    }

    fn open(&self) -> Vec<(usize, String, bool)> {
        let state = |open: &OpenJob| format!("{:?}", &open.answered);
        let open = |open: &OpenJob| (self.stream.age(open.job), state(open), open.decoded);
        self.stream.open.iter().map(open).collect()
    }
}
