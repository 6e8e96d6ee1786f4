//! Medians of few values are exact, and more.

#![cfg(test)]

use super::*;
use proptest::prelude::*;

#[test]
fn medians_of_few_values_are_exact() {
    let median = |values: &[f64]| {
        let mut quantiles = Quantiles::default();
        values.iter().for_each(|value| quantiles.push(*value));
        quantiles.median()
    };
    assert_eq!(median(&[]), 0.0);
    assert_eq!(median(&[0.1]), 0.1);
    assert_eq!(median(&[3.0, 0.0, 0.7]), 0.7);
    assert_eq!(median(&[3.0, 1.0, 2.0, 9.0]), 2.5);
}

proptest! {
    #[test]
    fn medians_are_off_by_a_thousandth_at_most(
        mut values in prop::collection::vec(0.0f64..1e6, 1..60),
    ) {
        let mut quantiles = Quantiles::default();
        values.iter().for_each(|value| quantiles.push(*value));
        values.sort_by(f64::total_cmp);
        let exact = (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
        prop_assert!((quantiles.median() - exact).abs() <= 1e-3 * exact);
    }
}
