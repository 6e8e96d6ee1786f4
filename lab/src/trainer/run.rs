//! A whole run, over worker threads of this process or any other transport.

use super::mixture::{MixtureBatches, MixtureJudge};
use super::{
    Attack, Batches, Compute, Fault, FaultKind, GptConfig, INJECTED, Lanes, Memory, Processor,
    Replica, ReplicaError, ReplicaState,
};
use codedgrad::codes::sequential::SchemeFacts;
use codedgrad::codes::{ParameterError, SchemeSpec};
use codedgrad::delays::Delays;
use codedgrad::gpu::Vector;
#[cfg(feature = "candle-cuda")]
use codedgrad::gpu::cuda::DeviceVector;
use codedgrad::ids::{Job, Worker};
use codedgrad::run::{Jobs, Limits, Shape};
use codedgrad::schedulers::Engine;
use codedgrad::sim::PoolChange;
use codedgrad::sums::DecodedSum;
use codedgrad::train::{
    AdamWConfig, Aggregator, AggregatorError, Auto, BuildError, Builder, ComputeTask, Coordinator,
    Event, Flow, Incident, Observer, Outcome, RunClock, RunError, StepRecord,
};
use codedgrad::transport::local::{self, LocalLink};
use codedgrad::transport::{Link, State, Transport};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::panic::resume_unwind;
use std::sync::{Arc, mpsc};
use std::thread;
use thiserror::Error;

/// Uncoded steps run to find out how long one takes; the first ones only warm up.
const CALIBRATION_STEPS: u64 = 6;

/// Everything about a run but its delays, its clock and where it starts.
#[derive(Clone, Debug)]
pub struct LocalRun {
    /// The scheme, with which it begins if that is chosen while it goes on.
    pub scheme: SchemeSpec,
    /// What chooses the scheme, if it is not always the same.
    pub auto: Option<Auto>,
    /// Who computes, and how batches are cut: micro-batches are the units.
    pub shape: Shape,
    /// How many models are trained in turn (step `t` is step `t / models` of model `t mod models`),
    /// and how many batches' gradients add up to one step of one model.
    pub jobs: Jobs,
    /// How long the run waits for workers.
    pub limits: Limits,
    /// The model.
    pub model: GptConfig,
    /// Where it is computed, and how exactly.
    pub compute: Compute,
    /// The optimizer.
    pub optimizer: AdamWConfig,
    /// Faults to inject.
    pub faults: Vec<Fault>,
    /// Workers that come and are lost on purpose, where they are threads of this process; none:
    /// all are always there.
    pub pool: Vec<PoolChange>,
    /// Workers that return wrong results.
    pub attack: Option<Attack>,
    /// How mixtures are made up, under schemes that mix.
    pub lanes: Lanes,
}

/// Why a run broke off.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The scheme does not fit.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// No run can be made of what was told.
    #[error("{scheme}: {source}")]
    Build {
        /// The scheme.
        scheme: String,
        /// What is wrong, and what would be right.
        source: Box<BuildError>,
    },
    /// Results that are looked at by the coordinator, of workers that keep them.
    #[error(
        "the results of {scheme} are looked at by the coordinator: they cannot stay where they are \
         computed"
    )]
    Judged {
        /// The scheme.
        scheme: String,
    },
    /// The coordinator gave up.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A replica cannot compute.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// A worker lost its coordinator.
    #[error(transparent)]
    Aggregator(#[from] AggregatorError),
    /// What a worker does beside its steps could not be done.
    #[error(transparent)]
    Beside(Box<dyn std::error::Error + Send + Sync>),
}

/// A step that is over for a worker: applied, left out by all, or in a state that it takes over.
#[derive(Clone, Copy, Debug)]
pub struct StepDone<'a> {
    /// The first step that is not.
    pub next: u64,
    /// The worker's models, one after the other.
    pub replicas: &'a [Replica],
    /// Whether this worker saves what is trained. Several may at once, who have the same then.
    pub saves: bool,
}

/// What a worker does beside its steps.
pub trait WorkerHooks {
    /// A step is about to be applied, whose gradient is told.
    ///
    /// # Errors
    /// What ends the worker.
    fn applies(
        &mut self,
        _step: u64,
        _replicas: &[Replica],
        _gradient: &dyn Fn() -> Result<Vec<f32>, ReplicaError>,
    ) -> Result<(), TrainError> {
        Ok(())
    }

