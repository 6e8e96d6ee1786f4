//! The papers' locators of Byzantine workers in a DCT code with erasures, for a known number:
//! from the roots of an error locator (as Peterson, Gorenstein and Zierler), and from its noise
//! space (MUSIC).

use super::error::BerrutError;
use super::interpolate::chebyshev;
use super::jacobi::right_singular;
use super::points::Points;
use super::received::ReceivedOutputs;
use super::search::Trim;
use crate::ids::Worker;
use nalgebra::DMatrix;

/// Syndromes below this part of the outputs are rounding.
const ROUNDING: f64 = 1e-13;
/// Whole rounds of swaps in the last step.
const SWAP_ROUNDS_MAX: usize = 20;

/// Which form of the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The locator polynomial, one vector of the null space: the coding-theoretic decoder.
    Polynomial,
    /// The whole noise space over a longer window: the subspace (MUSIC) decoder.
    Subspace,
}

/// Locates `wrong` workers whose outputs are not on the code of dimension `dimension`, and no
/// fewer: the number is taken as known.
///
/// # Formula
/// ```text
/// s_k  = sum_i v_i T_k(z_i), k = m .. N-1;  s_N = 0, s_{N+j} = -s_{N-j}
/// s'_k = sum_l g_l (s_{k+l} + s_{|k-l|}) / 2      with sum_l g_l T_l = prod_{r erased} (z - z_r)
/// 0    = sum_l c_l (s'_{k+l} + s'_{k-l}) / 2      for the locator sum_l c_l T_l, zero where they are
/// ```
/// where `v` are the outputs with zeros for stragglers. All coordinates share one locator: their
/// equations are stacked. The survivors where the locator is smallest are the Byzantine ones; while
/// that leaves a syndrome, single workers are exchanged for better ones. Exact up to
/// `2A + s = N - m`. Cost: O(d N (N - m)) and an SVD of a matrix with at most `N - m` columns.
///
/// Source: the reflection of the syndromes is ours, after Kumar, Makur, IEEE TSP 2010 (not read),
/// for real-number codes as in Rath, Guillemot, WCNC 2003; securing Berrut's codes so is Borah,
/// Harshan, arXiv 2507.01330.
///
/// # Errors
/// [`BerrutError::Dimension`] for a dimension of 0, [`BerrutError::Radius`] when `2A + s > N - m`.
///
/// ```
/// use codedgrad::codes::berrut::{BerrutCode, Encoder, Form, Points, ReceivedOutputs, dct_locate};
/// use codedgrad::ids::Worker;
/// // 3 blocks and f = x^2 make codewords of dimension 2 (3-1) + 1 = 5; 8 workers, 1 straggler, 1 wrong.
/// let code = BerrutCode::new(3, 8, Points::FirstKind, Encoder::Lagrange)?;
/// let survivors = [0, 1, 2, 4, 5, 6, 7].map(Worker);
/// let blocks = [0.3, -1.0, 2.0];
/// let output = |w: &Worker| {
///     code.rows()[w.index()].iter().zip(blocks).map(|(e, x)| e * x).sum::<f64>().powi(2)
/// };
/// let mut outputs: Vec<[f64; 1]> = survivors.iter().map(|w| [output(w)]).collect();
/// outputs[4][0] += 0.7;
/// let outputs: Vec<&[f64]> = outputs.iter().map(|y| &y[..]).collect();
/// let received = ReceivedOutputs::new(&code, &survivors, &outputs)?;
/// assert_eq!(dct_locate(&received, 5, 1, Form::Polynomial)?, [Worker(5)]);
/// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
/// ```
pub fn dct_locate(
    received: &ReceivedOutputs,
    dimension: usize,
    wrong: usize,
    form: Form,
) -> Result<Vec<Worker>, BerrutError> {
    let (workers, survivors) = (received.at.workers, received.at.count());
    let stragglers = workers - survivors;
    if dimension == 0 {
        return Err(BerrutError::Dimension { dimension, survivors });
    }
    if 2 * wrong + stragglers + dimension > workers {
        return Err(BerrutError::Radius { wrong, stragglers, workers, dimension });
    }
    if wrong == 0 {
        return Ok(Vec::new());
    }
    let points = Points::FirstKind.of(workers);
    let missing = Worker::all(workers).filter(|worker| !received.at.list.contains(worker));
    let erased: Vec<f64> = missing.map(|worker| points[worker.index()]).collect();
    let syndromes = without_erasures(&syndromes(received, dimension), &erased, workers, dimension);
    let scores = scores(&syndromes, received, dimension + erased.len(), wrong, form);
    let mut order: Vec<usize> = (0..survivors).collect();
    order.sort_by(|a, b| scores[*a].total_cmp(&scores[*b]));
    order.truncate(wrong);
    Ok(received.at.workers_at(&exchanged(received, dimension, order)))
}

