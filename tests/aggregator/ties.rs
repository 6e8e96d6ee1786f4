//! Workers whose parameters differ, when it cannot be told who is right, and when it can.

use super::tcp::{connect, settings};
use super::{Recorder, sample_gradient};
use codedgrad::codes::SchemeSpec;
use codedgrad::delays::Delays;
use codedgrad::ids::{Step, Worker};
use codedgrad::run::{Limits, RunConfig, Shape};
use codedgrad::schedulers::{Engine, Settings};
use codedgrad::train::{
    Aggregator, AggregatorError, Coordinator, Event, Outcome, RunClock, RunError,
};
use codedgrad::transport::tcp::Exchange;
use codedgrad::transport::{Link, local};
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::Duration;

const LENGTH: usize = 60;
const STEPS: u64 = 14;
const UNIT_SAMPLES: usize = 2;

/// What a worker does wrong.
#[derive(Clone, Copy, Default)]
struct Wrong {
    /// It changes its own parameters after this step.
    drifts: Option<u64>,
    /// So many milliseconds later than it could it says what it has after a step.
    late: u64,
}

fn drifts(after: u64) -> Wrong {
    Wrong { drifts: Some(after), late: 0 }
}

/// Trains to the end; what is told then, and the parameters.
fn work(link: Box<dyn Link>, wrong: Wrong) -> (Result<(), AggregatorError>, Vec<f32>) {
    let mut aggregator: Aggregator = Aggregator::new(link, LENGTH, UNIT_SAMPLES);
    let mut parameters = vec![0.5f32; LENGTH];
    loop {
        match aggregator.next_event() {
            Ok(None) => return (Ok(()), parameters),
            Err(error) => return (Err(error), parameters),
            Ok(Some(Event::Compute(mut task))) => {
                let batch = task.batch();
                while let Some(part) = task.next_part() {
                    let message = task.message();
                    message.fill(0.0);
                    for sample in part.samples {
                        sample_gradient(&parameters, batch, sample, message, part.coefficient);
                    }
                }
                task.submit(Vec::new()).unwrap();
            }
            Ok(Some(Event::Apply(step))) => {
                parameters.iter_mut().zip(step.gradient()).for_each(|(p, g)| *p -= *g / 64.0);
                if wrong.drifts == Some(step.index) {
                    parameters[7] += 1.0;
                }
                thread::sleep(Duration::from_millis(wrong.late));
                let bits = parameters.iter().map(|p| u64::from(p.to_bits()));
                step.applied_with(bits.fold(7, |digest, bits| digest.wrapping_mul(31) ^ bits));
            }
            Ok(Some(Event::Skip(_))) => {}
            Ok(Some(Event::Provide(request))) => request.reply(vec![parameters.clone()]),
            Ok(Some(Event::Resync(state))) => parameters.clone_from(&state.vectors[0]),
        }
    }
}

/// Gives a worker its end.
type Connect = Box<dyn FnMut() -> Option<Box<dyn Link>> + Send>;

/// What came of a run.
struct Run {
    outcome: Result<Outcome, RunError>,
    /// Who took over whose state.
    resyncs: Vec<(u32, String)>,
    workers: Vec<(Result<(), AggregatorError>, Vec<f32>)>,
}

/// A run over threads, or over connections.
fn run(scheme: &str, wrong: &[Wrong], exchange: Option<Exchange>) -> Run {
    let count = wrong.len();
    let shape = Shape::new(count, count as u32);
    let spec = scheme.parse::<SchemeSpec>().unwrap();
    let scheme = spec.scheme(count, count as u32, 0..STEPS).unwrap();
    let limits = Limits { max_wait_seconds: 20.0, ..Limits::default() };
    let config = RunConfig { limits, ..RunConfig::new(shape, LENGTH, STEPS) };
    let engine = Engine::new(scheme, config, Settings::default()).unwrap();
    let run_clock = RunClock::wall(count, &Delays::None, 0, 0.0);
    let (mut log, decided) = (super::Log::default(), AtomicU64::new(0));
    let mut recorder = Recorder { log: &mut log, decided: &decided, stop_after: u64::MAX };
    let begin =
        |(mut link, wrong): (Connect, Wrong)| thread::spawn(move || work(link().unwrap(), wrong));
    let (outcome, workers): (_, Vec<_>) = match exchange {
        None => {
            let (transport, links) = local::connect(count);
            let link = |link| Box::new(super::once(link)) as Box<_>;
            let workers = links.into_iter().map(link).zip(wrong.iter().copied()).map(begin);
            let workers = workers.collect();
            (Coordinator::new(transport, engine, run_clock).run(&mut recorder), workers)
        }
        Some(exchange) => {
            let (mut transport, links) = connect(&settings(exchange), config);
            let workers = links.into_iter().zip(wrong.iter().copied()).map(begin).collect();
            assert_eq!(transport.gather(Duration::from_secs(20)).absent, []);
            transport.begin(Step(0));
            (Coordinator::new(transport, engine, run_clock).run(&mut recorder), workers)
        }
    };
    let resyncs = log.faults.into_iter().filter(|fault| fault.2.contains("takes over"));
    Run {
        outcome,
        resyncs: resyncs.map(|(_, worker, what)| (worker, what)).collect(),
        workers: workers.into_iter().map(|worker| worker.join().unwrap()).collect(),
    }
}