    /// A step is over, and the coordinator knows that it is.
    ///
    /// # Errors
    /// What ends the worker.
    fn done(&mut self, _done: StepDone<'_>) -> Result<(), TrainError> {
        Ok(())
    }
}

/// Nothing.
impl WorkerHooks for () {}

impl LocalRun {
    /// A run of one model on the CPU, a micro-batch of one sample for each worker; everything else
    /// as is usual, to be changed field by field.
    ///
    /// ```
    /// use codedgrad::run::{Jobs, Shape};
    /// use codedgrad::train::AdamWConfig;
    /// use codedgrad_lab::trainer::{GptConfig, LocalRun};
    /// let model =
    ///     GptConfig { vocabulary: 256, context: 32, layers: 2, heads: 2, width: 32, tied: true };
    /// let optimizer = AdamWConfig {
    ///     learning_rate: 1e-3,
    ///     warmup_steps: 10,
    ///     decay_steps: 1000,
    ///     beta1: 0.9,
    ///     beta2: 0.95,
    ///     epsilon: 1e-8,
    ///     weight_decay: 0.1,
    ///     clip_norm: 1.0,
    /// };
    /// let run = LocalRun {
    ///     shape: Shape { workers: 4, units: 8, unit_samples: 2 },
    ///     ..LocalRun::new("groups:s=1".parse()?, 4, model, optimizer)
    /// };
    /// assert_eq!((run.shape.samples(), run.jobs), (16, Jobs::default()));
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    #[must_use]
    pub fn new(
        scheme: SchemeSpec,
        workers: usize,
        model: GptConfig,
        optimizer: AdamWConfig,
    ) -> Self {
        Self {
            scheme,
            auto: None,
            shape: Shape::new(workers, workers as u32),
            jobs: Jobs::default(),
            limits: Limits::default(),
            model,
            compute: Compute::default(),
            optimizer,
            faults: Vec::new(),
            pool: Vec::new(),
            attack: None,
            lanes: Lanes::Alike,
        }
    }

    /// The most rounds that `steps` steps take, if no worker dies and none is refused.
    #[must_use]
    pub fn rounds(&self, steps: u64, facts: &SchemeFacts) -> u64 {
        let delay = facts.delay as u64;
        let Jobs { micro_steps, .. } = self.jobs;
        if micro_steps > 1 { steps * (micro_steps + delay) } else { steps + delay }
    }

    /// Weight that turns a batch's summed loss into its mean per token.
    #[must_use]
    pub fn loss_weight(&self) -> f64 {
        let samples = self.shape.samples() as u64 * self.jobs.micro_steps;
        1.0 / (samples * self.model.context as u64) as f64
    }

    /// Whether gradients and sums of workers in one process can stay on the GPUs where they are
    /// computed: not where results are looked at by the coordinator.
    ///
    /// # Errors
    /// [`ParameterError`] when the scheme does not fit.
    pub fn stays(&self) -> Result<bool, ParameterError> {
        Ok(self.compute.processor == Processor::Cuda && !self.is_judged()?)
    }

    fn is_judged(&self) -> Result<bool, ParameterError> {
        Ok(self.scheme.byzantine() > 0 || self.scheme.mixture(self.shape.workers)?.is_some())
    }

    /// Numbers of a worker's result: more than a gradient's where data are mixed.
    ///
    /// # Errors
    /// [`ParameterError`] when the scheme does not fit.
    pub fn result_length(&self) -> Result<usize, ParameterError> {
        let mixed = self
            .scheme
            .mixture(self.shape.workers)?
            .map(|mixture| MixtureBatches::new(self, &mixture));
        Ok(mixed.as_ref().map_or(self.model.parameters(), MixtureBatches::length))
    }

    /// Some of its steps, to be built.
    fn builder(&self, range: StepRange) -> Result<Builder, TrainError> {
        let Shape { workers, units, unit_samples } = self.shape;
        let run = Coordinator::builder(self.scheme.clone());
        let run = run.workers(workers).units(units).unit_samples(unit_samples);
        let run = run.models(self.jobs.models).micro_steps(self.jobs.micro_steps);
        let run = run.steps(range.end).first(range.step).round(range.round);
        let run = run.length(self.model.parameters()).result_length(self.result_length()?);
        let run = run.limits(self.limits);
        Ok(match &self.auto {
            Some(auto) => run.auto(auto.clone()),
            None => run,
        })
    }

    /// What its engine is told, and decides by.
    ///
    /// # Errors
    /// [`TrainError`] when the scheme does not fit.
    pub fn engine(&self, range: StepRange) -> Result<Engine, TrainError> {
        self.builder(range)?.engine().map_err(|source| self.misfit(source))
    }

