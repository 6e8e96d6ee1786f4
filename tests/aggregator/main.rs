//! A plain-Rust trainer driven by the aggregator over worker threads: what a user of the library
//! without default features gets; the same over TCP in `tcp`.

#[cfg(feature = "tcp")]
mod collective;
#[cfg(feature = "tcp")]
mod drills;
#[cfg(feature = "tcp")]
mod network;
mod non_host;
#[cfg(feature = "tcp")]
mod simulation;
#[cfg(feature = "tcp")]
mod soak;
#[cfg(feature = "tcp")]
mod tcp;
#[cfg(feature = "tcp")]
mod ties;

use codedgrad::codes::{GradientCode, SchemeSpec};
use codedgrad::delays::{Delays, Preset};
use codedgrad::gpu::Vector;
use codedgrad::ids::{Cut, Share, Step, Units, Worker};
use codedgrad::run::{Jobs, Limits, RunConfig, Shape};
use codedgrad::schedulers::{Engine, Refusal, Settings};
use codedgrad::sums::{DecodedSum, SumNotice};
use codedgrad::train::{
    AdamW, AdamWConfig, Aggregator, AggregatorError, Coordinator, Event, Flow, Incident,
    IncidentKind, Observer, Outcome, OwnedEvent, Progress, ProvideRequest, RunClock, RunError,
    StepRecord, VirtualClock,
};
use codedgrad::transport::{Link, Notice, Order, ReceiveOutcome, StagedLink, State, local};
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const PARAMETERS: usize = 300;
const UNIT_SAMPLES: usize = 3;
const LOG_STEPS: u64 = 16;
const OPTIMIZER: AdamWConfig = AdamWConfig {
    learning_rate: 0.05,
    warmup_steps: 1,
    decay_steps: 100,
    beta1: 0.9,
    beta2: 0.99,
    epsilon: 1e-8,
    weight_decay: 0.0,
    clip_norm: 1e9,
};

/// What a worker does beside its work.
type Mischief<'a> = &'a (dyn Fn(Worker, u64) -> Prank + Sync);

#[derive(Clone, Copy, PartialEq)]
enum Prank {
    None,
    Panic,
    Nan,
    /// Its gradient is finite, and its scalar is not: infinite in one worker, and in another with
    /// the other sign.
    WildScalar,
    /// Sends numbers that are finite, but whose sum is not.
    Huge,
    Drop,
    /// Changes its own parameters behind the aggregator's back.
    Drift,
    /// Takes its time.
    Slow,
    /// Takes so long that the coordinator has always heard of its last task before it has done the
    /// next.
    #[cfg(feature = "tcp")]
    Unhurried,
    /// Leaves without a word; where workers return, one comes in its place that has nothing.
    Leave,
    /// Hangs in its task until so many steps are decided.
    HangUntil(u64),
}

#[derive(Default)]
struct Log {
    records: Vec<StepRecord>,
    gradients: Vec<Option<Vec<f32>>>,
    faults: Vec<(u64, u32, String)>,
    decided: AtomicU64,
    /// Sums that stood still for so long that it was told.
    stuck: Vec<String>,
    /// Most gradients that each worker held at once.
    peaks: Vec<usize>,
}

struct Recorder<'a> {
    log: &'a mut Log,
    decided: &'a AtomicU64,
    stop_after: u64,
}

impl<V: Numbers> Observer<V> for Recorder<'_> {
    fn step(
        &mut self,
        record: &StepRecord,
        decoded: Option<&DecodedSum<V>>,
    ) -> Result<Flow, Box<dyn Error + Send + Sync>> {
        self.log.records.push(record.clone());
        self.log.gradients.push(decoded.map(|decoded| decoded.gradient.numbers().to_vec()));
        self.decided.store(record.step + 1, Ordering::Release);
        Ok(if record.step + 1 >= self.stop_after { Flow::Stop } else { Flow::Continue })
    }
    fn event(&mut self, Incident { step, what, .. }: &Incident) {
        let worker = what.worker().map(|worker| (step.0, worker.0, what.to_string()));
        self.log.faults.extend(worker);
        if let IncidentKind::Stuck { waiting } = what
            && waiting.summing
        {
            self.log.stuck.push(waiting.to_string());
        }
    }
}

struct Setup<'a> {
    scheme: &'a str,
    workers: usize,
    /// Units of a batch.
    units: u32,
    /// Over all models.
    steps: u64,
    models: u64,
    micro_steps: u64,
    run_clock: RunClock,
    mischief: Mischief<'a>,
    stop_after: u64,
    over: Over,
    /// Numbers in a gradient.
    length: usize,
}

fn setup<'a>(scheme: &'a str, workers: usize, steps: u64, run_clock: RunClock) -> Setup<'a> {
    Setup {
        scheme,
        workers,
        units: workers as u32,
        steps,
        models: 1,
        micro_steps: 1,
        run_clock,
        mischief: &|_, _| Prank::None,
        stop_after: u64::MAX,
        over: Over::Local,
        length: PARAMETERS,
    }
}

fn modelled(workers: usize, steps: u64, seed: u64) -> RunClock {
    let delays = Delays::Preset { preset: Preset::Iid, workers, seed };
    RunClock::modelled(workers, &delays, steps as usize, VirtualClock { step_seconds: 1.0 }, 0.0)
}

/// A gradient that depends on the parameters, the step and the sample.
fn sample_gradient(
    parameters: &[f32],
    step: u64,
    sample: usize,
    out: &mut [f32],
    coefficient: f64,
) {
    for (i, (out, p)) in out.iter_mut().zip(parameters).enumerate() {
        let target = ((i * 7 + sample * 13 + step as usize * 31) % 101) as f32 / 50.0 - 1.0;
        *out += coefficient as f32 * (p - target);
    }
}

/// The replicas of all models on one worker.
struct Replicas {
    parameters: Vec<Vec<f32>>,
    optimizers: Vec<AdamW>,
}

impl Replicas {
    fn fresh(models: u64, length: usize) -> Self {
        let parameters = (0..models).map(|model| vec![0.1 + model as f32; length]).collect();
        Self {
            parameters,
            optimizers: (0..models).map(|_| AdamW::new(OPTIMIZER, length)).collect(),
        }
    }

    /// What another worker has handed over.
    fn of(vectors: &[Vec<f32>]) -> Self {
        let (parameters, optimizers) = vectors
            .as_chunks::<3>()
            .0
            .iter()
            .map(|[parameters, first, second]| {
                (parameters.clone(), AdamW::with_moments(OPTIMIZER, first.clone(), second.clone()))
            })
            .unzip();
        Self { parameters, optimizers }
    }

    fn models(&self) -> u64 {
        self.parameters.len() as u64
    }

    fn apply(&mut self, gradient: &[f32], step: u64) -> u64 {
        let (model, step) = ((step % self.models()) as usize, step / self.models());
        self.optimizers[model].update(&mut self.parameters[model], gradient, step)
    }
}

/// A vector whose numbers this process can see.
trait Numbers: Vector {
    fn numbers(&self) -> &[f32];
    fn numbers_mut(&mut self) -> &mut [f32];
}

impl Numbers for Vec<f32> {
    fn numbers(&self) -> &[f32] {
        self
    }
    fn numbers_mut(&mut self) -> &mut [f32] {
        self
    }
}

