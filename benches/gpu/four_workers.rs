//! Steps of four workers whose gradients stay where they are computed, with the aggregator under
//! `groups:s=1` and without: the same gradients and updates, one barrier, one sum of two messages.
//! What stands in for a model is a gradient of many passes over the parameters, so that a step
//! takes some tenths of a second on a card.

use crate::program::{Outcome, median};
use codedgrad::codes::SchemeSpec;
use codedgrad::delays::{Delays, Trace};
use codedgrad::gpu::Vector;
use codedgrad::run::{RunConfig, Shape};
use codedgrad::schedulers::{Engine, Settings};
use codedgrad::sums::DecodedSum;
use codedgrad::train::{
    Aggregator, Coordinator, Event, Flow, Incident, Observer, RunClock, StepRecord,
};
use codedgrad::transport::{Link, local};
use std::error::Error;
use std::sync::{Arc, Barrier, Mutex, RwLock};
use std::thread;
use std::time::Instant;

pub(crate) const WORKERS: usize = 4;
/// Steps before the clock counts, and those it counts.
const WARM_UP: usize = 3;
const STEPS: usize = 15;
/// Units of a batch, of which each worker has half.
pub(crate) const UNITS: u32 = 4;

/// A run: where the workers' vectors lie, how to make one of ones, how long they are, and how much
/// there is to compute.
pub(crate) struct Load<'a, V: Vector> {
    pub(crate) places: &'a [V::Place],
    pub(crate) ones: &'a (dyn Fn(&V::Place, usize) -> V + Sync),
    pub(crate) length: usize,
    pub(crate) passes: usize,
}

/// Steps of a run.
pub(crate) fn steps() -> u64 {
    (WARM_UP + STEPS) as u64
}

/// The times that count.
pub(crate) fn counted(mut seconds: Vec<f64>) -> Vec<f64> {
    seconds.split_off(WARM_UP)
}

/// Seconds of a step without the aggregator, with it, and with one worker late by ten steps; all
/// three must end alike.
pub(crate) fn measure<V: Vector>(load: &Load<'_, V>) -> Outcome<([f64; 3], u64)> {
    let (plain, expected) = plain(load);
    let (with, found) = aggregated(load, &Delays::None)?;
    assert_eq!(found, expected, "both train alike");
    let trace = std::env::temp_dir().join(format!("codedgrad-late-{}.csv", std::process::id()));
    std::fs::write(&trace, format!("0,0,0,{}\n", 10.0 * with))?;
    let delays = Trace::read(&trace, WORKERS);
    std::fs::remove_file(&trace)?;
    let (late, found) = aggregated(load, &Delays::Trace(delays?))?;
    assert_eq!(found, expected, "a straggler changes nothing");
    Ok(([plain, with, late], expected))
}

/// Overwrites `message` with the gradient of a unit, in so many passes over the parameters.
fn gradient<V: Vector>(parameters: &V, unit: u32, passes: usize, message: &mut V) {
    message.clear();
    for pass in 0..passes {
        message.add((1.0 + (unit as usize + pass) as f32) / passes as f32, parameters);
    }
}

fn apply<V: Vector>(parameters: &mut V, gradient: &V) {
    parameters.add(-1e-3, gradient);
}

/// What the parameters are in the end, as far as a digest tells.
pub(crate) fn told<V: Vector>(parameters: V) -> u64 {
    let mut out = parameters.clone();
    V::fold(&[(1.0, Arc::new(parameters))], &mut out).expect("one length").digest
}

