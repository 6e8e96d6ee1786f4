//! Threads that are done without for some steps.

use codedgrad::ids::Worker;
use codedgrad::sums::DecodedSum;
use codedgrad::train::{
    Aggregator, Coordinator, Event, Flow, Incident, Observer, Outcome, StepRecord,
};
use std::error::Error;
use std::thread::spawn;

const STEPS: u64 = 40;

/// Worker 1 is to be done without from step 2 to step 20.
#[derive(Default)]
struct Drains {
    step: u64,
    survivors: Vec<Vec<Worker>>,
    kinds: Vec<&'static str>,
}

impl Observer for Drains {
    fn step(
        &mut self,
        record: &StepRecord,
        decoded: Option<&DecodedSum>,
    ) -> Result<Flow, Box<dyn Error + Send + Sync>> {
        assert_eq!(decoded.map(|decoded| decoded.gradient[0]), Some(8.0), "all samples count");
        (self.step, _) = (record.step, self.survivors.push(record.survivors.clone()));
        Ok(Flow::Continue)
    }

    fn event(&mut self, happened: &Incident) {
        self.kinds.push(happened.what.kind());
    }

    fn drained(&mut self) -> Option<Vec<Worker>> {
        match self.step {
            2 => Some(vec![Worker(1), Worker(9)]),
            20 => Some(Vec::new()),
            _ => None,
        }
    }
}

fn work(mut worker: Aggregator) {
    let mut steps = 0.0;
    while let Some(event) = worker.next_event().unwrap() {
        match event {
            Event::Compute(mut task) => {
                while task.next_part().is_some() {
                    task.message()[0] = 1.0;
                }
                task.submit(vec![]).unwrap();
            }
            Event::Apply(_) => steps += 1.0,
            Event::Skip(_) => {}
            Event::Provide(request) => request.reply(vec![vec![steps]]),
            Event::Resync(state) => steps = state.vectors[0][0],
        }
    }
    assert_eq!(steps, STEPS as f32, "it has every step");
}

#[test]
fn a_thread_that_is_done_without_waits_and_comes_back() {
    let run = Coordinator::builder("uncoded").workers(4).units(8).steps(STEPS).length(1);
    let (coordinator, workers) = run.min_workers(3).log_steps(4).local().unwrap();
    let threads: Vec<_> = workers.into_iter().map(|worker| spawn(move || work(worker))).collect();
    let mut seen = Drains::default();
    assert_eq!(coordinator.run(&mut seen).unwrap(), Outcome::Finished);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let counts: Vec<usize> = seen.survivors.iter().map(Vec::len).collect();
    assert!(counts[..4].iter().all(|count| *count == 4), "{counts:?}");
    assert!(counts[4..22].iter().all(|count| *count == 3), "{counts:?}");
    assert_eq!(counts.last(), Some(&4), "{counts:?}");
    assert!(!seen.kinds.contains(&"lost"), "{:?}", seen.kinds);
    for kind in ["drained", "join"] {
        assert_eq!(seen.kinds.iter().filter(|it| **it == kind).count(), 1, "{:?}", seen.kinds);
    }
}
