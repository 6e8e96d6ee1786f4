//! The fold against the speed of memory and the way it replaces, on vectors far larger than any
//! cache.
//!
//! `cargo bench -p codedgrad --no-default-features --bench fold`; numpy's turn is
//! `benches/fold_numpy.py`.

use codedgrad::gpu::{Combine, Cpu, Source, Term};
use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group,
    criterion_main,
};
use half::{bf16, f16};
use rayon::prelude::*;
use std::hint::black_box;
use std::time::Duration;

/// Elements that a thread works on at a time, as in the fold.
const CHUNK: usize = 1 << 16;
/// Elements by which every message starts later in its allocation than the one before. Vectors of
/// exactly 2^25 elements, allocated in a row, differ in few bits of their addresses, and the fold
/// is up to twice as slow, probably since their lines compete for the same places of the
/// first-level cache.
const STAGGER: usize = 1056;

/// `a = b + s c` on all cores, the usual measure of what memory can do.
fn triad(a: &mut [f32], b: &[f32], c: &[f32], s: f32) {
    a.par_chunks_mut(CHUNK).zip(b.par_chunks(CHUNK)).zip(c.par_chunks(CHUNK)).for_each(
        |((a, b), c)| {
            a.iter_mut().zip(b).zip(c).for_each(|((a, b), c)| *a = b + s * c);
        },
    );
}

/// One multiply-add pass over memory per message, on all cores: what a chain of axpy calls does.
fn axpy_chain(messages: &[&[f32]], out: &mut [f32]) {
    out.par_chunks_mut(CHUNK).zip(messages[0].par_chunks(CHUNK)).for_each(|(out, x)| {
        out.iter_mut().zip(x).for_each(|(out, x)| *out = 1.5 * x);
    });
    for message in &messages[1..] {
        out.par_chunks_mut(CHUNK).zip(message.par_chunks(CHUNK)).for_each(|(out, x)| {
            out.iter_mut().zip(x).for_each(|(out, x)| *out += 1.5 * x);
        });
    }
}

fn messages<T: Send>(count: usize, len: usize, narrow: impl Fn(f32) -> T + Sync) -> Vec<Vec<T>> {
    let element = |i: usize, e: usize| narrow(((e * 7 + i) % 1000) as f32 / 500.0 - 1.0);
    (0..count)
        .map(|i| (0..len + i * STAGGER).into_par_iter().map(|e| element(i, e)).collect())
        .collect()
}

fn staggered<T>(messages: &[Vec<T>]) -> Vec<&[T]> {
    messages.iter().enumerate().map(|(i, x)| &x[i * STAGGER..]).collect()
}

fn terms<T>(messages: &[Vec<T>], source: fn(&[T]) -> Source<'_>) -> Vec<Term<'_>> {
    staggered(messages).into_iter().map(|x| Term { weight: 1.5, source: source(x) }).collect()
}

fn combine(
    group: &mut BenchmarkGroup<'_, WallTime>,
    format: &str,
    bytes: usize,
    cpu: &Cpu,
    terms: &[Term<'_>],
    out: &mut [f32],
) {
    // Reads of all messages, the write of the result and the read that the write allocates.
    group.throughput(Throughput::Bytes((out.len() * (terms.len() * bytes + 8)) as u64));
    group.bench_function(BenchmarkId::new("combine", format), |bencher| {
        bencher.iter(|| cpu.combine(black_box(terms), out));
    });
}

fn fold(criterion: &mut Criterion) {
    let has = |flag: &str| std::env::args().any(|arg| arg == flag);
    let len = if has("--bench") && !has("--test") { 1 << 25 } else { 1 << 16 };
    let cpu = Cpu::new();
    let mut out = vec![0.0f32; len];
    for count in [8, 16] {
        let full = messages(count, len, |x| x);
        let x = staggered(&full);
        let mut group = criterion.benchmark_group(format!("fold_{count}"));
        group.sampling_mode(SamplingMode::Flat).sample_size(25);
        group.measurement_time(Duration::from_secs(4)).warm_up_time(Duration::from_millis(500));
        group.throughput(Throughput::Bytes((len * 16) as u64));
        group.bench_function(BenchmarkId::new("triad", "f32"), |bencher| {
            bencher.iter(|| triad(&mut out, black_box(x[0]), x[1], black_box(1.5)));
        });
        let f32s = terms(&full, |x| Source::F32(x));
        combine(&mut group, "f32", 4, &cpu, &f32s, &mut out);
        group.bench_function(BenchmarkId::new("combine_and_digest", "f32"), |bencher| {
            bencher.iter(|| cpu.combine_and_digest(black_box(&f32s), &mut out));
        });
        group.bench_function(BenchmarkId::new("axpy_chain", "f32"), |bencher| {
            bencher.iter(|| axpy_chain(black_box(&x), &mut out));
        });
        drop(full);
        combine(
            &mut group,
            "bf16",
            2,
            &cpu,
            &terms(&messages(count, len, bf16::from_f32), |x| Source::Bf16(x)),
            &mut out,
        );
        combine(
            &mut group,
            "f16",
            2,
            &cpu,
            &terms(&messages(count, len, f16::from_f32), |x| Source::F16(x)),
            &mut out,
        );
        group.finish();
    }
}

criterion_group!(benches, fold);
criterion_main!(benches);
