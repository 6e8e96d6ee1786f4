//! Workers that come and go.

#![cfg(test)]

use super::*;

const WORKERS: usize = 4;

fn set(workers: &[u32]) -> WorkerSet {
    WorkerSet::of(WORKERS, workers.iter().copied().map(Worker))
}

/// Whether a plan for `members` changes at `now`, where worker 3 is lost since second 5.
fn changes(members: &[u32], fit: &[u32], now: f64, delay: usize) -> bool {
    let mut membership = PlanMembers::new(WORKERS);
    membership.opened(&set(&[0, 1, 2, 3]));
    membership.lost(Worker(3), 5.0);
    membership.lost(Worker(3), 9.0);
    let (members, fit, going) = (&set(members), &set(fit), &set(&[]));
    let settle_seconds = 10.0;
    membership.changes(now, Seats { members, fit, going, least: 2, settle_seconds, delay })
}

#[test]
fn who_is_new_is_planned_for() {
    assert!(changes(&[0, 1], &[0, 1, 2], 6.0, 0));
    assert!(changes(&[0, 1], &[1, 2], 6.0, 0), "who is not fit waits for its turn");
    assert!(!changes(&[0, 1], &[0, 1], 6.0, 0));
}

#[test]
fn who_is_lost_is_kept_for_a_while() {
    assert!(!changes(&[0, 1, 3], &[0, 1], 14.9, 0));
    assert!(changes(&[0, 1, 3], &[0, 1], 15.0, 0), "since it was lost for the first time");
    assert!(!changes(&[0, 1], &[0, 1], 15.0, 0), "it is no member");
    assert!(!changes(&[0, 1, 2], &[0, 1], 15.0, 0), "it is not lost: it takes over a state");
    let mut membership = PlanMembers::new(WORKERS);
    membership.lost(Worker(3), 5.0);
    membership.opened(&set(&[0, 3]));
    membership.lost(Worker(3), 20.0);
    let (members, fit, going) = (&set(&[0, 1, 3]), &set(&[0, 1]), &set(&[]));
    let seats = Seats { members, fit, going, least: 2, settle_seconds: 10.0, delay: 0 };
    assert!(!membership.changes(29.0, seats), "it was fit in between");
}

#[test]
fn fewer_than_the_least_stay_as_they_are() {
    assert!(!changes(&[0, 3], &[1], 60.0, 0));
    assert!(changes(&[0, 3], &[0, 1], 60.0, 0));
}

#[test]
fn jobs_over_rounds_come_to_their_end_first() {
    let (members, fit, going) = (&set(&[0, 1]), &set(&[0, 1, 2]), &set(&[3]));
    let seats = Seats { members, fit, going, least: 2, settle_seconds: 10.0, delay: 2 };
    let mut membership = PlanMembers::new(WORKERS);
    membership.planned();
    for round in 0..3 {
        assert!(!membership.changes(1.0, seats), "in round {round} of the plan");
        membership.opened(fit);
    }
    assert!(membership.changes(1.0, seats));
}

#[test]
fn who_goes_is_planned_without_at_once_if_enough_are_left() {
    let (members, going) = (&set(&[0, 1, 2]), &set(&[2]));
    let membership = PlanMembers::new(WORKERS);
    let changes = |fit: &[u32]| {
        let (fit, settle_seconds) = (&set(fit), 10.0);
        let seats = Seats { members, fit, going, least: 2, settle_seconds, delay: 3 };
        membership.changes(1.0, seats)
    };
    assert!(changes(&[0, 1]), "also if that begins rounds again");
    assert!(!changes(&[1]), "it goes on with its part");
}
