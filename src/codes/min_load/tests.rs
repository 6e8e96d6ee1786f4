//! The inner code of six workers, four of which respond.

#![cfg(test)]

use super::*;

/// A golden vector of a group that no whole code consists of: r = 4 of c = 6, whose rows
/// repeat.
#[test]
fn golden_inner_code_6_4() {
    let matrix = inner_matrix(6, 4);
    for (q, j) in (0..36).map(|at| (at / 6, at % 6)) {
        assert!((matrix[(q, j)] - f64::from(u8::from((q + j) % 2 == 0))).abs() < 1e-12);
    }
    let inner = Inner::new(&matrix, 2);
    for (survivors, expected) in [
        ([0, 1, 2, 3], [0.5, 0.5, 0.5, 0.5]),
        ([0, 1, 3, 5], [1.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0]),
        ([0, 2, 4, 5], [1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 1.0]),
    ] {
        let weights = inner.weights(&survivors);
        assert!(
            weights.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12),
            "{survivors:?}: {weights}"
        );
    }
}
