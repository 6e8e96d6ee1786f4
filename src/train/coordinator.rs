//! Carries out what the round engine decides: orders to workers, the fold, commit before apply.

use super::pace::{Next, Pace};
use crate::codes::sequential::Fold;
use crate::gpu::{CombineError, Folded, Source, Term};
use crate::ids::{Job, Task, Units, Worker, WorkerSet};
use crate::schedulers::{Action, Engine, EngineError, Input, RoundReport};
use crate::transport::{Cancel, Decoded, Notice, Order, Transport};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use thiserror::Error;

/// The record of one step; times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Number of the step, from 0.
    pub step: u64,
    /// When its round opened, on the run's clock.
    pub opened: f64,
    /// When it was committed, on the run's clock.
    pub committed: f64,
    /// From the opening of its round to its commit.
    pub seconds: f64,
    /// When each worker's answer was in, since the round opened; null if it was not by the close.
    pub arrivals: Vec<Option<f64>>,
    /// Workers whose messages are in the gradient.
    pub survivors: Vec<Worker>,
    /// Decode weights, one per worker.
    pub weights: Vec<f64>,
    /// `max_j |(aB)_j - 1|`.
    pub residual: f64,
    /// Growth of rounding errors; 1 = as uncoded.
    pub amplification: f64,
    /// Fraction of the batch in the gradient.
    pub coverage: f64,
    /// `|aB - 1|^2 / k`, the normalised decoding error.
    pub error: f64,
    /// Load assigned, in batches; uncoded = 1.
    pub work: f64,
    /// Injected lateness of each worker.
    pub delays: Vec<f64>,
    /// Workers whose messages were not finite or who dropped their task.
    pub erased: Vec<Worker>,
    /// Units of the batch for which the step was refused; empty for a step that was applied.
    pub refused: Vec<Units>,
    /// The decoded tail.
    pub tail: Vec<f64>,
    /// Digest of the decoded gradient, in hexadecimal.
    pub digest: String,
}

/// Whether a run goes on after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    Continue,
    /// Stop here; everything up to this step is committed.
    Stop,
}

/// Sees every decided step before any worker is told of it. Its time is not counted.
pub trait Observer {
    /// A step is decided; `decoded` is none when it was refused.
    ///
    /// # Errors
    /// Whatever makes the run pointless to go on with, such as a full disk.
    fn step(&mut self, record: &StepRecord, decoded: Option<&Decoded>) -> Result<Flow, Box<dyn std::error::Error + Send + Sync>>;
    /// Something went wrong with a worker and the run goes on.
    fn fault(&mut self, step: u64, worker: Worker, what: &str);
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All steps are decided.
    Finished,
    /// The observer stopped it.
    Stopped,
}

/// Why a run broke off.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The scheme cannot go on.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Messages of different lengths.
    #[error("a message cannot be folded")]
    Combine(#[from] CombineError),
    /// The observer failed.
    #[error("{0}")]
    Observer(Box<dyn std::error::Error + Send + Sync>),
    /// All workers have left.
    #[error("all workers have left")]
    NobodyLeft,
}

enum Decision {
    Step(Arc<Decoded>),
    Refused(Arc<[Units]>),
}

struct Folding {
    job: Job,
    attempt: u32,
    decoded: Arc<Decoded>,
    folds: Vec<Fold>,
    report: RoundReport,
    /// Workers that were sent the vector to hold.
    sent: WorkerSet,
}

/// Drives one run over a transport.
pub struct Coordinator<T: Transport> {
    transport: T,
    engine: Engine,
    pace: Pace,
    length: usize,
    units: u32,
    log: VecDeque<(Job, Decision)>,
    log_steps: u64,
    results: HashMap<(Worker, Task), (Vec<f32>, Vec<f64>)>,
    folding: Option<Folding>,
    inputs: VecDeque<Input>,
    /// Steps sent to each worker and not yet reported as applied.
    unapplied: Vec<u32>,
    step: Job,
}

impl<T: Transport> Coordinator<T> {
    /// A coordinator for gradients of `length` numbers and batches of `units` units; `log_steps` as in
    /// the engine's configuration, `first` the first step of the run.
    pub fn new(transport: T, engine: Engine, pace: Pace, shape: (usize, usize, u32), log_steps: u64, first: u64) -> Self {
        let (workers, length, units) = shape;
        Self {
            transport,
            engine,
            pace,
            length,
            units,
            log: VecDeque::new(),
            log_steps,
            results: HashMap::new(),
            folding: None,
            inputs: VecDeque::from([Input::Begin]),
            unapplied: vec![0; workers],
            step: Job(first),
        }
    }

    /// Runs until all steps are decided or the observer stops it; then every worker is told.
    ///
    /// # Errors
    /// [`RunError`] when the run cannot go on.
    pub fn run(mut self, observer: &mut dyn Observer) -> Result<Outcome, RunError> {
        let outcome = self.drive(observer);
        for worker in Worker::all(self.unapplied.len()) {
            self.transport.send(worker, Order::Stop);
        }
        outcome
    }

