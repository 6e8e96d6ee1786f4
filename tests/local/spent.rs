//! The record tells what workers have computed, also of those that no round waited for.

use codedgrad::ids::Worker;
use codedgrad::sums::DecodedSum;
use codedgrad::train::{Aggregator, Coordinator, Event, Flow, Observer, StepRecord};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{spawn, yield_now};

#[derive(Default)]
struct Records(Vec<StepRecord>);

impl Observer for Records {
    fn step(
        &mut self,
        record: &StepRecord,
        _: Option<&DecodedSum>,
    ) -> Result<Flow, Box<dyn Error + Send + Sync>> {
        self.0.push(record.clone());
        Ok(Flow::Continue)
    }
}

fn until(holds: impl Fn() -> bool) {
    while !holds() {
        yield_now();
    }
}

/// Worker 1 computes one unit of step 0 and goes on when it is sent home; worker 0 waits until it
/// has begun, and before it ends step 1 until it was sent home.
fn train(mut aggregator: Aggregator, [begun, at_home]: [&AtomicBool; 2]) {
    let slow = aggregator.worker() == Some(Worker(1));
    while let Some(event) = aggregator.next_event().unwrap() {
        let Event::Compute(mut task) = event else { continue };
        if slow && task.step() == 0 {
            assert!(task.next_part().is_some());
            task.message().fill(1.0);
            begun.store(true, Ordering::Release);
            let cancel = task.cancel();
            until(|| cancel.is_cancelled());
            assert!(task.next_part().is_none());
            drop(task);
            at_home.store(true, Ordering::Release);
            continue;
        }
        // Or the other one could be told to drop what it has not begun.
        until(|| begun.load(Ordering::Acquire));
        if task.step() == 1 {
            until(|| at_home.load(Ordering::Acquire));
        }
        while task.next_part().is_some() {
            task.message().fill(1.0);
        }
        task.submit(vec![]).unwrap();
    }
}

#[test]
fn who_was_sent_home_has_its_work_in_a_later_line() {
    let run = Coordinator::builder("groups:s=1").workers(2).units(4).steps(3).length(1);
    let (coordinator, workers) = run.local().unwrap();
    let begun = Arc::new(AtomicBool::new(false));
    let at_home = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = workers
        .into_iter()
        .map(|worker| {
            let (begun, at_home) = (Arc::clone(&begun), Arc::clone(&at_home));
            spawn(move || train(worker, [&begun, &at_home]))
        })
        .collect();
    let mut records = Records::default();
    coordinator.run(&mut records).unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let spent: Vec<_> = records.0.iter().flat_map(|record| &record.spent).collect();
    let of = |round: u64, worker: u32| {
        let its = spent.iter().find(|it| (it.round, it.worker) == (round, Worker(worker)));
        its.unwrap_or_else(|| panic!("nothing of worker {worker} in round {round}: {spent:?}"))
    };
    assert_eq!(of(0, 0).progress, 1.0);
    assert_eq!(of(0, 1).progress, 0.25, "one of four units");
    assert!(records.0[0].rounds[0].arrivals[1].is_none(), "no worker waited for it");
    assert!(spent.iter().all(|it| it.computed >= 0.0 && it.came >= 0.0), "{spent:?}");
}
