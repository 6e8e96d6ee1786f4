//! Who is dealt which micro-batches.

#![cfg(test)]

use super::*;
use crate::codes::sequential::Accept;

/// A queue of one item per worker, all of which are given out.
fn queue(jobs: u64) -> Queue {
    let jobs = Job(0)..Job(jobs);
    let horizon = Horizon { workers: 4, units: None, jobs, accept: Accept::Lookahead };
    let mut queue = Queue::new(1, horizon).unwrap();
    queue.on(RoundEvent::Opened { dead: &WorkerSet::empty(4) });
    assert!((0..4).all(|worker| takes(&mut queue, worker) == Some(worker)));
    queue
}

fn takes(queue: &mut Queue, worker: u32) -> Option<u32> {
    queue.pull(Worker(worker)).map(|task| task.piece)
}

fn returns(queue: &mut Queue, worker: u32, piece: u32) {
    let task = Task { job: queue.claims.job(), piece, plan: 0 };
    assert_eq!(queue.returned(Worker(worker), task), ResultUse::Wanted);
}

fn loses(queue: &mut Queue, worker: u32) {
    queue.on(RoundEvent::Lost { worker: Worker(worker), from: None, reopened: &mut Vec::new() });
}

fn is_open(queue: &Queue, gone: impl IntoIterator<Item = Worker>) -> bool {
    queue.outlook(&WorkerSet::of(4, gone)) == Outlook::Open
}

/// Item 0 costs workers 0 and 1.
fn costs_two(queue: &mut Queue) {
    loses(queue, 0);
    returns(queue, 1, 1);
    assert_eq!(takes(queue, 1), Some(0));
    loses(queue, 1);
}

#[test]
fn who_is_back_takes_what_has_cost_two() {
    let mut queue = queue(1);
    costs_two(&mut queue);
    let lost = [Worker(0), Worker(1)];
    assert!(is_open(&queue, [Worker(0)]) && !is_open(&queue, lost), "worker 1 may come back");
    returns(&mut queue, 2, 2);
    assert_eq!(takes(&mut queue, 2), Some(1), "what worker 1 had done");
    returns(&mut queue, 2, 1);
    assert_eq!(takes(&mut queue, 2), Some(3), "and helps worker 3 rather than be lost");
    assert_eq!(takes(&mut queue, 1), Some(0));
    assert!(is_open(&queue, [Worker(0)]) && !is_open(&queue, lost));
    returns(&mut queue, 3, 3);
    assert_eq!(takes(&mut queue, 3), None, "nor does it help worker 1");
    loses(&mut queue, 1);
    assert_eq!(takes(&mut queue, 3), None);
    queue.on(RoundEvent::NoReturns);
    assert!(is_open(&queue, lost));
    assert_eq!(takes(&mut queue, 3), Some(0));
}

#[test]
fn of_two_that_are_at_it_the_other_may_finish() {
    let mut queue = queue(1);
    loses(&mut queue, 0);
    for worker in [1, 2] {
        returns(&mut queue, worker, worker);
        assert_eq!(takes(&mut queue, worker), Some(0));
    }
    loses(&mut queue, 1);
    assert!(is_open(&queue, [Worker(0), Worker(1)]), "worker 2 is at it");
    returns(&mut queue, 3, 3);
    assert_eq!(takes(&mut queue, 3), Some(1));
    returns(&mut queue, 3, 1);
    assert_eq!(takes(&mut queue, 3), None, "two are enough");
    returns(&mut queue, 2, 0);
    assert!(queue.admits(&WorkerSet::empty(4)));
}

#[test]
fn losses_are_forgotten_with_their_job_and_not_when_it_begins_again() {
    let mut queue = queue(2);
    costs_two(&mut queue);
    let dead = WorkerSet::of(4, [Worker(1)]);
    queue.restart(Job(0)..Job(2));
    queue.on(RoundEvent::Opened { dead: &dead });
    assert_eq!([2, 3].map(|worker| takes(&mut queue, worker)), [Some(1), Some(2)]);
    assert_eq!(takes(&mut queue, 0), Some(0), "it is back");
    for (worker, piece) in [(2, 1), (3, 2), (0, 0)] {
        returns(&mut queue, worker, piece);
    }
    assert_eq!(takes(&mut queue, 2), Some(3));
    returns(&mut queue, 2, 3);
    let mut decoded = Vec::new();
    queue.close(&dead, &[None; 4], &mut decoded);
    assert_eq!(decoded, [Job(0)]);
    queue.on(RoundEvent::Opened { dead: &dead });
    assert_eq!(takes(&mut queue, 2), Some(0));
}