    fn misfit(&self, source: BuildError) -> TrainError {
        match source {
            BuildError::Scheme(error) => TrainError::Parameter(error),
            source => {
                let scheme = self.scheme.to_string();
                TrainError::Build { scheme, source: Box::new(source) }
            }
        }
    }
}

/// Where a run begins.
#[derive(Clone, Copy, Debug)]
pub struct RunStart<'a> {
    /// One state per model, the same for all workers.
    pub states: &'a [ReplicaState],
    /// First step.
    pub step: u64,
    /// Number of the first round.
    pub round: u64,
}

/// Which steps and rounds a run consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRange {
    /// First step, counted over all models.
    pub step: u64,
    /// One past the last step.
    pub end: u64,
    /// Number of the first round.
    pub round: u64,
}

/// Trains the steps from `start` up to `end`, counted over all models, over worker threads.
///
/// # Errors
/// [`TrainError`] when the scheme does not fit or the run cannot go on.
///
/// # Panics
/// When the operating system gives no threads, or there is not one state per model.
pub fn run_local(
    run: &LocalRun,
    start: RunStart<'_>,
    end: u64,
    batches: &Batches,
    run_clock: RunClock,
    observer: &mut dyn Observer,
) -> Result<Outcome, TrainError> {
    run_local_at(run, start, end, batches, run_clock, observer)
}

/// The same with results, and the sums of them, in another memory than the host's, if they can be
/// there ([`LocalRun::stays`]): with feature `candle-cuda` that of the GPUs, where they are
/// `DeviceVector`s.
///
/// # Errors
/// As [`run_local`].
///
/// # Panics
/// As [`run_local`].
pub fn run_local_at<V: Memory>(
    run: &LocalRun,
    start: RunStart<'_>,
    end: u64,
    batches: &Batches,
    run_clock: RunClock,
    observer: &mut dyn Observer<V>,
) -> Result<Outcome, TrainError> {
    let range = StepRange { step: start.step, end, round: start.round };
    run.engine(range)?;
    let host = V::of_host(Arc::default()).is_some();
    if !host && run.is_judged()? {
        return Err(TrainError::Judged { scheme: run.scheme.to_string() });
    }
    let places = (0..run.shape.workers)
        .map(|worker| V::place(run.compute.first_of(worker)))
        .collect::<Result<_, _>>()?;
    let (transport, links, replacing) = local::connect_replacing::<V>(V::place(0)?, places);
    let (seats, links_of): (Vec<_>, Vec<_>) =
        links.iter().map(|_| mpsc::channel::<LocalLink<V>>()).unzip();
    let run_clock = if run.pool.is_empty() {
        // A run whose workers are all lost is over: no other can take their place.
        drop(replacing);
        run_clock
    } else {
        let seats = seats.clone();
        run_clock.changing(&run.pool, move |worker, comes| {
            if comes {
                // A worker whose thread has panicked is lost again by that.
                let _ = seats[worker.index()].send(replacing.begin(worker));
            } else {
                replacing.end(worker);
            }
        })
    };
    let absent: BTreeSet<Worker> = run_clock.absent().collect();
    let all = Worker::all(run.shape.workers);
    for ((worker, link), seat) in all.clone().zip(links).zip(seats) {
        if !absent.contains(&worker) {
            seat.send(link).expect("its thread is still to begin");
        }
    }
    let (preparing, prepared) = mpsc::channel::<Infallible>();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (worker, links) in all.zip(links_of) {
            let mut preparing = Some(preparing.clone()).filter(|_| !absent.contains(&worker));
            // One after the other, each without the models of the one before.
            let body = move || {
                for link in links {
                    let replicas = replicas(run, worker, start);
                    drop(preparing.take());
                    let done = replicas.and_then(|mut replicas| {
                        let beside: &mut dyn WorkerHooks = &mut ();
                        serve(run, worker, Box::new(link), (start, beside), batches, &mut replicas)
                    });
                    match done {
                        // The last one is of a thread that is lost on purpose.
                        Ok(())
                        | Err(TrainError::Aggregator(
                            AggregatorError::Disconnected | AggregatorError::Closed,
                        )) => {}
                        Err(error) => tracing::error!("{worker} ends: {error}"),
                    }
                }
            };
            threads.push(
                thread::Builder::new()
                    .name(format!("worker-{}", worker.0))
                    .spawn_scoped(scope, body)
                    .expect("a thread per worker"),
            );
        }
        // The first step's time is no more than another's: workers have their models before it, or
        // have failed to make them. All that ever comes is that all senders are gone.
        drop(preparing);
        let _ = prepared.recv();
        let outcome = run_judged(run, transport, range, batches, run_clock, observer);
        for thread in threads {
            if thread.join().is_err() {
                tracing::debug!("a worker had panicked; the coordinator was told when it happened");
            }
        }
        outcome
    })
}

