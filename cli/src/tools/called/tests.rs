//! Rounds keep their numbers.

#![cfg(test)]

use super::*;

#[test]
fn rounds_keep_their_numbers() {
    let rounds =
        |numbers: &[u64]| Rounds::of(&numbers.iter().map(u64::to_string).collect::<Vec<_>>());
    let spans = |rounds: &Rounds| match rounds {
        Rounds::Numbers(spans) => spans.clone(),
        Rounds::Names(names) => panic!("{names:?}"),
    };
    let plain = rounds(&[0, 1, 2, 3]);
    assert_eq!((spans(&plain), plain.words()), (vec![(0, 1, 4)], None));
    let tenth = rounds(&[100, 110, 120, 140, 150]);
    assert_eq!(tenth.all_numbers(), Some(vec![100, 110, 120, 140, 150]));
    assert_eq!(tenth.distance(), 10);
    let unequal = "5 of those from 100 to 150, at unequal distances";
    assert_eq!(tenth.words().as_deref(), Some(unequal));
    let even = rounds(&[100, 110, 120]).words();
    assert!(even.is_some_and(|words| words.starts_with("100 to 120, every 10 steps")));
    let named = Rounds::of(&["0+1".into(), "0+2".into()]);
    assert_eq!((named.all_numbers(), named.distance()), (None, 1));
}
