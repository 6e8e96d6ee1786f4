//! The linear algebra behind the decoders: least squares over the rows of survivors.

use super::gate::RESIDUAL_MAX;
use super::{Row, judge};
use crate::ids::Share;
use nalgebra::{DMatrix, DVector};
use std::cmp::Ordering;

/// What is below this part of a matrix's largest entry counts as zero in its factors.
const RANK_TOLERANCE: f64 = 1e-11;
/// Gradients below this part of the first end a conjugate gradient run.
const CGLS_TOLERANCE: f64 = 1e-14;
/// Least squares over more entries than this are iterated instead of factored.
const DENSE_MAX: usize = 512 * 512;

/// The matrix whose columns are the given rows, `[k x m]`.
fn columns(rows: &[&Row], shares: usize) -> DMatrix<f64> {
    let mut matrix = DMatrix::zeros(shares, rows.len());
    for (column, row) in rows.iter().enumerate() {
        for &(share, coefficient) in *row {
            matrix[(share.index(), column)] = coefficient;
        }
    }
    matrix
}

/// Weights `x` of smallest norm among those with the smallest `|sum_i x_i row_i - 1|`: the best
/// effort where a code's rule is not satisfied.
pub(super) fn least_squares(rows: &[&Row], shares: usize) -> Vec<f64> {
    if rows.is_empty() {
        return Vec::new();
    }
    if rows.len() * shares > DENSE_MAX {
        return cgls(rows, &vec![1.0; shares]);
    }
    let ones = DVector::from_element(shares, 1.0);
    let matrix = columns(rows, shares);
    let scale = matrix.amax();
    solve(matrix, scale, &ones).as_slice().to_vec()
}

/// Minimum-norm least squares of any rank, by two orthogonal factorisations; entries far below
/// `scale` are rounding. (Not by nalgebra's singular values: of matrices without full rank they
/// come out wrong now and then.)
fn solve(matrix: DMatrix<f64>, scale: f64, target: &DVector<f64>) -> DVector<f64> {
    let factors = matrix.col_piv_qr();
    let r = factors.r();
    let rank = rank_of(&r, scale);
    let reduced = factors.q().columns(0, rank).tr_mul(target);
    let second = r.rows(0, rank).transpose().qr();
    let within =
        second.r().tr_solve_upper_triangular(&reduced).unwrap_or_else(|| DVector::zeros(rank));
    let mut solution = second.q() * within;
    factors.p().inv_permute_rows(&mut solution);
    solution
}

/// Leading diagonal entries of a pivoted factor that are not rounding.
fn rank_of(r: &DMatrix<f64>, scale: f64) -> usize {
    (0..r.nrows().min(r.ncols())).take_while(|&i| r[(i, i)].abs() > RANK_TOLERANCE * scale).count()
}

/// Conjugate gradients for `min |sum_i x_i row_i - target|` from 0, which ends in the solution of
/// smallest norm. One run to convergence, and one more on what rounding has left.
pub(super) fn cgls<R: AsRef<[(Share, f64)]>>(rows: &[R], target: &[f64]) -> Vec<f64> {
    let mut x = vec![0.0; rows.len()];
    let mut first_gradient = 0.0f64;
    for _ in 0..2 {
        let mut residual = target.to_vec();
        scatter(rows, &x, -1.0, &mut residual);
        let mut gradient = gather(rows, &residual);
        let mut direction = gradient.clone();
        let mut gamma = norm_squared(&gradient);
        first_gradient = first_gradient.max(gamma);
        for _ in 0..2 * (rows.len() + target.len()) {
            if gamma <= CGLS_TOLERANCE * CGLS_TOLERANCE * first_gradient {
                break;
            }
            let mut image = vec![0.0; target.len()];
            scatter(rows, &direction, 1.0, &mut image);
            let step = gamma / norm_squared(&image);
            x.iter_mut().zip(&direction).for_each(|(x, p)| *x += step * p);
            residual.iter_mut().zip(&image).for_each(|(r, q)| *r -= step * q);
            gradient = gather(rows, &residual);
            let next = norm_squared(&gradient);
            direction.iter_mut().zip(&gradient).for_each(|(p, s)| *p = s + next / gamma * *p);
            gamma = next;
        }
    }
    x
}

fn norm_squared(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum()
}

/// `out += scale * sum_i x_i row_i`
fn scatter<R: AsRef<[(Share, f64)]>>(rows: &[R], x: &[f64], scale: f64, out: &mut [f64]) {
    for (row, x) in rows.iter().zip(x) {
        for &(share, coefficient) in row.as_ref() {
            out[share.index()] += scale * x * coefficient;
        }
    }
}

/// The product of every row with a vector.
fn gather<R: AsRef<[(Share, f64)]>>(rows: &[R], vector: &[f64]) -> Vec<f64> {
    rows.iter()
        .map(|row| {
            row.as_ref()
                .iter()
                .map(|&(share, coefficient)| coefficient * vector[share.index()])
                .sum()
        })
        .collect()
}

/// Decoding by who is missing instead of who has answered.
///
/// All weights that decode with all workers alive are `a = a0 + Z y`. `a0` is the shortest of them,
/// and `Z` `[n x m]` an orthonormal basis of the left null space of `B`. Stragglers `T` ask for
/// `Z_T y = -a0_T`, a system as small as `T`; the shortest `y` gives the shortest `a`.
#[derive(Clone, Debug)]
pub(super) struct Dual {
    shortest: DVector<f64>,
    null: DMatrix<f64>,
}