/// An [`Observer`] of runs over every memory that this build has.
#[cfg(not(feature = "candle-cuda"))]
pub trait ObserverFor: Observer {}
#[cfg(not(feature = "candle-cuda"))]
impl<T: Observer> ObserverFor for T {}
/// An [`Observer`] of runs over every memory that this build has.
#[cfg(feature = "candle-cuda")]
pub trait ObserverFor: Observer + Observer<DeviceVector> {}
#[cfg(feature = "candle-cuda")]
impl<T: Observer + Observer<DeviceVector>> ObserverFor for T {}

/// [`run_local_at`] the memory where the run's gradients are computed, if they are to stay there:
/// `stays` may be true only where [`LocalRun::stays`] is.
///
/// # Errors
/// [`TrainError`] when the scheme does not fit or the run cannot go on.
pub fn run_in_place(
    (run, stays): (&LocalRun, bool),
    start: RunStart<'_>,
    end: u64,
    batches: &Batches,
    run_clock: RunClock,
    observer: &mut impl ObserverFor,
) -> Result<Outcome, TrainError> {
    #[cfg(feature = "candle-cuda")]
    if stays {
        return run_local_at::<DeviceVector>(run, start, end, batches, run_clock, observer);
    }
    #[cfg(not(feature = "candle-cuda"))]
    debug_assert!(!stays, "this build has no other memory than the host's");
    run_local(run, start, end, batches, run_clock, observer)
}

/// Coordinates the workers behind a transport, each of which runs [`run_worker`], and has the
/// batches by which results of mixtures are judged.
fn run_judged<T: Transport>(
    run: &LocalRun,
    transport: T,
    range: StepRange,
    batches: &Batches,
    run_clock: RunClock,
    observer: &mut dyn Observer<T::Vector>,
) -> Result<Outcome, TrainError> {
    let mut told = run.builder(range)?;
    if let Some(mixture) = run.scheme.mixture(run.shape.workers)? {
        told = told.judged_by(MixtureJudge::new(run, mixture, batches));
    }
    let coordinator = told.over(transport, run_clock);
    Ok(coordinator.map_err(|source| run.misfit(source))?.run(observer)?)
}

/// The loop of one worker, until the run is over: compute what is asked for, apply what is decided,
/// and do something beside that. Of the run, only the model and how batches are cut count here, not
/// the scheme, unless that mixes data.
///
/// # Errors
/// [`TrainError`] when the model cannot be computed, or the coordinator is lost.
///
/// # Panics
/// When there is not one state per model, and where a fault asks for it.
pub fn run_worker<V: Memory>(
    run: &LocalRun,
    worker: Worker,
    link: Box<dyn Link<V>>,
    start: RunStart<'_>,
    batches: &Batches,
    beside: &mut dyn WorkerHooks,
) -> Result<(), TrainError> {
    let mut replicas = replicas(run, worker, start)?;
    serve(run, worker, link, (start, beside), batches, &mut replicas)
}

/// A worker's models in their states.
fn replicas(
    run: &LocalRun,
    worker: Worker,
    start: RunStart<'_>,
) -> Result<Vec<Replica>, TrainError> {
    assert_eq!(start.states.len() as u64, run.jobs.models, "a state per model");
    let replica =
        |state| Replica::on((run.compute, worker.index()), &run.model, run.optimizer, state);
    Ok(start.states.iter().map(replica).collect::<Result<_, _>>()?)
}

