//! Small matrices without full rank, and more.

#![cfg(test)]

use super::*;

#[test]
fn small_matrices_without_full_rank() {
    let matrix = DMatrix::from_row_slice(
        4,
        3,
        &[1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 0.0, -1.0],
    );
    let (values, vectors) = right_singular(matrix.clone());
    assert!(values[0] < 1e-28 && values[1] > 0.5);
    assert!((&matrix * vectors.column(0)).norm() < 1e-14);
    assert!((vectors.transpose() * &vectors - DMatrix::identity(3, 3)).norm() < 1e-14);
    let eigen = (matrix.transpose() * &matrix).symmetric_eigenvalues();
    assert!((eigen.max() - values[2]).abs() < 1e-12);
}

#[test]
fn wide_matrices_have_null_vectors() {
    let (values, vectors) = right_singular(DMatrix::from_row_slice(1, 3, &[3.0, 0.0, 4.0]));
    assert!(values[1] < 1e-28 && (values[2] - 25.0).abs() < 1e-12);
    assert!((vectors[(0, 2)].abs() - 0.6).abs() < 1e-15);
}
