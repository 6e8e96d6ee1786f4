//! The planner: all families, up to three rounds late, 256 serverless workers over 100 rounds.
//!
//! `cargo bench -p codedgrad --no-default-features --bench plan`

use codedgrad::delays::Preset;
use codedgrad::sim::planner::{Question, plan};
use criterion::{Criterion, criterion_group, criterion_main};
use std::time::Duration;

const WORKERS: usize = 256;

fn recommendation(criterion: &mut Criterion) {
    let preset = Preset::Serverless;
    let rows = preset.rows(WORKERS, 100, 1);
    let question =
        Question { dispatch: preset.pull(), ..Question::new(&rows, preset.growth(WORKERS)) };
    criterion.bench_function("plan_256_workers_100_rounds", |bencher| {
        bencher.iter(|| plan(&question, &|_| ()).expect("a plan").gain);
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(1))
        .measurement_time(Duration::from_secs(1));
    targets = recommendation
}
criterion_main!(benches);
