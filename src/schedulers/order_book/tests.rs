//! What an answer is worth.

#![cfg(test)]

use super::*;

const TASK: Task = Task { job: Job(3), piece: 0, plan: 0 };
const OTHER: Task = Task { job: Job(3), piece: 1, plan: 0 };
const ME: Worker = Worker(0);

#[test]
fn an_answer_counts_for_its_own_order() {
    let mut book = OrderBook::new(2, OrderId(7));
    let first = book.give(ME, vec![TASK, OTHER]);
    let theirs = book.give(Worker(1), vec![TASK]);
    assert_eq!((first, theirs), (OrderId(8), OrderId(9)));
    assert_eq!(book.state(ME, first, TASK), OrderState::Wanted);
    assert_eq!(book.state(ME, theirs, TASK), OrderState::Void, "it is another worker's");
    assert_eq!(book.state(ME, OrderId(7), TASK), OrderState::Void, "of a coordinator before");
    assert!(!book.answered(ME, first, TASK), "one is left");
    assert_eq!(book.state(ME, first, TASK), OrderState::Void, "it is answered");
    assert!(book.answered(ME, first, OTHER) && !book.answered(ME, first, OTHER));
}

#[test]
fn a_task_that_is_ordered_again_has_two_answers() {
    let mut book = OrderBook::new(1, OrderId::default());
    let first = book.give(ME, vec![TASK]);
    assert_eq!(book.abandon(ME, true), Some(first));
    let dropped = book.give(ME, vec![TASK]);
    assert_eq!(book.abandon(ME, false), Some(dropped));
    let again = book.give(ME, vec![TASK]);
    let worth = |book: &OrderBook| [first, dropped, again].map(|it| book.state(ME, it, TASK));
    assert_eq!(worth(&book), [OrderState::Late, OrderState::Void, OrderState::Wanted]);
    assert!(book.is_last(ME, again) && !book.is_last(ME, first));
    assert!(!book.answered(ME, first, TASK), "its last order is not answered");
    assert_eq!(worth(&book), [OrderState::Void, OrderState::Void, OrderState::Wanted]);
    book.lost(ME);
    assert_eq!(worth(&book), [OrderState::Void; 3]);
}

#[test]
fn orders_are_kept_until_their_jobs_are_decided() {
    let mut book = OrderBook::new(1, OrderId::before_all_of(2));
    let later = Task { job: Job(4), ..TASK };
    let orders = [TASK, later, TASK].map(|task| book.give(ME, vec![task]));
    assert!(orders[0] > OrderId::before_all_of(2) && orders[2] < OrderId::before_all_of(3));
    book.release(Job(4));
    assert_eq!(book.state(ME, orders[0], TASK), OrderState::Void);
    assert_eq!(book.state(ME, orders[1], later), OrderState::Wanted);
    assert!(book.is_last(ME, orders[2]), "the worker may still say that it has dropped it");
}
