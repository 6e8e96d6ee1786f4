//! Summing a gradient of several processes over loopback: how long a step takes from the answers,
//! which all workers that are not late give at one instant agreed beforehand, to the last replica,
//! and how many bytes a worker sends. `benches/peers` measures gloo and torchft on the same.
//!
//! `cargo bench -p codedgrad --bench exchange -- --workers 4 --elements
//! 16777216`
#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

mod processes;

use codedgrad::codes::SchemeSpec;
use codedgrad::delays::Delays;
use codedgrad::ids::Step;
use codedgrad::run::{Limits, NumberFormat, RunConfig, Shape};
use codedgrad::schedulers::{Engine, Settings};
use codedgrad::sums::DecodedSum;
use codedgrad::train::{
    Aggregator, Coordinator, Event, Flow, Incident, Observer, RunClock, StepRecord,
};
use codedgrad::transport::Link;
use codedgrad::transport::tcp::security::{Security, Token};
use codedgrad::transport::tcp::{Exchange, Join, Listen, TcpLink, TcpTransport};
use processes::{Outcome, again, median, token};
use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What is measured, from the command line; the workers get it by the same words.
#[derive(Clone)]
struct Case {
    scheme: String,
    workers: usize,
    elements: usize,
    steps: u64,
    warmup: u64,
    late_worker: Option<u32>,
    late_seconds: f64,
    exchange: String,
    wire: String,
    /// What befalls the last worker in the middle of the run: `KILL` or `STOP`.
    signal: Option<String>,
    /// Only whether it runs.
    quick: bool,
}

impl Case {
    fn parse(words: &[String]) -> Outcome<Self> {
        let value = |name: &str| {
            words.iter().position(|word| word == name).and_then(|at| words.get(at + 1))
        };
        let number =
            |name: &str, default: usize| value(name).map_or(Ok(default), |text| text.parse());
        let quick = words.iter().any(|word| word == "--test");
        Ok(Self {
            scheme: value("--scheme").map_or("uncoded".into(), Clone::clone),
            workers: number("--workers", 4)?,
            elements: number("--elements", if quick { 200_000 } else { 1 << 24 })?,
            steps: number("--steps", if quick { 3 } else { 30 })? as u64,
            warmup: number("--warmup", if quick { 1 } else { 5 })? as u64,
            late_worker: value("--late-worker").map(|text| text.parse()).transpose()?,
            late_seconds: value("--late-seconds").map_or(Ok(0.0), |text| text.parse())?,
            exchange: value("--exchange").map_or("sharded".into(), Clone::clone),
            wire: value("--wire").map_or("f32".into(), Clone::clone),
            signal: value("--signal").cloned(),
            quick,
        })
    }
}

/// Waits for the instant at which all workers answer, gradients in hand: worker 0 names it in a
/// file.
fn wait_for_start(meeting: &Path, me: u32, step: u64, case: &Case) -> Outcome<()> {
    let path = meeting.join(step.to_string());
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map(|now| now.as_secs_f64());
    if me == 0 {
        let pause =
            if case.quick { 0.02 } else { 0.2 + (case.workers * case.elements) as f64 / 4e8 };
        let draft = path.with_extension("draft");
        fs::write(&draft, (now()? + pause).to_string())?;
        fs::rename(draft, &path)?;
    }
    while !path.exists() {
        thread::sleep(Duration::from_millis(1));
    }
    let start: f64 = fs::read_to_string(path)?.parse()?;
    thread::sleep(Duration::from_secs_f64((start - now()?).max(0.0)));
    Ok(())
}

