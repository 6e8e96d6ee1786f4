//! What was computed before a state was taken over is forgotten first, and more.

#![cfg(test)]

use super::*;

#[test]
fn what_was_computed_before_a_state_was_taken_over_is_forgotten_first() {
    let task = Task { job: Job(3), piece: 1, plan: 0 };
    let mut ledger = Ledger::default();
    ledger.keep(task, vec![f32::MAX]);
    ledger.keep(task, vec![1.0]);
    assert_eq!(ledger.discard(task).unwrap()[0], f32::MAX);
    assert!(ledger.result(task).is_some_and(|result| **result == [1.0]));
}

#[test]
fn results_of_one_task_are_counted_one_by_one() {
    let task = |job| Task { job: Job(job), piece: 1, plan: 0 };
    let mut ledger = Ledger::default();
    ledger.keep(task(3), vec![1.0]);
    ledger.keep(task(3), vec![1.0]);
    assert!(ledger.discard(task(3)).is_some() && ledger.result(task(3)).is_some());
    ledger.keep(task(3), vec![2.0]);
    ledger.keep(task(4), vec![5.0]);
    assert_eq!(ledger.release(Job(4)).len(), 2);
    assert_eq!((ledger.len(), ledger.take_peak(), ledger.take_peak()), (1, 3, 1));
}
