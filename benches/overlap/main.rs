//! A step whose exchange goes on behind its backward pass: seconds from commit to commit, what a
//! worker sends, and the most that waits in its memory, where computing is sleeping, as it is for a
//! process that waits for its GPU.
//!
//! `cargo bench -p codedgrad --bench overlap -- --scheme groups:s=1 --compute 1.0`. With `--netns
//! ov` worker k runs in the network namespace `ovk` and the coordinator in `ovc`, at 10.77.0.k+1
//! and 10.77.0.n+1, as `benches/peers/netns.sh` makes them (root): there a link has a rate.
//! `--buckets 1` says nothing before the whole gradient is there, `--in-series` exchanges only what
//! is computed. With `--busy` a worker keeps a core busy instead of sleeping, so that the exchange
//! has none for itself. `benches/peers/ddp_overlap.py` measures DDP on the same.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

mod namespaces;
#[path = "../processes/mod.rs"]
mod processes;

use codedgrad::codes::SchemeSpec;
use codedgrad::delays::Delays;
use codedgrad::ids::Step;
use codedgrad::run::{Limits, RunConfig, Shape};
use codedgrad::schedulers::{Engine, Settings};
use codedgrad::sums::Decoded;
use codedgrad::train::{
    Aggregator, ComputeTask, Coordinator, Event, Flow, Observer, Progress, RunClock, StepRecord,
};
use codedgrad::transport::Link;
use codedgrad::transport::tcp::security::{Security, Token};
use codedgrad::transport::tcp::{Exchange, Join, Listen, TcpLink, TcpTransport, Waker};
use namespaces::Namespaces;
use processes::{Outcome, again, median, token};
use std::env;
use std::error::Error;
use std::hint::black_box;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// Layers of the model, which are computed one after the other, forward and backward.
const LAYERS: usize = 16;
/// By what the workers are told how many loops a core makes in a second.
const LOOPS: &str = "--loops-per-second";

/// What is measured, from the command line; the workers get it by the same words.
#[derive(Clone)]
struct Case {
    scheme: String,
    workers: usize,
    units: usize,
    elements: usize,
    steps: u64,
    warmup: u64,
    /// Seconds that a worker computes in a step, a third of them forward.
    compute: f64,
    buckets: usize,
    /// The one who is late in all steps, or another one in every step.
    late_worker: Option<i64>,
    factor: f64,
    netns: Option<String>,
    in_series: bool,
    /// How many loops a core makes in a second, where computing is loops and not sleep.
    busy: Option<f64>,
    /// The worker that dies in the backward pass of the middle step.
    killed: Option<u32>,
}

impl Case {
    fn parse(words: &[String]) -> Outcome<Self> {
        let value = |name: &str| {
            words.iter().position(|word| word == name).and_then(|at| words.get(at + 1))
        };
        let number = |name: &str, default: f64| -> Outcome<f64> {
            Ok(value(name).map_or(Ok(default), |text| text.parse())?)
        };
        let quick = words.iter().any(|word| word == "--test");
        let workers = number("--workers", 4.0)? as usize;
        Ok(Self {
            scheme: value("--scheme").map_or("uncoded".into(), Clone::clone),
            workers,
            units: number("--units", workers as f64)? as usize,
            elements: number("--elements", if quick { 2e6 } else { f64::from(1 << 24) })? as usize,
            steps: number("--steps", if quick { 3.0 } else { 10.0 })? as u64,
            warmup: number("--warmup", if quick { 1.0 } else { 3.0 })? as u64,
            compute: number("--compute", if quick { 0.1 } else { 1.0 })?,
            buckets: number("--buckets", LAYERS as f64)? as usize,
            late_worker: value("--late-worker").map(|text| text.parse()).transpose()?,
            factor: number("--factor", 10.0)?,
            netns: value("--netns").cloned(),
            in_series: words.iter().any(|word| word == "--in-series"),
            busy: value(LOOPS).map(|text| text.parse()).transpose()?,
            killed: value("--kill").map(|text| text.parse()).transpose()?,
        })
    }

