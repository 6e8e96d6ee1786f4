//! Interpolants as small matrices: row `t` holds the weights with which values at the nodes make
//! the value at target `t`. Every one reproduces constants, so rows sum to 1.

use super::error::BerrutError;
use super::points::Nodes;
use nalgebra::{DMatrix, DVector};

/// A target this near a node takes the node's value: nothing is divided by their difference.
const HIT: f64 = 1e-14;

/// How values between the survivors' points are made of theirs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Interpolant {
    /// Berrut's rational interpolant, with signs that alternate by position among the nodes.
    Berrut,
    /// Floater and Hormann's rational interpolant of blending degree `degree`; degree 0 is
    /// Berrut's.
    FloaterHormann {
        /// `d`; amplifies noise strongly from 3 on where nodes are few.
        degree: usize,
    },
    /// The natural cubic smoothing spline, linear outside its nodes.
    Spline {
        /// `lambda`; 0 interpolates.
        smoothing: f64,
    },
    /// The polynomial of degree below `dimension` nearest in least squares.
    LeastSquares {
        /// `m`.
        dimension: usize,
    },
}

impl Interpolant {
    /// The interpolating spline, the default.
    pub const SPLINE: Self = Self::Spline { smoothing: 0.0 };

    /// The matrix `[targets x nodes]` of this interpolant.
    ///
    /// # Formula
    /// ```text
    /// Berrut:          r(t) = sum_i (-1)^i y_i / (t - z_i)  /  sum_i (-1)^i / (t - z_i)
    /// FloaterHormann:  the same with the weights of `floater_hormann_weights`
    /// Spline:          argmin_g (1/n) sum_i (y_i - g(z_i))^2 + lambda int g''^2
    /// LeastSquares:    argmin over polynomials p of degree < m of sum_i (y_i - p(z_i))^2
    /// ```
    /// where `i` counts positions among the `n` nodes. Signs by position leave no pole on the real
    /// line (Berrut 1988; Floater, Hormann 2007, Theorem 1); signs by the worker's own number have
    /// poles for most straggler sets. Cost: O(n) a row, least squares O(n m^2) once. Splines as by
    /// Reinsch 1967.
    ///
    /// # Errors
    /// [`BerrutError::Degree`], [`BerrutError::Smoothing`] and [`BerrutError::Dimension`] for
    /// parameters outside what the nodes allow.
    ///
    /// ```
    /// use codedgrad::codes::berrut::{Interpolant, Nodes};
    /// let nodes = Nodes::new(vec![1.0, 0.0, -1.0])?;
    /// let rows = Interpolant::SPLINE.rows(&nodes, &[0.5, 0.0])?;
    /// assert_eq!(rows[1], [0.0, 1.0, 0.0]);
    /// assert!((rows[0].iter().sum::<f64>() - 1.0).abs() < 1e-15);
    /// assert!(Interpolant::LeastSquares { dimension: 4 }.rows(&nodes, &[0.5]).is_err());
    /// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
    /// ```
    pub fn rows(self, nodes: &Nodes, targets: &[f64]) -> Result<Vec<Vec<f64>>, BerrutError> {
        let (ascending, turned) = nodes.ascending();
        let survivors = ascending.len();
        let mut rows: Vec<Vec<f64>> = match self {
            Self::Berrut => {
                let weights: Vec<f64> =
                    (0..survivors).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
                targets.iter().map(|t| barycentric(&ascending, &weights, *t)).collect()
            }
            Self::FloaterHormann { degree } if degree >= survivors => {
                return Err(BerrutError::Degree { degree, survivors });
            }
            Self::FloaterHormann { degree } => {
                let weights = blended(&ascending, degree);
                targets.iter().map(|t| barycentric(&ascending, &weights, *t)).collect()
            }
            Self::Spline { smoothing } if !smoothing.is_finite() || smoothing < 0.0 => {
                return Err(BerrutError::Smoothing { smoothing });
            }
            Self::Spline { smoothing } => {
                let spline = Spline::new(&ascending, smoothing);
                targets.iter().map(|t| spline.row(*t)).collect()
            }
            Self::LeastSquares { dimension } if dimension == 0 || dimension > survivors => {
                return Err(BerrutError::Dimension { dimension, survivors });
            }
            Self::LeastSquares { dimension } => least_squares(&ascending, dimension, targets),
        };
        if turned {
            rows.iter_mut().for_each(|row| row.reverse());
        }
        Ok(rows)
    }
}

