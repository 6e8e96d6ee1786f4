//! A plain-Rust trainer driven by the aggregator over worker threads: what a user of the library without
//! default features gets.

use codedgrad::codes::{SchemeSpec, Wire};
use codedgrad::delays::{Delays, Preset};
use codedgrad::ids::{Job, Worker};
use codedgrad::schedulers::{Config, Engine};
use codedgrad::train::{
    AdamW, AdamWConfig, Aggregator, Coordinator, Event, Flow, Observer, Outcome, Pace, RunError, StepRecord, VirtualClock,
};
use codedgrad::transport::{Decoded, local};
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
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
    Drop,
    /// Changes its own parameters behind the aggregator's back.
    Drift,
    /// Takes its time.
    Slow,
    /// Hangs in its task until so many steps are decided.
    HangUntil(u64),
}

#[derive(Default)]
struct Log {
    records: Vec<StepRecord>,
    gradients: Vec<Option<Vec<f32>>>,
    faults: Vec<(u64, u32, String)>,
    decided: AtomicU64,
}

struct Recorder<'a> {
    log: &'a mut Log,
    decided: &'a AtomicU64,
    stop_after: u64,
}

impl Observer for Recorder<'_> {
    fn step(&mut self, record: &StepRecord, decoded: Option<&Decoded>) -> Result<Flow, Box<dyn Error + Send + Sync>> {
        self.log.records.push(record.clone());
        self.log.gradients.push(decoded.map(|decoded| decoded.gradient.clone()));
        self.decided.store(record.step + 1, Ordering::Release);
        Ok(if record.step + 1 >= self.stop_after { Flow::Stop } else { Flow::Continue })
    }
    fn fault(&mut self, step: u64, worker: Worker, what: &str) {
        self.log.faults.push((step, worker.0, what.into()));
    }
}

struct Setup<'a> {
    scheme: &'a str,
    workers: usize,
    steps: u64,
    pace: Pace,
    mischief: Mischief<'a>,
    stop_after: u64,
}

fn setup<'a>(scheme: &'a str, workers: usize, steps: u64, pace: Pace) -> Setup<'a> {
    Setup { scheme, workers, steps, pace, mischief: &|_, _| Prank::None, stop_after: u64::MAX }
}

fn modelled(workers: usize, steps: u64, seed: u64) -> Pace {
    let delays = Delays::Preset { preset: Preset::Iid, workers, seed };
    Pace::modelled(workers, &delays, steps as usize, VirtualClock { step_seconds: 1.0 }, 0.0)
}

/// A gradient that depends on the parameters, the step and the sample.
fn sample_gradient(parameters: &[f32], step: u64, sample: usize, out: &mut [f32], coefficient: f64) {
    for (i, (out, p)) in out.iter_mut().zip(parameters).enumerate() {
        let target = ((i * 7 + sample * 13 + step as usize * 31) % 101) as f32 / 50.0 - 1.0;
        *out += coefficient as f32 * (p - target);
    }
}

fn work(worker: Worker, mut aggregator: Aggregator, mischief: Mischief<'_>, decided: &AtomicU64) -> Vec<f32> {
    let mut parameters = vec![0.1f32; PARAMETERS];
    let mut optimizer = AdamW::new(OPTIMIZER, PARAMETERS);
    while let Some(event) = aggregator.next_event().unwrap() {
        match event {
            Event::Compute(mut task) => {
                let prank = mischief(worker, task.step());
                assert!(prank != Prank::Panic, "as asked");
                if prank == Prank::Drop {
                    continue;
                }
                if prank == Prank::Slow {
                    thread::sleep(Duration::from_millis(2));
                }
                if prank == Prank::Drift {
                    parameters[0] += 1.0;
                }
                let step = task.step();
                let mut loss = 0.0;
                while let Some(part) = task.next_part() {
                    while matches!(prank, Prank::HangUntil(steps) if decided.load(Ordering::Acquire) < steps) {
                        thread::sleep(Duration::from_millis(1));
                    }
                    let message = task.message();
                    message.fill(0.0);
                    for sample in part.samples.clone() {
                        sample_gradient(&parameters, step, sample, message, part.coefficient);
                    }
                    if prank == Prank::Nan {
                        message[5] = f32::INFINITY;
                    }
                    loss += part.coefficient * part.samples.len() as f64;
                }
                task.submit(vec![loss]).unwrap();
            }
            Event::Apply(step) => {
                let digest = optimizer.update(&mut parameters, step.gradient(), step.index);
                step.applied_with(digest);
            }
            Event::Skip(_) => {}
            Event::Provide(request) => {
                let (first, second) = optimizer.moments();
                request.reply(vec![parameters.clone(), first.to_vec(), second.to_vec()]);
            }
            Event::Resync(state) => {
                parameters.clone_from(&state.vectors[0]);
                optimizer = AdamW::with_moments(OPTIMIZER, state.vectors[1].clone(), state.vectors[2].clone());
            }
        }
    }
    parameters
}