/// The run ends for want of a majority after a step, and its workers know why.
fn is_tied(run: &Run, after: u64, sides: &str) {
    let error = run.outcome.as_ref().unwrap_err().to_string();
    assert!(error.starts_with(&format!("step {after}: parameters differ after it")), "{error}");
    assert!(error.contains(sides), "{error}");
    let last = match after {
        0 => "begin again".to_owned(),
        _ => format!("equal last after step {}: go on with --resume", after - 1),
    };
    assert!(error.contains(&last) && error.contains("verify=0"), "{error}");
    for (ended, _) in &run.workers {
        let Err(AggregatorError::Refused { reason }) = ended else { panic!("{ended:?}") };
        assert_eq!(*reason, error, "a script that goes on would save what it has");
    }
}

#[test]
fn of_two_workers_that_differ_neither_takes_over_the_other() {
    // A digest is as likely the smaller one as not: each step is another toss.
    for after in [0, 3, 5, 6, 7, 8, STEPS - 1] {
        for bad in [0, 1] {
            let mut wrong = [Wrong::default(); 2];
            wrong[bad] = drifts(after);
            for exchange in [None, Some(Exchange::Star), Some(Exchange::Sharded)] {
                let run = run("groups:s=1", &wrong, exchange);
                is_tied(&run, after, "workers {0} against workers {1}");
                assert_eq!(run.resyncs, [], "{after} {bad} {exchange:?}");
            }
        }
    }
}

#[test]
fn of_two_pairs_that_differ_neither_goes_on() {
    let late = Wrong { drifts: None, late: 30 };
    let both = [
        [drifts(5), drifts(5), late, late],
        [Wrong { late: 30, ..drifts(5) }, Wrong { late: 30, ..drifts(5) }, drifts(99), drifts(99)],
        [drifts(5), drifts(5), drifts(99), drifts(99)],
    ];
    for wrong in &both {
        for scheme in ["groups:s=1", "uncoded"] {
            for exchange in [None, Some(Exchange::Star), Some(Exchange::Sharded)] {
                let run = run(scheme, wrong, exchange);
                is_tied(&run, 5, "workers {0,1} against workers {2,3}");
            }
        }
    }
}

/// Two pairs that differ, and one worker that was late.
#[test]
fn who_is_late_and_has_applied_the_step_itself_decides() {
    let late = Wrong { drifts: None, late: 60 };
    for (scheme, wrong) in [
        ("groups:s=2", vec![Wrong::default(), drifts(5), late]),
        ("uncoded", vec![drifts(5), drifts(5), Wrong::default(), Wrong::default(), late]),
    ] {
        for exchange in [None, Some(Exchange::Sharded)] {
            let run = run(scheme, &wrong, exchange);
            assert_eq!(run.outcome.unwrap(), Outcome::Finished);
            let mut resynced: Vec<u32> = run.resyncs.iter().map(|resync| resync.0).collect();
            resynced.sort();
            resynced.dedup();
            let bad = (0..).zip(&wrong).filter(|(_, wrong)| wrong.drifts.is_some());
            let bad: Vec<u32> = bad.map(|(worker, _)| worker).collect();
            assert!(bad.iter().all(|bad| resynced.contains(bad)), "{:?}", run.resyncs);
            let right = &run.workers[Worker(wrong.len() as u32 - 1).index()].1;
            assert!(run.workers.iter().all(|(ended, has)| ended.is_ok() && has == right));
        }
    }
}
