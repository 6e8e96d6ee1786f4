//! The processes of a drill: workers that train a model of small integers and 64ths of them, whose
//! sums are exact, and a coordinator that tells of every commit.

use super::case::{Case, End, UNITS};
use super::processes::Outcome;
use super::tap::{Phase, Taps};
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
use codedgrad::transport::tcp::{Join, Listen, TcpLink, TcpTransport};
use rustix::process::{Signal, getpid, kill_process};
use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use xxhash_rust::xxh3::xxh3_64;

/// Parts of a gradient that are final one after the other.
const BUCKETS: usize = 4;

/// The gradient of a unit.
fn write_gradient(out: &mut [f32], parameters: &[f32], batch: u64, unit: u32, coefficient: f64) {
    let shift = 13 * unit as usize + 31 * batch as usize;
    for (i, (out, p)) in out.iter_mut().zip(parameters).enumerate() {
        *out = coefficient as f32 * (p.floor() - (((7 * i + shift) % 101) as f32 - 50.0));
    }
}

/// A worker, and what befalls it.
pub(crate) fn worker(
    address: &str,
    token: &str,
    me: u32,
    drilled: bool,
    case: &Case,
) -> Outcome<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let taps = Taps::new(case.drill.filter(|_| drilled));
    let security = Security::Plain { token: Token::parse(token)? };
    let join = Join {
        worker: Some(me),
        identity: me.to_string(),
        patience: Duration::from_secs(30),
        ..Join::new(address.into(), security)
    };
    runtime.block_on(async {
        let (link, welcome) = TcpLink::join_over(Arc::new(taps.clone()), join).await?;
        let mut waker = link.waker();
        let mut aggregator = Aggregator::new(Box::new(link), welcome.length, 1);
        let mut parameters = vec![0.0f32; welcome.length];
        loop {
            match aggregator.next_event() {
                Err(_) if waker.woken().await => {}
                Err(error) => return Err(error.into()),
                Ok(None) => return Ok(()),
                Ok(Some(Event::Compute(mut task))) => {
                    let step = task.step();
                    taps.comes_to(Phase::BeforeCompute, step).await;
                    let mut parts = 0;
                    while let Some(part) = task.next_part() {
                        let is_last = parts + 1 == case.units_of_task();
                        if !is_last {
                            tokio::time::sleep(case.part(me)).await;
                        }
                        write_gradient(
                            task.message(),
                            &parameters,
                            step,
                            part.unit,
                            part.coefficient,
                        );
                        // The last one's backward pass: its buckets are final one by one.
                        for bucket in (0..BUCKETS).rev().filter(|_| is_last) {
                            tokio::time::sleep(case.part(me) / BUCKETS as u32).await;
                            let edge = |bucket: usize| welcome.length * bucket / BUCKETS;
                            task.ready(edge(bucket)..edge(bucket + 1))?;
                            if bucket == BUCKETS / 2 {
                                taps.comes_to(Phase::AnnouncedHalf, step).await;
                            }
                        }
                        parts += 1;
                        if parts == 2 {
                            taps.comes_to(Phase::InCompute, step).await;
                        }
                    }
                    task.submit(Vec::new())?;
                }
                Ok(Some(Event::Apply(step))) => {
                    parameters.iter_mut().zip(step.gradient()).for_each(|(p, g)| *p -= g / 64.0);
                    step.applied_with(xxh3_64(bytemuck::cast_slice(&parameters)));
                }
                Ok(Some(Event::Skip(_))) => return Err("no step is refused".into()),
                Ok(Some(Event::Provide(request))) => request.reply(vec![parameters.clone()]),
                Ok(Some(Event::Resync(state))) => parameters.clone_from(&state.vectors[0]),
            }
        }
    })
}

/// Seconds since some time long ago, the same for all processes.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64())
}

struct Journal<'a> {
    file: File,
    end: Option<End>,
    case: &'a Case,
}

fn die(after: Duration) {
    thread::spawn(move || {
        thread::sleep(after);
        kill_process(getpid(), Signal::KILL)
    });
}

impl Observer for Journal<'_> {
    fn step(
        &mut self,
        record: &StepRecord,
        _: Option<&DecodedSum>,
    ) -> Result<Flow, Box<dyn Error + Send + Sync>> {
        writeln!(self.file, "{}", record.step)?;
        // Of ten steps some take it no time, and some long.
        thread::sleep(Duration::from_secs_f64(
            self.case.busy_seconds * (record.step % 10) as f64 / 9.0,
        ));
        println!("{} {} {} {}", record.step, now(), record.digest, record.decode.coverage);
        match self.end {
            Some(End::InCompute(step)) if step == record.step + 1 => die(2 * self.case.part(0)),
            Some(End::AtCommit(step)) if step == record.step => {
                kill_process(getpid(), Signal::KILL)?;
            }
            _ => {}
        }
        Ok(Flow::Continue)
    }

    fn event(&mut self, happened: &Incident) {
        eprintln!("{:.3} {happened}", now() % 1000.0);
    }
}

/// The coordinator, from where its journal ends.
pub(crate) fn coordinator(token: &str, folder: &Path, case: &Case) -> Outcome<()> {
    let journal = folder.join("journal");
    let recorded = fs::read_to_string(&journal).map_or(0, |text| text.lines().count() as u64);
    let place: PathBuf = folder.join("address");
    let known = fs::read_to_string(&place).ok();
    let address = known.as_deref().unwrap_or("127.0.0.1:0").parse()?;
    let config = RunConfig {
        limits: Limits { return_seconds: 30.0, ..Limits::default() },
        ..RunConfig::new(Shape::new(case.workers, UNITS), case.elements, case.steps)
    };
    let security = Security::Plain { token: Token::parse(token)? };
    let listen = Listen {
        exchange: case.exchange.parse()?,
        run: 1,
        ..Listen::new(address, security, config)
    };
    let mut transport = TcpTransport::listen(listen)?;
    let draft = folder.join("address.draft");
    fs::write(&draft, transport.address().to_string())?;
    fs::rename(draft, place)?;
    let gathered = transport.gather(Duration::from_secs(20));
    let best = gathered
        .present
        .iter()
        .filter_map(|(_, next)| *next)
        .filter(|next| next.0 <= recorded)
        .max();
    let start = best.unwrap_or(Step(0));
    let text = (0..start.0).map(|step| format!("{step}\n")).collect::<String>();
    fs::write(&journal, text)?;
    transport.begin(start);
    let scheme =
        "groups:s=1".parse::<SchemeSpec>()?.scheme(case.workers, UNITS, start.0..case.steps)?;
    let engine = Engine::new(scheme, RunConfig { first: start, ..config }, Settings::default())?;
    let file = OpenOptions::new().append(true).open(journal)?;
    let mut journal = Journal { file, end: case.end.filter(|_| known.is_none()), case };
    let run_clock = RunClock::wall(case.workers, &Delays::None, 0, 0.0);
    Coordinator::new(transport, engine, run_clock).run(&mut journal)?;
    Ok(())
}
