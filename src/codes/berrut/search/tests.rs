//! Residuals and searches agree with brute force.

#![cfg(test)]

use super::*;
use proptest::prelude::*;

fn random(n: usize, seed: u64) -> (DMatrix<f64>, DMatrix<f64>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut square = || DMatrix::from_fn(n, n, |_, _| rng.next_u32() as f64 / 2f64.powi(31) - 1.0);
    let (a, y) = (square(), square());
    (&a * a.transpose() + DMatrix::identity(n, n) * 0.1, &y * y.transpose())
}

/// The residual of the rest, from the covariance itself.
fn kept(covariance: &DMatrix<f64>, gram: &DMatrix<f64>, out: &[usize]) -> f64 {
    let keep: Vec<usize> = (0..gram.nrows()).filter(|i| !out.contains(i)).collect();
    let of = |m: &DMatrix<f64>| m.select_rows(&keep).select_columns(&keep);
    (of(covariance).try_inverse().unwrap() * of(gram)).trace()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn residuals_and_searches_agree_with_brute_force(
        n in 4usize..9,
        size in 1usize..4,
        seed: u64,
    ) {
        let (covariance, gram) = random(n, seed);
        let trim = Trim::of_gram(covariance.clone().try_inverse().unwrap(), &gram);
        let mut set: Vec<usize> = (0..size).collect();
        let mut least = (f64::INFINITY, Vec::new());
        loop {
            let expected = kept(&covariance, &gram, &set);
            prop_assert!(
                (trim.residual(&set) - expected).abs() < 1e-7 * (1.0 + trim.total.abs())
            );
            if expected < least.0 {
                least = (expected, set.clone());
            }
            if !next_combination(&mut set, n) {
                break;
            }
        }
        prop_assert_eq!(trim.best(size), least.1);
        let swapped = trim.swapped(trim.greedy(size), usize::MAX, f64::NEG_INFINITY);
        prop_assert!(
            trim.residual(&swapped) <= trim.residual(&trim.greedy(size)) + 1e-9 * trim.total
        );
    }
}