fn work<V: Numbers>(
    worker: Worker,
    mut aggregator: Aggregator<V>,
    mut replicas: Replicas,
    mischief: Mischief<'_>,
    decided: &AtomicU64,
) -> Option<Vec<Vec<f32>>> {
    let models = replicas.models();
    let mut has_dropped = false;
    while let Some(event) = aggregator.next_event().unwrap() {
        match event {
            Event::Compute(mut task) => {
                let prank = mischief(worker, task.step());
                assert!(prank != Prank::Panic, "as asked");
                if prank == Prank::Leave {
                    // Dropped, it would say that it does not do the task.
                    std::mem::forget(task);
                    return None;
                }
                if prank == Prank::Drop {
                    has_dropped = true;
                    break;
                }
                match prank {
                    Prank::Slow => thread::sleep(Duration::from_millis(2)),
                    #[cfg(feature = "tcp")]
                    Prank::Unhurried => thread::sleep(Duration::from_millis(12)),
                    _ => {}
                }
                if prank == Prank::Drift {
                    replicas.parameters[0][0] += 1.0;
                }
                let (model, batch) = ((task.step() % models) as usize, task.batch());
                let mut loss = 0.0;
                while let Some(part) = task.next_part() {
                    while matches!(prank, Prank::HangUntil(steps) if decided.load(Ordering::Acquire) < steps)
                    {
                        thread::sleep(Duration::from_millis(1));
                    }
                    let message = task.vector().numbers_mut();
                    message.fill(0.0);
                    for sample in part.samples.clone() {
                        sample_gradient(
                            &replicas.parameters[model],
                            batch,
                            sample,
                            message,
                            part.coefficient,
                        );
                    }
                    if prank == Prank::Nan {
                        message[5] = f32::INFINITY;
                    }
                    if prank == Prank::Huge {
                        message[6] = f32::MAX / 3.0;
                    }
                    loss += part.coefficient * part.samples.len() as f64;
                }
                if prank == Prank::WildScalar {
                    loss =
                        if worker.0.is_multiple_of(2) { f64::INFINITY } else { f64::NEG_INFINITY };
                }
                task.submit(vec![loss]).unwrap();
            }
            Event::Apply(step) => {
                let digest = replicas.apply(step.vector().numbers(), step.index);
                step.applied_with(digest);
            }
            Event::Skip(_) => {}
            Event::Provide(request) => {
                let of = |(parameters, optimizer): (&Vec<f32>, &AdamW)| {
                    let (first, second) = optimizer.moments();
                    [parameters.clone(), first.to_vec(), second.to_vec()]
                };
                request.reply(
                    replicas.parameters.iter().zip(&replicas.optimizers).flat_map(of).collect(),
                );
            }
            Event::Resync(state) => replicas = Replicas::of(&state.vectors),
        }
    }
    if has_dropped {
        let over = aggregator.next_event().err();
        assert_eq!(over, Some(AggregatorError::Closed), "its part is over");
        return None;
    }
    Some(replicas.parameters)
}

/// The transport of a run.
#[derive(Clone)]
enum Over {
    Local,
    /// Threads whose vectors stay in a memory of their own.
    Staying,
    /// Threads whose vectors are made there, and are sent and summed by the host.
    Staged,
    #[cfg(feature = "tcp")]
    Tcp(tcp::Settings),
}

/// A coordinator on this thread, and a thread for each worker.
fn run<V, L: FnMut() -> Option<Box<dyn Link<V>>> + Send>(
    links: Vec<L>,
    worker: impl Fn(Worker, Box<dyn Link<V>>) -> Option<Vec<Vec<f32>>> + Sync,
    coordinator: impl FnOnce() -> Result<Outcome, RunError>,
) -> (Result<Outcome, RunError>, Trained) {
    thread::scope(|scope| {
        let worker = &worker;
        // Who leaves comes back if there is a way.
        let live = move |me, mut link: L| loop {
            let trained = worker(me, link()?);
            if trained.is_some() {
                return trained;
            }
        };
        let threads: Vec<_> = Worker::all(links.len())
            .zip(links)
            .map(|(me, link)| scope.spawn(move || live(me, link)))
            .collect();
        let outcome = coordinator();
        (
            outcome,
            threads
                .into_iter()
                .map(|thread| {
                    thread.join().ok().flatten().map(|models: Vec<Vec<f32>>| models.concat())
                })
                .collect(),
        )
    })
}

/// A link for one worker, that does not come back.
fn once<V: Vector>(link: local::LocalLink<V>) -> impl FnMut() -> Option<Box<dyn Link<V>>> + Send {
    let mut link = Some(link);
    move || Some(Box::new(link.take()?) as Box<dyn Link<V>>)
}

/// What the replicas of a model have, by worker; those of several models one after the other.
type Trained = Vec<Option<Vec<f32>>>;

fn train(setup: Setup<'_>) -> (Result<Outcome, RunError>, Trained, Log) {
    let Setup {
        scheme,
        workers,
        units,
        steps,
        models,
        micro_steps,
        run_clock,
        mischief,
        stop_after,
        over,
        length,
    } = setup;
    let spec = scheme.strip_suffix(" to next step").unwrap_or(scheme);
    let mut spec = spec.parse::<SchemeSpec>().unwrap();
    if scheme.ends_with(" to next step") {
        spec = spec.deferring_to_next_step().unwrap();
    }
    let scheme = spec.scheme(workers, units, 0..steps * micro_steps).unwrap();
    let limits = Limits { max_wait_seconds: 20.0, ..Limits::default() };
    #[cfg(feature = "tcp")]
    let limits = match &over {
        Over::Tcp(settings) if settings.returns.is_some() => {
            Limits { return_seconds: 20.0, ..limits }
        }
        _ => limits,
    };
    let config = RunConfig {
        limits,
        jobs: Jobs { models, micro_steps },
        log_steps: LOG_STEPS,
        ..RunConfig::new(Shape::new(workers, units), length, steps)
    };
    let engine = Engine::new(scheme, config, Settings::default()).unwrap();
    let (decided, mut log) = (AtomicU64::new(0), Log::default());
    fn live<V: Numbers>(
        me: Worker,
        link: Box<dyn Link<V>>,
        job: (usize, u64, u64),
        mischief: Mischief<'_>,
        decided: &AtomicU64,
    ) -> Option<Vec<Vec<f32>>> {
        let (length, models, micro_steps) = job;
        let aggregator = Aggregator::new(link, length, UNIT_SAMPLES).accumulating(micro_steps);
        work(me, aggregator, Replicas::fresh(models, length), mischief, decided)
    }
    let job = (length, models, micro_steps);
    let worker = |me: Worker, link: Box<dyn Link>| live(me, link, job, mischief, &decided);
    let mut recorder = Recorder { log: &mut log, decided: &decided, stop_after };
    let (outcome, parameters) = match over {
        Over::Staying => {
            let (transport, links) = local::connect_at::<non_host::NonHostVector>(
                0,
                (0..workers).map(|worker| worker % 2).collect(),
            );
            let ledgers = transport.ledgers();
            let links = links.into_iter().map(once).collect();
            let worker = |me: Worker, link| {
                live::<non_host::NonHostVector>(me, link, job, mischief, &decided)
            };
            let run = run(links, worker, || {
                Coordinator::new(transport, engine, run_clock).run(&mut recorder)
            });
            log.peaks = ledgers.take_peaks();
            run
        }
        Over::Staged => {
            let (transport, links) = local::connect(workers);
            let links = links.into_iter().map(once).collect();
            let worker = |me: Worker, link| {
                let link: StagedLink<non_host::NonHostVector> = StagedLink::new(link, me.index());
                live(me, Box::new(link), job, mischief, &decided)
            };
            run(links, worker, || Coordinator::new(transport, engine, run_clock).run(&mut recorder))
        }
        Over::Local => {
            let (transport, links) = local::connect(workers);
            let ledgers = transport.ledgers();
            let links = links.into_iter().map(once).collect();
            let run = run(links, worker, || {
                Coordinator::new(transport, engine, run_clock).run(&mut recorder)
            });
            log.peaks = ledgers.take_peaks();
            run
        }
        #[cfg(feature = "tcp")]
        Over::Tcp(settings) => {
            let (mut transport, links) = tcp::connect(&settings, config);
            let coordinator = || {
                assert_eq!(transport.gather(Duration::from_secs(20)).absent, []);
                transport.begin(Step(0));
                Coordinator::new(transport, engine, run_clock).run(&mut recorder)
            };
            run(links, worker, coordinator)
        }
    };
    log.decided = decided;
    (outcome, parameters, log)
}

