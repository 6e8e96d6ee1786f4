//! The simulator: whole runs of 256 workers on a serverless-like trace.
//!
//! `cargo bench -p codedgrad --no-default-features --bench simulate`

use codedgrad::codes::SchemeSpec;
use codedgrad::codes::sequential::{Accept, Horizon};
use codedgrad::delays::Growth;
use codedgrad::ids::Job;
use codedgrad::sim::{Close, Rules, simulate};
use criterion::{Criterion, criterion_group, criterion_main};
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

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    targets = whole_runs
}
criterion_main!(benches);