    fn runtime(&self) -> Outcome<Runtime> {
        Ok(Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
    }

    fn factor_of(&self, worker: u32, step: u64) -> f64 {
        let late = match self.late_worker {
            Some(late) if late < 0 => step % self.workers as u64 == u64::from(worker),
            Some(late) => late == i64::from(worker),
            None => false,
        };
        if late { self.factor } else { 1.0 }
    }
}

/// Sleeps until a moment, unless nobody wants the task any more.
fn sleep_until(moment: Instant, task: &ComputeTask<'_>) -> bool {
    while !task.cancel().is_cancelled() {
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(Duration::from_millis(2)));
    }
    false
}

/// Additions and multiplications of which each needs the one before.
fn make_loops(count: u64) {
    let mut x = 1.0f64;
    for _ in 0..count {
        x = black_box(x * 0.999_999 + 1e-6);
    }
    black_box(x);
}

/// How many of them a core makes in a second.
fn loops_per_second() -> f64 {
    let mut count = 1 << 20;
    loop {
        let begun = Instant::now();
        make_loops(count);
        let took = begun.elapsed().as_secs_f64();
        if took > 0.5 {
            return count as f64 / took;
        }
        count *= 2;
    }
}

/// Makes loops, unless nobody wants the task any more.
fn be_busy(mut loops: u64, task: &ComputeTask<'_>) -> bool {
    while loops > 0 && !task.cancel().is_cancelled() {
        let some = loops.min(1 << 18);
        make_loops(some);
        loops -= some;
    }
    loops == 0
}

/// Computes one part: the forward pass, then the layers from the last to the first. Whether it is
/// still wanted.
fn compute(task: &mut ComputeTask<'_>, case: &Case, seconds: f64, value: f32) -> Outcome<bool> {
    let begun = Instant::now();
    let length = task.message().len();
    let edge = |layer: usize| length * layer / LAYERS;
    let mut told = length;
    let mut before = 0.0;
    for layer in (0..LAYERS).rev() {
        let done = 1.0 / 3.0 + 2.0 / 3.0 * (LAYERS - layer) as f64 / LAYERS as f64;
        task.message()[edge(layer)..edge(layer + 1)].fill(value);
        let wanted = match case.busy {
            Some(rate) => be_busy((rate * seconds * (done - before)) as u64, task),
            None => sleep_until(begun + Duration::from_secs_f64(seconds * done), task),
        };
        if !wanted {
            return Ok(false);
        }
        before = done;
        let is_bucket = (LAYERS - layer) * case.buckets % LAYERS < case.buckets;
        if case.buckets > 1 && is_bucket {
            task.ready(edge(layer)..told)?;
            told = edge(layer);
        }
    }
    Ok(true)
}

