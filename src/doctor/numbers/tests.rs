//! Nothing over nothing is as usual, and more.

#![cfg(test)]

use super::*;
use proptest::prelude::*;

#[test]
fn nothing_over_nothing_is_as_usual() {
    assert_eq!((times(0.0, 0.0), times(3.0, 1.5)), (1.0, 2.0));
    assert_eq!(times(1.0, 0.0), f64::INFINITY);
    assert_eq!(median(Vec::new()), 0.0);
}

proptest! {
    #[test]
    fn medians_are_those_of_sorted_numbers(
        mut numbers in prop::collection::vec(0.0f64..9.0, 1..50),
    ) {
        let found = Scratch::default().median(&numbers);
        numbers.sort_by(f64::total_cmp);
        let (lower, upper) = (numbers[(numbers.len() - 1) / 2], numbers[numbers.len() / 2]);
        prop_assert_eq!(found, f64::midpoint(lower, upper));
    }
}