fn bits(gradients: &[Option<Vec<f32>>]) -> Vec<Option<Vec<u32>>> {
    gradients
        .iter()
        .map(|gradient| gradient.as_ref().map(|x| x.iter().map(|x| x.to_bits()).collect()))
        .collect()
}

#[test]
fn coded_training_has_the_bits_of_uncoded_training_whoever_straggles() {
    let (_, uncoded, plain) = train(setup("uncoded", 8, 30, modelled(8, 30, 1)));
    for (scheme, seed) in [
        ("queue:m=1", 1),
        ("queue:m=1", 6),
        ("ring:reach=3", 2),
        ("ring:reach=8", 7),
        ("groups:s=1", 1),
        ("groups:s=1", 2),
        ("groups:s=3", 3),
        ("groups:l=1", 4),
        ("groups:s=1,rescale", 5),
    ] {
        let (outcome, coded, log) = train(setup(scheme, 8, 30, modelled(8, 30, seed)));
        assert_eq!(outcome.unwrap(), Outcome::Finished);
        assert_eq!(bits(&log.gradients), bits(&plain.gradients), "{scheme}, delays of seed {seed}");
        assert!(
            coded.iter().all(|parameters| parameters == &uncoded[0]),
            "all replicas hold the same bytes"
        );
        assert!(
            log.records.iter().all(|record| record.aux == [24.0] && record.decode.coverage == 1.0),
            "no sample lost, none counted twice"
        );
    }
}

#[test]
fn unaligned_shares_agree_within_rounding_step_by_step() {
    // Rounding allows a relative difference of at most 4 x 2^-24 x amplification x sqrt(k);
    // compared at equal parameters, that is at the first step, since later ones start from
    // different bits.
    for workers in [3usize, 5, 6, 7] {
        let (_, _, plain) = train(setup("uncoded", workers, 1, modelled(workers, 1, 1)));
        let (_, _, coded) = train(setup("groups:l=2", workers, 1, modelled(workers, 1, 1)));
        let (Some(a), Some(b)) = (&plain.gradients[0], &coded.gradients[0]) else { panic!() };
        let norm = a.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let difference = a.iter().zip(b).map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>().sqrt();
        assert!(difference <= 4.0 * 2f64.powi(-24) * 2f64.sqrt() * norm, "{workers}");
    }
}

/// Models trained in turn, and micro-steps of one model: every step has the bits of uncoded
/// training where every task is a micro-batch, whoever straggled and whatever came late; no sample
/// is lost, none counted twice.
#[test]
fn jobs_that_overlap_have_the_bits_of_uncoded_training() {
    for (scheme, units, models, micro_steps) in [
        ("defer:T=1,cap=3,cut=1", 8, 2, 1),
        ("defer:T=1,cap=3,cut=1", 8, 3, 1),
        ("defer:T=2,cap=2,cut=1", 8, 3, 1),
        ("defer:T=1,cap=3,cut=1", 8, 1, 4),
        ("defer:T=2,cap=2,cut=1", 8, 1, 3),
        ("m-sgc:B=1,W=2,lambda=8", 8, 2, 1),
        ("m-sgc:B=2,W=3,lambda=8", 16, 4, 1),
        ("m-sgc:B=1,W=3,lambda=8", 16, 1, 4),
        ("sr-sgc:B=1,W=2,lambda=2,rep,s=1", 8, 2, 1),
        ("queue:m=2", 16, 1, 4),
        ("ring:reach=4", 8, 3, 1),
        ("groups:s=1", 8, 1, 5),
    ] {
        let steps = if models > 1 { 30 } else { 8 };
        let rounds = steps * micro_steps * 3;
        let of = |scheme, seed| Setup {
            units,
            models,
            micro_steps,
            ..setup(scheme, 8, steps, modelled(8, rounds, seed))
        };
        let (_, trained, plain) = train(of("uncoded", 1));
        for seed in [1, 2, 3] {
            let (outcome, coded, log) = train(of(scheme, seed));
            assert_eq!(outcome.unwrap(), Outcome::Finished, "{scheme}");
            assert_eq!(
                bits(&log.gradients),
                bits(&plain.gradients),
                "{scheme} for {models} models, {micro_steps} micro-steps, seed {seed}"
            );
            assert!(
                coded.iter().all(|parameters| parameters == &trained[0]),
                "{scheme}: all replicas hold the same bytes"
            );
            let samples = f64::from(units) * UNIT_SAMPLES as f64 * micro_steps as f64;
            assert!(
                log.records
                    .iter()
                    .all(|record| record.aux == [samples] && record.decode.coverage == 1.0),
                "{scheme}"
            );
            let committed: Vec<u64> = log.records.iter().map(|record| record.step).collect();
            assert_eq!(committed, (0..steps).collect::<Vec<_>>(), "steps are committed in order");
        }
    }
}

/// Several jobs whose tasks have coefficients: within rounding of the exact gradient at the same
/// parameters.
#[test]
fn codes_over_rounds_train_within_their_tolerance() {
    for (scheme, units, models, micro_steps) in [
        ("m-sgc:B=1,W=2,lambda=3", 40, 2, 1),
        ("m-sgc:B=2,W=3,lambda=2", 64, 4, 1),
        ("m-sgc:B=1,W=2,lambda=3,rep", 40, 1, 4),
        ("m-sgc:B=1,W=2,lambda=3,cyclic", 40, 2, 1),
        ("sr-sgc:B=1,W=2,lambda=4", 8, 2, 1),
        ("sr-sgc:B=2,W=3,lambda=4", 8, 1, 4),
        ("queue:m=2", 16, 1, 3),
        ("defer:T=1,cap=2,cut=3", 24, 2, 1),
    ] {
        let steps = if models > 1 { 24 } else { 6 };
        let run_clock = modelled(8, steps * micro_steps * 4, 3);
        let (outcome, _, log) =
            train(Setup { units, models, micro_steps, ..setup(scheme, 8, steps, run_clock) });
        assert_eq!(outcome.unwrap(), Outcome::Finished, "{scheme}");
        let mut replicas = Replicas::fresh(models, PARAMETERS);
        for (record, gradient) in log.records.iter().zip(&log.gradients) {
            let (gradient, model) = (gradient.as_ref().unwrap(), (record.step % models) as usize);
            let mut exact = vec![0.0f64; PARAMETERS];
            for batch in record.step * micro_steps..(record.step + 1) * micro_steps {
                for sample in 0..units as usize * UNIT_SAMPLES {
                    let mut one = vec![0.0f32; PARAMETERS];
                    sample_gradient(&replicas.parameters[model], batch, sample, &mut one, 1.0);
                    exact.iter_mut().zip(&one).for_each(|(sum, x)| *sum += f64::from(*x));
                }
            }
            let norm = exact.iter().map(|x| x * x).sum::<f64>().sqrt();
            let off = exact
                .iter()
                .zip(gradient)
                .map(|(x, y)| (x - f64::from(*y)).powi(2))
                .sum::<f64>()
                .sqrt();
            let terms = f64::from(units) * UNIT_SAMPLES as f64 * micro_steps as f64;
            let allowed =
                4.0 * 2f64.powi(-24) * record.decode.amplification.max(1.0) * terms.sqrt() * norm;
            assert!(
                off <= allowed,
                "{scheme} step {}: off by {off:e}, allowed {allowed:e}",
                record.step
            );
            assert!(
                (record.aux[0] - terms).abs() < 1e-9 * terms * record.decode.amplification.max(1.0),
                "{scheme}: {:?}",
                record.aux
            );
            replicas.apply(gradient, record.step);
        }
        let late: usize = log
            .records
            .iter()
            .flat_map(|r| &r.rounds)
            .map(|r| r.arrivals.iter().filter(|a| a.is_none()).count())
            .sum();
        assert!(late > 0, "{scheme}: no worker was ever late, nothing was tried");
    }
}