fn worker(address: &str, token: &str, me: u32, case: &Case) -> Outcome<()> {
    let runtime = case.runtime()?;
    let network = Arc::new(Namespaces::new(case.netns.is_some()));
    let security = Security::Plain { token: Token::parse(token)? };
    let join =
        Join { worker: Some(me), identity: me.to_string(), ..Join::new(address.into(), security) };
    let (link, welcome) = runtime.block_on(TcpLink::join_over(network, join))?;
    let traffic = link.traffic();
    let buffered = link.most_buffered();
    let mut waker = link.waker();
    let link: Box<dyn Link> = Box::new(link);
    let mut aggregator = Aggregator::new(link, welcome.length, 1);
    let mut sent = Vec::new();
    loop {
        match aggregator.next_event() {
            Err(_) if woken(&runtime, &mut waker) => {}
            Err(error) => return Err(error.into()),
            Ok(None) => break,
            Ok(Some(Event::Compute(mut task))) => {
                let step = task.step();
                let parts = case.units / case.workers.min(case.units).max(1);
                let seconds = case.compute * case.factor_of(me, step) / parts.max(1) as f64;
                if case.killed == Some(me) && step == case.warmup + case.steps / 2 {
                    kill_soon(seconds * 2.0 / 3.0);
                }
                let mut wanted = true;
                while let Some(part) = task.next_part() {
                    let value = part.coefficient as f32 * (part.unit + 1) as f32;
                    wanted = compute(&mut task, case, seconds, value)?;
                    if !wanted {
                        break;
                    }
                }
                if wanted {
                    task.submit(Vec::new())?;
                }
            }
            Ok(Some(Event::Apply(step))) => {
                let expected = (case.units * (case.units + 1) / 2) as f32;
                let at = |at: usize| step.gradient()[at * (welcome.length - 1) / 9];
                assert!((0..=9).all(|place| at(place) == expected), "the sum is whole");
                sent.push(traffic().0);
            }
            Ok(Some(Event::Skip(_))) => return Err("no step is refused".into()),
            // There are no parameters.
            Ok(Some(Event::Provide(request))) => request.reply(Vec::new()),
            Ok(Some(Event::Resync(_))) => {}
        }
    }
    let first = sent.get(case.warmup as usize).copied().unwrap_or_default();
    let last = sent.last().copied().unwrap_or_default();
    let steps = (sent.len() as u64).saturating_sub(case.warmup + 1).max(1);
    println!("{} {}", (last - first) / steps, buffered());
    Ok(())
}

fn woken(runtime: &Runtime, waker: &mut Waker) -> bool {
    runtime.block_on(waker.woken())
}

fn kill_soon(seconds: f64) {
    thread::spawn(move || {
        thread::sleep(Duration::from_secs_f64(seconds));
        std::process::abort();
    });
}

#[derive(Default)]
struct Watch {
    committed: Vec<Instant>,
    digests: Vec<String>,
}

impl Observer for Watch {
    fn step(
        &mut self,
        record: &StepRecord,
        _: Option<&Decoded>,
    ) -> Result<Flow, Box<dyn Error + Send + Sync>> {
        self.committed.push(Instant::now());
        self.digests.push(record.digest.clone());
        Ok(Flow::Continue)
    }
}

fn start(words: &[String], case: &Case, place: &str, me: usize) -> Outcome<Child> {
    let Some(prefix) = &case.netns else { return Ok(again(words, "OVERLAP_WORKER", place)?) };
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &format!("{prefix}{me}")]).arg(env::current_exe()?);
    Ok(command.args(words).env("OVERLAP_WORKER", place).stdout(Stdio::piped()).spawn()?)
}

