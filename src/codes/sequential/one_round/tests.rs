//! One round of a code.

#![cfg(test)]

use super::*;

fn one_round() -> OneRound {
    OneRound::new(Box::new(Groups::new(4, 2).unwrap()), Cut::new(4, 2).unwrap(), Job(5)..Job(7))
}

fn answer(scheme: &mut OneRound, worker: u32) -> bool {
    let mut tasks = Vec::new();
    scheme.assign(Worker(worker), &mut tasks);
    let wanted = |task| scheme.returned(Worker(worker), task) == ResultUse::Wanted;
    tasks.pop().is_some_and(wanted)
}

fn close(scheme: &mut OneRound, missing: &[u32]) -> Vec<Job> {
    let mut decoded = Vec::new();
    let missing = WorkerSet::of(4, missing.iter().copied().map(Worker));
    scheme.close(&missing, &[None; 4], &mut decoded);
    decoded
}

fn open(scheme: &mut OneRound) {
    assert!(scheme.on(RoundEvent::Opened { dead: &WorkerSet::empty(4) }));
}

fn lose(scheme: &mut OneRound, worker: u32) -> Vec<Task> {
    let mut reopened = Vec::new();
    let (worker, from) = (Worker(worker), Some(Job(5)));
    scheme.on(RoundEvent::Lost { worker, from, reopened: &mut reopened });
    reopened
}

#[test]
fn late_and_repeated_results_are_not_wanted() {
    let mut scheme = one_round();
    let old = Task { job: Job(5), piece: 1, plan: 0 };
    assert!(answer(&mut scheme, 0) && answer(&mut scheme, 2));
    let again = Task { job: Job(5), piece: 0, plan: 0 };
    assert_eq!(scheme.returned(Worker(0), again), ResultUse::Unwanted);
    assert!(scheme.admits(&WorkerSet::of(4, [Worker(1), Worker(3)])));
    assert_eq!(close(&mut scheme, &[1, 3]), [Job(5)]);
    assert_eq!(scheme.returned(Worker(1), old), ResultUse::Unwanted, "closed");
    assert!(!answer(&mut scheme, 1), "no round is open");
    open(&mut scheme);
    assert!(answer(&mut scheme, 1), "the next round has begun");
    assert_eq!(scheme.returned(Worker(1), old), ResultUse::Unwanted);
}

#[test]
fn a_lost_holder_reopens_only_what_nobody_else_has() {
    let mut scheme = one_round();
    for worker in 0..3 {
        assert!(answer(&mut scheme, worker));
    }
    close(&mut scheme, &[3]);
    assert_eq!(lose(&mut scheme, 0), [], "worker 1 holds the same share");
    let mut results = Vec::new();
    scheme.settle(Job(5), &mut results);
    assert_eq!(results.iter().map(|result| result.worker.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(lose(&mut scheme, 2), [Task { job: Job(5), piece: 2, plan: 0 }]);
    assert!(!scheme.admits(&WorkerSet::of(4, [0, 2, 3].map(Worker))));
    assert!(answer(&mut scheme, 3) && scheme.admits(&WorkerSet::of(4, [0, 2].map(Worker))));
}

#[test]
fn jobs_end() {
    let mut scheme = one_round();
    for _ in 0..2 {
        assert!(answer(&mut scheme, 0) && answer(&mut scheme, 3));
        close(&mut scheme, &[1, 2]);
        open(&mut scheme);
    }
    assert!(!answer(&mut scheme, 0));
}

#[test]
fn units_that_nobody_can_supply_are_named() {
    let scheme = one_round();
    assert_eq!(scheme.outlook(&WorkerSet::of(4, [Worker(0), Worker(2)])), Outlook::Open);
    assert_eq!(
        scheme.outlook(&WorkerSet::of(4, [Worker(2), Worker(3)])),
        Outlook::Blocked { jobs: vec![Job(5)], units: vec![Units { start: 2, end: 4 }] }
    );
}
