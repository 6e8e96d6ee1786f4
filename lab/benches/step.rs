//! What the aggregator adds to a training step: 8 workers in one process, none slow, against the
//! same trainer with a plain sum. One iteration is six steps; the two alternate, so that both see
//! the same machine.
//!
//! `RAYON_NUM_THREADS=1 cargo bench -p codedgrad-lab --bench step`, and with `--features
//! candle-cuda`, where there is a GPU, 4 workers on it too

use codedgrad::codes::SchemeSpec;
use codedgrad::delays::Delays;
use codedgrad::gpu::{Combine, Cpu, Source, Term, Vector};
use codedgrad::run::{Limits, Shape};
use codedgrad::sums::DecodedSum;
use codedgrad::train::{AdamWConfig, Flow, Incident, Observer, RunClock, StepRecord};
use codedgrad_lab::trainer::{
    Batches, Compute, Corpus, GptConfig, LocalRun, Memory, Precision, Processor, Replica,
    ReplicaState, RunStart, run_local_at,
};
use criterion::{Criterion, criterion_group, criterion_main};
use std::error::Error;
use std::hint::black_box;
use std::sync::{Barrier, OnceLock, RwLock, RwLockReadGuard};
use std::thread;
use std::time::{Duration, Instant};

/// Steps before the clock counts: threads start, buffers are made, memory is touched for the first
/// time.
const WARM_UP: u64 = 3;
/// Steps in one iteration.
const STEPS: u64 = 6;
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

/// What is trained, by how many workers, and where.
struct Load {
    name: &'static str,
    workers: usize,
    /// Windows of each worker in a step.
    rows: usize,
    model: GptConfig,
    compute: Compute,
}

const ON_CPU: Load = Load {
    name: "step_10M",
    workers: 8,
    rows: 2,
    model: GptConfig { vocabulary: 256, context: 64, layers: 6, heads: 6, width: 384, tied: true },
    compute: Compute {
        processor: Processor::Cpu,
        precision: Precision::F32,
        devices_per_worker: 1,
    },
};

struct Seconds(f64);

impl<V: Vector> Observer<V> for Seconds {
    fn step(
        &mut self,
        record: &StepRecord,
        _: Option<&DecodedSum<V>>,
    ) -> Result<Flow, Box<dyn Error + Send + Sync>> {
        if record.step >= WARM_UP {
            self.0 += record.seconds;
        }
        Ok(Flow::Continue)
    }
    fn event(&mut self, happened: &Incident) {
        // A step that is long under way is none, as where other programs have the cores.
        assert!(!happened.what.is_fault(), "{happened}");
    }
}

fn aggregated<V: Memory>(
    load: &Load,
    steps: u64,
    start: &ReplicaState,
    batches: &Batches,
) -> Duration {
    let run = LocalRun {
        shape: Shape { workers: load.workers, units: load.workers as u32, unit_samples: load.rows },
        limits: Limits { max_wait_seconds: 600.0, ..Limits::default() },
        compute: load.compute,
        ..LocalRun::new(SchemeSpec::uncoded(), load.workers, load.model, OPTIMIZER)
    };
    let mut seconds = Seconds(0.0);
    let run_clock = RunClock::wall(load.workers, &Delays::None, (WARM_UP + steps) as usize, 0.0);
    let start = RunStart { states: std::slice::from_ref(start), step: 0, round: 0 };
    run_local_at::<V>(&run, start, WARM_UP + steps, batches, run_clock, &mut seconds)
        .expect("the run goes through");
    Duration::from_secs_f64(seconds.0)
}

