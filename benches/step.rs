//! What the aggregator adds to a training step: 8 workers in one process, nobody slow, against the same
//! trainer with a plain sum. One iteration is six steps; the two alternate, so that both see the same
//! machine.
//!
//! `RAYON_NUM_THREADS=1 cargo bench --bench step`

use codedgrad::codes::SchemeSpec;
use codedgrad::delays::Delays;
use codedgrad::gpu::{Combine, Cpu, Source, Term};
use codedgrad::ids::Worker;
use codedgrad::train::candle::{Batches, Compute, Corpus, GptConfig, LocalRun, Replica, ReplicaState, Start, run_local};
use codedgrad::train::{AdamWConfig, Flow, Observer, Pace, StepRecord};
use codedgrad::transport::Decoded;
use criterion::{Criterion, criterion_group, criterion_main};
use std::error::Error;
use std::hint::black_box;
use std::sync::{Barrier, OnceLock, RwLock};
use std::thread;
use std::time::{Duration, Instant};

const WORKERS: usize = 8;
const ROWS: usize = 2;
/// Steps before the clock counts: threads start, buffers are made, memory is touched for the first time.
const WARM_UP: u64 = 3;
/// Steps in one iteration.
const STEPS: u64 = 6;
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
        if record.step >= WARM_UP {
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
        models: 1,
        micro_steps: 1,
        compute: Compute::default(),
        model: MODEL,
        optimizer: OPTIMIZER,
        max_wait_seconds: 600.0,
        return_seconds: 0.0,
        restores: false,
        min_workers: None,
        grace_seconds: 0.0,
        mu: 1.0,
        reduce: None,
        faults: Vec::new(),
        wire: codedgrad::codes::Wire::F32,
        attack: None,
        lanes: codedgrad::train::candle::Lanes::Alike,
    };
    let mut seconds = Seconds(0.0);
    let pace = Pace::wall(WORKERS, &Delays::None, (WARM_UP + steps) as usize, 0.0);
    let start = Start { states: std::slice::from_ref(start), step: 0, round: 0 };
    run_local(&run, start, WARM_UP + steps, batches, pace, &mut seconds).expect("the run goes through");
    Duration::from_secs_f64(seconds.0)
}

/// The same work with nothing between the gradients and their sum: one thread sums all messages with the
/// same fold, then every replica applies the result.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn plain(steps: u64, start: &ReplicaState, batches: &Batches) -> Duration {
    let weight = 1.0 / (WORKERS * ROWS * MODEL.context) as f64;
    let messages: Vec<RwLock<Vec<f32>>> = (0..WORKERS).map(|_| RwLock::new(vec![0.0; MODEL.parameters()])).collect();
    let sum = RwLock::new(vec![0.0f32; MODEL.parameters()]);
    let (barrier, fold) = (Barrier::new(WORKERS), Cpu::new());
    let begin = OnceLock::new();
    thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (messages, sum, barrier, fold, begin) = (&messages, &sum, &barrier, &fold, &begin);
            scope.spawn(move || {
                let mut replica = Replica::new(&MODEL, OPTIMIZER, start).expect("a replica");
                for step in 0..WARM_UP + steps {
                    if step == WARM_UP {
                        begin.get_or_init(Instant::now);
                    }
                    let windows = batches.rows(step, worker * ROWS..(worker + 1) * ROWS);
                    replica.gradient(&windows, weight, &mut *messages[worker].write().expect("a message")).expect("a gradient");
                    if barrier.wait().is_leader() {
                        let messages: Vec<_> = messages.iter().map(|message| message.read().expect("a message")).collect();
                        let terms: Vec<Term<'_>> = messages.iter().map(|x| Term { weight: 1.0, source: Source::F32(x) }).collect();
                        fold.combine(&terms, &mut sum.write().expect("the sum")).expect("equal lengths");
                    }
                    barrier.wait();
                    replica.apply(&*sum.read().expect("the sum"), step).expect("an update");
                }
            });
        }
    });
    black_box(&sum);
    begin.get().expect("it ran").elapsed()
}

fn step(criterion: &mut Criterion) {
    let batches = Batches::new(Corpus::embedded().byte_tokens(), MODEL.context, 1).expect("batches");
    let start = ReplicaState::fresh(&MODEL, 1);
    let mut group = criterion.benchmark_group("step_10M");
    group.sample_size(10).warm_up_time(Duration::from_millis(1)).measurement_time(Duration::from_secs(60));
    let (mut with, mut without) = (Vec::new(), Vec::new());
    group.bench_function("aggregator", |bencher| {
        bencher.iter_custom(|iterations| {
            let steps = STEPS * iterations;
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