    fn drive(&mut self, observer: &mut dyn Observer) -> Result<Outcome, RunError> {
        let mut actions = Vec::new();
        loop {
            let input = match self.inputs.pop_front() {
                Some(input) => input,
                None => self.wait(observer)?,
            };
            self.engine.handle(self.pace.now(), input, &mut actions)?;
            for action in actions.drain(..) {
                if let Some(outcome) = self.act(action, observer)? {
                    return Ok(outcome);
                }
            }
        }
    }

    fn wait(&mut self, observer: &mut dyn Observer) -> Result<Input, RunError> {
        loop {
            let settling = self.pace.is_virtual() && self.unapplied.iter().any(|count| *count > 0);
            let next = if settling || self.folding.is_some() { Next::Wait(None) } else { self.pace.next(self.engine.deadline()) };
            let (worker, notice) = match next {
                Next::Arrived(worker, notice) => (worker, notice),
                Next::Deadline => return Ok(Input::Tick),
                Next::Wait(patience) => {
                    let Some((worker, notice)) = self.transport.receive(patience) else {
                        if patience.is_none() {
                            return Err(RunError::NobodyLeft);
                        }
                        continue;
                    };
                    if matches!(notice, Notice::Lost { .. }) {
                        self.unapplied[worker.index()] = 0;
                    }
                    let counted = self.pace.arrived(worker, notice);
                    self.hold(worker);
                    match counted {
                        Some(notice) => (worker, notice),
                        None => continue,
                    }
                }
            };
            if let Some(input) = self.input(worker, notice, observer) {
                return Ok(input);
            }
        }
    }

    fn input(&mut self, worker: Worker, notice: Notice, observer: &mut dyn Observer) -> Option<Input> {
        match notice {
            Notice::Done { task, message, tail, finite } => {
                if finite && task.job == self.step && self.folding.is_none() {
                    self.results.insert((worker, task), (message, tail));
                } else {
                    self.transport.recycle(message);
                }
                if !finite {
                    observer.fault(self.step.0, worker, "its message is not finite and was erased");
                }
                Some(Input::Done { worker, task, finite })
            }
            Notice::Freed => Some(Input::Freed { worker }),
            Notice::Held { job, attempt, digest } => Some(Input::Held { worker, job, attempt, digest }),
            Notice::Applied { job, digest } => {
                let unapplied = &mut self.unapplied[worker.index()];
                *unapplied = unapplied.saturating_sub(1);
                Some(Input::Applied { worker, job, digest })
            }
            Notice::State { needy, state } => {
                let next = state.next;
                self.transport.send(needy, Order::Take { state: Arc::new(state) });
                Some(Input::Synced { worker: needy, next })
            }
            Notice::Lost { reason } => {
                observer.fault(self.step.0, worker, &format!("lost: {reason}"));
                Some(Input::Lost { worker, kept: true })
            }
        }
    }

    fn act(&mut self, action: Action, observer: &mut dyn Observer) -> Result<Option<Outcome>, RunError> {
        match action {
            Action::Assign { worker, task, parts } => {
                let units: u32 = parts.iter().map(|part| part.units.count()).sum();
                self.pace.assigned(worker, task, f64::from(units) / f64::from(self.units));
                self.transport.send(worker, Order::Compute { task, parts, cancel: Cancel::default() });
            }
            Action::Abandon { worker } => {
                self.transport.send(worker, Order::Abandon);
                if let Some(answer) = self.pace.abandoned(worker) {
                    let input = match answer {
                        Some(Notice::Done { message, .. }) => {
                            self.transport.recycle(message);
                            None
                        }
                        other => other.and_then(|notice| self.input(worker, notice, observer)),
                    };
                    self.inputs.push_back(input.unwrap_or(Input::Freed { worker }));
                }
            }
            Action::Fold { job, attempt, folds, report } => {
                if !self.fold(job, attempt, folds, report)? {
                    self.inputs.push_back(Input::Overflowed { job, attempt });
                }
            }
            Action::Commit { job, digest, .. } => return self.commit(job, digest, observer),
            Action::Refuse { job, units, report } => {
                let record = self.record(job, &report, &[], units.clone(), None);
                self.remember(job, Decision::Refused(units.into()));
                return self.show(&record, None, observer);
            }
            Action::Apply { worker, job } => self.apply(worker, job),
            Action::Diverged { worker, job } => {
                observer.fault(job.0, worker, "its parameters differ from the others'; resynchronised");
            }
            Action::Resync { worker, from } => {
                observer.fault(self.step.0, worker, &format!("takes over the state of {from}"));
                self.transport.send(from, Order::Provide { needy: worker });
            }
            Action::Finish => return Ok(Some(Outcome::Finished)),
        }
        Ok(None)
    }

