//! What a coordinator costs by itself: its process's time per round for a tiny model, with its
//! workers in processes of their own or, where they are many, all in one other process, over real
//! sockets.
//!
//! `cargo bench -p codedgrad --bench control -- --workers 64 --processes 64
//! --exchange sharded`

use codedgrad::codes::SchemeSpec;
use codedgrad::delays::Delays;
use codedgrad::ids::Step;
use codedgrad::run::{Limits, RunConfig, Shape};
use codedgrad::schedulers::{Engine, Settings};
use codedgrad::sums::DecodedSum;
use codedgrad::train::{
    Aggregator, Coordinator, Event, Flow, Incident, Observer, RunClock, StepRecord,
};
use codedgrad::transport::tcp::security::{Security, Token};
use codedgrad::transport::tcp::{Exchange, Join, Listen, Sockets, TcpLink, TcpTransport};
use std::env;
use std::error::Error;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Rounds that are not counted.
const WARMUP: u64 = 20;

/// Seconds that this process has computed, by itself and in the kernel.
fn seconds() -> Outcome<[f64; 2]> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> =
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // Hundredths of a second, whatever the kernel's own clock.
    Ok([fields[11].parse::<f64>()? / 100.0, fields[12].parse::<f64>()? / 100.0])
}

async fn worker(address: String, security: Security, me: u32) -> Outcome<()> {
    let join = Join {
        worker: Some(me),
        identity: me.to_string(),
        patience: Duration::from_secs(60),
        ..Join::new(address, security)
    };
    let (link, welcome) = TcpLink::join_over(Arc::new(Sockets), join).await?;
    let mut waker = link.waker();
    let mut aggregator = Aggregator::new(Box::new(link), welcome.length, 1);
    loop {
        match aggregator.next_event() {
            Err(_) if waker.woken().await => {}
            Err(error) => return Err(error.into()),
            Ok(None) => return Ok(()),
            Ok(Some(Event::Compute(mut task))) => {
                while let Some(part) = task.next_part() {
                    let value = part.coefficient as f32;
                    task.message().fill(value);
                }
                task.submit(Vec::new())?;
            }
            Ok(Some(Event::Apply(step))) => {
                assert_eq!(step.gradient()[0], welcome.workers as f32, "the sum is whole");
            }
            Ok(Some(Event::Provide(request))) => request.reply(Vec::new()),
            Ok(Some(Event::Skip(_))) => return Err("no step is refused".into()),
            Ok(Some(Event::Resync(_))) => {}
        }
    }
}

/// A process with some of the workers.
fn workers(place: &str) -> Outcome<()> {
    let [address, token, first, end] = place.split(' ').collect::<Vec<_>>()[..] else {
        return Err("no place".into());
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let security = Security::Plain { token: Token::parse(token)? };
        let all: Vec<_> = (first.parse::<u32>()?..end.parse()?)
            .map(|me| tokio::spawn(worker(address.into(), security.clone(), me)))
            .collect();
        for worker in all {
            worker.await??;
        }
        Ok(())
    })
}

#[derive(Default)]
struct Watch {
    begun: Option<([f64; 2], f64)>,
    ended: f64,
}

impl Observer for Watch {
    fn step(
        &mut self,
        record: &StepRecord,
        _: Option<&DecodedSum>,
    ) -> Result<Flow, Box<dyn Error + Send + Sync>> {
        if record.step + 1 == WARMUP {
            self.begun = Some((seconds()?, record.committed));
        }
        self.ended = record.committed;
        Ok(Flow::Continue)
    }
    fn event(&mut self, happened: &Incident) {
        eprintln!("{happened}");
    }
}

fn measure(
    workers: usize,
    processes: usize,
    exchange: Exchange,
    rounds: u64,
    scheme: &str,
) -> Outcome<()> {
    let token = "5a".repeat(32);
    let security = Security::Plain { token: Token::parse(&token)? };
    let steps = WARMUP + rounds;
    let config = RunConfig {
        limits: Limits { max_wait_seconds: 600.0, ..Limits::default() },
        log_steps: 64,
        ..RunConfig::new(Shape::new(workers, workers as u32), 1000, steps)
    };
    let listen = Listen {
        exchange,
        silence: Duration::from_secs(60),
        stall: Duration::from_secs(60),
        ..Listen::new(([127, 0, 0, 1], 0).into(), security, config)
    };
    let mut transport = TcpTransport::listen(listen)?;
    let child = |number: usize| {
        let (first, end) = (workers * number / processes, workers * (number + 1) / processes);
        let place = format!("{} {token} {first} {end}", transport.address());
        Command::new(env::current_exe()?).env("CONTROL_WORKERS", place).spawn()
    };
    let children: Vec<Child> = (0..processes).map(child).collect::<Result<_, std::io::Error>>()?;
    let scheme_of = scheme.parse::<SchemeSpec>()?.scheme(workers, workers as u32, 0..steps)?;
    let engine = Engine::new(scheme_of, config, Settings::default())?;
    let run_clock = RunClock::wall(workers, &Delays::None, 0, 0.0);
    if !transport.gather(Duration::from_secs(120)).absent.is_empty() {
        return Err("not all workers came".into());
    }
    transport.begin(Step(0));
    let mut watch = Watch::default();
    Coordinator::new(transport, engine, run_clock).run(&mut watch)?;
    let now = seconds()?;
    let (begun, since) = watch.begun.ok_or("too few rounds")?;
    let milliseconds = |at: usize| (now[at] - begun[at]) / rounds as f64 * 1e3;
    let summary = serde_json::json!({
        "workers": workers, "processes": processes,
        "exchange": format!("{exchange:?}").to_lowercase(), "scheme": scheme, "rounds": rounds,
        "own_ms_per_round": milliseconds(0), "kernel_ms_per_round": milliseconds(1),
        "round_ms": (watch.ended - since) / rounds as f64 * 1e3,
    });
    println!("{summary}");
    for mut child in children {
        child.wait()?;
    }
    Ok(())
}

fn main() -> Outcome<()> {
    if let Ok(place) = env::var("CONTROL_WORKERS") {
        return workers(&place);
    }
    let words: Vec<String> = env::args().collect();
    let value =
        |name: &str| words.iter().position(|word| word == name).and_then(|at| words.get(at + 1));
    let number = |name: &str, default: u64| value(name).map_or(Ok(default), |text| text.parse());
    let quick = words.iter().any(|word| word == "--test");
    let workers = number("--workers", if quick { 6 } else { 64 })? as usize;
    let exchange = value("--exchange").map_or("star", String::as_str).parse::<Exchange>()?;
    let scheme = value("--scheme").map_or("uncoded", String::as_str);
    measure(
        workers,
        number("--processes", 1)? as usize,
        exchange,
        number("--rounds", if quick { 20 } else { 500 })?,
        scheme,
    )
}
