//! Whoever sums takes its own vector.

#![cfg(test)]

use super::*;
use crate::ids::Job;

#[test]
fn whoever_sums_takes_its_own_vector() {
    let task = Task { job: Job(0), piece: 0, plan: 0 };
    let piece = |worker| Piece { worker: Worker(worker), task };
    let term = Summand { weight: 1.0, holders: vec![piece(3), piece(5)] };
    assert_eq!(term.source(Worker(5), 0), Some(piece(5)));
    assert_eq!(
        (term.source(Worker(1), 1), term.source(Worker(1), 2)),
        (Some(piece(5)), Some(piece(3)))
    );
    assert_eq!(Summand { weight: 1.0, holders: vec![] }.source(Worker(0), 0), None);
}
