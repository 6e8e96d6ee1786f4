//! What the engine knows of each step that is not decided yet: its jobs, its results, its sum.
//!
//! Models that are trained in turn overlap freely. Everything decoded is held before the next round
//! opens, so with more models than the scheme's delay a job's parameters are committed before its
//! first round; with fewer the engine refuses to begin. The jobs of one step of one model (gradient
//! accumulation) end with it: the scheme is restarted with the next step's jobs and keeps what it
//! has learnt of the workers.

use super::events::{Action, Refusal};
use crate::codes::Report;
use crate::codes::sequential::{UNCODED, worst};
use crate::ids::{Job, Part, Piece, Step, Summand, Task, Units, WeightedResult, Worker, WorkerSet};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use xxhash_rust::xxh3::xxh3_64;

/// How a step came out.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    /// Enough workers hold its sum, which has this digest.
    Summed(u64),
    Refused(Vec<Units>, Refusal),
}

/// How far a step is.
#[derive(Clone, Debug, Default)]
enum Stage {
    /// Not all of its jobs are decoded.
    #[default]
    Decoding,
    /// Its sum was asked for.
    Summing,
    /// It waits for the steps before it.
    Ended(Fate),
}

/// A step under way.
#[derive(Clone, Debug, Default)]
struct OpenStep {
    stage: Stage,
    /// Jobs that are decoded.
    decoded: BTreeSet<Job>,
    report: Option<Report>,
    /// What it is made of: the first unit and the weight of each result.
    terms: Vec<(u32, WeightedResult)>,
    /// Workers that do nothing until it is decided, since their results of it were not finite and
    /// they said so.
    barred: BTreeSet<Worker>,
}

impl OpenStep {
    fn is_summing(&self) -> bool {
        matches!(self.stage, Stage::Summing)
    }

    /// It is to be decoded again.
    fn again(&mut self) {
        self.stage = Stage::Decoding;
        self.decoded.clear();
        self.terms.clear();
        self.report = None;
    }
}

/// What is known of a task that a worker was given.
#[derive(Clone, Debug)]
struct GivenTask {
    /// Its first unit, by which its result has its place in the summation tree.
    start: u32,
    /// What it consists of, as a hash: results of equal ones are equal.
    content: u64,
    /// Whether its result is there and counts.
    is_held: bool,
}

fn content_of(parts: &[Part]) -> u64 {
    let numbers = parts.iter().flat_map(|part| {
        [u64::from(part.units.start), u64::from(part.units.end), part.coefficient.to_bits()]
    });
    xxh3_64(bytemuck::cast_slice(&numbers.collect::<Vec<u64>>()))
}

/// The steps that are not decided. Each is decoded job by job ([`OpenSteps::decoded`]), then summed
/// once all its jobs are ([`OpenSteps::sum`]) until enough workers hold that
/// ([`OpenSteps::summed`]) or it is refused ([`OpenSteps::refuse`]); what came of it is asked in
/// the order of the steps ([`OpenSteps::close`]). [`OpenSteps::again`] goes back to the decoding,
/// [`OpenSteps::restart`] to the beginning, of all steps.
#[derive(Clone, Debug)]
pub(super) struct OpenSteps {
    micro_steps: u64,
    open: BTreeMap<Step, OpenStep>,
    given: BTreeMap<(Worker, Task), GivenTask>,
}

impl OpenSteps {
    pub(super) fn new(micro_steps: u64) -> Self {
        Self { micro_steps, open: BTreeMap::new(), given: BTreeMap::new() }
    }

    fn open(&mut self, step: Step) -> &mut OpenStep {
        self.open.entry(step).or_default()
    }

    /// A worker was given a task that consists of these parts.
    pub(super) fn gave(&mut self, worker: Worker, task: Task, parts: &[Part]) {
        let start = parts.first().map_or(u32::MAX, |part| part.units.start);
        let given = GivenTask { start, content: content_of(parts), is_held: false };
        self.given.insert((worker, task), given);
    }

    /// A result is there, and counts.
    pub(super) fn returned(&mut self, worker: Worker, task: Task) {
        if let Some(given) = self.given.get_mut(&(worker, task)) {
            given.is_held = true;
        }
    }

    /// A job is decoded, from these results; gives its step.
    ///
    /// # Panics
    /// When a result is of a task that was not given.
    pub(super) fn decoded(
        &mut self,
        job: Job,
        report: Report,
        results: Vec<WeightedResult>,
    ) -> Step {
        let place = |result: WeightedResult| {
            let given = self.given.get(&(result.worker, result.task));
            (given.expect("what counts was given out").start, result)
        };
        let terms: Vec<(u32, WeightedResult)> = results.into_iter().map(place).collect();
        let step = job.step(self.micro_steps);
        let open = self.open(step);
        open.decoded.insert(job);
        open.report =
            Some(open.report.map_or(report, |others| worst([others, report].into_iter())));
        open.terms.extend(terms);
        step
    }

