//! Groups that sum by a collective.

#![cfg(test)]

use super::*;
use crate::gpu::non_host::NonHostVector;

fn task(job: u64) -> Task {
    Task { job: Job(job), piece: 0, plan: 0 }
}

/// The host's copies are made once, and are those of what is held now.
#[test]
fn copies_for_the_host_follow_what_is_held() {
    let results: DeviceResults<NonHostVector> = DeviceResults::new(2);
    results.keep(task(1), NonHostVector(vec![1.0, 2.0]));
    results.keep(task(2), NonHostVector(vec![10.0, 20.0]));
    let read = |job| results.read(task(job)).map(|numbers| numbers.to_vec());
    assert_eq!(read(1), Some(vec![1.0, 2.0]));
    assert!(Arc::ptr_eq(&results.read(task(1)).unwrap(), &results.read(task(1)).unwrap()));
    assert_eq!(read(2), Some(vec![10.0, 20.0]));
    results.discard(task(2));
    assert_eq!((read(1), read(2), results.count()), (Some(vec![1.0, 2.0]), None, 1));
    results.keep(task(2), NonHostVector(vec![5.0, 5.0]));
    assert_eq!(read(2), Some(vec![5.0, 5.0]), "a task that was computed again");
    results.release(Job(3));
    assert_eq!((read(1), read(2), results.count()), (None, None, 0));
    assert!(
        results.spare(&0, 3).is_none() && (0..2).all(|_| results.spare(&0, 2).is_some()),
        "their memory goes round"
    );
    results.keep(task(4), NonHostVector(vec![f32::NAN]));
    assert_eq!(read(4), None, "a device that fails gives nothing");
}

#[test]
fn the_last_sums_are_kept_and_outlive_what_is_cleared() {
    let results: DeviceResults<NonHostVector> = DeviceResults::new(2);
    results.passed(Step(3));
    let keep = |step, attempt, x| {
        let id = SumId { step: Step(step), attempt };
        results
            .keep_sum(id, NonHostVector(vec![x]))
            .into_iter()
            .map(|spent| spent.0[0])
            .collect::<Vec<_>>()
    };
    assert_eq!((keep(1, 0, 1.0), keep(2, 0, 2.0)), (vec![], vec![]));
    assert_eq!(keep(2, 0, 3.0), [2.0], "the same attempt, made again");
    assert_eq!(keep(2, 1, 4.0), [1.0]);
    let sum = |step| results.sum(SumId { step: Step(step), attempt: 0 });
    let held = sum(2).unwrap();
    assert!(keep(3, 0, 5.0).is_empty(), "a worker reads it");
    assert_eq!((held.0[0], sum(2).map(|sum| sum.0[0])), (3.0, None));
    assert_eq!(
        (keep(4, 0, 6.0), keep(5, 0, 7.0)),
        (vec![4.0], vec![]),
        "the trainer has not had step 3"
    );
    results.passed(Step(5));
    assert_eq!(keep(6, 0, 8.0), [5.0, 6.0]);
    results.passed(Step(0));
    results.clear();
    assert_eq!(sum(6).map(|sum| sum.0[0]), Some(8.0));
}
