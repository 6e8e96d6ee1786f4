//! Locating two wrong workers among 64 with a million elements each, against one read of what they
//! sent.
//!
//! `cargo bench -p codedgrad --no-default-features --features berrut --bench berrut`

use codedgrad::codes::berrut::{
    BerrutCode, BerrutDecoder, ByzantineDefence, Encoder, Evidence, Gram, Interpolant, Points,
    robust_locate,
};
use codedgrad::gpu::{gram, signed_fold};
use codedgrad::ids::Worker;
use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use ndarray::Array1;
use rayon::prelude::*;
use std::hint::black_box;
use std::time::Duration;

const WORKERS: usize = 64;
const BLOCKS: usize = 16;
const WRONG: usize = 2;

/// Reads everything once on all cores.
fn read(messages: &[&[f32]]) -> f32 {
    let sum = |x: &&[f32]| {
        let mut lanes = [0.0f32; 32];
        let (body, tail) = x.as_chunks::<32>();
        body.iter().for_each(|x| lanes.iter_mut().zip(x).for_each(|(lane, x)| *lane += x));
        lanes.iter().sum::<f32>() + tail.iter().sum::<f32>()
    };
    messages.par_iter().map(sum).sum()
}

fn outputs(code: &BerrutCode, length: usize) -> Vec<Array1<f32>> {
    let blocks: Vec<Array1<f32>> = (0..BLOCKS)
        .map(|j| Array1::from_shape_fn(length, |e| ((e % 9973 * (2 * j + 3)) as f32 * 0.37).sin()))
        .collect();
    let mut outputs = code
        .encode(&blocks.iter().map(|x| x.view()).collect::<Vec<_>>())
        .expect("blocks of one shape");
    outputs.iter_mut().for_each(|output| output.mapv_inplace(f32::tanh));
    outputs[5].mapv_inplace(|x| 3.0 - x);
    outputs[40].mapv_inplace(|x| -x);
    outputs
}

fn berrut(criterion: &mut Criterion) {
    let has = |flag: &str| std::env::args().any(|arg| arg == flag);
    let length = if has("--bench") && !has("--test") { 1_000_000 } else { 100_000 };
    let code = BerrutCode::new(BLOCKS, WORKERS, Points::FirstKind, Encoder::Spline)
        .expect("parameters in range");
    let workers: Vec<Worker> = Worker::all(WORKERS).collect();
    let outputs = outputs(&code, length);
    let slices: Vec<&[f32]> = outputs.iter().filter_map(|x| x.as_slice()).collect();
    let security = ByzantineDefence { byzantine: WRONG, ..ByzantineDefence::default() };
    let products = |entries: &[f64]| Gram::new(&code, &workers, entries).expect("first kind");
    let sketched = || {
        let sketches = signed_fold(&slices, 4096, 7);
        gram(&sketches.iter().map(|x| &x[..]).collect::<Vec<_>>())
    };
    let mut group = criterion.benchmark_group("locate_64x1e6");
    group
        .sampling_mode(SamplingMode::Flat)
        .sample_size(20)
        .measurement_time(Duration::from_secs(3));
    group
        .warm_up_time(Duration::from_millis(500))
        .throughput(Throughput::Bytes((WORKERS * length * 4) as u64));
    group.bench_function("read", |bencher| bencher.iter(|| read(black_box(&slices))));
    group.bench_function("signed_fold", |bencher| {
        bencher.iter(|| signed_fold(black_box(&slices), 4096, 7));
    });
    group.bench_function("locate_by_sketches", |bencher| {
        bencher.iter(|| {
            let found = robust_locate(&products(&sketched()), WRONG, Default::default())
                .expect("enough outputs");
            assert_eq!(found.workers, [Worker(5), Worker(40)]);
        });
    });
    group.bench_function("judge_by_sketches", |bencher| {
        bencher.iter(|| {
            security
                .judge(&code, &Evidence::Products(products(&sketched())))
                .expect("enough outputs")
        });
    });
    group.bench_function("exact_gram", |bencher| bencher.iter(|| gram(black_box(&slices))));
    let exact = products(&gram(&slices));
    group.bench_function("robust_locate_alone", |bencher| {
        bencher.iter(|| robust_locate(&exact, WRONG, Default::default()));
    });
    let mut decoder = BerrutDecoder::new(&code, Interpolant::SPLINE);
    workers
        .iter()
        .zip(&outputs)
        .for_each(|(worker, output)| drop(decoder.arrive(*worker, output.clone())));
    group.bench_function("decode_sum", |bencher| {
        bencher.iter(|| decoder.decode_sum(7).expect("enough outputs"));
    });
    group.finish();
}

criterion_group!(benches, berrut);
criterion_main!(benches);
