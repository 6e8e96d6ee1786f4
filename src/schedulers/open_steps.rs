//! What the engine knows of each step that is not decided yet: its jobs, its results, its holders.
//!
//! Models that are trained in turn overlap freely. Everything decoded is held before the next round
//! opens, so with more models than the scheme's delay a job's parameters are committed before its
//! first round; with fewer the engine refuses to begin. The jobs of one step of one model (gradient
//! accumulation) end with it: the scheme is restarted with the next step's jobs and keeps what it
//! has learnt of the workers.

use super::events::{Action, Refusal};
use crate::codes::Report;
use crate::codes::sequential::{Fold, UNCODED, worst};
use crate::ids::{Job, Step, Units, Worker, WorkerSet};
use std::collections::{BTreeMap, BTreeSet};

/// How a step came out.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    Held { attempt: u32, digest: u64 },
    Refused(Vec<Units>, Refusal),
}

/// A step under way.
#[derive(Clone, Debug, Default)]
struct Open {
    /// Jobs that are decoded.
    decoded: BTreeSet<Job>,
    attempt: u32,
    report: Option<Report>,
    /// Workers with a sum of results.
    sums: BTreeSet<Worker>,
    /// Results not in such a sum: the first unit and the weight of each.
    terms: Vec<(u32, Fold)>,
}

/// A decoded step and who holds its vector, with which digest.
#[derive(Clone, Debug)]
struct Waiting {
    step: Step,
    /// Workers of whom two must hold it, or the one that there is: who was there when it was
    /// decoded, still is, and needs no state.
    counted: WorkerSet,
    /// Workers of whose results it is made.
    sources: BTreeSet<Worker>,
    /// Live workers that hold it.
    holders: Vec<(Worker, u64)>,
}

impl Waiting {
    /// The bytes that two workers hold, or one where no two are left of those that are counted.
    fn agreed(&self) -> Option<u64> {
        // Two, since one worker that holds the vector may die before another has it; with one
        // worker left there is no second to ask.
        let enough = self.counted.len().clamp(1, 2);
        let alike = |digest: u64| self.holders.iter().filter(|holder| holder.1 == digest).count();
        self.holders.iter().map(|holder| holder.1).find(|digest| alike(*digest) >= enough)
    }

    /// Those who hold other bytes than the first holder, if nobody can come any more who would
    /// settle which are right.
    fn disputed(&self) -> Option<Worker> {
        // While somebody is still to report, it may agree with one of those that differ.
        let all =
            self.counted.iter().all(|worker| self.holders.iter().any(|holder| holder.0 == worker));
        let (first, others) =
            self.holders.split_first().filter(|_| all && self.agreed().is_none())?;
        others.iter().find(|holder| holder.1 != first.1).map(|holder| holder.0)
    }
}

/// The steps that are not decided. Each is decoded job by job ([`OpenSteps::decoded`]), then folded
/// once all its jobs are ([`OpenSteps::fold`]), then held by workers ([`OpenSteps::held`],
/// [`OpenSteps::settle_held`]); what came of it is asked in the order of the steps
/// ([`OpenSteps::close`]). [`OpenSteps::again`] goes back to the decoding, [`OpenSteps::restart`]
/// to the beginning, of all steps.
#[derive(Clone, Debug)]
pub(super) struct OpenSteps {
    micro_steps: u64,
    open: BTreeMap<Step, Open>,
    waiting: Vec<Waiting>,
    fates: BTreeMap<Step, Fate>,
}

impl OpenSteps {
    pub(super) fn new(micro_steps: u64) -> Self {
        Self { micro_steps, open: BTreeMap::new(), waiting: Vec::new(), fates: BTreeMap::new() }
    }

    fn open(&mut self, step: Step) -> &mut Open {
        self.open.entry(step).or_default()
    }

    /// A result was added to what its worker holds of a step.
    pub(super) fn summed(&mut self, step: Step, worker: Worker) {
        self.open(step).sums.insert(worker);
    }

