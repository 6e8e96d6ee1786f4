//! Decode weights: the time from the last arrival to weights and their report.
//!
//! `cargo bench --bench decode`; `benches/lstsq.py` times numpy's least squares on the same rows.

use codedgrad::codes::{Choice, Cyclic, GradientCode, Graph, Groups, Interval, MinLoad};
use codedgrad::ids::Worker;
use criterion::{Criterion, criterion_group, criterion_main};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::hint::black_box;
use std::time::Duration;

/// All but `missing` random workers have arrived, in random order; the weights are asked for.
fn weights(
    criterion: &mut Criterion,
    name: &str,
    code: &dyn GradientCode,
    missing: usize,
    choice: Choice,
) {
    let workers = code.facts().workers;
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let mut decoder = code.decoder();
    for worker in rand::seq::index::sample(&mut random, workers, workers - missing) {
        decoder.arrive(Worker(worker as u32));
    }
    let mut out = vec![0.0; workers];
    assert!(decoder.weights(choice, &mut out).decodable, "{name}");
    criterion.bench_function(name, |bencher| {
        bencher.iter(|| black_box(decoder.weights(choice, black_box(&mut out))));
    });
}

/// A whole round of arrivals, weights not asked for.
fn arrivals(criterion: &mut Criterion, name: &str, code: &dyn GradientCode) {
    let mut decoder = code.decoder();
    criterion.bench_function(name, |bencher| {
        bencher.iter(|| {
            decoder.reset();
            Worker::all(code.facts().workers).for_each(|worker| {
                black_box(decoder.arrive(worker));
            });
        });
    });
}

fn decode(criterion: &mut Criterion) {
    let large = Groups::tolerating(4096, 60).unwrap();
    weights(criterion, "groups_4096_s60", &large, 60, Choice::Fewest);
    arrivals(criterion, "groups_4096_s60_arrivals", &large);
    for stragglers in [60, 100] {
        let code = MinLoad::new(4096, stragglers).unwrap();
        weights(
            criterion,
            &format!("min_load_4096_s{stragglers}"),
            &code,
            stragglers,
            Choice::Fewest,
        );
        weights(
            criterion,
            &format!("min_load_4096_s{stragglers}_shortest"),
            &code,
            stragglers,
            Choice::MinimumNorm,
        );
    }
    for stragglers in [7, 15, 31, 63] {
        weights(
            criterion,
            &format!("groups_256_s{stragglers}"),
            &Groups::tolerating(256, stragglers).unwrap(),
            stragglers,
            Choice::Fewest,
        );
        for (kind, choice) in [("fewest", Choice::Fewest), ("shortest", Choice::MinimumNorm)] {
            let code = MinLoad::new(256, stragglers).unwrap();
            weights(
                criterion,
                &format!("min_load_256_s{stragglers}_{kind}"),
                &code,
                stragglers,
                choice,
            );
        }
        let code = Cyclic::new(256, stragglers, 7).unwrap();
        weights(
            criterion,
            &format!("cyclic_256_s{stragglers}"),
            &code,
            stragglers,
            Choice::MinimumNorm,
        );
        let code = Interval::charalambides(256, stragglers).unwrap();
        weights(
            criterion,
            &format!("interval_256_s{stragglers}"),
            &code,
            stragglers,
            Choice::Fewest,
        );
    }
    weights(
        criterion,
        "graph_4096_d4",
        &Graph::new(4096, 4, 0.05, 7).unwrap(),
        400,
        Choice::MinimumNorm,
    );
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = decode
}
criterion_main!(benches);
