//! Answers that are withheld by an injected delay.

#![cfg(test)]

use super::*;
use crate::ids::Job;

const ME: Worker = Worker(0);
const ORDER: OrderId = OrderId(3);
const TASK: Task = Task { job: Job(0), piece: 0, plan: 0 };
const OTHER: Task = Task { job: Job(0), piece: 1, plan: 0 };

fn done(task: Task) -> TaskOutcome {
    TaskOutcome::Done { order: ORDER, task, finite: true }
}

/// Orders of a worker that is five seconds late, with the first of its two answers there.
fn one_withheld() -> Orders<TaskOutcome> {
    let mut orders = Orders::new(1, None);
    orders.assigned(0.0, ME, ORDER, (Round(0), 5.0), [(TASK, 0.5), (OTHER, 0.5)].into_iter());
    assert!(orders.arrived(1.0, ME, done(TASK)).now.is_none(), "it is withheld");
    orders
}

/// Its worker does not say once more that it has done it: who waits for all answers must hear it.
#[test]
fn what_is_withheld_is_told_when_it_is_not_waited_for_any_more() {
    let mut orders = one_withheld();
    let Cancellation { now, cancel, unwanted } = orders.abandoned(2.0, ME, ORDER, false);
    assert_eq!((now, cancel, unwanted), (vec![done(TASK)], true, vec![]));
    assert!(orders.is_leaving(ME), "it is at the other one");
    let last = orders.arrived(2.5, ME, done(OTHER));
    assert_eq!((last.now, last.unwanted), (Some(done(OTHER)), None));
    assert!(!orders.is_leaving(ME) && orders.len() == 0);
}

/// Where it may still count it comes when it is due, and its worker is free as soon as it is done.
#[test]
fn what_may_still_count_comes_when_it_is_due() {
    let mut orders = one_withheld();
    let freed = TaskOutcome::Idle { order: ORDER };
    assert_eq!(orders.abandoned(2.0, ME, ORDER, true).now, []);
    assert_eq!(orders.arrived(2.5, ME, done(OTHER)).now, Some(freed));
    for (task, due) in [(TASK, 6.0), (OTHER, 7.5)] {
        let (_, next) = orders.next(due, None);
        let NextMove::Arrived { answer, late: true, .. } = next else { panic!("{next:?}") };
        assert_eq!(answer, done(task));
    }
}

#[test]
fn what_is_of_no_order_is_told_as_it_is() {
    let mut orders = one_withheld();
    let other = TaskOutcome::Done { order: OrderId(2), task: OTHER, finite: true };
    for answer in [other, done(TASK)] {
        assert_eq!(orders.arrived(1.5, ME, answer).now, Some(answer), "it is void, or comes twice");
    }
    assert_eq!(orders.len(), 2);
}
