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

mod case;
mod namespaces;
#[path = "../processes/mod.rs"]
mod processes;
mod worker;

use case::{Case, LOOPS};
use codedgrad::codes::SchemeSpec;
use codedgrad::delays::Delays;
use codedgrad::ids::Step;
use codedgrad::run::{Limits, RunConfig, Shape};
use codedgrad::schedulers::{Engine, Settings};
use codedgrad::sums::DecodedSum;
use codedgrad::train::{Coordinator, Flow, Observer, Progress, RunClock, StepRecord};
use codedgrad::transport::tcp::security::{Security, Token};
use codedgrad::transport::tcp::{Exchange, Listen, TcpTransport};
use namespaces::Namespaces;
use processes::{Outcome, again, median, token};
use std::env;
use std::error::Error;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

#[derive(Default)]
struct Watch {
    committed: Vec<Instant>,
    digests: Vec<String>,
}

impl Observer for Watch {
    fn step(
        &mut self,
        record: &StepRecord,
        _: Option<&DecodedSum>,
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
        exchange: Exchange::Sharded,
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
        words.extend([LOOPS.to_owned(), worker::loops_per_second().to_string()]);
    }
    let case = Case::parse(&words)?;
    if let Ok(place) = env::var("OVERLAP_WORKER") {
        let [address, token, me] = place.splitn(3, ' ').collect::<Vec<_>>()[..] else {
            return Err("no place".into());
        };
        return worker::work(address, token, me.parse()?, &case);
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