/// Lagrange interpolation in Chebyshev points of the first kind: exact for polynomials.
///
/// # Formula
/// ```text
/// weights (-1)^j sin((2j+1) pi / 2K) in the barycentric formula
/// ```
pub(super) fn lagrange_rows(alpha: &[f64], targets: &[f64]) -> Vec<Vec<f64>> {
    let blocks = alpha.len();
    let weight = |j: usize| {
        let sine = ((2 * j + 1) as f64 * std::f64::consts::PI / (2 * blocks) as f64).sin();
        if j.is_multiple_of(2) { sine } else { -sine }
    };
    let weights: Vec<f64> = (0..blocks).map(weight).collect();
    targets.iter().map(|t| barycentric(alpha, &weights, *t)).collect()
}

/// One row of a rational interpolant with these barycentric weights.
fn barycentric(nodes: &[f64], weights: &[f64], target: f64) -> Vec<f64> {
    if let Some(hit) = nodes.iter().position(|z| (target - z).abs() <= HIT) {
        return (0..nodes.len()).map(|i| if i == hit { 1.0 } else { 0.0 }).collect();
    }
    let mut row: Vec<f64> = nodes.iter().zip(weights).map(|(z, w)| w / (target - z)).collect();
    let sum: f64 = row.iter().sum();
    row.iter_mut().for_each(|x| *x /= sum);
    row
}

/// The barycentric weights of Floater and Hormann's interpolant, largest magnitude 1.
///
/// # Formula
/// ```text
/// w_k = (-1)^(k-d) sum_{i in J_k} prod_{j = i .. i+d, j != k} 1 / |x_k - x_j|
/// J_k = { i : max(0, k-d) <= i <= min(k, n-1-d) }
/// ```
/// where `d` is the blending degree and `n` the number of nodes (Floater, Hormann, Numer. Math.
/// 2007, eq. 18).
///
/// # Errors
/// [`BerrutError::Degree`] unless there are more nodes than `degree`.
///
/// ```
/// use codedgrad::codes::berrut::{floater_hormann_weights, Nodes};
/// let weights = floater_hormann_weights(&Nodes::new(vec![0.0, 1.0, 2.0])?, 1)?;
/// assert_eq!(weights, [-0.5, 1.0, -0.5]);
/// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
/// ```
pub fn floater_hormann_weights(nodes: &Nodes, degree: usize) -> Result<Vec<f64>, BerrutError> {
    let survivors = nodes.as_slice().len();
    if degree >= survivors {
        return Err(BerrutError::Degree { degree, survivors });
    }
    Ok(blended(nodes.as_slice(), degree))
}

fn blended(x: &[f64], degree: usize) -> Vec<f64> {
    let product = |k: usize, i: usize| {
        (i..=i + degree).filter(|j| *j != k).map(|j| 1.0 / (x[k] - x[j]).abs()).product::<f64>()
    };
    let magnitude = |k: usize| {
        (k.saturating_sub(degree)..=k.min(x.len() - 1 - degree)).map(|i| product(k, i)).sum::<f64>()
    };
    let magnitudes: Vec<f64> = (0..x.len()).map(magnitude).collect();
    let largest = magnitudes.iter().copied().fold(0.0, f64::max);
    let sign = |k: usize| if (k + degree).is_multiple_of(2) { 1.0 } else { -1.0 };
    magnitudes.iter().enumerate().map(|(k, w)| sign(k) * w / largest).collect()
}

/// `[T_0(x) .. T_{count-1}(x)]`, the Chebyshev polynomials.
pub(super) fn chebyshev(x: f64, count: usize) -> Vec<f64> {
    let mut values = Vec::with_capacity(count);
    for k in 0..count {
        values.push(match k {
            0 => 1.0,
            1 => x,
            _ => 2.0 * x * values[k - 1] - values[k - 2],
        });
    }
    values
}

fn least_squares(nodes: &[f64], dimension: usize, targets: &[f64]) -> Vec<Vec<f64>> {
    let values = |x: &[f64]| {
        DMatrix::from_row_iterator(
            x.len(),
            dimension,
            x.iter().flat_map(|x| chebyshev(*x, dimension)),
        )
    };
    let factors = values(nodes).qr();
    let (q, r) = (factors.q(), factors.r());
    let row = |t: &f64| {
        let target = DVector::from_vec(chebyshev(*t, dimension));
        // Distinct nodes make the matrix of full rank: the triangle can be solved with.
        let inner = r.tr_solve_upper_triangular(&target).unwrap_or(target);
        (&q * inner).as_slice().to_vec()
    };
    targets.iter().map(row).collect()
}