    /// A job is decoded, from the sums and these results.
    pub(super) fn decoded(
        &mut self,
        job: Job,
        report: Report,
        terms: impl Iterator<Item = (u32, Fold)>,
    ) {
        let open = self.open(job.step(self.micro_steps));
        open.decoded.insert(job);
        open.report =
            Some(open.report.map_or(report, |others| worst([others, report].into_iter())));
        open.terms.extend(terms);
    }

    /// The fold of a step if all its jobs are decoded; from then on it waits for holders among
    /// these.
    pub(super) fn fold(&mut self, step: Step, counted: &WorkerSet) -> Option<Action> {
        let open = self
            .open
            .get_mut(&step)
            .filter(|open| open.decoded.len() as u64 == self.micro_steps)?;
        // By place in the batch, so that the order of summation does not depend on who was fast.
        open.terms.sort_by_key(|(start, fold)| (fold.task.job, *start, fold.worker));
        let folds: Vec<Fold> = open.terms.iter().map(|term| term.1).collect();
        let sources =
            open.sums.iter().copied().chain(folds.iter().map(|fold| fold.worker)).collect();
        // Workers that come later are not waited for: they would hold up a step of which they have
        // no part.
        let holders = Vec::new();
        self.waiting.push(Waiting { step, counted: counted.clone(), sources, holders });
        let (sums, decode) = (open.sums.iter().copied().collect(), open.report.unwrap_or(UNCODED));
        let (attempt, counted) = (open.attempt, counted.clone());
        Some(Action::Fold { step, attempt, sums, folds, decode, counted })
    }

    /// The fold of a step again, of the same results, if this attempt at it still waits for
    /// holders. What died with somebody of `died_since_close` is the loss of that worker, and the
    /// vector may be kept all the same.
    pub(super) fn refold(
        &mut self,
        step: Step,
        attempt: u32,
        counted: &WorkerSet,
        died_since_close: &WorkerSet,
    ) -> Option<Action> {
        let whole = |waiting: &Waiting| {
            waiting.step == step
                && !waiting.sources.iter().any(|worker| died_since_close.contains(*worker))
        };
        // Of an attempt that is void nothing follows; and where a source has died, the sum would
        // fail again.
        if attempt != self.attempt(step) || !self.waiting.iter().any(whole) {
            return None;
        }
        // The higher number makes acknowledgements of the first attempt void.
        self.waiting.retain(|waiting| waiting.step != step);
        self.open(step).attempt += 1;
        self.fold(step, counted)
    }

    /// Whether some jobs of a step are decoded and others are not.
    pub(super) fn is_halfway(&self, step: Step) -> bool {
        self.open.get(&step).is_some_and(|open| {
            !open.decoded.is_empty() && (open.decoded.len() as u64) < self.micro_steps
        })
    }

    /// A dead worker's sums are gone, and all that it held.
    pub(super) fn forget_worker(&mut self, worker: Worker) {
        for open in self.open.values_mut() {
            open.sums.remove(&worker);
        }
        for waiting in &mut self.waiting {
            waiting.counted.remove(worker);
            waiting.holders.retain(|holder| holder.0 != worker);
        }
    }

    /// A worker is to take over a state: it is not waited for. What it holds, it holds.
    pub(super) fn excuse(&mut self, worker: Worker) {
        for waiting in &mut self.waiting {
            waiting.counted.remove(worker);
        }
    }

    /// The first decoded step whose vector is nowhere any more, or cannot be made, without a
    /// worker.
    pub(super) fn unheld_without(&self, worker: Worker) -> Option<Step> {
        let unheld = |waiting: &&Waiting| {
            // Held elsewhere it is safe; held by nobody it still can be made, as long as no part of
            // it was this worker's.
            let others = waiting.holders.iter().any(|holder| holder.0 != worker);
            !others && (!waiting.holders.is_empty() || waiting.sources.contains(&worker))
        };
        self.waiting.iter().filter(unheld).map(|waiting| waiting.step).min()
    }

