//! Who never answers is tried less and less, and more.

#![cfg(test)]

use super::*;

#[test]
fn who_never_answers_is_tried_less_and_less() {
    let mut excluded = Exclusions::default();
    let mut tried = Vec::new();
    for step in (0..10_000).map(Step) {
        if !excluded.owns_nothing(2, step) {
            tried.push(step.0);
            let again = excluded.exclude(2, step);
            assert_eq!(again.is_some(), tried.len() > 1, "it is told the second time");
            assert!(excluded.owns_nothing(2, step), "others own the rest of the step");
        }
        assert!(!excluded.owns_nothing(1, step));
    }
    let pauses: Vec<u64> = tried.windows(2).map(|pair| pair[1] - pair[0] - 1).collect();
    assert_eq!(pauses[..7], [1, 9, 17, 33, 65, 129, 257]);
    assert!(pauses[7..].iter().all(|steps| *steps == 257), "{pauses:?}");
}

#[test]
fn who_has_answered_for_a_while_is_trusted_again() {
    let mut excluded = Exclusions::default();
    for step in [Step(3), Step(21), Step(39)] {
        excluded.exclude(0, step);
        assert_eq!(excluded.exclude(0, step), None, "that was counted");
        assert!(!excluded.owns_nothing(0, Step(step.0 + 2)));
    }
    assert_eq!(excluded.exclude(0, Step(45)), Some(Step(55)));
    assert_eq!((excluded.count(Step(54)), excluded.count(Step(55))), (1, 0));
    excluded.clear();
    assert!(!excluded.owns_nothing(0, Step(46)));
}
