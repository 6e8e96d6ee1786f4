//! What is written down of a run, who sees it, and how a run ends.

use super::happened::Incident;
use super::spent::SpentRecord;
use super::waiting::{WaitingRound, median};
use super::{Coordinator, PendingSum};
use crate::codes::Report;
use crate::codes::sequential::by_worker;
use crate::gpu::{CombineError, Vector};
use crate::ids::{Round, Step, Units, Worker, WorkerSet};
use crate::schedulers::{EngineError, Refusal, RoundReport};
use crate::sums::DecodedSum;
use crate::train::BuildError;
use crate::train::policy::SchemeInUse;
use crate::transport::{Differences, ExitReason, FailedUnit, State, Transport};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;
use thiserror::Error;

/// The record of one round; times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundRecord {
    /// Number of the round, from 0.
    pub round: u64,
    /// When it opened, on the run's clock.
    pub opened: f64,
    /// How long it was open.
    pub seconds: f64,
    /// When each worker had finished its tasks, since the round opened; null if it had not by the
    /// close, or had none.
    pub arrivals: Vec<Option<f64>>,
    /// Injected lateness of each worker.
    pub delays: Vec<f64>,
    /// Workers whose results were not finite.
    pub erased: Vec<Worker>,
    /// Load assigned, in batches.
    pub work: f64,
}

impl RoundRecord {
    /// The middle of the answers that came, the later one of two; none if none came.
    #[must_use]
    pub fn median_arrival(&self) -> Option<f64> {
        median(self.arrivals.iter().flatten().copied())
    }

    /// Whether a worker answered while the round was open. A round from before the run had its seat
    /// has no answer of it.
    #[must_use]
    pub fn has_answer_of(&self, worker: Worker) -> bool {
        self.arrivals.get(worker.index()).is_some_and(Option::is_some)
    }
}

/// How good the decode of a step was, in its record.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodeRecord {
    /// `max_j |(aB)_j - 1|`.
    pub residual: f64,
    /// Growth of rounding errors; 1 = as uncoded.
    pub amplification: f64,
    /// Fraction of the batch in the gradient.
    pub coverage: f64,
    /// `|aB - 1|^2 / k`, the normalised decoding error.
    pub error: f64,
}

impl DecodeRecord {
    /// Of a step that was refused.
    const NOTHING: Self = Self { residual: 1.0, amplification: 0.0, coverage: 0.0, error: 1.0 };
}

impl From<Report> for DecodeRecord {
    fn from(report: Report) -> Self {
        let Report { residual, amplification, coverage, error, .. } = report;
        Self { residual, amplification, coverage, error }
    }
}

/// Which results of a step are not to be relied on, in its record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DoubtRecord {
    /// Workers of whose results something in the gradient was computed with parameters that no
    /// other could vouch for, or changed after it was announced. There are none of the first where
    /// workers report no digests. The second may also be in an earlier step, decided by then.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unverified: BTreeSet<Worker>,
    /// Workers whose results were found to be wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wrong: Vec<Worker>,
    /// How many of the decoded scalars are not finite. The gradient beside them is.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nonfinite_scalars: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// The record of one step; times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Number of the step, from 0, over all models.
    pub step: u64,
    /// When it was committed, on the run's clock.
    pub committed: f64,
    /// From the commit of the step before it to its own.
    pub seconds: f64,
    /// The rounds that closed since the commit of the step before it.
    pub rounds: Vec<RoundRecord>,
    /// Workers whose results are in the gradient.
    pub survivors: Vec<Worker>,
    /// Decode weights, one per worker; empty where workers have more than one result in the
    /// gradient.
    pub weights: Vec<f64>,
    /// How good the decode was.
    #[serde(flatten)]
    pub decode: DecodeRecord,
    /// Load assigned in its rounds, in batches of a step; uncoded = 1.
    pub work: f64,
    /// Units of the batch for which the step was refused; empty for a step that was applied.
    pub refused: Vec<Units>,
    /// Why, if it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_because: Option<Refusal>,
    /// Whose results are not to be relied on.
    #[serde(flatten)]
    pub doubts: DoubtRecord,
    /// What it was computed under, where that may change.
    #[serde(flatten)]
    pub under: UnderRecord,
    /// The decoded auxiliary scalars, `tail` in `run.jsonl`; NaN for one that is not finite, null
    /// there.
    #[serde(rename = "tail", with = "crate::scalars")]
    pub aux: Vec<f64>,
    /// Digest of the decoded gradient, in hexadecimal.
    pub digest: String,
    /// What workers have spent on rounds, as far as it is known since the step before; under a
    /// modelled clock nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spent: Vec<SpentRecord>,
}

