//! A whole run over worker threads of this process.

use super::{Batches, GptConfig, Replica, ReplicaError, ReplicaState};
use crate::codes::{ParameterError, SchemeSpec, Wire};
use crate::delays::Delays;
use crate::ids::{Job, Worker};
use crate::schedulers::{Config, Engine};
use crate::train::{AdamWConfig, Aggregator, AggregatorError, Coordinator, Event, Flow, Observer, Outcome, Pace, RunError, StepRecord};
use crate::transport::{Decoded, local};
use std::ops::Range;
use std::str::FromStr;
use std::thread;
use thiserror::Error;

/// Bytes of decoded gradients kept for workers that missed some steps.
const LOG_BYTES_MAX: usize = 256 << 20;
/// Most steps kept for them, however small the model.
const LOG_STEPS_MAX: u64 = 64;
/// Uncoded steps run to find out how long one takes; the first ones only warm up.
const CALIBRATION_STEPS: u64 = 6;

/// What goes wrong on purpose, to see that the run copes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The worker's thread panics when it is given its task.
    Panic,
    /// The worker's gradient is NaN.
    Nan,
}

/// A fault injected into one worker at one step, written `panic@STEP:WORKER` or `nan@STEP:WORKER`.
///
/// ```
/// use codedgrad::train::candle::Fault;
/// let fault: Fault = "nan@12:3".parse().unwrap();
/// assert_eq!((fault.step, fault.worker.0), (12, 3));
/// assert!("nan@x:3".parse::<Fault>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What happens.
    pub kind: FaultKind,
    /// At which step.
    pub step: u64,
    /// To whom.
    pub worker: Worker,
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a fault; write panic@STEP:WORKER or nan@STEP:WORKER, for example nan@12:3");
        let (kind, place) = text.split_once('@').ok_or_else(wrong)?;
        let (step, worker) = place.split_once(':').ok_or_else(wrong)?;
        let kind = match kind {
            "panic" => FaultKind::Panic,
            "nan" => FaultKind::Nan,
            _ => return Err(wrong()),
        };
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        Ok(Self { kind, step: u64::from(number(step)?), worker: Worker(number(worker)?) })
    }
}

/// Everything about a run but its delays, its clock and where it starts.
#[derive(Clone, Debug)]
pub struct LocalRun {
    /// The scheme.
    pub scheme: SchemeSpec,
    /// Number of workers.
    pub workers: usize,
    /// Samples per micro-batch, the unit in which batches are cut.
    pub unit_samples: usize,
    /// Micro-batches per batch.
    pub units: u32,
    /// The model.
    pub model: GptConfig,
    /// The optimizer.
    pub optimizer: AdamWConfig,
    /// Seconds a round may stay open before the run gives up on whoever never came.
    pub max_wait_seconds: f64,
    /// Seconds an approximate scheme waits for more than it needs.
    pub grace_seconds: f64,
    /// Faults to inject.
    pub faults: Vec<Fault>,
}

/// Why a run broke off.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The scheme does not fit.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// The coordinator gave up.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A replica cannot compute.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// A worker lost its coordinator.
    #[error(transparent)]
    Aggregator(#[from] AggregatorError),
}

impl LocalRun {
    /// Samples of a batch.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.unit_samples * self.units as usize
    }

    /// Weight that turns a batch's summed loss into its mean per token.
    #[must_use]
    pub fn loss_weight(&self) -> f64 {
        1.0 / (self.batch() * self.model.context) as f64
    }

    fn log_steps(&self) -> u64 {
        ((LOG_BYTES_MAX / (4 * self.model.parameters().max(1))) as u64).clamp(2, LOG_STEPS_MAX)
    }
}