/// Late units that count for the next step: every sample of every batch is in exactly one step, at
/// that step's parameters, and each step is divided by how many it has.
#[test]
fn late_units_that_count_for_the_next_step_are_counted_once() {
    let (units, steps) = (16u32, 20);
    for (scheme, prank) in [
        ("defer:T=1,cap=3,cut=2 to next step", Prank::None),
        ("defer:T=2,cap=3,cut=2 to next step", Prank::None),
        ("defer:T=1,cap=3,cut=2 to next step", Prank::Panic),
    ] {
        let mischief = |worker: Worker, step: u64| {
            if (worker.0, step) == (2, 5) { prank } else { Prank::None }
        };
        let (outcome, _, log) = train(Setup {
            units,
            mischief: &mischief,
            ..setup(scheme, 8, steps, modelled(8, steps, 3))
        });
        assert_eq!(outcome.unwrap(), Outcome::Finished, "{scheme}");
        let samples = f64::from(units) * UNIT_SAMPLES as f64;
        assert!(
            log.records.iter().all(|record| (record.aux[0] - samples).abs() < 1e-9),
            "divided by its own count: {scheme}"
        );
        let coverage: Vec<f64> = log.records.iter().map(|record| record.decode.coverage).collect();
        assert!(
            (coverage.iter().sum::<f64>() - steps as f64).abs() < 1e-9,
            "{scheme}: {coverage:?}"
        );
        assert!(
            coverage.iter().any(|c| *c < 1.0) && coverage.iter().any(|c| *c > 1.0),
            "{scheme}: {coverage:?}"
        );
        // Every gradient is `p - target` of its sample, so that the sum of all of them is known
        // from the parameters.
        let mut replicas = Replicas::fresh(1, PARAMETERS);
        let mut found = 0.0;
        let mut expected = 0.0;
        for (record, gradient) in log.records.iter().zip(&log.gradients) {
            let gradient = gradient.as_ref().unwrap();
            found += f64::from(gradient[0]) * record.decode.coverage;
            expected += f64::from(replicas.parameters[0][0]) * samples * record.decode.coverage;
            for sample in 0..samples as usize {
                let mut one = vec![0.0f32; PARAMETERS];
                sample_gradient(&replicas.parameters[0], record.step, sample, &mut one, 1.0);
                expected -= f64::from(replicas.parameters[0][0]) - f64::from(one[0]);
            }
            replicas.apply(gradient, record.step);
        }
        assert!((found - expected).abs() < 1e-3, "{scheme}: {found} instead of {expected}");
    }
}

/// A worker that dies takes its results with it: their tasks are open again, for others.
#[test]
fn results_of_a_dead_worker_are_computed_again() {
    let dying_at = |at: u64| {
        move |worker: Worker, step: u64| {
            if (worker.0, step) == (2, at) { Prank::Panic } else { Prank::None }
        }
    };
    for (scheme, units, models, micro_steps) in [
        ("queue:m=2", 16, 1, 1),
        ("queue:m=2", 16, 1, 3),
        ("ring:reach=4", 8, 2, 1),
        ("groups:s=1", 8, 1, 3),
        ("defer:T=1,cap=1,cut=1", 8, 2, 1),
        ("defer:T=2,cap=1,cut=1", 8, 3, 1),
        ("defer:T=1,cap=1,cut=1", 8, 1, 4),
        ("sr-sgc:B=1,W=2,lambda=4,rep,s=1", 8, 2, 1),
    ] {
        let steps = if models > 1 { 20 } else { 10 };
        let of = |scheme, seed| Setup {
            units,
            models,
            micro_steps,
            ..setup(scheme, 8, steps, modelled(8, steps * micro_steps * 4, seed))
        };
        let (_, _, plain) = train(of("uncoded", 1));
        for at in 4..10 {
            let dies = dying_at(at);
            let (outcome, trained, log) = train(Setup { mischief: &dies, ..of(scheme, at) });
            assert_eq!(outcome.unwrap(), Outcome::Finished, "{scheme}");
            assert!(
                trained[2].is_none()
                    && log.faults.iter().any(|fault| fault.1 == 2 && fault.2.starts_with("lost")),
                "{scheme}"
            );
            let samples = f64::from(units) * UNIT_SAMPLES as f64 * micro_steps as f64;
            assert!(
                log.records.iter().all(|record| record.aux == [samples]),
                "{scheme}: no sample lost, none counted twice"
            );
            // As long as no bundle holds two units of the same job.
            assert_eq!(bits(&log.gradients), bits(&plain.gradients), "{scheme}");
        }
    }
    let dies = dying_at(5);
    let (outcome, _, log) = train(Setup {
        mischief: &dies,
        units: 40,
        models: 2,
        ..setup("m-sgc:B=1,W=2,lambda=3", 8, 20, modelled(8, 80, 4))
    });
    let error = outcome.unwrap_err().to_string();
    assert!(
        error.contains("dead workers {2}"),
        "a worker that never comes back is beyond M-SGC's bursts: {error}"
    );
    assert!(log.records.len() >= 4, "what was decoded before is kept");
}

/// A poisoned unit refuses its own step and no other.
#[test]
fn a_poisoned_job_is_refused_alone() {
    let poison = |_, step: u64| if step == 6 { Prank::Nan } else { Prank::None };
    for (scheme, units, models, micro_steps) in [
        ("defer:T=1,cap=2,cut=1", 8, 2, 1),
        ("m-sgc:B=1,W=2,lambda=3", 40, 2, 1),
        ("sr-sgc:B=1,W=2,lambda=4", 8, 2, 1),
        ("queue:m=1", 8, 1, 2),
        ("m-sgc:B=1,W=2,lambda=3", 40, 1, 3),
    ] {
        let run_clock = modelled(8, 100, 2);
        let (outcome, trained, log) = train(Setup {
            mischief: &poison,
            units,
            models,
            micro_steps,
            ..setup(scheme, 8, 12, run_clock)
        });
        assert_eq!(outcome.unwrap(), Outcome::Finished, "{scheme}");
        let refused: Vec<u64> = log
            .records
            .iter()
            .filter(|record| !record.refused.is_empty())
            .map(|record| record.step)
            .collect();
        assert_eq!(refused, [6], "{scheme}");
        assert!(trained.iter().all(|parameters| parameters == &trained[0]), "{scheme}");
    }
}