/// What a step was computed under, where that may change in a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UnderRecord {
    /// The scheme, where a policy decides that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub using: Option<SchemeInUse>,
    /// For whom it was planned, in a run's first record and where that has changed since the one
    /// before; nothing where a run is always made by all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanRecord>,
}

/// For whom a step was planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRecord {
    /// The workers that it gives tasks to.
    pub members: Vec<Worker>,
    /// What the scheme for them is called.
    pub scheme: String,
}

/// Whether a run goes on after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    Continue,
    /// Stop here; everything up to this step is committed.
    Stop,
}

/// Sees every decided step before any worker is told of it, in the memory in which sums lie. Its
/// time is not counted.
pub trait Observer<V: Vector = Vec<f32>> {
    /// The run begins with this step.
    ///
    /// # Errors
    /// As [`Observer::step`].
    fn begins(&mut self, _step: Step) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }
    /// A step is decided; `decoded` is none when it was refused, or when the workers keep it among
    /// themselves.
    ///
    /// # Errors
    /// What makes the run pointless to go on with, such as a full disk.
    fn step(
        &mut self,
        _record: &StepRecord,
        _decoded: Option<&DecodedSum<V>>,
    ) -> Result<Flow, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Flow::Continue)
    }
    /// Something happened beside the steps, and the run goes on.
    fn event(&mut self, happened: &Incident) {
        match happened.what.worker() {
            Some(_) => tracing::warn!("{happened}"),
            None => tracing::info!("{happened}"),
        }
    }
    /// The run waits for answers: told once a second at most, and nothing under a modelled clock.
    /// [`Flow::Stop`] ends the run at once, with the steps that are decided.
    fn waiting(&mut self, _waiting: &WaitingRound) -> Flow {
        Flow::Continue
    }
    /// Who is to be done without from the next step on, asked after every decided step; none where
    /// that is as before. It is carried out if the run can go on without them; those that are not
    /// named any more are let in again.
    fn drained(&mut self) -> Option<Vec<Worker>> {
        None
    }
    /// A state in which all steps so far are applied, for a worker that comes when no other has
    /// one.
    fn state(&mut self) -> Option<State> {
        None
    }
    /// The lengths of the vectors of a state, where they are known: a state of other lengths is not
    /// handed on.
    fn state_lengths(&mut self) -> Option<Vec<usize>> {
        None
    }
    /// The digest of the parameters of a replica beside the workers, after the step that was shown
    /// last: a worker that reports another has wrong ones, and what it computes does not count.
    fn parameters(&mut self) -> Option<u64> {
        None
    }
}

/// Observes nothing.
impl<V: Vector> Observer<V> for () {}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All steps are decided, or a worker has ended the run.
    Finished,
    /// All workers have left after the same step.
    Left,
    /// All workers are gone, since they were told to end: the run is not made to its end.
    Preempted,
    /// The observer stopped it, or a [`Stopper`](super::Stopper).
    Stopped,
}

/// How far a run has come that is driven from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing is to be done until a notice comes, or so much time is over.
    Wait(Option<Duration>),
    /// It is over.
    Done(Outcome),
}