/// Trains the steps of a range over worker threads, all replicas starting from `start`.
///
/// # Errors
/// [`TrainError`] when the scheme does not fit or the run cannot go on.
///
/// # Panics
/// When the operating system gives no threads.
pub fn run_local(
    run: &LocalRun,
    steps: Range<u64>,
    start: &ReplicaState,
    batches: &Batches,
    pace: Pace,
    observer: &mut dyn Observer,
) -> Result<Outcome, TrainError> {
    let scheme = run.scheme.scheme(run.workers, run.units, steps.clone())?;
    let config =
        Config { max_wait_seconds: run.max_wait_seconds, grace_seconds: run.grace_seconds, wire: Wire::F32, log_steps: run.log_steps() };
    let engine = Engine::new(scheme, config, Job(steps.start)..Job(steps.end));
    let (transport, links) = local::connect(run.workers);
    let replicas = (0..run.workers).map(|_| Replica::new(&run.model, run.optimizer, start)).collect::<Result<Vec<_>, _>>()?;
    let length = run.model.parameters();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for ((worker, link), replica) in Worker::all(run.workers).zip(links).zip(replicas) {
            let aggregator = Aggregator::new(Box::new(link), length, run.unit_samples).resumed_at(steps.start);
            let body = move || match work(run, worker, aggregator, replica, batches) {
                Ok(()) | Err(TrainError::Aggregator(AggregatorError::Disconnected)) => {}
                Err(error) => tracing::error!("{worker} ends: {error}"),
            };
            threads
                .push(thread::Builder::new().name(format!("worker-{}", worker.0)).spawn_scoped(scope, body).expect("a thread per worker"));
        }
        let coordinator = Coordinator::new(transport, engine, pace, (run.workers, length, run.units), run.log_steps(), steps.start);
        let outcome = coordinator.run(observer);
        for thread in threads {
            if thread.join().is_err() {
                tracing::debug!("a worker had panicked; the coordinator was told when it happened");
            }
        }
        Ok(outcome?)
    })
}

/// The loop of one worker: compute what is asked for, apply what is decided.
fn work(run: &LocalRun, worker: Worker, mut aggregator: Aggregator, mut replica: Replica, batches: &Batches) -> Result<(), TrainError> {
    let weight = run.loss_weight();
    while let Some(event) = aggregator.next_event()? {
        match event {
            Event::Compute(mut task) => {
                let fault = run.faults.iter().find(|fault| (fault.step, fault.worker) == (task.step(), worker)).map(|fault| fault.kind);
                assert!(fault != Some(FaultKind::Panic), "injected fault: {worker} panics at step {}", task.step());
                let mut tail = [0.0; 2];
                while let Some(part) = task.next_part() {
                    let windows = batches.rows(task.step(), part.samples);
                    let (loss, tokens) = replica.gradient(&windows, part.coefficient * weight, task.message())?;
                    tail[0] += part.coefficient * loss;
                    tail[1] += part.coefficient * tokens as f64;
                    if fault == Some(FaultKind::Nan) {
                        task.message()[0] = f32::NAN;
                    }
                }
                task.submit(tail.to_vec())?;
            }
            Event::Apply(step) => {
                let digest = replica.apply(step.gradient(), step.index)?;
                step.applied_with(digest);
            }
            Event::Skip(_) => {}
            Event::Provide(request) => {
                let state = replica.state();
                request.reply(vec![state.parameters, state.first, state.second]);
            }
            Event::Resync(state) => {
                if let [parameters, first, second] = &state.vectors[..] {
                    let state = ReplicaState { parameters: parameters.clone(), first: first.clone(), second: second.clone() };
                    replica.load(&state)?;
                }
            }
        }
    }
    Ok(())
}

/// Measures the compute time of an uncoded step on this machine, in seconds: the median of a few steps
/// after warming up.
///
/// # Errors
/// [`TrainError`] when the run cannot go on.
pub fn calibrate(run: &LocalRun, start: &ReplicaState, batches: &Batches) -> Result<f64, TrainError> {
    struct Seconds(Vec<f64>);
    impl Observer for Seconds {
        fn step(&mut self, record: &StepRecord, _: Option<&Decoded>) -> Result<Flow, Box<dyn std::error::Error + Send + Sync>> {
            self.0.push(record.seconds);
            Ok(Flow::Continue)
        }
        fn fault(&mut self, _: u64, worker: Worker, what: &str) {
            tracing::warn!("while calibrating, {worker}: {what}");
        }
    }
    let uncoded = LocalRun { scheme: SchemeSpec::uncoded(), faults: Vec::new(), ..run.clone() };
    let pace = Pace::wall(run.workers, &Delays::None, CALIBRATION_STEPS as usize, 0.0);
    let mut seconds = Seconds(Vec::new());
    run_local(&uncoded, 0..CALIBRATION_STEPS, start, batches, pace, &mut seconds)?;
    let mut kept = seconds.0.split_off(2);
    kept.sort_by(f64::total_cmp);
    Ok(kept[kept.len() / 2])
}
