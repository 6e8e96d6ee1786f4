//! The same steps by four workers in processes of their own, on cards or in the host's memory:
//! results go to the host and sums come back, or NCCL carries them.

use crate::four_workers::{Load, Seconds, UNITS, WORKERS, counted, steps, told, work};
use crate::program::{Outcome, again, median, token};
use codedgrad::codes::SchemeSpec;
use codedgrad::delays::Delays;
use codedgrad::gpu::{Gradient, GradientMut, Vector, WireBuffer};
use codedgrad::ids::Step;
use codedgrad::run::{RunConfig, Shape};
use codedgrad::schedulers::{Engine, Settings};
use codedgrad::sums::collective::{Collective, DeviceResults};
use codedgrad::train::{Coordinator, RunClock};
use codedgrad::transport::tcp::security::{Security, Token};
use codedgrad::transport::tcp::{Exchange, Join, Listen, TcpLink, TcpTransport};
use std::env;
use std::io::Read;
use std::time::{Duration, Instant};

/// Tells a process that it is a worker, and which, of whom.
const WORKER: &str = "GPU_BENCH_WORKER";
/// Turns of which the median is the time of a copy.
const TURNS: usize = 7;

/// What is measured of a run.
pub(crate) struct Measured {
    /// Of a step.
    pub(crate) seconds: f64,
    /// For one result to the host and one sum back.
    pub(crate) copies: f64,
    /// Steps that a collective summed, of all.
    pub(crate) by_collective: (u64, u64),
    pub(crate) told: u64,
}

/// Which worker this process is, if it is one, and how sums are exchanged.
pub(crate) fn part() -> Option<(usize, Exchange)> {
    let part = env::var(WORKER).ok()?;
    let [.., exchange, me] = part.split(' ').collect::<Vec<_>>()[..] else { return None };
    Some((me.parse().ok()?, exchange.parse().ok()?))
}

/// A worker's process. Prints what its parameters are in the end, and the seconds of both copies.
pub(crate) fn worker<V: Vector + Gradient + GradientMut>(
    load: &Load<'_, V>,
    collective: impl FnOnce(&V::Place, DeviceResults<V>) -> Result<Box<dyn Collective>, String>,
) -> Outcome<()> {
    let part = env::var(WORKER)?;
    let [address, token, _, me] = part.split(' ').collect::<Vec<_>>()[..] else {
        return Err("address, token, exchange and number".into());
    };
    let place = &load.places[me.parse::<usize>()?];
    let own = Join {
        worker: Some(me.parse()?),
        ..Join::new(address.into(), Security::Plain { token: Token::parse(token)? })
    };
    let (link, welcome) = TcpLink::join(own)?;
    let link = link.with_collective(place.clone(), &welcome, |results| collective(place, results));
    let told = told(work(Box::new(link), place, load));
    println!("{told} {}", copies(place, load)?);
    Ok(())
}

/// Seconds for a result to the host, and for a sum back.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn copies<V: Vector + Gradient + GradientMut>(
    place: &V::Place,
    load: &Load<'_, V>,
) -> Outcome<f64> {
    let (mut vector, mut numbers) = ((load.ones)(place, load.length), vec![0.0; load.length]);
    let mut seconds = Vec::new();
    for _ in 0..TURNS {
        let begin = Instant::now();
        vector.read(0, 1.0, WireBuffer::F32(&mut numbers))?;
        vector.write(0, &numbers)?;
        assert!(vector.finite(), "waits for the device");
        seconds.push(begin.elapsed().as_secs_f64());
    }
    Ok(median(seconds))
}

/// Steps of four processes.
pub(crate) fn measure(exchange: &str, length: usize) -> Outcome<Measured> {
    let (token, steps) = (token(), steps());
    let security = Security::Plain { token: Token::parse(&token)? };
    let config = RunConfig::new(Shape::new(WORKERS, UNITS), length, steps);
    let listen = Listen::new(([127, 0, 0, 1], 0).into(), security, config);
    let mut transport = TcpTransport::listen(Listen { exchange: exchange.parse()?, ..listen })?;
    let (address, status) = (transport.address(), transport.status());
    let words: Vec<String> = env::args().skip(1).collect();
    let mut children = Vec::new();
    for me in 0..WORKERS {
        children.push(again(&words, WORKER, &format!("{address} {token} {exchange} {me}"))?);
    }
    if !transport.gather(Duration::from_secs(120)).absent.is_empty() {
        return Err("not all workers came".into());
    }
    transport.begin(Step(0));
    let scheme = "groups:s=1".parse::<SchemeSpec>()?.scheme(WORKERS, UNITS, 0..steps)?;
    let engine = Engine::new(scheme, config, Settings::default())?;
    let mut seconds = Seconds(Vec::new());
    let run_clock = RunClock::wall(WORKERS, &Delays::None, steps as usize, 0.0);
    Coordinator::new(transport, engine, run_clock).run(&mut seconds)?;
    let mut found = Vec::new();
    for mut child in children {
        let mut text = String::new();
        child.stdout.take().ok_or("its output")?.read_to_string(&mut text)?;
        if !child.wait()?.success() {
            return Err("a worker failed".into());
        }
        let (told, copies) = text.trim().split_once(' ').ok_or("two numbers")?;
        found.push((told.parse::<u64>()?, copies.parse::<f64>()?));
    }
    assert!(found.iter().all(|other| other.0 == found[0].0), "all train alike");
    let copies = median(found.iter().map(|of| of.1).collect());
    let status = status.lock().map_err(|_| "no worker panics here")?;
    Ok(Measured {
        seconds: median(counted(seconds.0)),
        copies,
        by_collective: (status.sums.by_collective, status.sums.exchanges),
        told: found[0].0,
    })
}
