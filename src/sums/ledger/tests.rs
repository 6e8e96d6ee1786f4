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
    assert_eq!(
        ledger.reduce(Step(3), task, 2.0).map(|spent| (spent, ledger.sum(Step(3)).unwrap()[0])),
        Ok((None, 2.0))
    );
}

#[test]
fn results_of_one_task_are_counted_one_by_one() {
    let task = Task { job: Job(3), piece: 1, plan: 0 };
    let mut ledger = Ledger::default();
    ledger.keep(task, vec![1.0]);
    ledger.keep(task, vec![1.0]);
    assert!(
        ledger.discard(task).is_some()
            && ledger.result(task).is_some_and(|result| **result == [1.0])
    );
    assert!(ledger.reduce(Step(3), task, -2.0).unwrap().is_none());
    assert_eq!((ledger.sum(Step(3)).map(|sum| &sum[..]), ledger.len()), (Some(&[-2.0][..]), 1));
    ledger.keep(task, vec![1.0, 2.0]);
    assert!(matches!(
        ledger.reduce(Step(3), task, 1.0),
        Err(CombineError::Length { expected: 1, found: 2, .. })
    ));
    assert!(ledger.result(task).is_some(), "a result that does not fit is not lost");
    ledger.keep(Task { job: Job(4), piece: 0, plan: 0 }, vec![5.0]);
    assert_eq!(ledger.release(Step(3), Job(4)).len(), 2);
    assert_eq!((ledger.len(), ledger.take_peak(), ledger.take_peak()), (1, 3, 1));
}
