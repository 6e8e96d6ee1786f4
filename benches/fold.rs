//! The fold against the ways it replaces, on vectors far larger than any cache.
//!
//! `cargo bench --bench fold`

use codedgrad::gpu::{Combine, Cpu, Source, Term};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::bf16;
use rayon::prelude::*;
use std::hint::black_box;
use std::time::Duration;

const LENGTH: usize = 1 << 24;

/// One multiply-add pass over memory per message, on all cores: what a chain of axpy calls does.
fn axpy_chain(messages: &[Vec<f32>], out: &mut [f32]) {
    let chunk = out.len().div_ceil(rayon::current_num_threads());
    out.par_chunks_mut(chunk).zip(messages[0].par_chunks(chunk)).for_each(|(out, x)| {
        out.iter_mut().zip(x).for_each(|(out, x)| *out = 1.5 * x);
    });
    for message in &messages[1..] {
        out.par_chunks_mut(chunk).zip(message.par_chunks(chunk)).for_each(|(out, x)| {
            out.iter_mut().zip(x).for_each(|(out, x)| *out += 1.5 * x);
        });
    }
}

fn fold(criterion: &mut Criterion) {
    let cpu = Cpu::new();
    let mut out = vec![0.0f32; LENGTH];
    for count in [2usize, 4, 8] {
        let messages: Vec<Vec<f32>> =
            (0..count).map(|i| (0..LENGTH).map(|e| ((e * 7 + i) % 1000) as f32 / 500.0 - 1.0).collect()).collect();
        let narrow: Vec<Vec<bf16>> = messages.iter().map(|x| x.iter().map(|x| bf16::from_f32(*x)).collect()).collect();
        let mut group = criterion.benchmark_group(format!("fold_{count}"));
        group.sample_size(10).measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
        // Reads of all messages, one write of the result and the read that the write allocates.
        group.throughput(Throughput::Bytes((LENGTH * 4 * (count + 2)) as u64));
        group.bench_function(BenchmarkId::new("combine", "f32"), |bencher| {
            let terms: Vec<Term<'_>> = messages.iter().map(|x| Term { weight: 1.5, source: Source::F32(x) }).collect();
            bencher.iter(|| cpu.combine(black_box(&terms), &mut out));
        });
        group.bench_function(BenchmarkId::new("combine_and_digest", "f32"), |bencher| {
            let terms: Vec<Term<'_>> = messages.iter().map(|x| Term { weight: 1.5, source: Source::F32(x) }).collect();
            bencher.iter(|| cpu.combine_and_digest(black_box(&terms), &mut out));
        });
        group.bench_function(BenchmarkId::new("axpy_chain", "f32"), |bencher| bencher.iter(|| axpy_chain(black_box(&messages), &mut out)));
        group.throughput(Throughput::Bytes((LENGTH * (2 * count + 8)) as u64));
        group.bench_function(BenchmarkId::new("combine", "bf16"), |bencher| {
            let terms: Vec<Term<'_>> = narrow.iter().map(|x| Term { weight: 1.5, source: Source::Bf16(x) }).collect();
            bencher.iter(|| cpu.combine(black_box(&terms), &mut out));
        });
        group.finish();
    }
}

criterion_group!(benches, fold);
criterion_main!(benches);
