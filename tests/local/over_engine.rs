//! The simulator's players against the engine on the trainer's virtual clock, wherever the rules of
//! the two coincide, and what comes of the others.

use codedgrad::codes::SchemeSpec;
use codedgrad::delays::{Growth, Unit};
use codedgrad::ids::{Job, Round, Worker, WorkerSet};
use codedgrad::run::{Jobs, Limits, RunConfig, Shape};
use codedgrad::schedulers::{Engine, EngineError, Settings, VirtualClock};
use codedgrad::sim::{
    Close, EngineOutcome, EngineRound, OverEngineError, Rules, SimulationOutcome, over_engine,
    simulate,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::convert::Infallible;

/// Uncoded compute time of a step.
const STEP: f64 = 1.5;

/// A round as both see it: whose answers were not waited for, and which jobs were complete.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    missing: WorkerSet,
    decoded: Vec<Job>,
}

/// How late each worker is, round by round; from then on, hardly at all.
type Lateness = [Vec<f64>];

fn row(lateness: &Lateness, round: usize, workers: usize) -> Vec<f64> {
    lateness.get(round).cloned().unwrap_or_else(|| apart(&vec![0.0; workers]))
}

/// Plays by the simulator's rules: a worker's time for a load L is its lateness and `STEP n L`.
fn played(
    text: &str,
    (workers, jobs): (usize, u64),
    lateness: &Lateness,
    (close, mu): (Close, f64),
) -> (Vec<Seen>, SimulationOutcome) {
    let spec: SchemeSpec = text.parse().unwrap();
    let units = spec.natural(workers).unwrap().units;
    let mut scheme = spec.scheme(workers, units, 0..jobs).unwrap();
    let base = 1.0 / workers as f64;
    let growth = Some(Growth::Additive { base, slope: STEP * workers as f64 });
    let rules = Rules { close, mu, growth, dispatch: 0.0 };
    let mut rounds = 0..;
    let mut rows = || {
        let late = row(lateness, rounds.next().unwrap(), workers);
        Ok::<_, Infallible>(late.into_iter().map(|late| late + STEP).collect())
    };
    let mut seen = Vec::new();
    let outcome = simulate(&mut *scheme, jobs, &mut rows, &rules, &mut |round| {
        seen.push(Seen { missing: round.missing.clone(), decoded: round.decoded.to_vec() });
    });
    (seen, outcome.unwrap())
}

/// Plays by the engine's rules.
fn driven(
    text: &str,
    (workers, jobs): (usize, u64),
    lateness: &Lateness,
    limits: Limits,
) -> (Vec<EngineRound>, EngineOutcome) {
    let spec: SchemeSpec = text.parse().unwrap();
    let facts = spec.natural(workers).unwrap();
    let scheme = spec.scheme(workers, facts.units, 0..jobs).unwrap();
    let config = RunConfig {
        jobs: Jobs { models: facts.delay as u64 + 1, micro_steps: 1 },
        limits,
        ..RunConfig::new(Shape::new(workers, facts.units), 1, jobs)
    };
    let engine = Engine::new(scheme, config, Settings::default()).unwrap();
    let mut next = 0..;
    let mut rows = || Ok::<_, Infallible>(row(lateness, next.next().unwrap(), workers));
    let mut rounds = Vec::new();
    let clock = VirtualClock { step_seconds: STEP };
    let outcome = over_engine(engine, clock, &mut rows, &mut |round| rounds.push(round.clone()));
    (rounds, outcome.unwrap())
}

fn seen(round: &EngineRound) -> Seen {
    let decoded = round.decoded.iter().map(|decoded| Job(decoded.step.0)).collect();
    Seen { missing: round.missing.clone(), decoded }
}

/// When each job was complete, which may be before its step is committed.
fn complete(rounds: &[EngineRound], jobs: u64) -> Vec<f64> {
    let mut at = vec![f64::INFINITY; jobs as usize];
    for round in rounds {
        for decoded in &round.decoded {
            at[decoded.step.0 as usize] = round.report.closed_at;
        }
    }
    at
}

