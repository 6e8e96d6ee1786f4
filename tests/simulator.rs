//! The simulator against whole outputs of two independent models, and the promises of the sequential schemes.

use codedgrad::codes::SchemeSpec;
use codedgrad::codes::sequential::{Accept, Horizon, Scheme};
use codedgrad::ids::Job;
use codedgrad::sim::{Close, LoadModel, Outcome, Rules, simulate};
use serde_json::Value;
use std::convert::Infallible;

/// Golden values have nine digits or more.
const DIGITS: f64 = 1e-6;

fn delays() -> Vec<Vec<f64>> {
    let rows = include_str!("data/simulator/delays.csv").lines();
    rows.map(|line| line.split(',').map(|cell| cell.trim().parse().unwrap()).collect()).collect()
}

fn scheme(text: &str, workers: usize, jobs: u64, accept: Accept) -> Box<dyn Scheme> {
    let spec: SchemeSpec = text.parse().unwrap();
    spec.over(Horizon { workers, units: None, jobs: Job(0)..Job(jobs), accept }).unwrap()
}

/// The outcome, the straggler row and the length of every round.
fn run(scheme: &mut dyn Scheme, jobs: u64, rows: &[Vec<f64>], rules: &Rules) -> (Outcome, Vec<String>) {
    let mut next = rows.iter().cycle();
    let mut stragglers = Vec::new();
    let workers = scheme.facts().workers;
    let mut rows = || Ok::<_, Infallible>(next.next().unwrap().clone());
    let outcome = simulate(scheme, jobs, &mut rows, rules, &mut |seen| {
        let mark = |worker| if seen.missing.contains(worker) { 'x' } else { '.' };
        stragglers.push(codedgrad::ids::Worker::all(workers).map(mark).collect());
    });
    (outcome.unwrap(), stragglers)
}

fn close(found: f64, expected: &Value, what: &str) {
    let expected = expected.as_f64().unwrap();
    assert!((found - expected).abs() <= DIGITS * (1.0 + expected.abs()), "{what}: {found} instead of {expected}");
}

fn list_close(found: &[f64], expected: &Value, what: &str) {
    let expected = expected.as_array().unwrap();
    assert_eq!(found.len(), expected.len(), "{what}");
    found.iter().zip(expected).for_each(|(found, expected)| close(*found, expected, what));
}

#[test]
fn golden_rounds_of_every_scheme_and_rule() {
    let golden: Value = serde_json::from_str(include_str!("data/simulator/sequential.json")).unwrap();
    let (workers, jobs) = (golden["workers"].as_u64().unwrap() as usize, golden["jobs"].as_u64().unwrap());
    let load = LoadModel::Additive { base: golden["base_load"].as_f64().unwrap(), slope: golden["slope"].as_f64().unwrap() };
    let runs = golden["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 72);
    for expected in runs {
        let text = expected["scheme"].as_str().unwrap();
        let accept = if expected["accept"] == "model" { Accept::Model } else { Accept::Lookahead };
        let close_rule = match expected["close"].as_str().unwrap() {
            "all" => Close::All,
            "incremental" => Close::Incremental,
            _ => Close::Decodable,
        };
        let rules = Rules { close: close_rule, mu: golden["mu"].as_f64().unwrap(), load, dispatch: 0.0 };
        let mut scheme = scheme(text, workers, jobs, accept);
        let delay = scheme.facts().delay;
        let (found, stragglers) = run(&mut *scheme, jobs, &delays(), &rules);
        let what = format!("{text} {close_rule:?} {accept:?}");
        let rows: Vec<&str> = expected["stragglers"].as_array().unwrap().iter().map(|row| row.as_str().unwrap()).collect();
        assert_eq!(stragglers, rows, "{what}");
        close(found.total_time, &expected["total_time"], &what);
        close(found.load, &expected["load"], &what);
        close(found.straggler_fraction, &expected["straggler_fraction"], &what);
        list_close(&found.job_finish_time, &expected["job_finish_time"], &what);
        let whole = [delay, found.rounds, found.wait_outs, found.jobs_decoded].map(|x| x as u64);
        let keys = ["delay", "rounds", "wait_outs", "jobs_decoded"];
        assert_eq!(whole, keys.map(|key| expected[key].as_u64().unwrap()), "{what}: {keys:?}");
        let time = found.round_time;
        for (key, value) in [("mean", time.mean), ("p50", time.p50), ("p95", time.p95), ("p99", time.p99), ("max", time.max)] {
            close(value, &expected["round_time"][key], &what);
        }
    }
}

#[test]
fn golden_runs_of_the_feedback_schemes() {
    let golden: Value = serde_json::from_str(include_str!("data/simulator/feedback.json")).unwrap();
    for expected in golden.as_array().unwrap() {
        let text = expected["scheme"].as_str().unwrap();
        let (workers, jobs) = (expected["workers"].as_u64().unwrap() as usize, expected["jobs"].as_u64().unwrap());
        let base = expected["base_load"].as_f64().unwrap();
        let load = match expected["slope"].as_f64() {
            Some(slope) => LoadModel::Additive { base, slope },
            None => LoadModel::Proportional { base },
        };
        let rules = Rules { close: Close::Decodable, mu: 1.0, load, dispatch: 0.0 };
        let mut scheme = scheme(text, workers, jobs, Accept::Lookahead);
        let (found, _) = run(&mut *scheme, jobs, &delays(), &rules);
        let what = format!("{text} {load:?}");
        close(found.total_time, &expected["total_time"], &what);
        close(found.work, &expected["work"], &what);
        for (key, value) in [("job_finish_time", &found.job_finish_time)] {
            if !expected[key].is_null() {
                list_close(value, &expected[key], &what);
            }
        }
        if let Some(deferred) = expected.get("deferred") {
            close(found.unfinished_fraction, deferred, &what);
        }
        assert_eq!(found.jobs_decoded as u64, jobs);
    }
}