fn train(setup: Setup<'_>) -> (Result<Outcome, RunError>, Vec<Option<Vec<f32>>>, Log) {
    let Setup { scheme, workers, steps, pace, mischief, stop_after } = setup;
    let scheme = scheme.parse::<SchemeSpec>().unwrap().scheme(workers, workers as u32, 0..steps).unwrap();
    let config = Config { max_wait_seconds: 20.0, grace_seconds: 0.0, wire: Wire::F32, log_steps: LOG_STEPS };
    let engine = Engine::new(scheme, config, Job(0)..Job(steps));
    let (transport, links) = local::connect(workers);
    let decided = AtomicU64::new(0);
    let mut log = Log::default();
    let (outcome, parameters) = thread::scope(|scope| {
        let decided = &decided;
        let threads: Vec<_> = Worker::all(workers)
            .zip(links)
            .map(|(worker, link)| {
                scope.spawn(move || work(worker, Aggregator::new(Box::new(link), PARAMETERS, UNIT_SAMPLES), mischief, decided))
            })
            .collect();
        let mut recorder = Recorder { log: &mut log, decided, stop_after };
        let outcome = Coordinator::new(transport, engine, pace, (workers, PARAMETERS, workers as u32), LOG_STEPS, 0).run(&mut recorder);
        (outcome, threads.into_iter().map(|thread| thread.join().ok()).collect())
    });
    log.decided = decided;
    (outcome, parameters, log)
}

fn bits(gradients: &[Option<Vec<f32>>]) -> Vec<Option<Vec<u32>>> {
    gradients.iter().map(|gradient| gradient.as_ref().map(|x| x.iter().map(|x| x.to_bits()).collect())).collect()
}

#[test]
fn coded_training_has_the_bits_of_uncoded_training_whoever_straggles() {
    let (_, uncoded, plain) = train(setup("uncoded", 8, 30, modelled(8, 30, 1)));
    for (scheme, seed) in [("groups:s=1", 1), ("groups:s=1", 2), ("groups:s=3", 3), ("groups:l=1", 4), ("groups:s=1,rescale", 5)] {
        let (outcome, coded, log) = train(setup(scheme, 8, 30, modelled(8, 30, seed)));
        assert_eq!(outcome.unwrap(), Outcome::Finished);
        assert_eq!(bits(&log.gradients), bits(&plain.gradients), "{scheme}, delays of seed {seed}");
        assert!(coded.iter().all(|parameters| parameters == &uncoded[0]), "all replicas hold the same bytes");
        assert!(log.records.iter().all(|record| record.tail == [24.0] && record.coverage == 1.0), "no sample lost, none counted twice");
    }
}

#[test]
fn unaligned_shares_agree_within_rounding_step_by_step() {
    // Rounding allows a relative difference of at most 4 x 2^-24 x amplification x sqrt(k); compared at equal parameters,
    // that is at the first step, since later ones start from different bits.
    for workers in [3usize, 5, 6, 7] {
        let (_, _, plain) = train(setup("uncoded", workers, 1, modelled(workers, 1, 1)));
        let (_, _, coded) = train(setup("groups:l=2", workers, 1, modelled(workers, 1, 1)));
        let (Some(a), Some(b)) = (&plain.gradients[0], &coded.gradients[0]) else { panic!() };
        let norm = a.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let difference = a.iter().zip(b).map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>().sqrt();
        assert!(difference <= 4.0 * 2f64.powi(-24) * 2f64.sqrt() * norm, "{workers}");
    }
}

#[test]
fn records_under_a_virtual_clock_are_reproducible() {
    let run = || train(setup("groups:s=1", 6, 20, modelled(6, 20, 9))).2.records;
    let first = run();
    assert_eq!(first, run());
    assert_eq!(first.len(), 20);
    for record in &first {
        let last = record.survivors.iter().map(|worker| record.arrivals[worker.index()].unwrap()).fold(0.0, f64::max);
        assert!((record.seconds - last).abs() < 1e-9, "a step takes as long as the last answer it needs");
    }
}

#[test]
fn a_dropped_batch_is_reported_as_lost() {
    let (outcome, _, log) = train(setup("drop:b=2", 8, 10, modelled(8, 10, 3)));
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    assert!(log.records.iter().all(|record| record.coverage == 0.75 && (record.tail[0] - 24.0).abs() < 1e-9));
}

#[test]
fn a_panicking_worker_is_named_and_survived() {
    let prank = |worker: Worker, step: u64| if (worker.0, step) == (2, 4) { Prank::Panic } else { Prank::None };
    let (_, uncoded, _) = train(setup("uncoded", 8, 12, modelled(8, 12, 1)));
    let (outcome, coded, log) = train(Setup { mischief: &prank, ..setup("groups:s=1", 8, 12, modelled(8, 12, 1)) });
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    let [(step, 2, what)] = &log.faults[..] else { panic!("{:?}", log.faults) };
    assert!(
        (4..=5).contains(step) && what == "lost: its thread panicked",
        "seen at once, or at its next task if nobody waited for this one"
    );
    assert!(coded[2].is_none() && coded.iter().flatten().all(|parameters| Some(parameters) == uncoded[0].as_ref()));
    let (outcome, _, _) = train(Setup { mischief: &prank, ..setup("uncoded", 8, 12, modelled(8, 12, 1)) });
    assert!(outcome.unwrap_err().to_string().contains("dead workers {2}"));
}