    /// A step is to be decoded again, from the sums that are left.
    pub(super) fn again(&mut self, step: Step) {
        self.waiting.retain(|waiting| waiting.step != step);
        let open = self.open(step);
        open.attempt += 1;
        open.decoded.clear();
        open.terms.clear();
        open.report = None;
    }

    /// All steps from the first undecided one on begin again; names those under way.
    pub(super) fn restart(&mut self, first: Step) -> Vec<Step> {
        // Also steps that are held but not committed: those before them begin again, and they were
        // computed with parameters that will not be.
        self.fates.clear();
        self.open(first);
        let steps: Vec<Step> = self.open.keys().copied().collect();
        for step in &steps {
            self.again(*step);
            self.open(*step).sums.clear();
        }
        steps
    }

    /// Which attempt at a step counts.
    pub(super) fn attempt(&self, step: Step) -> u32 {
        self.open.get(&step).map_or(0, |open| open.attempt)
    }

    /// Whether this is the attempt at a step that counts, and waits for holders.
    pub(super) fn is_waiting(&self, step: Step, attempt: u32) -> bool {
        attempt == self.attempt(step) && self.waiting.iter().any(|waiting| waiting.step == step)
    }

    /// A worker holds the vector of a step, with this digest.
    pub(super) fn held(&mut self, step: Step, worker: Worker, digest: u64) {
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.step == step) {
            waiting.holders.retain(|holder| holder.0 != worker);
            waiting.holders.push((worker, digest));
        }
    }

    /// Whether no step that is decoded is still to be decided.
    pub(super) fn nothing_is_folded(&self) -> bool {
        self.waiting.is_empty() && self.fates.is_empty()
    }

    /// Steps that wait for holders.
    pub(super) fn waiting(&self) -> Vec<Step> {
        self.waiting.iter().map(|waiting| waiting.step).collect()
    }

    /// Settles the steps whose bytes enough workers hold; a step of which all hold different bytes
    /// cannot be, and one of them is named.
    pub(super) fn settle_held(&mut self) -> Option<(Step, Worker)> {
        let Self { open, waiting, fates, .. } = self;
        waiting.retain(|waiting| {
            let agreed = waiting.agreed();
            if let Some(digest) = agreed {
                let attempt = open.get(&waiting.step).map_or(0, |open| open.attempt);
                fates.insert(waiting.step, Fate::Held { attempt, digest });
            }
            agreed.is_none()
        });
        waiting.iter().find_map(|waiting| Some((waiting.step, waiting.disputed()?)))
    }

    pub(super) fn refuse(&mut self, step: Step, units: Vec<Units>, because: Refusal) {
        self.waiting.retain(|waiting| waiting.step != step);
        self.fates.insert(step, Fate::Refused(units, because));
    }

    /// The first step that waits for holders and is made of what died with somebody of
    /// `died_since_close`.
    pub(super) fn made_of(&self, died_since_close: &WorkerSet) -> Option<Step> {
        let made = |waiting: &&Waiting| {
            waiting.sources.iter().any(|worker| died_since_close.contains(*worker))
        };
        self.waiting.iter().filter(made).map(|waiting| waiting.step).min()
    }

    /// Who of these workers does not hold a step that waits for holders.
    pub(super) fn without(&self, step: Step, alive: &WorkerSet) -> WorkerSet {
        let mut without = alive.clone();
        let waiting = self.waiting.iter().filter(|waiting| waiting.step == step);
        for holder in waiting.flat_map(|waiting| &waiting.holders) {
            without.remove(holder.0);
        }
        without
    }

    /// How a step came out, if that is known; it is closed with that.
    pub(super) fn close(&mut self, step: Step) -> Option<Fate> {
        // Only the first undecided step is asked for, so fates of later ones wait here.
        let fate = self.fates.remove(&step)?;
        self.open.remove(&step);
        Some(fate)
    }
}