    /// Makes the decoded vector and has it held; false if it is not finite, and nothing is done with it.
    fn fold(&mut self, job: Job, attempt: u32, folds: Vec<Fold>, report: RoundReport) -> Result<bool, RunError> {
        let mut gradient = self.transport.buffer(self.length);
        let mut tail: Vec<f64> = Vec::new();
        let mut terms = Vec::with_capacity(folds.len());
        for fold in &folds {
            let (message, scalars) = &self.results[&(fold.worker, fold.task)];
            terms.push(Term { weight: fold.weight as f32, source: Source::F32(message) });
            tail.resize(tail.len().max(scalars.len()), 0.0);
            tail.iter_mut().zip(scalars).for_each(|(sum, x)| *sum += fold.weight * x);
        }
        let Folded { digest, finite } = crate::gpu::shared().combine_and_digest(&terms, &mut gradient)?;
        if !finite {
            self.transport.recycle(gradient);
            return Ok(false);
        }
        let decoded = Arc::new(Decoded { gradient, tail, digest });
        let sent = WorkerSet::empty(self.unapplied.len());
        self.folding = Some(Folding { job, attempt, decoded, folds, report, sent });
        for worker in Worker::all(self.unapplied.len()) {
            self.hold(worker);
        }
        Ok(true)
    }

    /// Sends the vector being folded to a worker that can take it now.
    fn hold(&mut self, worker: Worker) {
        let Some(folding) = &mut self.folding else { return };
        if !self.pace.is_leaving(worker) && folding.sent.insert(worker) {
            let (job, attempt, decoded) = (folding.job, folding.attempt, Arc::clone(&folding.decoded));
            self.transport.send(worker, Order::Hold { job, attempt, decoded });
        }
    }

    fn commit(&mut self, job: Job, digest: u64, observer: &mut dyn Observer) -> Result<Option<Outcome>, RunError> {
        let Some(Folding { decoded, folds, report, .. }) = self.folding.take() else { return Ok(None) };
        assert_eq!(decoded.digest, digest, "what is committed is what was folded");
        let record = self.record(job, &report, &folds, Vec::new(), Some(&decoded));
        self.remember(job, Decision::Step(Arc::clone(&decoded)));
        self.show(&record, Some(&decoded), observer)
    }

    fn remember(&mut self, job: Job, decision: Decision) {
        for (_, (message, _)) in self.results.drain() {
            self.transport.recycle(message);
        }
        self.log.push_back((job, decision));
        while self.log.len() as u64 > self.log_steps + 1 {
            if let Some((_, Decision::Step(old))) = self.log.pop_front()
                && let Some(old) = Arc::into_inner(old)
            {
                self.transport.recycle(old.gradient);
            }
        }
        self.step = job.next();
    }

    fn show(&mut self, record: &StepRecord, decoded: Option<&Decoded>, observer: &mut dyn Observer) -> Result<Option<Outcome>, RunError> {
        let flow = self.pace.pause(|| observer.step(record, decoded)).map_err(RunError::Observer)?;
        Ok((flow == Flow::Stop).then_some(Outcome::Stopped))
    }

    fn record(&self, job: Job, report: &RoundReport, folds: &[Fold], refused: Vec<Units>, decoded: Option<&Decoded>) -> StepRecord {
        let committed = self.pace.now();
        let mut weights = vec![0.0; self.unapplied.len()];
        for fold in folds {
            weights[fold.worker.index()] = fold.weight;
        }
        StepRecord {
            step: job.0,
            opened: report.opened_at,
            committed,
            seconds: committed - report.opened_at,
            arrivals: report.arrivals.clone(),
            survivors: WorkerSet::of(self.unapplied.len(), folds.iter().map(|fold| fold.worker)).iter().collect(),
            weights,
            residual: report.decode.residual,
            amplification: report.decode.amplification,
            coverage: report.decode.coverage,
            error: report.decode.error,
            work: report.work,
            delays: self.pace.lateness(job.0).to_vec(),
            erased: report.erased.clone(),
            refused,
            tail: decoded.map(|decoded| decoded.tail.clone()).unwrap_or_default(),
            digest: decoded.map(|decoded| format!("{:016x}", decoded.digest)).unwrap_or_default(),
        }
    }

    fn apply(&mut self, worker: Worker, job: Job) {
        let decision = self.log.iter().find(|entry| entry.0 == job);
        let order = match &decision.expect("the log holds whatever a worker may still need").1 {
            Decision::Step(decoded) => Order::Apply { job, decoded: Arc::clone(decoded) },
            Decision::Refused(units) => Order::Skip { job, units: Arc::clone(units) },
        };
        self.unapplied[worker.index()] += 1;
        self.transport.send(worker, order);
    }
}