/// A file with the given content, for scheme texts that name one.
fn file(content: &str) -> (tempfile::NamedTempFile, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content).unwrap();
    let path = file.path().display().to_string();
    (file, path)
}

/// The gradient of every share of a step at the given parameters, in f64.
fn share_gradients(code: &dyn GradientCode, parameters: &[f32], step: u64) -> Vec<Vec<f64>> {
    let cut = Cut::new(8, code.facts().shares() as u32).unwrap();
    let of = |share: u32| {
        let units = cut.share(Share(share));
        let mut gradient = vec![0.0f32; PARAMETERS];
        for sample in units.start as usize * UNIT_SAMPLES..units.end as usize * UNIT_SAMPLES {
            sample_gradient(parameters, step, sample, &mut gradient, 1.0);
        }
        gradient.into_iter().map(f64::from).collect()
    };
    (0..cut.shares()).map(of).collect()
}

/// Every step of every code against the exact gradient at the same parameters: exact codes within
/// `4 x 2^-24 x amplification x sqrt(k)` of its norm; for approximate ones the error they report is
/// the one that is measured, and bounds the gradient's.
fn trains_within_tolerance(scheme: &str, delays: u64) -> f64 {
    let code = scheme.parse::<SchemeSpec>().unwrap().code(8).unwrap();
    let (outcome, _, log) = train(setup(scheme, 8, 25, modelled(8, 25, delays)));
    assert_eq!(outcome.unwrap(), Outcome::Finished, "{scheme}");
    let (mut parameters, mut optimizer) =
        (vec![0.1f32; PARAMETERS], AdamW::new(OPTIMIZER, PARAMETERS));
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let mut missing = 0;
    for (record, gradient) in log.records.iter().zip(&log.gradients) {
        let (shares, gradient) =
            (share_gradients(&*code, &parameters, record.step), gradient.as_ref().unwrap());
        let mut alpha = vec![0.0; shares.len()];
        for (worker, weight) in Worker::all(8).zip(&record.weights) {
            code.row(worker).iter().for_each(|(share, x)| alpha[share.index()] += weight * x);
        }
        let sum = |weights: &[f64], e: usize| {
            shares.iter().zip(weights).map(|(share, a)| a * share[e]).sum::<f64>()
        };
        let exact: Vec<f64> = (0..PARAMETERS).map(|e| sum(&vec![1.0; shares.len()], e)).collect();
        let scale = norm(&mut exact.iter().copied());
        let k = (shares.len() as f64).sqrt();
        let rounding = 4.0 * 2f64.powi(-24) * record.decode.amplification.max(1.0) * k;
        let expected = norm(&mut (0..PARAMETERS).map(|e| f64::from(gradient[e]) - sum(&alpha, e)));
        assert!(
            expected <= rounding * scale,
            "{scheme} step {}: {expected:e} of {scale:e}",
            record.step
        );
        let error = alpha.iter().map(|a| (a - 1.0).powi(2)).sum::<f64>() / shares.len() as f64;
        assert!(
            (error - record.decode.error).abs() < 1e-12,
            "{scheme}: reported {} measured {error}",
            record.decode.error
        );
        let off = norm(&mut (0..PARAMETERS).map(|e| f64::from(gradient[e]) - exact[e]));
        let spread = norm(&mut shares.iter().flatten().copied());
        assert!(
            off <= rounding * scale + error.sqrt() * k * spread,
            "{scheme} step {}: off by {off:e}",
            record.step
        );
        if code.facts().error_max == 0.0 {
            assert!(
                off <= rounding * scale && record.decode.coverage == 1.0,
                "{scheme} step {}: off by {off:e}",
                record.step
            );
            assert!((record.aux[0] - 24.0).abs() < 1e-9 * record.decode.amplification.max(1.0));
        }
        missing += 8 - record.survivors.len();
        optimizer.update(&mut parameters, gradient, record.step);
    }
    missing as f64 / log.records.len() as f64
}

#[test]
fn every_code_trains_within_its_tolerance() {
    let (_cuts, cuts) = file("0,4\n4,8\n0,2\n2,8\n0,8\n4,6\n6,8\n0,4\n");
    let (_speeds, speeds) = file("1,1,2,2,1,1,2,2\n");
    let (_matrix, matrix) =
        file("0.5,1,0\n0,1,-1\n0.5,0,1\n0.5,1,0\n0,1,-1\n0.5,0,1\n1,1,1\n2,2,2\n");
    for scheme in [
        "uncoded",
        "groups:s=2",
        "min-load:s=1",
        "min-load:s=2",
        "min-load:s=5",
        &format!("interval:cuts={cuts}"),
        &format!("interval:speeds={speeds},s=1,units=8"),
        &format!("interval:speeds={speeds},l=3,units=8"),
        "cyclic:s=2",
        "cyclic:s=4,seed=3",
        "graph:d=2,err=0.2",
        "graph:d=3,err=0.05",
        "drop:b=2",
        &format!("matrix:{matrix}"),
    ] {
        let missing = trains_within_tolerance(scheme, 3);
        assert!(
            missing > 0.0 || scheme == "uncoded",
            "{scheme}: no worker was ever missing, nothing was tried"
        );
    }
}

/// Without the last worker the only weights are 1000 and -999, which no wire type bears; with it, 1
/// and 1. A round must wait for that worker, although the code's own rule is satisfied before, and
/// if it is dead the decode is refused with the numbers.
#[test]
fn a_decode_beyond_its_gate_waits_for_one_more_answer() {
    let (_matrix, matrix) = file("1,0\n1,0.001\n1,0\n0,1\n");
    let (_delays, delays) = file("0,0,0,5\n");
    let scheme = format!("matrix:{matrix}");
    let run_clock = || {
        RunClock::modelled(
            4,
            &Delays::open(&delays, 4, 1).unwrap(),
            2,
            VirtualClock { step_seconds: 1.0 },
            0.0,
        )
    };
    let (outcome, _, log) = train(setup(&scheme, 4, 2, run_clock()));
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    for record in &log.records {
        assert!(record.survivors.contains(&Worker(3)) && record.seconds > 5.0, "{record:?}");
        assert!(record.decode.amplification < 2.0 && record.decode.residual < 1e-12);
    }
    let dead = |worker: Worker, _| if worker == Worker(3) { Prank::Panic } else { Prank::None };
    let (outcome, _, log) = train(Setup { mischief: &dead, ..setup(&scheme, 4, 2, run_clock()) });
    let error = chain(&outcome.unwrap_err());
    assert!(
        error.contains("amplifies rounding errors") && error.contains("at most 256"),
        "{error}"
    );
    assert!(log.records.is_empty(), "nothing was applied");
}

/// An error and its causes in one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text += &format!(": {next}");
        cause = next.source();
    }
    text
}

#[test]
fn records_under_a_virtual_clock_are_reproducible() {
    let run = || train(setup("groups:s=1", 6, 20, modelled(6, 20, 9))).2.records;
    let first = run();
    assert_eq!(first, run());
    assert_eq!(first.len(), 20);
    for record in &first {
        let last = record
            .survivors
            .iter()
            .map(|worker| record.rounds[0].arrivals[worker.index()].unwrap())
            .fold(0.0, f64::max);
        assert!(
            (record.seconds - last).abs() < 1e-9,
            "a step takes as long as the last answer it needs"
        );
    }
}