    /// Asks for the sum of a step if all its jobs are decoded, or for it again, of the same
    /// results; these can come to hold it. Where equal tasks are `trusted` to have equal results,
    /// any of those who hold one will do.
    pub(super) fn sum(&mut self, step: Step, counted: WorkerSet, trusted: bool) -> Option<Action> {
        let given = &self.given;
        let open = self
            .open
            .get_mut(&step)
            .filter(|open| open.decoded.len() as u64 == self.micro_steps)?;
        // Looked up for each term: a comparison of each with each grows with the square of workers.
        let mut alike: HashMap<(Job, u64), Vec<Piece>> = HashMap::new();
        let held = given.iter().filter(|(_, given)| given.is_held && trusted);
        for ((worker, task), given) in held {
            let piece = Piece { worker: *worker, task: *task };
            alike.entry((task.job, given.content)).or_default().push(piece);
        }
        let term = |(_, result): &(u32, WeightedResult)| {
            let WeightedResult { worker, task, weight } = *result;
            let own = Piece { worker, task };
            let content = given.get(&(worker, task)).map(|given| (task.job, given.content));
            let alike = content.and_then(|content| alike.get(&content));
            let others = alike.into_iter().flatten().filter(|piece| **piece != own);
            Summand { weight, holders: std::iter::once(own).chain(others.copied()).collect() }
        };
        // By place in the batch, so that the order of summation does not depend on who was fast.
        open.terms.sort_by_key(|(start, result)| (result.task.job, *start, result.worker));
        open.stage = Stage::Summing;
        Some(Action::Sum {
            step,
            terms: open.terms.iter().map(term).collect(),
            decode: open.report.unwrap_or(UNCODED),
            counted,
        })
    }

    /// Whether some jobs of a step are decoded and others are not.
    pub(super) fn is_halfway(&self, step: Step) -> bool {
        self.open.get(&step).is_some_and(|open| {
            !open.decoded.is_empty() && (open.decoded.len() as u64) < self.micro_steps
        })
    }

    /// A worker is lost, and what it has.
    pub(super) fn lost(&mut self, worker: Worker) {
        self.given.retain(|(holder, _), _| *holder != worker);
    }

    /// A worker's results of a step are of no use, and it does nothing until the step is decided.
    pub(super) fn erase(&mut self, worker: Worker, step: Step) {
        let micro_steps = self.micro_steps;
        self.given
            .retain(|(holder, task), _| *holder != worker || task.job.step(micro_steps) != step);
        self.open(step).barred.insert(worker);
    }

    /// Who does nothing until some step is decided, once for each such step.
    pub(super) fn barred(&self) -> impl Iterator<Item = Worker> {
        self.open.values().flat_map(|open| open.barred.iter().copied())
    }

    /// A step is to be decoded again.
    pub(super) fn again(&mut self, step: Step) {
        self.open(step).again();
    }

    /// All steps from the first undecided one on begin again; names those under way.
    pub(super) fn restart(&mut self, first: Step) -> Vec<Step> {
        // Also steps whose sums are held and not committed: those before them begin again, and they
        // were computed with parameters that will not be.
        self.open(first);
        self.open.values_mut().for_each(OpenStep::again);
        // Workers forget what they hold, but not what they are at.
        self.given.values_mut().for_each(|given| given.is_held = false);
        self.open.keys().copied().collect()
    }

    /// Whether the sum of a step was asked for and has come to nothing yet.
    pub(super) fn is_summing(&self, step: Step) -> bool {
        self.open.get(&step).is_some_and(OpenStep::is_summing)
    }

    /// The steps whose sums were asked for.
    pub(super) fn summing(&self) -> impl Iterator<Item = Step> {
        self.open.iter().filter(|(_, open)| open.is_summing()).map(|(step, _)| *step)
    }

    /// Whether no step that is decoded is still to be decided.
    pub(super) fn are_decoding(&self) -> bool {
        self.open.values().all(|open| matches!(open.stage, Stage::Decoding))
    }

    /// Enough workers hold the sum of a step.
    pub(super) fn summed(&mut self, step: Step, digest: u64) {
        self.open(step).stage = Stage::Ended(Fate::Summed(digest));
    }

    pub(super) fn refuse(&mut self, step: Step, units: Vec<Units>, because: Refusal) {
        self.open(step).stage = Stage::Ended(Fate::Refused(units, because));
    }

    /// How a step came out, if that is known; it is closed with that, and what was given for it can
    /// no longer be summed again.
    pub(super) fn close(&mut self, step: Step) -> Option<Fate> {
        // Only the first undecided step is asked for, so fates of later ones wait here.
        if !matches!(self.open.get(&step)?.stage, Stage::Ended(_)) {
            return None;
        }
        let micro_steps = self.micro_steps;
        self.given.retain(|(_, task), _| task.job.step(micro_steps) > step);
        match self.open.remove(&step)?.stage {
            Stage::Ended(fate) => Some(fate),
            Stage::Decoding | Stage::Summing => None,
        }
    }
}