#[test]
fn values_that_are_not_finite_are_erased_or_refuse_the_step() {
    let one = |worker: Worker, step: u64| if (worker.0, step) == (5, 3) { Prank::Nan } else { Prank::None };
    let both = |worker: Worker, step: u64| if (worker.0 / 2, step) == (1, 3) { Prank::Nan } else { Prank::None };
    let (_, _, plain) = train(setup("uncoded", 8, 6, modelled(8, 6, 1)));
    let (_, _, erased) = train(Setup { mischief: &one, ..setup("groups:s=1", 8, 6, modelled(8, 6, 1)) });
    assert_eq!(bits(&erased.gradients), bits(&plain.gradients));
    assert!(erased.records[3].erased == [Worker(5)] || erased.records[3].arrivals[5].is_none());
    let (outcome, parameters, refused) = train(Setup { mischief: &both, ..setup("groups:s=1", 8, 6, modelled(8, 6, 1)) });
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    assert!(refused.gradients[3].is_none() && refused.gradients[4].is_some());
    assert_eq!((refused.records[3].refused[0].start, refused.records[3].refused[0].end), (2, 4), "the samples are named");
    assert!(parameters.iter().all(|other| other == &parameters[0]), "refused everywhere alike");
}

#[test]
fn a_dropped_task_is_never_counted() {
    let prank = |worker: Worker, step: u64| if (worker.0, step) == (1, 2) { Prank::Drop } else { Prank::None };
    for pace in [modelled(4, 6, 1), Pace::wall(4, &Delays::None, 6, 0.0)] {
        let (outcome, _, log) = train(Setup { mischief: &prank, ..setup("uncoded", 4, 6, pace) });
        assert_eq!(outcome.unwrap(), Outcome::Finished);
        assert!(log.gradients[2].is_none() && log.gradients.iter().flatten().count() == 5);
    }
}

#[test]
fn a_hung_worker_catches_up_through_another_state() {
    let hang = |worker: Worker, step: u64| if (worker.0, step) == (3, 1) { Prank::HangUntil(40) } else { Prank::Slow };
    let (outcome, parameters, log) =
        train(Setup { mischief: &hang, ..setup("groups:s=1", 4, 200, Pace::wall(4, &Delays::None, 200, 0.0)) });
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    let resynced = log.faults.iter().filter(|fault| fault.1 == 3 && fault.2.contains("takes over the state")).count();
    assert!(resynced >= 1, "{:?}", log.faults);
    assert!(parameters.iter().all(|other| other == &parameters[0]), "it ends with the same bytes");
    assert!(log.records[2..40].iter().all(|record| record.arrivals[3].is_none()));
    assert!(log.records[40..].iter().any(|record| record.survivors.contains(&Worker(3))), "it takes part again");
}

#[test]
fn a_drifted_replica_is_found_by_its_digest_and_mended() {
    let drift = |worker: Worker, step: u64| if (worker.0, step) == (0, 5) { Prank::Drift } else { Prank::None };
    let (outcome, parameters, log) = train(Setup { mischief: &drift, ..setup("groups:s=1", 4, 300, modelled(4, 300, 2)) });
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    assert_eq!(log.faults[0].1, 0);
    assert!(log.faults[0].2.contains("parameters differ"), "{:?}", log.faults);
    assert!(parameters.iter().all(|other| other == &parameters[1]));
}

#[test]
fn injected_delays_are_waited_for_on_the_wall_clock() {
    let delays = Delays::Preset { preset: Preset::Hotspot, workers: 4, seed: 1 };
    let pace = |_: ()| Pace::wall(4, &delays, 6, 0.05);
    let (_, _, uncoded) = train(setup("uncoded", 4, 6, pace(())));
    assert!(uncoded.records.iter().all(|record| record.seconds >= 0.14), "each step waits for its straggler");
    let (_, _, coded) = train(setup("groups:s=1", 4, 6, pace(())));
    assert_eq!(bits(&coded.gradients), bits(&uncoded.gradients));
    for record in &coded.records {
        let hot = record.delays.iter().position(|delay| *delay > 0.1).unwrap();
        assert!(record.arrivals[hot].is_none(), "nobody waits for the straggler");
    }
}

#[test]
fn an_observer_can_stop_a_run() {
    let (outcome, parameters, log) = train(Setup { stop_after: 7, ..setup("groups:s=1", 4, 30, modelled(4, 30, 2)) });
    assert_eq!(outcome.unwrap(), Outcome::Stopped);
    assert_eq!((log.records.len(), parameters.iter().flatten().count()), (7, 4), "and all workers end in order");
    assert_eq!(log.decided.into_inner(), 7);
}
