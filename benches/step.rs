//! What the aggregator adds to a training step: 8 workers in one process, nobody slow, against the same
//! trainer with a plain sum. One iteration is one step; the two alternate, so that both see the same
//! machine.
//!
//! `RAYON_NUM_THREADS=1 cargo bench --bench step`

use codedgrad::codes::SchemeSpec;
use codedgrad::delays::Delays;
use codedgrad::ids::Worker;
use codedgrad::train::candle::{Batches, Corpus, GptConfig, LocalRun, Replica, ReplicaState, run_local};
use codedgrad::train::{AdamWConfig, Flow, Observer, Pace, StepRecord};
use codedgrad::transport::Decoded;
use criterion::{Criterion, criterion_group, criterion_main};
use std::error::Error;
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

const WORKERS: usize = 8;
const ROWS: usize = 1;
const MODEL: GptConfig = GptConfig { vocabulary: 256, context: 64, layers: 6, heads: 6, width: 384, tied: true };
const OPTIMIZER: AdamWConfig = AdamWConfig {
    learning_rate: 1e-3,
    warmup_steps: 1,
    decay_steps: 1000,
    beta1: 0.9,
    beta2: 0.99,
    epsilon: 1e-8,
    weight_decay: 0.1,
    clip_norm: 1.0,
};

struct Seconds(f64);

impl Observer for Seconds {
    fn step(&mut self, record: &StepRecord, _: Option<&Decoded>) -> Result<Flow, Box<dyn Error + Send + Sync>> {
        // The first step warms up: threads start and buffers are made.
        if record.step > 0 {
            self.0 += record.seconds;
        }
        Ok(Flow::Continue)
    }
    fn fault(&mut self, _: u64, worker: Worker, what: &str) {
        panic!("{worker}: {what}");
    }
}

fn aggregated(steps: u64, start: &ReplicaState, batches: &Batches) -> Duration {
    let run = LocalRun {
        scheme: SchemeSpec::uncoded(),
        workers: WORKERS,
        unit_samples: ROWS,
        units: WORKERS as u32,
        model: MODEL,
        optimizer: OPTIMIZER,
        max_wait_seconds: 600.0,
        grace_seconds: 0.0,
        faults: Vec::new(),
    };
    let mut seconds = Seconds(0.0);
    let pace = Pace::wall(WORKERS, &Delays::None, steps as usize + 1, 0.0);
    run_local(&run, 0..steps + 1, start, batches, pace, &mut seconds).expect("the run goes through");
    Duration::from_secs_f64(seconds.0)
}

/// The same work with nothing between the gradients and their sum: every thread sums a slice of all
/// messages, then every replica applies the result.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn plain(steps: u64, start: &ReplicaState, batches: &Batches) -> Duration {
    let weight = 1.0 / (WORKERS * ROWS * MODEL.context) as f64;
    let mut replicas: Vec<Replica> = (0..WORKERS).map(|_| Replica::new(&MODEL, OPTIMIZER, start).expect("a replica")).collect();
    let mut messages = vec![vec![0.0f32; MODEL.parameters()]; WORKERS];
    let mut sum = vec![0.0f32; MODEL.parameters()];
    let slice = sum.len().div_ceil(2);
    let mut spent = Duration::ZERO;
    for step in 0..steps + 1 {
        let begin = Instant::now();
        thread::scope(|scope| {
            for (worker, (replica, message)) in replicas.iter().zip(&mut messages).enumerate() {
                let windows = batches.rows(step, worker * ROWS..(worker + 1) * ROWS);
                scope.spawn(move || replica.gradient(&windows, weight, message).expect("a gradient"));
            }
        });
        thread::scope(|scope| {
            for (part, sum) in sum.chunks_mut(slice).enumerate() {
                let messages = &messages;
                scope.spawn(move || {
                    let range = part * slice..part * slice + sum.len();
                    sum.copy_from_slice(&messages[0][range.clone()]);
                    for message in &messages[1..] {
                        sum.iter_mut().zip(&message[range.clone()]).for_each(|(sum, x)| *sum += x);
                    }
                });
            }
        });
        thread::scope(|scope| {
            for replica in &mut replicas {
                let sum = &sum;
                scope.spawn(move || replica.apply(sum, step).expect("an update"));
            }
        });
        if step > 0 {
            spent += begin.elapsed();
        }
    }
    black_box(&sum);
    spent
}

fn step(criterion: &mut Criterion) {
    let batches = Batches::new(Corpus::embedded().byte_tokens(), MODEL.context, 1).expect("batches");
    let start = ReplicaState::fresh(&MODEL, 1);
    let mut group = criterion.benchmark_group("step_10M");
    group.sample_size(20).warm_up_time(Duration::from_millis(1)).measurement_time(Duration::from_secs(60));
    let (mut with, mut without) = (Vec::new(), Vec::new());
    group.bench_function("aggregator", |bencher| {
        bencher.iter_custom(|steps| {
            without.push(plain(steps, &start, &batches).as_secs_f64() / steps as f64);
            let spent = aggregated(steps, &start, &batches);
            with.push(spent.as_secs_f64() / steps as f64);
            spent
        });
    });
    group.finish();
    let mut ratios: Vec<f64> = with.iter().zip(&without).map(|(with, without)| with / without).collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "aggregator / plain sum, median of {} alternating pairs: {:.3} ({:.3} to {:.3})",
        ratios.len(),
        ratios[ratios.len() / 2],
        ratios[0],
        ratios[ratios.len() - 1]
    );
}

criterion_group!(benches, step);
criterion_main!(benches);
