//! A trainer in plain Rust on the aggregator: four worker threads fit a line, two workers hold each
//! half of the batch, one worker dies on the way, and the gradient stays whole.
//!
//! `cargo run -p codedgrad --no-default-features --example plain_trainer`

use codedgrad::codes::SchemeSpec;
use codedgrad::delays::Delays;
use codedgrad::ids::{Step, Worker};
use codedgrad::schedulers::{Config, Engine};
use codedgrad::train::{
    Aggregator, AggregatorError, Coordinator, Event, Flow, Observer, Pace, Shape, StepRecord,
};
use codedgrad::transport::{Decoded, local};
use std::error::Error;
use std::thread;

const WORKERS: usize = 4;
const STEPS: u64 = 200;
const SAMPLES_PER_UNIT: usize = 8;

/// The loop a trainer runs on each worker.
fn worker(me: Worker, mut aggregator: Aggregator) -> Result<[f32; 2], AggregatorError> {
    let mut line = [0.0f32; 2];
    while let Some(event) = aggregator.next_event()? {
        match event {
            Event::Compute(task) if me == Worker(3) && task.step() == 50 => return Ok(line),
            Event::Compute(mut task) => {
                let (mut loss, batch) = (0.0, (WORKERS * SAMPLES_PER_UNIT) as f64);
                while let Some(part) = task.next_part() {
                    let mut gradient = [0.0f64; 2];
                    for sample in part.samples {
                        let x = sample as f64 / batch;
                        let error = f64::from(line[0]) * x + f64::from(line[1]) - (3.0 * x - 1.0);
                        gradient[0] += part.coefficient * error * x / batch;
                        gradient[1] += part.coefficient * error / batch;
                        loss += part.coefficient * error * error / batch;
                    }
                    task.message().copy_from_slice(&gradient.map(|g| g as f32));
                }
                task.submit(vec![loss])?;
            }
            Event::Apply(step) => {
                line.iter_mut().zip(step.gradient()).for_each(|(p, g)| *p -= 1.2 * g)
            }
            Event::Skip(_) => {}
            Event::Provide(request) => request.reply(vec![line.to_vec()]),
            Event::Resync(state) => line.copy_from_slice(&state.vectors[0]),
        }
    }
    Ok(line)
}

struct Print;

impl Observer for Print {
    fn step(
        &mut self,
        record: &StepRecord,
        _: Option<&Decoded>,
    ) -> Result<Flow, Box<dyn Error + Send + Sync>> {
        if record.step.is_multiple_of(40) {
            println!(
                "step {:3}: loss {:.6}, coverage {}, survivors {:?}",
                record.step, record.tail[0], record.coverage, record.survivors
            );
        }
        Ok(Flow::Continue)
    }

    fn fault(&mut self, step: u64, worker: Worker, what: &str) {
        println!("step {step:3}: {worker}: {what}");
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let scheme = "groups:s=1".parse::<SchemeSpec>()?.scheme(WORKERS, WORKERS as u32, 0..STEPS)?;
    let config = Config { max_wait_seconds: 10.0, ..Config::default() };
    let engine = Engine::new(scheme, config, Step(0)..Step(STEPS), 0)?;
    let (transport, links) = local::connect(WORKERS);
    let threads: Vec<_> = Worker::all(WORKERS)
        .zip(links)
        .map(|(me, link)| {
            thread::spawn(move || worker(me, Aggregator::new(Box::new(link), 2, SAMPLES_PER_UNIT)))
        })
        .collect();
    let pace = Pace::wall(WORKERS, &Delays::None, STEPS as usize, 0.0);
    let shape = Shape { workers: WORKERS, length: 2, units: WORKERS as u32, first: Step(0) };
    Coordinator::new(transport, engine, pace, config, shape).run(&mut Print)?;
    for (me, thread) in threads.into_iter().enumerate() {
        let line = thread.join().map_err(|_| "a worker panicked")??;
        println!("worker {me}: y = {:.3} x + {:.3}", line[0], line[1]);
        let fits = (line[0] - 3.0).abs() < 1e-3 && (line[1] + 1.0).abs() < 1e-3;
        assert!(fits || me == 3, "all but the worker that left have fitted y = 3 x - 1");
    }
    Ok(())
}
