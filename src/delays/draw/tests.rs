//! Moments are those of the distributions.

#![cfg(test)]

use super::*;

fn moments(mut draw: impl FnMut() -> f64) -> (f64, f64) {
    let values: Vec<f64> = (0..40_000).map(|_| draw()).collect();
    let mean = values.iter().sum::<f64>() / 40_000.0;
    (mean, values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 40_000.0)
}

#[test]
fn moments_are_those_of_the_distributions() {
    let mut draw = Draw::new(3);
    let near = |found: (f64, f64), expected: (f64, f64)| {
        assert!((found.0 - expected.0).abs() < 0.02, "{found:?} {expected:?}");
        assert!(
            (found.1 - expected.1).abs() < 0.04 * expected.1.max(0.05),
            "{found:?} {expected:?}"
        );
    };
    near(moments(|| draw.exponential()), (1.0, 1.0));
    near(moments(|| draw.normal()), (0.0, 1.0));
    near(moments(|| draw.erlang(5)), (1.0, 0.2));
    near(moments(|| draw.beta(0.33, 6.7)), (0.33 / 7.03, 0.33 * 6.7 / (7.03 * 7.03 * 8.03)));
}
