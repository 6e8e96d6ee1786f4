//! The last word is said again over the next connection, and more.

#![cfg(test)]

use super::*;

#[test]
fn the_last_word_is_said_again_over_the_next_connection() {
    let mut word = Word::new(None);
    word.applied(Step(3), Some(30));
    word.applied(Step(4), Some(40));
    assert_eq!(word.again(Step(5)), [(Step(4), 40)]);
    assert!(!word.is_due(Step(4)), "it is said");
    word.again(Step(6));
    word.applied(Step(5), Some(50));
    assert!(
        word.is_due(Step(5)) && !word.is_due(Step(5)),
        "it was given to the trainer, which had not applied it yet"
    );
    word.applied(Step(6), None);
    assert_eq!(word.again(Step(7)), [(Step(5), 50)], "a step that was refused changed nothing");
}

#[test]
fn every_model_has_its_own() {
    let mut word = Word::new(Some(2));
    word.taken(Step(7), &[50, 60]);
    assert_eq!(word.again(Step(7)), [(Step(5), 50), (Step(6), 60)]);
    word.applied(Step(7), None);
    word.applied(Step(8), Some(80));
    assert_eq!(
        word.again(Step(9)),
        [(Step(5), 50), (Step(8), 80)],
        "step 7 changed nothing of its model"
    );
    word.taken(Step(1), &[9, 10]);
    assert_eq!(word.again(Step(1)), [(Step(0), 10)], "there is no step before the first");
}