/// What [`run_worker`] does with its models.
fn serve<V: Memory>(
    run: &LocalRun,
    worker: Worker,
    link: Box<dyn Link<V>>,
    (start, beside): (RunStart<'_>, &mut dyn WorkerHooks),
    batches: &Batches,
    replicas: &mut [Replica],
) -> Result<(), TrainError> {
    let mixed =
        run.scheme.mixture(run.shape.workers)?.map(|mixture| MixtureBatches::new(run, &mixture));
    let length = mixed.as_ref().map_or(run.model.parameters(), MixtureBatches::length);
    let aggregator = Aggregator::new(link, length, run.shape.unit_samples);
    let mut aggregator = aggregator.accumulating(run.jobs.micro_steps).resumed_at(start.step);
    loop {
        let Some(event) = aggregator.next_event()? else { return Ok(()) };
        let (next, taken) = match &event {
            Event::Apply(step) => (Some(step.index + 1), false),
            Event::Skip(step) => (Some(step.index + 1), false),
            Event::Resync(state) => (Some(state.next.0), true),
            _ => (None, false),
        };
        if let Event::Apply(step) = &event {
            beside.applies(step.index, replicas, &|| Ok(step.vector().numbers()?.to_vec()))?;
        }
        settle(run, worker, event, (replicas, batches), mixed.as_ref())?;
        if let Some(next) = next {
            // Who takes over the last state is not told who saves it, and may be the one.
            let saves = aggregator.saver() == Some(worker) || taken;
            beside.done(StepDone { next, replicas, saves })?;
        }
    }
}

/// Does what an event asks for.
fn settle<V: Memory>(
    run: &LocalRun,
    worker: Worker,
    event: Event<'_, V>,
    (replicas, batches): (&mut [Replica], &Batches),
    mixed: Option<&MixtureBatches>,
) -> Result<(), TrainError> {
    match event {
        Event::Compute(task) => compute(run, worker, task, replicas, batches, mixed)?,
        Event::Apply(step) => {
            let model = (step.index % run.jobs.models) as usize;
            let digest = replicas[model].apply(step.vector(), step.index / run.jobs.models)?;
            step.applied_with(digest);
        }
        Event::Skip(_) => {}
        Event::Provide(request) => {
            let states = replicas.iter().map(Replica::state).collect::<Result<Vec<_>, _>>()?;
            request.reply(states.into_iter().flat_map(ReplicaState::into_vectors).collect());
        }
        Event::Resync(resync) => match take_over(replicas, &resync) {
            Ok(digests) => resync.taken_with(digests),
            Err(error @ (ReplicaError::WrongLength { .. } | ReplicaError::WrongVectors { .. })) => {
                resync.refuse(error.to_string());
            }
            Err(error) => return Err(error.into()),
        },
    }
    Ok(())
}

/// Loads a state into all replicas, or into none; gives back the digests of the last steps before
/// it, in their order.
fn take_over(replicas: &mut [Replica], state: &State) -> Result<Vec<u64>, ReplicaError> {
    let (of_models, rest) = state.vectors.as_chunks();
    if !rest.is_empty() || of_models.len() != replicas.len() {
        return Err(ReplicaError::WrongVectors {
            expected: 3 * replicas.len(),
            found: state.vectors.len(),
        });
    }
    let states: Vec<ReplicaState> =
        of_models.iter().cloned().map(ReplicaState::from_vectors).collect();
    for (replica, state) in replicas.iter().zip(&states) {
        state.check(replica.parameters())?;
    }
    for (replica, state) in replicas.iter_mut().zip(&states) {
        replica.load(state)?;
    }
    let models = replicas.len() as u64;
    let last = state.next.0.saturating_sub(models)..state.next.0;
    last.map(|step| replicas[(step % models) as usize].digest()).collect()
}

/// Computes a task, or the part before its cancellation, and hands it in.
fn compute<V: Memory>(
    run: &LocalRun,
    worker: Worker,
    mut task: ComputeTask<'_, V>,
    replicas: &[Replica],
    batches: &Batches,
    mixed: Option<&MixtureBatches>,
) -> Result<(), TrainError> {
    let fault = run
        .faults
        .iter()
        .find(|fault| (fault.step, fault.worker) == (task.step(), worker))
        .map(|fault| fault.kind);
    if fault == Some(FaultKind::Panic) {
        // A user asked for it and needs no backtrace.
        resume_unwind(Box::new(format!("{INJECTED}: {worker} panics at step {}", task.step())));
    }
    let model = task.step() % run.jobs.models;
    let batch = task.batch() / run.jobs.models;
    let weight = run.loss_weight();
    let replica = &replicas[model as usize];
    let mut aux = [0.0; 2];
    if let Some(mixed) = mixed {
        let windows = mixed.windows(batches, Job(task.batch()));
        let parts = task.mixture();
        let cancel = task.cancel();
        let mixture = |message: &mut [f32]| {
            mixed.compute(replica, &windows, &parts, message, || !cancel.is_cancelled())
        };
        match task.vector().change(mixture)?? {
            Some(decoded) => aux = decoded,
            None => return Ok(()),
        }
    }
    while let Some(part) = task.next_part() {
        let windows = batches.rows_of(model, batch, part.samples);
        let (loss, tokens) =
            replica.gradient(&windows, part.coefficient * weight, task.vector())?;
        aux[0] += part.coefficient * loss;
        aux[1] += part.coefficient * tokens as f64;
    }
    let (batch, attack) =
        (task.batch(), run.attack.as_ref().filter(|attack| attack.workers.contains(&worker)));
    if attack.is_none() && fault != Some(FaultKind::Nan) {
        return Ok(task.submit(aux.to_vec())?);
    }
    let wrong = |message: &mut [f32]| {
        if let Some(attack) = attack {
            attack.alter(worker, batch, message);
        }
        if fault == Some(FaultKind::Nan) {
            message[0] = f32::NAN;
        }
    };
    let mut changed = Ok(());
    task.submit_altered(aux.to_vec(), |message| {
        changed = message.change(wrong);
        if changed.is_err() {
            message.scale(f32::NAN);
        }
    })?;
    Ok(changed?)
}

/// Measures the compute time of an uncoded step on this machine, in seconds: the median of a few
/// steps after warming up.
///
/// # Errors
/// [`TrainError`] when the run cannot go on.
pub fn calibrate(
    run: &LocalRun,
    start: &ReplicaState,
    batches: &Batches,
) -> Result<f64, TrainError> {
    struct Seconds(Vec<f64>);
    impl<V: Vector> Observer<V> for Seconds {
        fn step(
            &mut self,
            record: &StepRecord,
            _: Option<&DecodedSum<V>>,
        ) -> Result<Flow, Box<dyn std::error::Error + Send + Sync>> {
            self.0.push(record.seconds);
            Ok(Flow::Continue)
        }
        fn event(&mut self, happened: &Incident) {
            tracing::warn!("while calibrating, {happened}");
        }
    }
    let uncoded = LocalRun {
        scheme: SchemeSpec::uncoded(),
        jobs: Jobs::default(),
        faults: Vec::new(),
        pool: Vec::new(),
        attack: None,
        ..run.clone()
    };
    let run_clock =
        RunClock::wall(run.shape.workers, &Delays::None, CALIBRATION_STEPS as usize, 0.0);
    let mut seconds = Seconds(Vec::new());
    let start = RunStart { states: std::slice::from_ref(start), step: 0, round: 0 };
    run_in_place(
        (&uncoded, uncoded.stays()?),
        start,
        CALIBRATION_STEPS,
        batches,
        run_clock,
        &mut seconds,
    )?;
    let mut kept = seconds.0.split_off(2);
    kept.sort_by(f64::total_cmp);
    Ok(kept[kept.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;
    use codedgrad::codes::registry::Registry;

    /// What `serve` and the Python package tell the engine, through [`Builder`], is what a
    /// [`LocalRun`] tells it: a default must be the same in both.
    #[test]
    fn both_doors_tell_the_engine_the_same() {
        let model =
            GptConfig { vocabulary: 16, context: 4, layers: 1, heads: 1, width: 4, tied: true };
        let optimizer = AdamWConfig {
            learning_rate: 1e-3,
            warmup_steps: 1,
            decay_steps: 10,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.1,
            clip_norm: 1.0,
        };
        let steps = 6;
        for text in Registry::builtin().examples().filter(|text| !text.contains("FILE")) {
            let spec: SchemeSpec = text.parse().unwrap();
            let fits = (2..16).find(|workers| spec.natural(*workers).is_ok());
            let workers = fits.unwrap_or_else(|| panic!("{text} takes no number of workers"));
            let natural = spec.natural(workers).unwrap();
            let models = natural.delay as u64 + 1;
            let units = natural.units * workers as u32;
            let local = LocalRun {
                shape: Shape::new(workers, units),
                jobs: Jobs { models, micro_steps: 1 },
                ..LocalRun::new(spec, workers, model, optimizer)
            };
            let trained = local.engine(StepRange { step: 0, end: steps, round: 0 }).unwrap();
            let config = trained.config();
            let run = Coordinator::builder(text).workers(workers).units(units).models(models);
            let run = run.steps(steps).length(config.length).result_length(config.result_length);
            let built = run.engine().unwrap();
            assert_eq!(built.plan().facts(), trained.plan().facts(), "{text}");
            assert_eq!(built.config(), config, "{text}");
        }
    }
}