impl Dual {
    /// None if even all rows together do not span the all-ones vector.
    pub(super) fn new(rows: &[Row], share_weights: &[f64]) -> Option<Self> {
        let (workers, shares) = (rows.len(), share_weights.len());
        let rows_of: Vec<&Row> = rows.iter().collect();
        let padded = columns(&rows_of, shares.max(workers)).transpose();
        let mut ones = DVector::from_fn(padded.ncols(), |j, _| if j < shares { 1.0 } else { 0.0 });
        let padded_scale = padded.amax();
        let factors = padded.col_piv_qr();
        factors.p().permute_rows(&mut ones);
        let (q, r) = (factors.q(), factors.r());
        let rank = rank_of(&r, padded_scale);
        let within = r
            .view((0, 0), (rank, rank))
            .tr_solve_upper_triangular(&ones.rows(0, rank).into_owned())?;
        let shortest = q.columns(0, rank) * within;
        let report = judge(rows, share_weights, shortest.as_slice(), true);
        let null = q.columns(rank, workers - rank).into_owned();
        (report.residual <= RESIDUAL_MAX).then_some(Self { shortest, null })
    }

    /// The shortest weights that decode without `missing` (strictly ascending); where none do,
    /// what comes closest to leaving the missing out, which the caller has to judge.
    pub(super) fn weights(&self, missing: &[usize], out: &mut [f64]) {
        out.copy_from_slice(self.shortest.as_slice());
        let free = self.null.ncols();
        if missing.is_empty() || free == 0 {
            missing.iter().for_each(|&i| out[i] = 0.0);
            return;
        }
        let system = self.null.select_rows(missing);
        let target = DVector::from_fn(missing.len(), |i, _| -self.shortest[missing[i]]);
        let correction = shortest_solution(system, &target);
        for (column, y) in self.null.as_slice().chunks_exact(out.len()).zip(correction.iter()) {
            out.iter_mut().zip(column).for_each(|(a, z)| *a += z * y);
        }
        missing.iter().for_each(|&i| out[i] = 0.0);
    }

    /// Whether every one of the given stragglers can be compensated, by the rank of their rows in
    /// the null space alone: sufficient for decoding, and cheap.
    pub(super) fn independent(&self, missing: &[usize]) -> bool {
        if missing.len() > self.null.ncols() {
            return false;
        }
        let mut basis = Basis::default();
        missing.iter().all(|&i| basis.extend(self.null.row(i).iter().copied().collect()).is_some())
    }
}

/// `B = C Q^T` of a square matrix whose rank is known and any so many rows of which are
/// independent: gives `C^T` `[r x c]` and `Q^T 1` `[r]`, for orthonormal `Q` `[c x r]`.
pub(super) fn thin_factors(matrix: &DMatrix<f64>, rank: usize) -> (DMatrix<f64>, DVector<f64>) {
    let size = matrix.nrows();
    let spread: Vec<usize> = (0..rank).map(|i| i * size / rank).collect();
    let q = matrix.select_rows(&spread).transpose().qr().q();
    let sums = q.row_sum_tr();
    ((matrix * q).transpose(), sums)
}

/// The shortest `y` with `system y = target`, where `system` is `[t x m]` with entries of size 1;
/// least squares where there is none.
pub(super) fn shortest_solution(system: DMatrix<f64>, target: &DVector<f64>) -> DVector<f64> {
    let (equations, unknowns) = system.shape();
    let found = match equations.cmp(&unknowns) {
        Ordering::Equal => {
            let factors = system.clone().lu();
            if rank_of(factors.lu_internal(), 1.0) == equations {
                factors.solve(target)
            } else {
                None
            }
        }
        Ordering::Less => {
            let factors = system.transpose().qr();
            let r = factors.r();
            let within = if rank_of(&r, 1.0) == equations {
                r.tr_solve_upper_triangular(target)
            } else {
                None
            };
            within.map(|within| factors.q() * within)
        }
        Ordering::Greater => None,
    };
    found.unwrap_or_else(|| solve(system, 1.0, target))
}

/// An orthonormal basis that grows vector by vector (Gram and Schmidt, each step done twice).
#[derive(Debug, Default)]
pub(super) struct Basis {
    vectors: Vec<Vec<f64>>,
}

impl Basis {
    /// Adds the direction of a vector of size 1 that is not yet spanned; None if it is.
    pub(super) fn extend(&mut self, mut vector: Vec<f64>) -> Option<&[f64]> {
        for _ in 0..2 {
            self.vectors.iter().for_each(|unit| remove(&mut vector, unit));
        }
        let after = norm_squared(&vector).sqrt();
        if after <= RANK_TOLERANCE {
            return None;
        }
        vector.iter_mut().for_each(|x| *x /= after);
        self.vectors.push(vector);
        self.vectors.last().map(Vec::as_slice)
    }

    pub(super) fn clear(&mut self) {
        self.vectors.clear();
    }
}

/// Takes the component along a unit vector out.
pub(super) fn remove(vector: &mut [f64], unit: &[f64]) {
    let along: f64 = vector.iter().zip(unit).map(|(x, u)| x * u).sum();
    vector.iter_mut().zip(unit).for_each(|(x, u)| *x -= along * u);
}
