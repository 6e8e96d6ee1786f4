//! Singular values by one-sided Jacobi rotations, which keep their digits also without full rank.

use nalgebra::DMatrix;

/// Columns with a cosine below this count as orthogonal.
const ORTHOGONAL: f64 = 1e-15;
/// Sweeps after which rounding alone is left; ten are enough in practice.
const SWEEPS_MAX: usize = 60;

/// Squared singular values, ascending, and the right singular vectors as columns in the same order.
pub(super) fn right_singular(matrix: DMatrix<f64>) -> (Vec<f64>, DMatrix<f64>) {
    let columns = matrix.ncols();
    let mut turned = if matrix.nrows() > columns { matrix.qr().r() } else { matrix };
    let mut rotation = DMatrix::identity(columns, columns);
    for _ in 0..SWEEPS_MAX {
        if !sweep(&mut turned, &mut rotation) {
            break;
        }
    }
    let norms: Vec<f64> = turned.column_iter().map(|column| column.norm_squared()).collect();
    let mut order: Vec<usize> = (0..columns).collect();
    order.sort_by(|a, b| norms[*a].total_cmp(&norms[*b]));
    (order.iter().map(|i| norms[*i]).collect(), rotation.select_columns(&order))
}

/// Rotates every pair of columns until they are orthogonal; false if they all were.
fn sweep(turned: &mut DMatrix<f64>, rotation: &mut DMatrix<f64>) -> bool {
    let mut changed = false;
    for p in 0..turned.ncols() {
        for q in p + 1..turned.ncols() {
            let (alpha, beta) = (turned.column(p).norm_squared(), turned.column(q).norm_squared());
            let gamma = turned.column(p).dot(&turned.column(q));
            if gamma.abs() <= ORTHOGONAL * alpha.sqrt() * beta.sqrt() || gamma == 0.0 {
                continue;
            }
            changed = true;
            let zeta = (beta - alpha) / (2.0 * gamma);
            let tangent = zeta.signum() / (zeta.abs() + zeta.hypot(1.0));
            let cosine = tangent.hypot(1.0).recip();
            for matrix in [&mut *turned, &mut *rotation] {
                for row in 0..matrix.nrows() {
                    let (x, y) = (matrix[(row, p)], matrix[(row, q)]);
                    matrix[(row, p)] = cosine * (x - tangent * y);
                    matrix[(row, q)] = cosine * (tangent * x + y);
                }
            }
        }
    }
    changed
}

#[cfg(test)]
mod tests;