/// A worker: its gradient is a constant, and what is timed is from its answer to the decoded
/// gradient. Prints the seconds of every step, and the bytes it sent and received.
fn worker(address: &str, token: &str, me: u32, meeting: &Path, case: &Case) -> Outcome<()> {
    let security = Security::Plain { token: Token::parse(token)? };
    let join =
        Join { worker: Some(me), identity: me.to_string(), ..Join::new(address.into(), security) };
    let (link, welcome) = TcpLink::join(join)?;
    let traffic = link.traffic();
    let link: Box<dyn Link> = Box::new(link);
    let mut aggregator = Aggregator::new(link, welcome.length, 1);
    let mut answered = None;
    let mut seconds = Vec::new();
    let mut bytes = Vec::new();
    while let Some(event) = aggregator.next_event()? {
        match event {
            Event::Compute(mut task) => {
                let step = task.step();
                while let Some(part) = task.next_part() {
                    let value = part.coefficient as f32 * (part.unit + 1) as f32;
                    task.message().fill(value);
                }
                if case.signal.is_none() {
                    wait_for_start(meeting, me, step, case)?;
                }
                if case.late_worker == Some(me) && step >= case.warmup {
                    thread::sleep(Duration::from_secs_f64(case.late_seconds));
                }
                answered = Some((step, Instant::now()));
                task.submit(Vec::new())?;
            }
            Event::Apply(step) => {
                let expected = (case.workers * (case.workers + 1) / 2) as f32;
                assert!(
                    [0, welcome.length / 2, welcome.length - 1]
                        .iter()
                        .all(|at| step.gradient()[*at] == expected),
                    "the sum is whole"
                );
                if let Some((_, at)) = answered
                    .filter(|(answered, _)| *answered == step.index && step.index >= case.warmup)
                {
                    seconds.push(at.elapsed().as_secs_f64());
                }
                bytes.push(traffic());
            }
            Event::Skip(_) => return Err("no step is refused".into()),
            // There are no parameters: whoever missed many steps goes on with the next one.
            Event::Provide(request) => request.reply(Vec::new()),
            Event::Resync(_) => {}
        }
    }
    let first = bytes.get(case.warmup as usize - 1).copied().unwrap_or_default();
    let last = bytes.last().copied().unwrap_or_default();
    let steps = (bytes.len() as u64).saturating_sub(case.warmup).max(1);
    println!(
        "{}",
        serde_json::json!({ "seconds": seconds, "sent": (last.0 - first.0) / steps,
            "received": (last.1 - first.1) / steps })
    );
    Ok(())
}

struct Watch<'a> {
    case: &'a Case,
    children: &'a [Child],
    committed: Vec<Instant>,
    late_rounds: usize,
}

impl Observer for Watch<'_> {
    fn step(
        &mut self,
        record: &StepRecord,
        _: Option<&DecodedSum>,
    ) -> Result<Flow, Box<dyn Error + Send + Sync>> {
        if let (Some(signal), Some(last)) = (&self.case.signal, self.children.last())
            && record.step == self.case.warmup + self.case.steps / 2
        {
            Command::new("kill").args([format!("-{signal}"), last.id().to_string()]).status()?;
        }
        self.committed.push(Instant::now());
        self.late_rounds +=
            record.rounds.iter().filter(|round| round.arrivals.iter().any(Option::is_none)).count();
        Ok(Flow::Continue)
    }
    fn event(&mut self, happened: &Incident) {
        eprintln!("{happened}");
    }
}