/// A natural cubic smoothing spline on ascending nodes, as an operator on their values.
///
/// With second differences `Q` and the tridiagonal `R`, `(R + n lambda Q^T Q) gamma = Q^T y` and
/// `g = y - n lambda Q gamma` (Reinsch 1967); a target's row is linear in `g` and `gamma`, so it
/// takes one solve with the symmetric banded matrix.
struct Spline<'a> {
    nodes: &'a [f64],
    smoothing: f64,
    /// `L D L^T` factors: the diagonal and the first and second diagonal below it.
    diagonal: Vec<f64>,
    below: Vec<[f64; 2]>,
}

impl<'a> Spline<'a> {
    fn new(nodes: &'a [f64], smoothing: f64) -> Self {
        let inner = nodes.len().saturating_sub(2);
        let gap = |i: usize| nodes[i + 1] - nodes[i];
        let smoothing = smoothing * nodes.len() as f64;
        let (mut diagonal, mut below) = (vec![0.0; inner], vec![[0.0; 2]; inner]);
        for j in 0..inner {
            let q = differences(nodes, j);
            diagonal[j] =
                (gap(j) + gap(j + 1)) / 3.0 + smoothing * q.iter().map(|x| x * x).sum::<f64>();
            if j >= 1 {
                let p = differences(nodes, j - 1);
                below[j][0] = gap(j) / 6.0 + smoothing * (p[1] * q[0] + p[2] * q[1]);
            }
            if j >= 2 {
                below[j][1] = smoothing * differences(nodes, j - 2)[2] * q[0];
            }
        }
        for j in 0..inner {
            if j >= 2 {
                below[j][1] /= diagonal[j - 2];
                below[j][0] -= below[j][1] * diagonal[j - 2] * below[j - 1][0];
                diagonal[j] -= below[j][1] * below[j][1] * diagonal[j - 2];
            }
            if j >= 1 {
                below[j][0] /= diagonal[j - 1];
                diagonal[j] -= below[j][0] * below[j][0] * diagonal[j - 1];
            }
        }
        Self { nodes, smoothing, diagonal, below }
    }

    /// Solves with the banded matrix.
    fn solve(&self, x: &mut [f64]) {
        for j in 0..x.len() {
            for (back, factor) in (1..=2).zip(self.below[j]).filter(|(back, _)| *back <= j) {
                x[j] -= factor * x[j - back];
            }
        }
        for j in (0..x.len()).rev() {
            x[j] /= self.diagonal[j];
            for (ahead, factor) in
                (1..=2).filter_map(|ahead| Some((ahead, self.below.get(j + ahead)?[ahead - 1])))
            {
                x[j] -= factor * x[j + ahead];
            }
        }
    }

    fn row(&self, target: f64) -> Vec<f64> {
        let z = self.nodes;
        if z.len() == 1 {
            return vec![1.0];
        }
        // The coefficients of the value at the target on `g` and on `gamma` (0 at both ends).
        let (mut on_g, mut on_gamma) = (vec![0.0; z.len()], vec![0.0; z.len()]);
        let last = z.len() - 1;
        let i = z.partition_point(|x| *x <= target).clamp(1, last) - 1;
        let h = z[i + 1] - z[i];
        let (left, right) = (target - z[i], z[i + 1] - target);
        on_g[i] = right / h;
        on_g[i + 1] = left / h;
        if left < 0.0 {
            on_gamma[1] = -left * h / 6.0;
        } else if right < 0.0 {
            on_gamma[last - 1] = -right * h / 6.0;
        } else {
            on_gamma[i] = -left * right / 6.0 * (1.0 + right / h);
            on_gamma[i + 1] = -left * right / 6.0 * (1.0 + left / h);
        }
        let mut gamma: Vec<f64> = on_gamma[1..last].to_vec();
        if self.smoothing > 0.0 {
            for (j, x) in gamma.iter_mut().enumerate() {
                *x -= self.smoothing
                    * differences(z, j).iter().zip(&on_g[j..]).map(|(q, g)| q * g).sum::<f64>();
            }
        }
        self.solve(&mut gamma);
        for (j, x) in gamma.iter().enumerate() {
            for (q, out) in differences(z, j).iter().zip(&mut on_g[j..]) {
                *out += q * x;
            }
        }
        on_g
    }
}

/// Column `j` of `Q`: the second difference over the nodes `j`, `j+1`, `j+2`.
fn differences(nodes: &[f64], j: usize) -> [f64; 3] {
    let (left, right) = (1.0 / (nodes[j + 1] - nodes[j]), 1.0 / (nodes[j + 2] - nodes[j + 1]));
    [left, -left - right, right]
}