#[test]
fn a_dropped_batch_is_reported_as_lost() {
    let (outcome, _, log) = train(setup("drop:b=2", 8, 10, modelled(8, 10, 3)));
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    assert!(
        log.records
            .iter()
            .all(|record| record.decode.coverage == 0.75 && (record.aux[0] - 24.0).abs() < 1e-9)
    );
}

#[test]
fn a_panicking_worker_is_named_and_survived() {
    let prank = |worker: Worker, step: u64| {
        if (worker.0, step) == (2, 4) { Prank::Panic } else { Prank::None }
    };
    let (_, uncoded, _) = train(setup("uncoded", 8, 12, modelled(8, 12, 1)));
    let (outcome, coded, log) =
        train(Setup { mischief: &prank, ..setup("groups:s=1", 8, 12, modelled(8, 12, 1)) });
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    let [(step, 2, what)] = &log.faults[..] else { panic!("{:?}", log.faults) };
    assert!(
        (4..=5).contains(step) && what == "lost: its thread panicked",
        "seen at once, or at its next task if no worker waited for this one"
    );
    assert!(
        coded[2].is_none()
            && coded.iter().flatten().all(|parameters| Some(parameters) == uncoded[0].as_ref())
    );
    let (outcome, _, _) =
        train(Setup { mischief: &prank, ..setup("uncoded", 8, 12, modelled(8, 12, 1)) });
    assert!(outcome.unwrap_err().to_string().contains("dead workers {2}"));
}

#[test]
fn feedback_schemes_survive_what_befalls_their_workers() {
    let (_, uncoded, plain) = train(setup("uncoded", 8, 10, modelled(8, 10, 1)));
    for scheme in ["queue:m=1", "ring:reach=4"] {
        for (prank, erased) in
            [(Prank::Panic, false), (Prank::Nan, true), (Prank::Drop, false), (Prank::Slow, false)]
        {
            let mischief = |worker: Worker, step: u64| {
                if (worker.0, step) == (2, 4) { prank } else { Prank::None }
            };
            let (outcome, coded, log) =
                train(Setup { mischief: &mischief, ..setup(scheme, 8, 10, modelled(8, 10, 3)) });
            assert_eq!(outcome.unwrap(), Outcome::Finished, "{scheme}");
            assert_eq!(bits(&log.gradients), bits(&plain.gradients), "{scheme}");
            assert!(
                !erased || log.records[4].rounds[0].erased == [Worker(2)],
                "{scheme}: {:?}",
                log.records[4]
            );
            assert!(
                coded.iter().flatten().all(|parameters| Some(parameters) == uncoded[0].as_ref())
            );
        }
        let all = |_, step| if step == 2 { Prank::Nan } else { Prank::None };
        let (outcome, _, log) =
            train(Setup { mischief: &all, ..setup(scheme, 8, 4, modelled(8, 4, 3)) });
        assert_eq!(outcome.unwrap(), Outcome::Finished, "{scheme}");
        assert!(log.gradients[2].is_none() && log.gradients[3].is_some(), "refused, then on");
    }
}

#[test]
fn the_queue_costs_less_than_replication() {
    let mean = |scheme: &str| {
        let records = train(setup(scheme, 8, 40, modelled(8, 40, 5))).2.records;
        let steps = records.len() as f64;
        (
            records.iter().map(|r| r.seconds).sum::<f64>() / steps,
            records.iter().map(|r| r.work).sum::<f64>() / steps,
        )
    };
    let ((_, replicated), (seconds, work)) = (mean("groups:s=1"), mean("queue:m=1"));
    assert!(work < 1.8 && replicated == 2.0, "work {work}");
    assert!(seconds < mean("uncoded").0);
}

#[test]
fn values_that_are_not_finite_are_erased_or_refuse_the_step() {
    let one = |worker: Worker, step: u64| {
        if (worker.0, step) == (5, 3) { Prank::Nan } else { Prank::None }
    };
    let both = |worker: Worker, step: u64| {
        if (worker.0 / 2, step) == (1, 3) { Prank::Nan } else { Prank::None }
    };
    let (_, _, plain) = train(setup("uncoded", 8, 6, modelled(8, 6, 1)));
    let (_, _, erased) =
        train(Setup { mischief: &one, ..setup("groups:s=1", 8, 6, modelled(8, 6, 1)) });
    assert_eq!(bits(&erased.gradients), bits(&plain.gradients));
    assert!(
        erased.records[3].rounds[0].erased == [Worker(5)]
            || erased.records[3].rounds[0].arrivals[5].is_none()
    );
    let (outcome, parameters, refused) =
        train(Setup { mischief: &both, ..setup("groups:s=1", 8, 6, modelled(8, 6, 1)) });
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    assert!(refused.gradients[3].is_none() && refused.gradients[4].is_some());
    assert_eq!(
        (refused.records[3].refused[0].start, refused.records[3].refused[0].end),
        (2, 4),
        "the samples are named"
    );
    assert_eq!(refused.records[3].refused_because, Some(Refusal::NotFinite));
    assert!(parameters.iter().all(|other| other == &parameters[0]), "refused everywhere alike");
}

