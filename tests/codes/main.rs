//! The laws of the one-round codes, against a dense least-squares oracle, golden values and the
//! papers.

mod defects;
mod golden;
mod laws;
mod papers;
mod registry;

use codedgrad::codes::{Choice, GradientCode, Report, decode};
use codedgrad::ids::{Worker, WorkerSet};
use nalgebra::{DMatrix, DVector};

/// Rounding of sums of a few terms of size 1.
const ROUNDING: f64 = 1e-12;

/// The rows of a code as a dense matrix `[n x k]`.
fn dense(code: &dyn GradientCode) -> DMatrix<f64> {
    let facts = code.facts();
    let mut matrix = DMatrix::zeros(facts.workers, facts.shares());
    for worker in Worker::all(facts.workers) {
        for &(share, coefficient) in code.row(worker) {
            matrix[(worker.index(), share.index())] = coefficient;
        }
    }
    matrix
}

/// Minimum-norm least squares: weights `a` on the survivors' rows with `a B` as close to 1 as can
/// be, and what is left of the all-ones vector. Singular values by one-sided Jacobi rotations,
/// which shares nothing with what is tested.
fn oracle(code: &dyn GradientCode, survivors: &WorkerSet) -> (Vec<f64>, DVector<f64>) {
    let matrix = dense(code);
    let rows: Vec<usize> = survivors.iter().map(Worker::index).collect();
    let ones = DVector::from_element(matrix.ncols(), 1.0);
    let transposed = matrix.select_rows(&rows).transpose();
    let (mut turned, mut rotation) =
        (transposed.clone(), DMatrix::identity(rows.len(), rows.len()));
    while sweep(&mut turned, &mut rotation) {}
    let largest = turned.column_iter().map(|c| c.norm()).fold(0.0, f64::max);
    let mut solution = DVector::zeros(rows.len());
    for (column, direction) in
        turned.column_iter().zip(rotation.column_iter()).filter(|(c, _)| c.norm() > 1e-12 * largest)
    {
        solution += direction * (column.dot(&ones) / column.norm_squared());
    }
    let mut weights = vec![0.0; matrix.nrows()];
    rows.iter().zip(solution.iter()).for_each(|(row, weight)| weights[*row] = *weight);
    (weights, transposed * solution - ones)
}

/// Rotates every pair of columns until they are orthogonal; false if they all were.
fn sweep(turned: &mut DMatrix<f64>, rotation: &mut DMatrix<f64>) -> bool {
    let mut changed = false;
    for p in 0..turned.ncols() {
        for q in p + 1..turned.ncols() {
            let (alpha, beta) = (turned.column(p).norm_squared(), turned.column(q).norm_squared());
            let gamma = turned.column(p).dot(&turned.column(q));
            if gamma.abs() <= 1e-15 * (alpha * beta).sqrt() || gamma.abs() < 1e-28 {
                continue;
            }
            changed = true;
            let zeta = (beta - alpha) / (2.0 * gamma);
            let t = zeta.signum() / (zeta.abs() + (1.0 + zeta * zeta).sqrt());
            let c = 1.0 / (1.0 + t * t).sqrt();
            for matrix in [&mut *turned, &mut *rotation] {
                for row in 0..matrix.nrows() {
                    let (x, y) = (matrix[(row, p)], matrix[(row, q)]);
                    matrix[(row, p)] = c * (x - t * y);
                    matrix[(row, q)] = c * (t * x + y);
                }
            }
        }
    }
    changed
}

fn subsets(workers: usize) -> impl Iterator<Item = WorkerSet> {
    (0u64..1 << workers).map(move |bits| from_bits(workers, bits))
}

fn from_bits(workers: usize, bits: u64) -> WorkerSet {
    WorkerSet::of(workers, Worker::all(workers).filter(|w| bits >> w.0 & 1 == 1))
}

fn shortest(code: &dyn GradientCode, survivors: &WorkerSet) -> (Vec<f64>, Report) {
    decode(code, survivors, Choice::MinimumNorm)
}