fn coordinator(words: &[String], case: &Case) -> Outcome<()> {
    let (token, runtime) = (token(), case.runtime()?);
    let steps = case.warmup + case.steps;
    let config = RunConfig {
        limits: Limits { max_wait_seconds: 600.0, ..Limits::default() },
        log_steps: 2,
        ..RunConfig::new(Shape::new(case.workers, case.units as u32), case.elements, steps)
    };
    let security = Security::Plain { token: Token::parse(&token)? };
    let address = Namespaces::coordinator(case.netns.is_some(), case.workers);
    let listen = Listen {
        exchange: Exchange::SHARDED,
        overlap: !case.in_series,
        silence: Duration::from_secs(60),
        ..Listen::new(address, security, config)
    };
    let network = Arc::new(Namespaces::new(case.netns.is_some()));
    let mut transport = runtime.block_on(TcpTransport::listen_over(network, listen))?;
    let place = |me: usize| format!("{} {token} {me}", transport.address());
    let children: Vec<Child> =
        (0..case.workers).map(|me| start(words, case, &place(me), me)).collect::<Result<_, _>>()?;
    let (workers, units) = (case.workers, case.units as u32);
    let scheme = case.scheme.parse::<SchemeSpec>()?.scheme(workers, units, 0..steps)?;
    let engine = Engine::new(scheme, config, Settings::default())?;
    let run_clock = RunClock::wall(workers, &Delays::None, steps as usize, 0.0);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !transport.gather(Duration::ZERO).absent.is_empty() {
        if Instant::now() > deadline {
            return Err("not all workers came".into());
        }
        thread::sleep(Duration::from_millis(20));
    }
    transport.begin(Step(0));
    // The coordinator tells of who is there; then workers find each other.
    thread::sleep(Duration::from_millis(500));
    let (status, mut waker) = (transport.status(), transport.waker());
    let mut coordinator = Coordinator::new(transport, engine, run_clock);
    let mut watch = Watch::default();
    while let Progress::Wait(patience) = coordinator.pump(&mut watch)? {
        let patience = patience.unwrap_or(Duration::from_secs(600));
        let _ = runtime.block_on(async { tokio::time::timeout(patience, waker.woken()).await });
    }
    coordinator.stop();
    drop(coordinator);
    let (mut sent, mut buffered) = (Vec::new(), Vec::new());
    for child in children {
        let told = String::from_utf8(child.wait_with_output()?.stdout)?;
        let bytes: Vec<f64> = told.split_whitespace().flat_map(str::parse).collect();
        sent.extend(bytes.first().copied());
        buffered.extend(bytes.get(1).copied());
    }
    let between: Vec<f64> = watch
        .committed
        .windows(2)
        .skip(case.warmup as usize)
        .map(|pair| (pair[1] - pair[0]).as_secs_f64())
        .collect();
    let gradients = |bytes: &f64| (bytes / (4.0 * case.elements as f64) * 1e3).round() / 1e3;
    let status = status.lock().map_err(|_| "a thread panicked")?;
    let mut digests = watch.digests.clone();
    digests.dedup();
    let summary = serde_json::json!({
        "scheme": case.scheme, "compute": case.compute, "buckets": case.buckets,
        "in_series": case.in_series, "busy": case.busy.is_some(),
        "late_worker": case.late_worker, "factor": case.factor,
        "elements": case.elements, "netns": case.netns.is_some(), "steps": between.len(),
        "seconds": { "median": median(between.clone()),
            "min": between.iter().copied().fold(f64::INFINITY, f64::min),
            "max": between.iter().copied().fold(0.0, f64::max) },
        "sent_gradients": sent.iter().map(gradients).collect::<Vec<_>>(),
        "buffered_gradients": buffered.iter().map(gradients).collect::<Vec<_>>(),
        "expected": status.sums.expected, "confirmed": status.sums.confirmed,
        "replaced": status.sums.replaced,
        "digests": digests.len(),
    });
    println!("{summary}");
    Ok(())
}

fn main() -> Outcome<()> {
    let mut words: Vec<String> = env::args().skip(1).collect();
    // Once, and before there are others who want the cores.
    if words.iter().any(|word| word == "--busy") && !words.iter().any(|word| word == LOOPS) {
        words.extend([LOOPS.to_owned(), loops_per_second().to_string()]);
    }
    let case = Case::parse(&words)?;
    if let Ok(place) = env::var("OVERLAP_WORKER") {
        let [address, token, me] = place.splitn(3, ' ').collect::<Vec<_>>()[..] else {
            return Err("no place".into());
        };
        return worker(address, token, me.parse()?, &case);
    }
    if let Some(prefix) = case.netns.as_ref().filter(|_| env::var("OVERLAP_INSIDE").is_err()) {
        let status = Command::new("ip")
            .args(["netns", "exec", &format!("{prefix}c")])
            .arg(env::current_exe()?)
            .args(&words)
            .env("OVERLAP_INSIDE", "1")
            .status()?;
        return if status.success() { Ok(()) } else { Err("it failed in its namespace".into()) };
    }
    coordinator(&words, &case)
}
