//! What a worker has said itself is nothing to differ from.

#![cfg(test)]

use super::*;

fn trains(length: u64) -> RunFacts {
    RunFacts { length: Some(length as usize), ..RunFacts::default() }
}

#[test]
fn what_a_worker_has_said_itself_is_nothing_to_differ_from() {
    let mut comparison = Comparison::with(None);
    comparison.agrees(0, &trains(3));
    let mut alone = comparison.without(0, RunFacts::default());
    assert!(alone.agree(&trains(4)).is_ok(), "another process has its place");
    comparison.agrees(1, &trains(3));
    comparison.differs(2, &trains(4), None);
    let mut others = comparison.without(0, RunFacts::default());
    assert!(others.agree(&trains(4)).is_err(), "worker 1 has said the same");
    let mut of_others = comparison.without(1, RunFacts::default());
    assert_eq!(of_others.length, trains(3).length, "who differs does not count");
    assert!(of_others.agree(&trains(3)).is_ok());
}