/// Two workers compute each half of the batch, and one of them is summed.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn plain<V: Vector>(load: &Load<'_, V>) -> (f64, u64) {
    let messages: Vec<Mutex<Option<V>>> = load.places.iter().map(|_| Mutex::default()).collect();
    let (sum, barrier) = (RwLock::new(None), Barrier::new(WORKERS));
    let seconds = Mutex::new(Vec::new());
    let told = thread::scope(|scope| {
        let work = |worker: usize| {
            let place = &load.places[worker];
            let mut parameters = (load.ones)(place, load.length);
            let (mut message, mut second) =
                (V::new(place, load.length), V::new(place, load.length));
            for _ in 0..WARM_UP + STEPS {
                let begin = Instant::now();
                let first = worker as u32 / 2 * 2;
                gradient(&parameters, first, load.passes, &mut message);
                gradient(&parameters, first + 1, load.passes, &mut second);
                message.add(1.0, &second);
                *messages[worker].lock().expect("a message") = Some(message);
                if barrier.wait().is_leader() {
                    let take = |worker: usize| {
                        messages[worker].lock().expect("a message").take().expect("it is there")
                    };
                    let (mut left, right) = (take(0), take(2));
                    left.add(1.0, &right);
                    assert!(left.finite(), "waits for the device");
                    *messages[2].lock().expect("a message") = Some(right);
                    *sum.write().expect("the sum") = Some(left);
                }
                barrier.wait();
                apply(&mut parameters, sum.read().expect("the sum").as_ref().expect("it is there"));
                let own = messages[worker].lock().expect("a message").take();
                message = own.unwrap_or_else(|| V::new(place, load.length));
                if barrier.wait().is_leader() {
                    seconds.lock().expect("times").push(begin.elapsed().as_secs_f64());
                }
            }
            told(parameters)
        };
        let threads: Vec<_> =
            (0..WORKERS).map(|worker| scope.spawn(move || work(worker))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a worker")).collect::<Vec<u64>>()
    });
    (median(counted(seconds.into_inner().expect("times"))), told[0])
}

fn aggregated<V: Vector>(load: &Load<'_, V>, delays: &Delays) -> Outcome<(f64, u64)> {
    let steps = steps();
    let scheme = "groups:s=1".parse::<SchemeSpec>()?.scheme(WORKERS, UNITS, 0..steps)?;
    let config = RunConfig::new(Shape::new(WORKERS, UNITS), load.length, steps);
    let engine = Engine::new(scheme, config, Settings::default())?;
    let (transport, links) = local::connect_at::<V>(load.places[0].clone(), load.places.to_vec());
    let mut seconds = Seconds(Vec::new());
    let told = thread::scope(|scope| -> Outcome<Vec<u64>> {
        let threads: Vec<_> = links
            .into_iter()
            .zip(load.places)
            .map(|(link, place)| scope.spawn(move || told(work(Box::new(link), place, load))))
            .collect();
        let run_clock = RunClock::wall(WORKERS, delays, steps as usize, 0.0);
        Coordinator::new(transport, engine, run_clock).run(&mut seconds)?;
        Ok(threads.into_iter().map(|thread| thread.join().expect("a worker")).collect())
    })?;
    Ok((median(counted(seconds.0)), told[0]))
}

/// A worker's parameters, when the run is over.
pub(crate) fn work<V: Vector>(link: Box<dyn Link<V>>, place: &V::Place, load: &Load<'_, V>) -> V {
    let mut aggregator = Aggregator::new(link, load.length, 1);
    let mut parameters = (load.ones)(place, load.length);
    while let Some(event) = aggregator.next_event().expect("the coordinator is there") {
        match event {
            Event::Compute(mut task) => {
                while let Some(part) = task.next_part() {
                    gradient(&parameters, part.unit, load.passes, task.vector());
                }
                task.submit(vec![]).expect("all parts are computed");
            }
            Event::Apply(step) => apply(&mut parameters, step.vector()),
            Event::Skip(_) | Event::Provide(_) | Event::Resync(_) => {
                panic!("nothing goes wrong here")
            }
        }
    }
    parameters
}

pub(crate) struct Seconds(pub(crate) Vec<f64>);

impl<V: Vector> Observer<V> for Seconds {
    fn step(
        &mut self,
        record: &StepRecord,
        _: Option<&DecodedSum<V>>,
    ) -> Result<Flow, Box<dyn Error + Send + Sync>> {
        self.0.push(record.seconds);
        Ok(Flow::Continue)
    }

    fn event(&mut self, happened: &Incident) {
        panic!("{happened}");
    }
}
