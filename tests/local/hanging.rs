//! A worker whose trainer hangs is lost, instead of being carried for ever.

use codedgrad::ids::Worker;
use codedgrad::sums::DecodedSum;
use codedgrad::train::{
    Aggregator, AggregatorError, Coordinator, Event, Flow, Incident, IncidentKind, Observer,
    Outcome, StepRecord,
};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{spawn, yield_now};

const STEPS: u64 = 6;

/// Sees the gradients, and who is lost.
struct Watch {
    gradients: Vec<f32>,
    lost: Vec<(u64, Worker, String)>,
    found: Arc<AtomicBool>,
}

impl Observer for Watch {
    fn step(
        &mut self,
        _: &StepRecord,
        decoded: Option<&DecodedSum>,
    ) -> Result<Flow, Box<dyn Error + Send + Sync>> {
        self.gradients.extend(decoded.map(|decoded| decoded.gradient[0]));
        Ok(Flow::Continue)
    }

    fn event(&mut self, Incident { step, what, .. }: &Incident) {
        if let IncidentKind::Lost { worker, reason } = what {
            self.lost.push((step.0, *worker, reason.clone()));
            self.found.store(true, Ordering::Release);
        }
    }
}

/// Worker 1 hangs in the task of step 1 until it is lost. Worker 0 is through with that step only
/// when worker 1 hangs, and with step 3 only when that was found, however threads get their turns.
fn train(
    mut aggregator: Aggregator,
    hanging: &AtomicBool,
    found: &AtomicBool,
) -> Result<(), AggregatorError> {
    let hangs = aggregator.worker() == Some(Worker(1));
    let wait_for = |flag: &AtomicBool| {
        while !flag.load(Ordering::Acquire) && !found.load(Ordering::Acquire) {
            yield_now();
        }
    };
    while let Some(event) = aggregator.next_event()? {
        let Event::Compute(mut task) = event else { continue };
        while let Some(part) = task.next_part() {
            match (hangs, task.step()) {
                (true, 1) => {
                    hanging.store(true, Ordering::Release);
                    wait_for(found);
                }
                (false, 1) => wait_for(hanging),
                (false, 3) => wait_for(found),
                _ => {}
            }
            task.message().fill(part.coefficient as f32);
        }
        task.submit(vec![])?;
    }
    Ok(())
}

#[test]
fn a_worker_whose_trainer_hangs_is_lost_and_the_run_goes_on() {
    let run = Coordinator::builder("groups:s=1").workers(2).units(2).steps(STEPS).length(1);
    let (coordinator, workers) = run.local().unwrap();
    let (hanging, found) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let threads: Vec<_> = workers
        .into_iter()
        .map(|worker| {
            let (hanging, found) = (Arc::clone(&hanging), Arc::clone(&found));
            spawn(move || train(worker, &hanging, &found))
        })
        .collect();
    let mut watch = Watch { gradients: Vec::new(), lost: Vec::new(), found };
    let outcome = coordinator.hangs_after(0.2).run(&mut watch).unwrap();
    assert_eq!(outcome, Outcome::Finished);
    let [(step, Worker(1), reason)] = &watch.lost[..] else { panic!("{:?}", watch.lost) };
    assert!(*step >= 1 && reason.starts_with("worker unresponsive"), "{reason}");
    assert_eq!(watch.gradients, [2.0; STEPS as usize], "no unit is lost, and none counts twice");
    let ends: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(ends[0], Ok(()));
    assert!(matches!(ends[1], Err(AggregatorError::Refused { .. })), "{:?}", ends[1]);
}
