//! The program that the launcher starts in these tests: this test's own, as a worker of a run that
//! trains a few numbers. All of them are small integers, so that no order of summation shows.

use codedgrad::train::{Aggregator, Event};
use codedgrad::transport::RunFacts;
use std::env;
use std::thread::sleep;
use std::time::Duration;

pub(crate) const LENGTH: usize = 4;
pub(crate) const UNITS: u32 = 8;

/// The gradient of a unit at some parameters.
fn add_gradient(parameters: &[f32], (batch, unit): (u64, u32), sum: &mut [f32]) {
    for (i, (sum, x)) in sum.iter_mut().zip(parameters).enumerate() {
        *sum += ((batch + u64::from(unit) * 3 + i as u64) % 5) as f32 + *x % 7.0;
    }
}

fn apply(parameters: &mut [f32], gradient: &[f32]) {
    for (x, g) in parameters.iter_mut().zip(gradient) {
        *x = (*x + *g) % 97.0;
    }
}

fn digest(parameters: &[f32]) -> String {
    format!("{parameters:?}")
}

/// What a process alone comes to.
pub(crate) fn alone(steps: u64) -> String {
    let mut parameters = [1.0; LENGTH];
    for step in 0..steps {
        let mut sum = [0.0; LENGTH];
        (0..UNITS).for_each(|unit| add_gradient(&parameters, (step, unit), &mut sum));
        apply(&mut parameters, &sum);
    }
    digest(&parameters)
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
#[ignore = "it is the worker that the other tests start"]
fn worker() {
    let worker = number("CODEDGRAD_WORKER").unwrap();
    println!("worker {worker} of {}", env::var("CODEDGRAD_WORKERS").unwrap());
    // In one piece, or what is printed may come between its parts in the log.
    let epoch = format!("epoch {}\n", env::var("CODEDGRAD_EPOCH").unwrap());
    eprint!("{epoch}");
    if let Some(status) = number("ENDS_WITH") {
        std::process::exit(status as i32);
    }
    if env::var("NEVER_JOINS").is_ok() {
        sleep(Duration::from_secs(600));
    }
    let (steps, pause) = (number("STEPS").unwrap(), number("PAUSE_MS").unwrap_or(0));
    let differs = number("DIFFERS") == Some(worker);
    let steps = if differs { steps + 1 } else { steps };
    let facts = RunFacts {
        length: Some(LENGTH),
        units: Some(UNITS),
        steps: Some(steps),
        ..RunFacts::default()
    };
    let joining = Aggregator::join(env::var("CODEDGRAD_ADDRESS").unwrap()).facts(facts);
    let mut aggregator = joining.unit_samples(1).connect().unwrap();
    println!("joined: {}", aggregator.job());
    let mut parameters = vec![1.0; LENGTH];
    while let Some(event) = aggregator.next_event().unwrap() {
        match event {
            Event::Compute(mut task) => {
                sleep(Duration::from_millis(pause));
                if number("FAILS_AT") == Some(task.step()) {
                    println!("bad sample in step {}", task.step());
                    std::process::exit(3);
                }
                while let Some(part) = task.next_part() {
                    let mut sum = [0.0; LENGTH];
                    add_gradient(&parameters, (task.batch(), part.unit), &mut sum);
                    if number("NAN_FROM").is_some_and(|from| task.step() >= from) {
                        sum[0] = f32::NAN;
                    }
                    task.message().copy_from_slice(&sum);
                }
                task.submit(vec![]).unwrap();
            }
            Event::Apply(mut step) => {
                apply(&mut parameters, step.gradient());
                if number("ENDS_AFTER") == Some(step.index) && worker == 1 {
                    step.end_run();
                }
            }
            Event::Skip(_) => {}
            Event::Provide(request) => request.reply(vec![parameters.clone()]),
            Event::Resync(state) => parameters.copy_from_slice(&state.vectors[0]),
        }
    }
    println!("ends with {}", digest(&parameters));
    // What happens to trainers after the last step, where they save what they have learned.
    let named = |name: &str| env::var(name).is_ok_and(|of| of.contains(&worker.to_string()));
    if named("STAYS") {
        sleep(Duration::from_secs(600));
    }
    if named("CRASHES_LATE") {
        std::process::exit(1);
    }
}
