//! What workers have spent on their tasks.

#![cfg(test)]

use super::*;
use crate::ids::{Job, Units};

const ME: Worker = Worker(1);

fn task(job: u64, piece: u32) -> Task {
    Task { job: Job(job), piece, plan: 0 }
}

/// A task of two units.
fn of_two(task: Task) -> (Task, Vec<Part>) {
    (task, vec![Part { units: Units { start: 2, end: 4 }, coefficient: 1.0 }])
}

/// A worker's order in a round.
fn of(round: u64) -> OrderId {
    OrderId(round + 1)
}

fn spent(computed: f64, units: u32) -> Option<TaskSpent> {
    Some(TaskSpent { computed, units })
}

#[test]
fn a_worker_that_was_sent_home_is_in_a_later_line() {
    let mut spending = Accounts::new(2);
    spending.assigned(ME, (of(0), Round(0)), &[of_two(task(0, 0)), of_two(task(0, 1))], 0.0);
    spending.assigned(Worker(0), (of(0), Round(0)), &[of_two(task(0, 0))], 0.0);
    spending.answered(Worker(0), (of(0), false), spent(1.0, 2), 11.0);
    spending.answered(ME, (of(0), false), spent(2.0, 2), 12.0);
    assert!(spending.take().is_empty(), "the round is open");
    spending.closed(Round(0), 10.0);
    let first = SpentRecord {
        round: 0,
        worker: Worker(0),
        computed: 1.0,
        progress: 1.0,
        came: 1.0,
        units: 2,
    };
    assert_eq!(spending.take(), [first]);
    spending.assigned(ME, (of(1), Round(1)), &[of_two(task(1, 0))], 0.0);
    spending.answered(ME, (of(0), true), spent(0.5, 1), 13.0);
    let home =
        SpentRecord { round: 0, worker: ME, computed: 2.5, progress: 0.75, came: 3.0, units: 3 };
    assert_eq!(spending.take(), [home]);
    assert_eq!(serde_json::to_string(&home).unwrap(), "[0,1,2.5,0.75,3.0,3]");
    assert_eq!(spending.len(), 1);
}

#[test]
fn the_lost_are_accounted_for_and_the_silent_are_not() {
    let mut spending = Accounts::new(2);
    spending.assigned(ME, (of(4), Round(4)), &[of_two(task(4, 0)), of_two(task(4, 1))], 0.0);
    spending.answered(ME, (of(9), false), spent(1.0, 2), 1.0);
    spending.answered(ME, (of(4), false), spent(1.0, 2), 1.5);
    spending.lost(ME);
    spending.closed(Round(4), 0.5);
    let of_lost =
        SpentRecord { round: 4, worker: ME, computed: 1.0, progress: 0.5, came: 1.0, units: 2 };
    assert_eq!(spending.take(), [of_lost]);
    spending.assigned(ME, (of(5), Round(5)), &[of_two(task(5, 0))], 0.0);
    spending.answered(ME, (of(5), false), None, 2.0);
    spending.assigned(Worker(0), (of(5), Round(5)), &[of_two(task(5, 0))], 0.0);
    spending.answered(Worker(0), (of(5), true), spent(f64::NAN, 0), 2.0);
    spending.closed(Round(5), 1.0);
    assert!(spending.take().is_empty() && spending.len() == 0);
}

#[test]
fn rounds_that_were_begun_again_count_for_nothing() {
    let mut spending = Accounts::new(2);
    spending.assigned(ME, (of(0), Round(0)), &[of_two(task(0, 0))], 0.0);
    spending.answered(ME, (of(0), false), spent(1.0, 2), 1.0);
    spending.assigned(ME, (of(1), Round(1)), &[of_two(task(0, 0))], 0.0);
    spending.answered(ME, (of(1), false), spent(3.0, 2), 5.0);
    spending.closed(Round(1), 1.5);
    let of_second =
        SpentRecord { round: 1, worker: ME, computed: 3.0, progress: 1.0, came: 3.5, units: 2 };
    assert_eq!((spending.take(), spending.len()), (vec![of_second], 0));
}