/// Why a run broke off.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The scheme cannot go on.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The scheme cannot go on, and a round is open.
    #[error("{error} ({waiting})")]
    Stalled {
        /// Why it cannot go on.
        #[source]
        error: EngineError,
        /// For whom the round waits.
        waiting: Box<WaitingRound>,
    },
    /// What was told or learned of the run makes none.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Messages of different lengths.
    #[error("a message cannot be folded")]
    Combine(#[from] CombineError),
    /// The observer failed.
    #[error("{0}")]
    Observer(Box<dyn std::error::Error + Send + Sync>),
    /// All workers have left.
    #[error("all workers have left")]
    NobodyLeft,
    /// One unit of one step could not be computed, time after time.
    #[error(
        "{step}: {tries} times a worker was lost while it computed {unit}; {worker}, the last one, \
         said: {reason}"
    )]
    UnitFailed {
        /// The current step.
        step: Step,
        /// Which unit.
        unit: FailedUnit,
        /// How many workers were lost for it.
        tries: u32,
        /// Who was the last.
        worker: Worker,
        /// What that one said.
        reason: String,
    },
    /// A script that is wrong, as its worker says: on any other it would be wrong too.
    #[error("{step}: {worker}: {word}")]
    Misuse {
        /// The current step.
        step: Step,
        /// Who says so.
        worker: Worker,
        /// What it says.
        word: Box<ExitReason>,
    },
    /// A worker was lost at one place of its program, one life after the other.
    #[error("{step}: {worker} failed {tries} times at {place}, and said: {word}")]
    FailsAgain {
        /// The current step.
        step: Step,
        /// Who.
        worker: Worker,
        /// How often.
        tries: u32,
        /// Where.
        place: String,
        /// What it said the last time.
        word: Box<ExitReason>,
    },
    /// The scheme cannot go on without workers that are lost by errors of their own.
    #[error("{worker} failed: {word} ({error})")]
    Failed {
        /// One of them.
        worker: Worker,
        /// What it said.
        word: Box<ExitReason>,
        /// Why the run cannot go on.
        #[source]
        error: EngineError,
    },
    /// No worker has come for the run to begin with.
    #[error("no worker has joined within {waited_seconds} s")]
    NobodyCame {
        /// How long it was waited.
        waited_seconds: f64,
    },
    /// Fewer workers have come than may make the run.
    #[error(
        "{} of {} workers have joined within {waited_seconds} s, and {least} are needed; missing \
         are {{{missing}}}",
        .missing.complement().len(),
        .missing.capacity()
    )]
    FewCame {
        /// How many are needed.
        least: usize,
        /// Who has not come.
        missing: WorkerSet,
        /// How long it was waited.
        waited_seconds: f64,
    },
    /// Workers that came for the run to begin with train different things.
    #[error("nothing is trained: {0}")]
    Differ(Differences),
    /// Under a modelled clock, which stands still meanwhile: a worker does not say that it has done
    /// what is due first.
    #[error(
        "{step}: workers {{{workers}}} have not applied what was decided, or not handed over their \
         states, and nothing came for {waited_seconds:.1} s (max_wait)"
    )]
    Unsettled {
        /// The current step.
        step: Step,
        /// Who is waited for.
        workers: WorkerSet,
        /// How long.
        waited_seconds: f64,
    },
    /// Results that must be looked at are not where the coordinator is.
    #[error(
        "the result of {worker} has not come by here, so that it cannot be judged; this transport \
         leaves results with their workers"
    )]
    NotReceived {
        /// Whose.
        worker: Worker,
    },
    /// A scheme of mixtures, and no judge to decode its results.
    #[error("the scheme mixes data, so that its results must be judged, and no judge was given")]
    NoJudge,
    /// Results cannot be decoded.
    #[error("the results cannot be decoded: {0}")]
    Judge(Box<dyn std::error::Error + Send + Sync>),
}

impl RunError {
    /// Too few workers have come within that time, since these are missing.
    #[must_use]
    pub fn few(least: usize, missing: WorkerSet, waited: Duration) -> Self {
        let waited_seconds = waited.as_secs_f64();
        if missing.complement().is_empty() {
            return Self::NobodyCame { waited_seconds };
        }
        Self::FewCame { least, missing, waited_seconds }
    }
}

/// How far the run is, and what the next record is made of.
#[derive(Debug)]
pub(super) struct Journal {
    /// The current step.
    pub(super) step: Step,
    /// The round that was opened last.
    pub(super) round: Round,
    /// Who saves what is decided, for all.
    pub(super) saver: Option<Worker>,
    /// `StepNews::late` of the step that was decided last.
    pub(super) late: u32,
    /// The rounds that closed since the last commit.
    rounds: Vec<RoundRecord>,
    /// Workers that have changed what they had announced, heard since the last commit, too late for
    /// the steps in which it may be.
    pub(super) changed: BTreeSet<Worker>,
    /// Who has not been there since the run began.
    pub(super) absent: BTreeSet<Worker>,
    /// Who is there for the first time, and has had nothing to do yet: a state that such a worker
    /// takes over is what it begins with.
    pub(super) new: BTreeSet<Worker>,
    /// The plan, until it is written down.
    plan: Option<PlanRecord>,
    last_commit: f64,
}