/// Overwrites the last with the sum of the others.
type Sum<'a, V> = &'a (dyn Fn(&[RwLockReadGuard<'_, V>], &mut V) + Sync);

/// The same work with nothing between the gradients and their sum: one thread sums all messages
/// with the same fold, then every replica applies the result.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn plain<V: Memory>(
    load: &Load,
    steps: u64,
    start: &ReplicaState,
    batches: &Batches,
    add: Sum<'_, V>,
) -> Duration {
    let &Load { workers, rows, model, compute, .. } = load;
    let weight = 1.0 / (workers * rows * model.context) as f64;
    let vector =
        |worker| RwLock::new(V::new(&V::place(worker).expect("a place"), model.parameters()));
    let (messages, sum): (Vec<_>, _) = ((0..workers).map(vector).collect(), vector(0));
    let (barrier, begin) = (Barrier::new(workers), OnceLock::new());
    thread::scope(|scope| {
        for worker in 0..workers {
            let messages = &messages;
            let sum = &sum;
            let barrier = &barrier;
            let begin = &begin;
            scope.spawn(move || {
                let mut replica =
                    Replica::on((compute, worker), &model, OPTIMIZER, start).expect("a replica");
                for step in 0..WARM_UP + steps {
                    if step == WARM_UP {
                        begin.get_or_init(Instant::now);
                    }
                    let windows = batches.rows(step, worker * rows..(worker + 1) * rows);
                    replica
                        .gradient(
                            &windows,
                            weight,
                            &mut *messages[worker].write().expect("a message"),
                        )
                        .expect("a gradient");
                    if barrier.wait().is_leader() {
                        let messages: Vec<_> = messages
                            .iter()
                            .map(|message| message.read().expect("a message"))
                            .collect();
                        add(&messages, &mut sum.write().expect("the sum"));
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

fn alternate<V: Memory>(criterion: &mut Criterion, load: &Load, add: Sum<'_, V>) {
    let batches =
        Batches::new(Corpus::embedded().byte_tokens(), load.model.context, 1).expect("batches");
    let start = ReplicaState::fresh(&load.model, 1);
    let mut group = criterion.benchmark_group(load.name);
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(1))
        .measurement_time(Duration::from_secs(60));
    let (mut with, mut without) = (Vec::new(), Vec::new());
    group.bench_function("aggregator", |bencher| {
        bencher.iter_custom(|iterations| {
            let steps = STEPS * iterations;
            without.push(plain(load, steps, &start, &batches, add).as_secs_f64() / steps as f64);
            let spent = aggregated::<V>(load, steps, &start, &batches);
            with.push(spent.as_secs_f64() / steps as f64);
            spent
        });
    });
    group.finish();
    let mut ratios: Vec<f64> =
        with.iter().zip(&without).map(|(with, without)| with / without).collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "{}: aggregator / plain sum, median of {} alternating pairs: {:.3} ({:.3} to {:.3})",
        load.name,
        ratios.len(),
        ratios[ratios.len() / 2],
        ratios[0],
        ratios[ratios.len() - 1]
    );
    for (what, mut seconds) in [("with", with), ("without", without)] {
        seconds.sort_by(f64::total_cmp);
        let tokens =
            (load.workers * load.rows * load.model.context) as f64 / seconds[seconds.len() / 2];
        let peak = load
            .compute
            .peak_tflops()
            .map(|peak| tokens * load.model.flops_per_token() / (peak * 1e12));
        let mfu = peak.map_or_else(String::new, |mfu| format!(", MFU {mfu:.4}"));
        println!("{what} the aggregator: {tokens:.0} tokens/s{mfu}");
    }
}

fn cpu(criterion: &mut Criterion) {
    let fold = Cpu::new();
    alternate::<Vec<f32>>(criterion, &ON_CPU, &|messages, sum| {
        let terms: Vec<Term<'_>> =
            messages.iter().map(|x| Term { weight: 1.0, source: Source::F32(x) }).collect();
        fold.combine(&terms, sum).expect("equal lengths");
    });
}

/// Four workers on one card, whose gradients stay there.
#[cfg(feature = "candle-cuda")]
fn gpu(criterion: &mut Criterion) {
    use codedgrad::gpu::cuda::{DeviceSource, DeviceTarget, DeviceTerm, DeviceVector, devices};
    use std::sync::Arc;
    if devices() != 1 {
        return println!(
            "not measured: the trainer on one GPU, since there are {} (CUDA_VISIBLE_DEVICES=0 \
             picks one)",
            devices()
        );
    }
    let model =
        GptConfig { vocabulary: 256, context: 256, layers: 14, heads: 12, width: 768, tied: true };
    for (name, precision) in
        [("step_100M_f32", Precision::F32), ("step_100M_bf16", Precision::Bf16)]
    {
        let load = Load {
            name,
            workers: 4,
            rows: 32,
            model,
            compute: Compute { processor: Processor::Cuda, precision, devices_per_worker: 1 },
        };
        alternate::<DeviceVector>(criterion, &load, &|messages, sum| {
            let term = |x| DeviceTerm { weight: 1.0, source: DeviceSource::F32(x) };
            let terms: Vec<_> =
                messages.iter().map(|x| term(x.view().expect("a message"))).collect();
            let cuda = Arc::clone(sum.cuda());
            let DeviceTarget::F32(mut out) = sum.target().expect("memory") else {
                unreachable!("vectors are f32")
            };
            cuda.combine_into(&terms, &mut out).expect("a sum");
            cuda.stream().synchronize().expect("the card");
        });
    }
}

#[cfg(not(feature = "candle-cuda"))]
fn gpu(_: &mut Criterion) {}

criterion_group!(benches, cpu, gpu);
criterion_main!(benches);