fn coordinator(words: &[String], case: &Case) -> Outcome<()> {
    let token = token();
    let steps = case.warmup + case.steps;
    let shape = Shape::new(case.workers, case.workers as u32);
    let config = RunConfig {
        limits: Limits { max_wait_seconds: 600.0, ..Limits::default() },
        format: if case.wire == "bf16" { NumberFormat::Bf16 } else { NumberFormat::F32 },
        log_steps: 2,
        ..RunConfig::new(shape, case.elements, steps)
    };
    let security = Security::Plain { token: Token::parse(&token)? };
    let listen = Listen {
        exchange: case.exchange.parse::<Exchange>()?,
        keeps: false,
        silence: Duration::from_secs(60),
        spare: Duration::from_secs(2),
        ..Listen::new(([127, 0, 0, 1], 0).into(), security, config)
    };
    let mut transport = TcpTransport::listen(listen)?;
    let meeting =
        env::temp_dir().join(format!("exchange-{}-{}", std::process::id(), case.exchange));
    fs::create_dir(&meeting)?;
    let place = |me: usize| format!("{} {token} {me} {}", transport.address(), meeting.display());
    let mut children: Vec<Child> = (0..case.workers)
        .map(|me| again(words, "EXCHANGE_WORKER", &place(me)))
        .collect::<Result<_, _>>()?;
    let scheme =
        case.scheme.parse::<SchemeSpec>()?.scheme(case.workers, case.workers as u32, 0..steps)?;
    let engine = Engine::new(scheme, config, Settings::default())?;
    let run_clock = RunClock::wall(case.workers, &Delays::None, steps as usize, 0.0);
    if !transport.gather(Duration::from_secs(60)).absent.is_empty() {
        return Err("not all workers came".into());
    }
    transport.begin(Step(0));
    let mut watch = Watch { case, children: &children, committed: Vec::new(), late_rounds: 0 };
    Coordinator::new(transport, engine, run_clock).run(&mut watch)?;
    let Watch { committed, late_rounds, .. } = watch;
    if let (Some(_), Some(mut last)) = (&case.signal, children.pop()) {
        last.kill()?;
        last.wait()?;
    }
    let mut reports: Vec<serde_json::Value> = Vec::new();
    for child in children {
        reports.push(serde_json::from_slice(&child.wait_with_output()?.stdout)?);
    }
    fs::remove_dir_all(meeting)?;
    let seconds = |report: &serde_json::Value| {
        report["seconds"]
            .as_array()
            .map_or(vec![], |all| all.iter().filter_map(|x| x.as_f64()).collect())
    };
    let all: Vec<Vec<f64>> = reports.iter().map(seconds).collect();
    let longest = |step: usize| {
        all.iter().filter_map(|seconds: &Vec<f64>| seconds.get(step)).copied().fold(0.0, f64::max)
    };
    let steps: Vec<f64> =
        (0..case.steps as usize).map(longest).filter(|seconds| *seconds > 0.0).collect();
    let between: Vec<f64> = committed
        .windows(2)
        .skip(case.warmup as usize)
        .map(|pair| (pair[1] - pair[0]).as_secs_f64())
        .collect();
    let bytes = |key: &str| {
        reports.iter().filter_map(|report| report[key].as_f64()).fold(0.0, f64::max)
            / (4.0 * case.elements as f64)
    };
    let summary = serde_json::json!({
        "peer": "codedgrad", "scheme": case.scheme, "exchange": case.exchange, "wire": case.wire,
        "workers": case.workers,
        "elements": case.elements, "late_seconds": case.late_seconds, "steps": steps.len(),
        "late_rounds": late_rounds, "longest_gap": between.iter().copied().fold(0.0, f64::max),
        "seconds": { "median": median(steps.clone()),
        "min": steps.iter().copied().fold(f64::INFINITY, f64::min) },
        "between_commits": median(between), "sent_gradients": bytes("sent"),
        "received_gradients": bytes("received"),
    });
    println!("{summary}");
    Ok(())
}

fn main() -> Outcome<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let case = Case::parse(&words)?;
    if let Ok(place) = env::var("EXCHANGE_WORKER") {
        let [address, token, me, meeting] = place.splitn(4, ' ').collect::<Vec<_>>()[..] else {
            return Err("no place".into());
        };
        return worker(address, token, me.parse()?, Path::new(meeting), &case);
    }
    if case.quick {
        for exchange in ["star", "sharded"] {
            coordinator(&words, &Case { exchange: exchange.into(), ..case.clone() })?;
        }
        return Ok(());
    }
    coordinator(&words, &case)
}