fn alike(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

/// Both see the same rounds, as long as the engine has any, and complete all jobs at the same
/// times, with the same work.
fn coincide(
    text: &str,
    of: (usize, u64),
    lateness: &Lateness,
    close: Close,
) -> Result<(), TestCaseError> {
    let (played, simulated) = played(text, of, lateness, (close, 1.0));
    let (rounds, outcome) = driven(text, of, lateness, Limits::default());
    prop_assert!(rounds.len() as u64 >= of.1);
    for (round, played) in rounds.iter().zip(&played) {
        prop_assert_eq!(&seen(round), played, "{}, round {:?}", text, round.report.round);
    }
    let idle = &played[rounds.len()..];
    prop_assert!(idle.iter().all(|round| round.decoded.is_empty()), "{} in {:?}", text, idle);
    for (engine, player) in complete(&rounds, of.1).iter().zip(&simulated.job_finish_time) {
        prop_assert!(alike(*engine, *player), "{}: {} instead of {}", text, engine, player);
    }
    prop_assert!(alike(outcome.work, simulated.work), "{} {}", outcome.work, simulated.work);
    prop_assert!(alike(outcome.coverage, simulated.coverage), "{text}");
    Ok(())
}

/// Lateness of so many rounds. No two answers come at one instant, not even where all drawn numbers
/// are equal: the engine would take one after the other, and the players both.
fn lateness(workers: usize, rounds: usize) -> impl Strategy<Value = Vec<Vec<f64>>> {
    let one = prop_oneof![3 => 0.0..0.2, 1 => 0.2..9.0f64];
    vec(vec(one, workers), rounds).prop_map(|rows| rows.iter().map(|row| apart(row)).collect())
}

fn apart(row: &[f64]) -> Vec<f64> {
    let offsets = (2..).map(|number| 1e-3 * f64::from(number).sqrt());
    let row = row.iter().zip(offsets).map(|(late, offset)| late + offset).collect();
    Unit::Seconds.lateness(row, 8, STEP)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Rounds of one-round codes that close as soon as they can be decoded.
    #[test]
    fn one_round_codes_coincide(lateness in lateness(8, 6)) {
        for text in [
            "uncoded", "groups:s=1", "groups:l=3,rescale", "min-load:s=3", "cyclic:s=2", "drop:b=3",
            "graph:d=3,err=0.2", "vote:s=1,b=1",
        ] {
            coincide(text, (8, 6), &lateness, Close::Decodable)?;
        }
    }

    /// Schemes with feedback, whose pulls cost nothing.
    #[test]
    fn feedback_coincides(lateness in lateness(8, 6)) {
        for text in [
            "queue:m=3", "ring:reach=4", "defer:T=1,cap=2,cut=3", "defer:T=2,cap=3,cut=2",
            "defer:T=1,cap=5,cut=4,copies=2",
        ] {
            coincide(text, (8, 6), &lateness, Close::All)?;
        }
    }
}

/// Lateness under which no late answer comes before the run is over: whoever is late is so by much
/// more than all that comes after it, also than whoever is late with it.
fn far(late: &[Vec<usize>], mild: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut scale = 1e10;
    let mut rows: Vec<Vec<f64>> = mild.iter().map(|row| apart(row)).collect();
    for (row, late) in rows.iter_mut().zip(late) {
        for worker in late {
            row[*worker] = scale;
            scale /= 8.0;
        }
    }
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Codes over rounds, where no late answer counts because it comes too late for that.
    #[test]
    fn codes_over_rounds_accept_the_same_stragglers(
        late in vec(vec(0usize..8, 0..3), 4),
        mild in vec(vec(1e-3..0.05f64, 8), 6),
    ) {
        let lateness = far(&late, &mild);
        let patient = Limits { max_wait_seconds: 1e12, ..Limits::default() };
        for text in [
            "sr-sgc:B=1,W=2,lambda=4", "sr-sgc:B=2,W=3,lambda=3", "m-sgc:B=1,W=2,lambda=3",
            "m-sgc:B=1,W=2,lambda=8", "m-sgc:B=2,W=3,lambda=2",
        ] {
            let (rounds, outcome) = driven(text, (8, 6), &lateness, patient);
            let (played, _) = played(text, (8, 6), &lateness, (Close::Incremental, 1.0));
            prop_assert_eq!(outcome.late_counted, 0);
            // In the rounds after the last job began, not every worker has a task.
            for (round, played) in rounds.iter().zip(&played).take(6) {
                // A worker that is waited for has several tasks under M-SGC; the engine counts
                // each, so that it may close the round before the last of them is done.
                if text.starts_with("m-sgc") && round.report.closed_at > 1e3 {
                    break;
                }
                prop_assert_eq!(&seen(round), played, "{}, {:?}", text, round.report.round);
            }
        }
    }
}

/// Where late answers come in time to count, the engine never needs more rounds, and does not
/// repeat what came late.
#[test]
fn late_answers_are_what_differs() {
    let lateness: Vec<Vec<f64>> = (0..6)
        .map(|round| (0..8).map(|worker| if worker == round { 2.5 } else { 0.0 }).collect())
        .collect();
    let text = "m-sgc:B=1,W=2,lambda=3";
    let (rounds, outcome) = driven(text, (8, 6), &lateness, Limits::default());
    let (_, simulated) = played(text, (8, 6), &lateness, (Close::Incremental, 1.0));
    assert!(outcome.late_counted > 0);
    assert!(outcome.total_time < simulated.total_time, "{outcome:?} {simulated:?}");
    let (round, late) = rounds.iter().find_map(|round| Some((round, round.late.first()?))).unwrap();
    assert_eq!(late.0, Worker(0), "who was late in the first round");
    assert!(round.report.round > Round(0) && late.1.job < Job(round.report.round.0));
}

/// An engine that is told to go on under another scheme does so here as in training.
#[test]
fn a_scheme_that_is_switched_to_goes_on() {
    let engine = |log_steps: u64, other: &str| {
        let jobs = Jobs { models: 2, micro_steps: 1 };
        let config = RunConfig { jobs, log_steps, ..RunConfig::new(Shape::new(4, 4), 1, 4) };
        let scheme = SchemeSpec::uncoded().scheme(4, 4, 0..4).unwrap();
        let mut engine = Engine::new(scheme, config, Settings::default()).unwrap();
        engine.switch(other.parse().unwrap());
        engine
    };
    let mut late = || Ok::<_, Infallible>(vec![0.0, 0.0, 9.0, 0.0]);
    let clock = VirtualClock { step_seconds: 1.0 };
    let mut missing = Vec::new();
    let coded = engine(16, "groups:s=1");
    let outcome = over_engine(coded, clock, &mut late, &mut |round| {
        missing.push(round.missing.to_string());
    });
    assert_eq!(outcome.unwrap().total_time, 8.0);
    assert_eq!(missing, ["2", "2", "2", "2"]);
    let error = over_engine(engine(1, "m-sgc:B=1,W=2,lambda=4"), clock, &mut late, &mut |_| ());
    assert!(matches!(error, Err(OverEngineError::LogSteps { log_steps: 1, delay: 1 })));
}

fn refused(
    text: &str,
    step_seconds: f64,
    log_steps: u64,
    row: &[f64],
) -> OverEngineError<Infallible> {
    let spec: SchemeSpec = text.parse().unwrap();
    let facts = spec.natural(4).unwrap();
    let scheme = spec.scheme(4, facts.units, 0..3).unwrap();
    let config = RunConfig {
        jobs: Jobs { models: facts.delay as u64 + 1, micro_steps: 1 },
        log_steps,
        ..RunConfig::new(Shape::new(4, facts.units), 1, 3)
    };
    let engine = Engine::new(scheme, config, Settings::default()).unwrap();
    let mut rows = || Ok(row.to_vec());
    over_engine(engine, VirtualClock { step_seconds }, &mut rows, &mut |_| ()).unwrap_err()
}

#[test]
fn what_is_no_run_is_refused_with_its_numbers() {
    let calm = [0.0; 4];
    let said = refused("uncoded", f64::NAN, 16, &calm).to_string();
    assert!(said.contains("NaN s: it must be a finite number"), "{said}");
    let said = refused("m-sgc:B=1,W=2,lambda=4", 1.0, 1, &calm).to_string();
    assert!(said.contains("log_steps is 1: a scheme of delay 1 needs 2 or more"), "{said}");
    let said = refused("uncoded", 1.0, 16, &calm[..3]).to_string();
    assert!(said.starts_with("round 0: worker 3 is late by no number;"), "{said}");
    let said = refused("uncoded", 1.0, 16, &[0.0, 0.0, -0.5, 0.0]).to_string();
    assert!(said.starts_with("round 0: worker 2 is late by -0.5;"), "{said}");
    let error = refused("uncoded", 1.0, 16, &[0.0, 1e6, 0.0, 0.0]);
    let OverEngineError::Engine(EngineError::MaxWait { waited_seconds, silent, .. }) = error else {
        panic!("{error}");
    };
    assert_eq!((waited_seconds, silent.to_string().as_str()), (60.0, "1"));
}