/// The extended syndromes `s_m .. s_{2N-m}`, one row each, one column per coordinate.
///
/// # Formula
/// ```text
/// s_k = sum_i v_i T_k(z_i),  s_N = 0,  s_{N+j} = -s_{N-j}
/// ```
/// since at Chebyshev points of the first kind `T_N` is 0 and `T_{N+j} = -T_{N-j}`. Without the
/// extension only a third of the parity could be used for errors instead of half.
///
/// ```
/// use codedgrad::codes::berrut::{
///     BerrutCode, Encoder, Points, ReceivedOutputs, extended_syndromes,
/// };
/// use codedgrad::ids::Worker;
/// let code = BerrutCode::new(1, 3, Points::FirstKind, Encoder::Lagrange)?;
/// let received = ReceivedOutputs::new(&code, &[0, 1, 2].map(Worker), &[&[1.0], &[1.0], &[2.0]])?;
/// let s = extended_syndromes(&received, 1);
/// assert_eq!((s.len(), s[2][0], s[3][0]), (5, 0.0, -s[1][0]));
/// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
/// ```
#[must_use]
pub fn extended_syndromes(received: &ReceivedOutputs, dimension: usize) -> Vec<Vec<f64>> {
    syndromes(received, dimension).row_iter().map(|row| row.iter().copied().collect()).collect()
}

fn syndromes(received: &ReceivedOutputs, dimension: usize) -> DMatrix<f64> {
    let workers = received.at.workers;
    let known =
        received.at.basis(workers).columns(dimension, workers - dimension).tr_mul(&received.values);
    let rows = 2 * (workers - dimension) + 1;
    DMatrix::from_fn(rows, received.values.ncols(), |row, column| {
        match (row + dimension).cmp(&workers) {
            std::cmp::Ordering::Less => known[(row, column)],
            std::cmp::Ordering::Equal => 0.0,
            std::cmp::Ordering::Greater => -known[(2 * (workers - dimension) - row, column)],
        }
    })
}

/// Syndromes `m+rho .. 2N-m-rho` that know nothing of the `rho` erased positions.
fn without_erasures(
    syndromes: &DMatrix<f64>,
    erased: &[f64],
    workers: usize,
    dimension: usize,
) -> DMatrix<f64> {
    let mut polynomial = vec![1.0];
    for root in leja(erased) {
        // T_1 T_l = (T_{l+1} + T_{|l-1|}) / 2
        let mut next = vec![0.0; polynomial.len() + 1];
        for (l, g) in polynomial.iter().enumerate() {
            next[l] -= root * g;
            next[l + 1] += g / 2.0;
            next[l.abs_diff(1)] += g / 2.0;
        }
        let largest = next.iter().fold(0.0f64, |most, g| most.max(g.abs()));
        polynomial = next.into_iter().map(|g| g / largest).collect();
    }
    let rho = erased.len();
    let rows = 2 * (workers - dimension - rho) + 1;
    DMatrix::from_fn(rows, syndromes.ncols(), |row, column| {
        let at = |l: usize| syndromes[(row + rho + l, column)] + syndromes[(row + rho - l, column)];
        polynomial.iter().enumerate().map(|(l, g)| g * at(l) / 2.0).sum()
    })
}

/// The roots in Leja's order, each as far as can be from those before it: multiplied in the order
/// of their numbers, some 20 of them lose every digit.
fn leja(roots: &[f64]) -> Vec<f64> {
    let mut rest = roots.to_vec();
    let mut ordered: Vec<f64> = Vec::with_capacity(roots.len());
    while !rest.is_empty() {
        let distance = |z: f64| {
            if ordered.is_empty() {
                z.abs()
            } else {
                ordered.iter().map(|r| (z - r).abs().ln()).sum()
            }
        };
        let far = (0..rest.len())
            .max_by(|a, b| distance(rest[*a]).total_cmp(&distance(rest[*b])))
            .unwrap_or(0);
        ordered.push(rest.remove(far));
    }
    ordered
}

/// How little each survivor looks like an honest one, smallest first: the size of the locator at
/// its point.
fn scores(
    syndromes: &DMatrix<f64>,
    received: &ReceivedOutputs,
    dimension: usize,
    wrong: usize,
    form: Form,
) -> Vec<f64> {
    let parity = received.at.workers - dimension;
    let window = match form {
        Form::Polynomial => wrong,
        Form::Subspace => (parity / 2).clamp(wrong, parity - wrong),
    };
    let (rows, coordinates) = (parity - window, syndromes.ncols());
    // Row k of a coordinate stands for k = m' + window + row.
    let stacked = DMatrix::from_fn(rows * coordinates, window + 1, |row, l| {
        let (k, column) = (window + row % rows, row / rows);
        (syndromes[(k + l, column)] + syndromes[(k - l, column)]) / 2.0
    });
    let noise = right_singular(stacked).1;
    let noise = noise.columns(0, window + 1 - wrong).into_owned();
    let score = |z: &f64| {
        let steering = chebyshev(*z, window + 1);
        let length: f64 =
            if form == Form::Polynomial { 1.0 } else { steering.iter().map(|x| x * x).sum() };
        noise
            .column_iter()
            .map(|n| n.iter().zip(&steering).map(|(n, a)| n * a).sum::<f64>().powi(2))
            .sum::<f64>()
            / length
    };
    received.at.z.iter().map(score).collect()
}

/// The last step: while deleting these positions leaves a syndrome, exchanges one of them for a
/// better one.
fn exchanged(received: &ReceivedOutputs, dimension: usize, positions: Vec<usize>) -> Vec<usize> {
    let q = received.at.basis(dimension).qr().q();
    let remainder = &received.values - &q * q.tr_mul(&received.values);
    let trim = Trim::projected(
        received.at.parity_projection(dimension),
        &remainder * remainder.transpose(),
    );
    let rounding = ROUNDING * received.values.norm_squared();
    trim.swapped(positions, SWAP_ROUNDS_MAX, rounding)
}
