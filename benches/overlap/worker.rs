//! A worker, whose backward pass is sleep or loops.

use super::case::{Case, LAYERS};
use super::namespaces::Namespaces;
use super::processes::Outcome;
use codedgrad::train::{Aggregator, ComputeTask, Event};
use codedgrad::transport::Link;
use codedgrad::transport::tcp::security::{Security, Token};
use codedgrad::transport::tcp::{Join, TcpLink, Waker};
use std::hint::black_box;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Sleeps until a moment, unless the run wants the task no more.
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
pub(super) fn loops_per_second() -> f64 {
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

/// Makes loops, unless the run wants the task no more.
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

pub(super) fn work(address: &str, token: &str, me: u32, case: &Case) -> Outcome<()> {
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

pub(super) fn woken(runtime: &Runtime, waker: &mut Waker) -> bool {
    runtime.block_on(waker.woken())
}

fn kill_soon(seconds: f64) {
    thread::spawn(move || {
        thread::sleep(Duration::from_secs_f64(seconds));
        std::process::abort();
    });
}