impl Journal {
    pub(super) fn new(first: Step, now: f64) -> Self {
        Self {
            step: first,
            round: Round(0),
            saver: None,
            late: 0,
            rounds: Vec::new(),
            changed: BTreeSet::new(),
            absent: BTreeSet::new(),
            new: BTreeSet::new(),
            plan: None,
            last_commit: now,
        }
    }

    /// A round is closed.
    pub(super) fn closed(&mut self, round: RoundRecord) {
        self.rounds.push(round);
    }

    /// Rounds that are in no record yet.
    pub(super) fn len(&self) -> usize {
        self.rounds.len()
    }

    /// From here on the run is planned like this.
    pub(super) fn planned(&mut self, plan: Option<(WorkerSet, &str)>) {
        let of = |(members, scheme): (WorkerSet, &str)| {
            let members = members.iter().collect();
            PlanRecord { members, scheme: scheme.into() }
        };
        self.plan = plan.map(of);
    }

    /// A step is committed: the rounds since the one before it, and how long ago that was.
    fn commit(&mut self, now: f64) -> (Vec<RoundRecord>, f64) {
        (std::mem::take(&mut self.rounds), now - std::mem::replace(&mut self.last_commit, now))
    }
}

impl<T: Transport> Coordinator<T> {
    pub(super) fn round_record(&self, report: RoundReport) -> RoundRecord {
        RoundRecord {
            round: report.round.0,
            opened: report.opened_at,
            seconds: report.closed_at - report.opened_at,
            arrivals: report.arrivals,
            delays: self.run_clock.lateness(report.round.0).to_vec(),
            erased: report.erased,
            work: report.work,
        }
    }

    /// Workers that are there, of whom a round has no arrival.
    fn late(&self, round: Option<&RoundRecord>) -> u32 {
        let arrivals = round.map_or(&[][..], |round| &round.arrivals);
        let roster = self.engine.roster();
        let missing = Worker::all(arrivals.len()).zip(arrivals);
        missing.filter(|(who, came)| came.is_none() && !roster.is_lost(*who)).count() as u32
    }

    pub(super) fn record(
        &mut self,
        step: Step,
        pending: Option<(&PendingSum, u64)>,
        refused: Vec<Units>,
    ) -> StepRecord {
        let committed = self.run_clock.now();
        let (rounds, seconds) = self.journal.commit(committed);
        self.journal.late = self.late(rounds.last());
        let parts = pending.map_or(&[][..], |(pending, _)| &pending.parts);
        let results = parts.iter().map(|part| (part.worker, part.weight));
        let (survivors, weights) = by_worker(self.config().shape.workers, results);
        let decode = pending.map(|(pending, _)| pending.decode.into());
        let aux = pending.map(|(pending, _)| pending.aux.clone()).unwrap_or_default();
        StepRecord {
            step: step.0,
            committed,
            seconds,
            work: rounds.iter().map(|round| round.work).sum::<f64>()
                / self.config().jobs.micro_steps as f64,
            rounds,
            survivors: survivors.iter().collect(),
            weights,
            decode: decode.unwrap_or(DecodeRecord::NOTHING),
            refused,
            refused_because: None,
            doubts: DoubtRecord {
                unverified: std::mem::take(&mut self.journal.changed),
                wrong: self.judging.take_wrong(),
                nonfinite_scalars: aux.iter().filter(|scalar| !scalar.is_finite()).count(),
            },
            under: UnderRecord {
                using: self.choosing.as_mut().map(|choosing| choosing.note(step)),
                plan: self.journal.plan.take(),
            },
            aux,
            digest: pending.map(|(_, digest)| format!("{digest:016x}")).unwrap_or_default(),
            spent: self.spending.take(),
        }
    }
}
