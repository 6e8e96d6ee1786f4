//! What is told of steps.

#![cfg(test)]

use super::*;
use codedgrad::ids::{Round, Step};

#[test]
fn percentiles_interpolate() {
    let spread = Spread::of((0..=100).rev().map(f64::from).collect());
    assert_eq!((spread.mean, spread.p50, spread.p95), (50.0, 50.0, 95.0));
    assert_eq!(Spread::of(vec![1.0, 2.0]).p50, 1.5);
    assert_eq!(Spread::of(Vec::new()).mean, 0.0);
}

/// Under `prepare` all but worker 0 begin with its state: that is no fault, and a state that is
/// taken over later is one.
#[test]
fn the_state_that_a_worker_begins_with_is_no_fault() {
    let worker = Worker(1);
    let takes = |begins| IncidentKind::Resynced { worker, from: Some(Worker(0)), begins };
    let mut of_workers = OfWorkers::default();
    let mut note = |what: IncidentKind| {
        of_workers.note(0, &Incident { step: Step(0), round: Round(0), what });
        of_workers.faults.len()
    };
    assert_eq!(note(IncidentKind::Joined { worker, again: false }), 0);
    assert_eq!(note(takes(true)), 0);
    assert_eq!(note(takes(false)), 1);
    assert_eq!(note(IncidentKind::Joined { worker, again: true }), 2);
    assert_eq!(note(takes(false)), 3);
}

/// A worker that never answers is not late by [`late`] where the others are quick.
#[test]
fn nobody_is_late_only_where_all_have_answered() {
    let mut decided = StepSummary {
        scheme: "groups:s=1".into(),
        step: 0,
        steps: 1,
        seconds: 0.1,
        outcome: "applied".into(),
        late: BTreeSet::new(),
        answered: [3, 4],
    };
    assert_eq!(decided.who_is_late(), "3 of 4 answered");
    decided.answered = [4, 4];
    assert_eq!(decided.who_is_late(), "no worker late");
    decided.late.insert(Worker(2));
    assert_eq!(decided.who_is_late(), "w2 late");
}