/// Whether a step is applied is decided by its gradient alone.
#[test]
fn a_scalar_that_is_not_finite_is_nan_for_its_step_and_nothing_else() {
    let wild = |_, step: u64| if step == 3 { Prank::WildScalar } else { Prank::None };
    let clocks = || RunClock::wall(4, &Delays::None, 6, 0.0);
    let overs = [
        Over::Local,
        #[cfg(feature = "tcp")]
        Over::Tcp(tcp::settings(codedgrad::transport::tcp::Exchange::Sharded)),
        #[cfg(feature = "tcp")]
        Over::Tcp(tcp::settings(codedgrad::transport::tcp::Exchange::Hold)),
    ];
    for over in overs {
        for scheme in ["uncoded", "groups:s=1"] {
            let plain = train(Setup { over: over.clone(), ..setup(scheme, 4, 6, clocks()) });
            let setup =
                Setup { mischief: &wild, over: over.clone(), ..setup(scheme, 4, 6, clocks()) };
            let (outcome, parameters, log) = train(setup);
            assert_eq!(outcome.unwrap(), Outcome::Finished);
            assert_eq!(parameters, plain.1, "all steps are applied");
            for record in &log.records {
                let is_wild = record.step == 3;
                assert!(
                    record.refused.is_empty() && record.rounds.iter().all(|r| r.erased.is_empty())
                );
                assert_eq!(record.doubts.nonfinite_scalars, usize::from(is_wild));
                let bits = if is_wild { f64::NAN } else { 12.0 }.to_bits();
                assert_eq!(record.aux[0].to_bits(), bits, "{scheme}: step {}", record.step);
                let line = serde_json::to_string(record).unwrap();
                assert_eq!(line.contains(r#""nonfinite_scalars":1"#), is_wild, "{line}");
                assert_eq!(line.contains(r#""tail":[null]"#), is_wild, "{line}");
                let read: StepRecord = serde_json::from_str(&line).unwrap();
                assert_eq!(read.aux[0].to_bits(), bits);
            }
        }
    }
}

#[test]
fn finite_messages_whose_sum_overflows_refuse_the_step() {
    let huge = |_, step| if step == 2 { Prank::Huge } else { Prank::None };
    let (outcome, parameters, log) =
        train(Setup { mischief: &huge, ..setup("groups:s=1", 8, 5, modelled(8, 5, 2)) });
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    let refused: Vec<bool> = log.records.iter().map(|record| !record.refused.is_empty()).collect();
    assert_eq!(refused, [false, false, true, false, false]);
    assert_eq!(log.records[2].refused, [Units { start: 0, end: 8 }]);
    let because: Vec<Option<Refusal>> =
        log.records.iter().map(|record| record.refused_because).collect();
    assert_eq!(because, [None, None, Some(Refusal::Overflow), None, None]);
    let written = |step: usize| serde_json::to_string(&log.records[step]).unwrap();
    assert!(
        written(2).contains(r#""refused_because":"overflow""#)
            && !written(1).contains("refused_because")
    );
    assert!(
        log.gradients[2].is_none() && parameters.iter().all(|replica| replica == &parameters[0])
    );
}

#[test]
fn who_drops_a_task_is_lost_and_no_step_is_refused() {
    let prank = |worker: Worker, step: u64| {
        if (worker.0, step) == (1, 2) { Prank::Drop } else { Prank::None }
    };
    for run_clock in [modelled(4, 6, 1), RunClock::wall(4, &Delays::None, 6, 0.0)] {
        let (outcome, _, log) =
            train(Setup { mischief: &prank, ..setup("uncoded", 4, 6, run_clock) });
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("without the dead workers {1}"), "{error}");
        assert_eq!(log.gradients.iter().flatten().count(), 2);
        let told = "lost: it dropped its task before that was done";
        assert!(log.faults.iter().any(|fault| fault.2.contains(told)), "{:?}", log.faults);
    }
}

/// A task that is submitted too early begins again as the next event. The second time it ends the
/// worker's part.
#[test]
fn who_submits_too_early_is_told_what_is_missing_and_goes_on() {
    let run = Coordinator::builder("uncoded").workers(1).units(3).steps(2).length(1);
    let (coordinator, mut workers) = run.clone().local().unwrap();
    let coordinator = thread::spawn(move || coordinator.run(&mut ()));
    let (mut early, mut decoded) = (Vec::new(), Vec::new());
    while let Some(event) = workers[0].next_event().unwrap() {
        match event {
            Event::Compute(mut task) => {
                // The first time of each step, half of what is written is wrong.
                let is_first = early.len() as u64 == task.step();
                let parts = if is_first { 2 } else { 3 };
                for _ in 0..parts {
                    let part = task.next_part().unwrap();
                    let wrong = if is_first { 100.0 } else { 1.0 };
                    task.message()[0] = wrong + part.samples.start as f32;
                }
                if let Err(error) = task.submit(vec![if is_first { 50.0 } else { 5.0 }]) {
                    early.push(error.to_string());
                }
            }
            Event::Apply(step) => decoded.push((step.gradient()[0], step.aux()[0])),
            Event::Provide(request) => request.reply(vec![vec![0.0]]),
            Event::Skip(_) | Event::Resync(_) => unreachable!("no other worker is there"),
        }
    }
    coordinator.join().unwrap().unwrap();
    assert_eq!(decoded, [(6.0, 5.0); 2]);
    assert_eq!(early.len(), 2, "{early:?}");
    assert!(early[0].contains("with 1 of its parts not computed"), "{early:?}");
    let (coordinator, mut workers) = run.local().unwrap();
    let coordinator = thread::spawn(move || coordinator.run(&mut ()));
    for _ in 0..2 {
        let Ok(Some(Event::Compute(task))) = workers[0].next_event() else { panic!("a task") };
        let error = task.submit(vec![]).unwrap_err();
        assert!(matches!(error, AggregatorError::Unfinished { left: 3, .. }), "{error}");
    }
    assert!(matches!(workers[0].next_event(), Err(AggregatorError::Closed)));
    coordinator.join().unwrap().unwrap_err();
}

/// A scheme of mixtures needs a judge before it has workers.
#[cfg(feature = "berrut")]
#[test]
fn mixtures_are_no_run_without_a_judge() {
    let run = Coordinator::builder("bacc:K=2").workers(8).steps(3).length(1);
    let error = run.clone().local().err().unwrap().to_string();
    assert!(error.contains("bacc:K=2") && error.contains(".judged_by(..)"), "{error}");
    #[cfg(feature = "tcp")]
    {
        let token = codedgrad::transport::tcp::security::Token::fresh().unwrap();
        let security = codedgrad::transport::tcp::security::Security::Plain { token };
        let serve = run.clone().serve("127.0.0.1:0", security.clone());
        let error = serve.err().unwrap().to_string();
        assert!(error.contains(".judged_by(..)"), "{error}");
        let error = run.open("127.0.0.1:0", security).err().unwrap().to_string();
        assert!(error.contains(".judged_by(..)"), "{error}");
    }
}

#[test]
fn a_hung_worker_catches_up_through_another_state() {
    // Whichever of the first steps it gets to on a busy machine, it misses more than are kept for
    // it.
    let hang = |worker: Worker, step: u64| {
        if worker.0 == 3 && (1..80).contains(&step) { Prank::HangUntil(100) } else { Prank::Slow }
    };
    let (outcome, parameters, log) = train(Setup {
        mischief: &hang,
        ..setup("groups:s=1", 4, 300, RunClock::wall(4, &Delays::None, 300, 0.0))
    });
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    let resynced = log
        .faults
        .iter()
        .filter(|fault| fault.1 == 3 && fault.2.contains("takes over the state"))
        .count();
    assert!(resynced >= 1, "{:?}", log.faults);
    assert!(parameters.iter().all(|other| other == &parameters[0]), "it ends with the same bytes");
    assert!(log.records[80..100].iter().all(|record| record.rounds[0].arrivals[3].is_none()));
    assert!(
        log.records[100..].iter().any(|record| record.survivors.contains(&Worker(3))),
        "it takes part again"
    );
}

#[test]
fn a_drifted_replica_is_found_by_its_digest_and_mended() {
    // Under a virtual clock a worker may be told to drop a step before it has begun it.
    let drifted = AtomicBool::new(false);
    let drift = |worker: Worker, step: u64| {
        let drifts = worker.0 == 0 && step >= 5 && !drifted.swap(true, Ordering::Relaxed);
        if drifts { Prank::Drift } else { Prank::None }
    };
    let (outcome, parameters, log) =
        train(Setup { mischief: &drift, ..setup("groups:s=1", 4, 300, modelled(4, 300, 2)) });
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    assert_eq!(log.faults[0].1, 0);
    assert!(log.faults[0].2.contains("parameters differ"), "{:?}", log.faults);
    assert!(parameters.iter().all(|other| other == &parameters[1]));
}

#[test]
fn who_drifts_at_the_last_step_is_mended_before_the_run_ends() {
    let drift = |worker: Worker, step: u64| {
        if (worker.0, step) == (1, 5) { Prank::Drift } else { Prank::None }
    };
    let overs = [
        Over::Local,
        #[cfg(feature = "tcp")]
        Over::Tcp(tcp::settings(codedgrad::transport::tcp::Exchange::Sharded)),
    ];
    for over in overs {
        let run_clock = RunClock::wall(4, &Delays::None, 0, 0.0);
        let (outcome, parameters, log) =
            train(Setup { mischief: &drift, over, ..setup("uncoded", 4, 6, run_clock) });
        assert_eq!(outcome.unwrap(), Outcome::Finished);
        assert!(
            log.faults.iter().any(|(_, worker, what)| *worker == 1 && what.contains("takes over")),
            "{:?}",
            log.faults
        );
        assert!(parameters.iter().all(|other| other.is_some() && other == &parameters[0]));
    }
}

#[test]
fn injected_delays_are_waited_for_on_the_wall_clock() {
    let delays = Delays::Preset { preset: Preset::Hotspot, workers: 4, seed: 1 };
    let run_clock = |_: ()| RunClock::wall(4, &delays, 6, 0.05);
    let (_, _, uncoded) = train(setup("uncoded", 4, 6, run_clock(())));
    assert!(
        uncoded.records.iter().all(|record| record.seconds >= 0.14),
        "each step waits for its straggler"
    );
    let (_, _, coded) = train(setup("groups:s=1", 4, 6, run_clock(())));
    assert_eq!(bits(&coded.gradients), bits(&uncoded.gradients));
    for record in &coded.records {
        let hot = record.rounds[0].delays.iter().position(|delay| *delay > 0.1).unwrap();
        assert!(record.rounds[0].arrivals[hot].is_none(), "no worker waits for the straggler");
    }
}

#[test]
fn an_observer_can_stop_a_run() {
    let (outcome, parameters, log) =
        train(Setup { stop_after: 7, ..setup("groups:s=1", 4, 30, modelled(4, 30, 2)) });
    assert_eq!(outcome.unwrap(), Outcome::Stopped);
    assert_eq!(
        (log.records.len(), parameters.iter().flatten().count()),
        (7, 4),
        "and all workers end in order"
    );
    assert_eq!(log.decided.into_inner(), 7);
}

/// A run of two workers that waits for those who are lost.
fn patient(length: usize, steps: u64) -> RunConfig {
    let limits = Limits { return_seconds: 20.0, ..Limits::default() };
    RunConfig { limits, ..RunConfig::new(Shape::new(2, 2), length, steps) }
}

/// Found by the simulated network: the second of two states, asked for before and after the worker
/// was lost, came when it had tasks again, which it dropped for it.
#[test]
fn who_comes_back_twice_takes_over_one_state() {
    let (transport, mut links) = local::connect(2);
    let scheme = "groups:l=1".parse::<SchemeSpec>().unwrap().scheme(2, 2, 0..1).unwrap();
    let engine = Engine::new(scheme, patient(PARAMETERS, 1), Settings::default()).unwrap();
    let mut coordinator =
        Coordinator::new(transport, engine, RunClock::wall(2, &Delays::None, 0, 0.0));
    let (mut log, decided) = (Log::default(), AtomicU64::new(0));
    let mut recorder = Recorder { log: &mut log, decided: &decided, stop_after: u64::MAX };
    for _ in 0..2 {
        links[1].send(Notice::Lost { reason: "as asked".into() });
        links[1].send(Notice::Joined { next: None });
    }
    assert!(matches!(coordinator.pump(&mut recorder), Ok(Progress::Wait(_))));
    let state = State { next: Step(0), vectors: Vec::new() };
    for _ in 0..2 {
        links[0].send(Notice::State { needy: Worker(1), state: state.clone() });
    }
    assert!(matches!(coordinator.pump(&mut recorder), Ok(Progress::Wait(_))));
    coordinator.stop();
    let mut orders = |worker: usize| {
        let all = std::iter::from_fn(|| match links[worker].receive(None) {
            ReceiveOutcome::Order(Order::Stop { .. })
            | ReceiveOutcome::Gone
            | ReceiveOutcome::Nothing => None,
            ReceiveOutcome::Order(order) => Some(order),
        });
        all.collect::<Vec<Order>>()
    };
    // It was there when the run began: that is no loss, and the first state is what it begins with.
    let states = ["begins with the state of worker 0", "takes over the state of worker 0"];
    let told: Vec<&str> = log.faults.iter().map(|(_, _, what)| what.as_str()).collect();
    assert_eq!(told, states);
    assert_eq!(
        orders(0).iter().filter(|order| matches!(order, Order::SendState { .. })).count(),
        2
    );
    let taken = orders(1);
    assert_eq!(
        taken.iter().filter(|order| matches!(order, Order::LoadState { .. })).count(),
        1,
        "{taken:?}"
    );
    assert!(matches!(taken.last(), Some(Order::Compute { .. })), "{taken:?}");
}

/// What a worker does that only holds sums: the states that it is sent.
fn take(worker: &mut dyn Link) -> Vec<Step> {
    let mut taken = Vec::new();
    while let ReceiveOutcome::Order(order) = worker.receive(Some(Duration::ZERO)) {
        match order {
            Order::LoadState { state } => taken.push(state.next),
            Order::Store { sum, decoded } => {
                worker.send(Notice::Sum(SumNotice::Held { sum, digest: decoded.digest }));
            }
            _ => {}
        }
    }
    taken
}

/// The donor serialises on a thread of its own and goes on training; meanwhile the worker that
/// needs the state is lost and comes back. What it was sent for first is older than what is asked
/// for now.
#[test]
fn a_state_asked_for_before_its_taker_was_lost_is_nobodys_fault() {
    let (transport, mut links) = local::connect(2);
    let scheme = "groups:l=1".parse::<SchemeSpec>().unwrap().scheme(2, 2, 0..9).unwrap();
    let engine = Engine::new(scheme, patient(1, 9), Settings::default()).unwrap();
    let run_clock = RunClock::wall(2, &Delays::None, 0, 0.0);
    let mut coordinator = Coordinator::new(transport, engine, run_clock);
    let (mut log, decided) = (Log::default(), AtomicU64::new(0));
    let mut recorder = Recorder { log: &mut log, decided: &decided, stop_after: u64::MAX };
    let mut needy: Box<dyn Link> = Box::new(links.remove(1));
    let mut donor = Aggregator::new(Box::new(links.remove(0)), 1, 1);
    let (mut requests, mut taken) = (Vec::new(), Vec::new());
    for asked in 1..=2 {
        needy.send(Notice::Lost { reason: "as asked".into() });
        needy.send(Notice::Joined { next: None });
        let steps = donor.next_step().0 + 2;
        while requests.len() < asked || donor.next_step().0 < steps {
            match donor.next_event_within(Duration::ZERO).unwrap() {
                None => {
                    coordinator.pump(&mut recorder).unwrap();
                    taken.extend(take(&mut *needy));
                }
                Some(OwnedEvent::Provide(request)) => requests.push(request),
                Some(OwnedEvent::Apply(step)) => donor.applied(step, None).unwrap(),
                Some(OwnedEvent::Compute(task)) => {
                    while donor.part(task).unwrap().is_some() {
                        donor.buffer(task).unwrap().fill(1.0);
                    }
                    donor.submit(task, Vec::new()).unwrap();
                }
                other => panic!("{other:?}"),
            }
        }
    }
    let next: Vec<Step> = requests.iter().map(ProvideRequest::next_step).collect();
    assert!(next[0] < next[1], "{next:?}");
    for request in requests {
        request.reply(vec![vec![0.0]]);
        coordinator.pump(&mut recorder).unwrap();
    }
    taken.extend(take(&mut *needy));
    assert_eq!(taken, [next[1]]);
    assert!(log.faults.iter().all(|fault| fault.1 != 0), "{:?}", log.faults);
}
