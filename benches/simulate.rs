//! The simulator: whole runs of 256 workers on a serverless-like trace. And what it costs an engine
//! of as many to plan for the others when one is lost: the new scheme, and each worker's task.
//!
//! `cargo bench -p codedgrad --no-default-features --bench simulate`

use codedgrad::codes::SchemeSpec;
use codedgrad::codes::sequential::{Accept, Horizon};
use codedgrad::delays::Growth;
use codedgrad::ids::{Job, Worker};
use codedgrad::run::{Limits, RunConfig, Shape};
use codedgrad::schedulers::{Action, Engine, Input, PlannedScheme, Settings};
use codedgrad::sim::{Close, Rules, simulate};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, Exp};
use std::convert::Infallible;
use std::time::Duration;

const WORKERS: usize = 256;

/// Half a second and an exponential tail, now and then a much longer one.
fn rows(rounds: usize) -> Vec<Vec<f64>> {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let (usual, stalled) = (Exp::new(12.0).expect("a rate"), Exp::new(1.5).expect("a rate"));
    let mut delay = |i: usize| {
        0.5 + if i.is_multiple_of(21) {
            stalled.sample(&mut random)
        } else {
            usual.sample(&mut random)
        }
    };
    (0..rounds)
        .map(|round| (0..WORKERS).map(|worker| delay(round * 31 + worker)).collect())
        .collect()
}

fn whole_runs(criterion: &mut Criterion) {
    for (text, jobs, close) in [
        ("m-sgc:B=1,W=2,lambda=27", 480, Close::Incremental),
        ("m-sgc:B=1,W=2,lambda=27", 480, Close::All),
        ("sr-sgc:B=2,W=3,lambda=23", 480, Close::Incremental),
        ("groups:s=15", 480, Close::Decodable),
        ("min-load:s=20", 480, Close::Decodable),
        ("defer:T=1,cap=26,cut=16,copies=2", 480, Close::Decodable),
        ("defer:T=1,cap=12,cut=16", 480, Close::Decodable),
        ("queue:m=16", 100, Close::Decodable),
        ("ring:reach=8", 100, Close::Decodable),
    ] {
        let spec: SchemeSpec = text.parse().expect("a scheme");
        let recorded = rows(jobs as usize + 4);
        let growth = Some(Growth::Additive { base: 1.0 / WORKERS as f64, slope: 2.2 });
        let rules = Rules { close, mu: 1.0, growth, dispatch: 0.0 };
        criterion.bench_function(&format!("{text}_{close:?}_{jobs}"), |bencher| {
            bencher.iter(|| {
                let horizon = Horizon {
                    workers: WORKERS,
                    units: None,
                    jobs: Job(0)..Job(jobs),
                    accept: Accept::Lookahead,
                };
                let mut scheme = spec.over(horizon).expect("legal parameters");
                let mut next = recorded.iter();
                let mut rows = || Ok::<_, Infallible>(next.next().expect("enough rows").clone());
                simulate(&mut *scheme, jobs, &mut rows, &rules, &mut |_| ())
                    .expect("a run")
                    .total_time
            });
        });
    }
}

fn planning(criterion: &mut Criterion) {
    const STEPS: u64 = 9;
    for (text, workers) in [("uncoded", 64), ("uncoded", WORKERS), ("groups:s=1", WORKERS)] {
        let spec: SchemeSpec = text.parse().expect("a scheme");
        let units = 2 * workers as u32;
        let engine = || {
            let limits = Limits { min_workers: Some(1), ..Limits::default() };
            let shape = Shape { workers, units, unit_samples: 1 };
            let config = RunConfig { limits, ..RunConfig::new(shape, 1000, STEPS) };
            let scheme = spec.scheme(workers, units, 0..STEPS).expect("legal parameters");
            let replan = Some(PlannedScheme::by(spec.clone(), units, 0..STEPS));
            let settings = Settings { replan, ..Settings::default() };
            let mut engine = Engine::new(scheme, config, settings).expect("a run");
            let mut told = Vec::new();
            engine.handle(0.0, Input::Begin, &mut told).expect("it begins");
            if text.starts_with("groups") {
                // The second of a group is the one that is missed.
                let first = Input::Lost { worker: Worker(0), kept: false };
                engine.handle(0.0, first, &mut told).expect("a worker of it");
            }
            (engine, told)
        };
        criterion.bench_function(&format!("planning_{text}_{workers}"), |bencher| {
            // Those who compute drop their tasks first.
            let plan = |(mut engine, _): (Engine, Vec<Action>)| {
                let (mut dropped, mut told) = (Vec::new(), Vec::new());
                let lost = Input::Lost { worker: Worker(1), kept: false };
                engine.handle(1.0, lost, &mut dropped).expect("a worker of it");
                for action in &dropped {
                    if let Action::Abandon { worker, order, .. } = *action {
                        let idle = Input::Idle { worker, order };
                        engine.handle(1.0, idle, &mut told).expect("a worker of it");
                    }
                }
                (engine, told)
            };
            let (_, told) = plan(engine());
            let tasks = told.iter().filter(|action| matches!(action, Action::Compute { .. }));
            assert!(tasks.count() >= workers - 2, "every worker has a task of the new plan");
            bencher.iter_batched(engine, plan, BatchSize::LargeInput);
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    targets = whole_runs, planning
}
criterion_main!(benches);
