//! A word on a state is not taken for one on the next, and more.

#![cfg(test)]

use super::*;

/// Found by a test of the Python loop under `groups:s=3`: the word on the first of two states
/// counted as one on the second, whose parameters then seemed to differ from the others'.
#[test]
fn a_word_on_a_state_is_not_taken_for_one_on_the_next() {
    let mut replicas = Replicas::new(3);
    let state = |from, next| SentState { from: Some(Worker(from)), next: Step(next) };
    replicas.sent_state(Worker(0), state(1, 2));
    replicas.sent_state(Worker(0), state(2, 4));
    assert!(replicas.taken(Worker(0), Step(2)).is_none() && replicas.is_taking(Worker(0)));
    let taken = replicas.taken(Worker(0), Step(4)).expect("it was sent that one");
    assert_eq!((taken.from, replicas.is_taking(Worker(0))), (Some(Worker(2)), false));
}

#[test]
fn who_was_asked_first_may_answer_when_it_is_too_late() {
    let mut replicas = Replicas::new(3);
    let asked = |from, applied, asked_at| Resync {
        needy: Worker(0),
        from: Worker(from),
        applied: Step(applied),
        asked_at,
    };
    replicas.asked(asked(1, 5, 10.0));
    assert_eq!(replicas.overdue(10.0).count(), 0);
    assert_eq!(replicas.overdue(11.0).collect::<Vec<_>>(), [(Worker(0), Worker(1))]);
    replicas.asked(asked(2, 5, 11.0));
    // Asked once more, it answers what it was asked before, then what it was asked now.
    replicas.asked(asked(1, 7, 12.0));
    assert_eq!(replicas.answered(Worker(0), Worker(1), Step(5)), None);
    assert_eq!(replicas.answered(Worker(0), Worker(1), Step(7)), Some(Step(7)));
    assert_eq!(replicas.answered(Worker(0), Worker(2), Step(5)), None, "no worker waits for it");
}
