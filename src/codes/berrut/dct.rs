//! The discrete cosine transform at whose inverse the outputs of all workers are codewords.
//!
//! At Chebyshev points of the first kind `T_k(z_i) = cos(k (2i+1) pi / 2N)`, so the outputs
//! `h(z_i)` are the inverse DCT-II of the Chebyshev coefficients of `h`. A smooth `h` has small
//! coefficients from some `m` on: honest outputs nearly lie in the code of dimension `m` whose
//! parity part is coefficients `m .. N-1`.

use rustdct::{DctPlanner, TransformType2And3};
use std::fmt;
use std::sync::Arc;

/// Coordinates that are transformed side by side, so that outputs are read in whole cache lines.
const TILE: usize = 64;

/// The orthonormal DCT-II of `N` values and its inverse.
///
/// # Formula
/// ```text
/// forward: c_k = s_k sum_i v_i cos(k (2i+1) pi / 2N)      inverse: v_i = sum_k s_k c_k cos(k (2i+1) pi / 2N)
/// s_0 = sqrt(1/N), s_k = sqrt(2/N)
/// ```
/// where `v` `[N]` are values at the workers' points and `c` `[N]` coefficients. Cost: O(N log N).
///
/// ```
/// use codedgrad::codes::berrut::Dct;
/// let dct = Dct::new(4);
/// let mut values = [1.0, 1.0, 1.0, 1.0];
/// dct.forward(&mut values);
/// assert!((values[0] - 2.0).abs() < 1e-15 && values[1..].iter().all(|c| c.abs() < 1e-15));
/// ```
#[derive(Clone)]
pub struct Dct {
    plan: Arc<dyn TransformType2And3<f64>>,
}

impl fmt::Debug for Dct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dct({})", self.plan.len())
    }
}

impl Dct {
    /// The transform for `workers` workers.
    ///
    /// ```
    /// let dct = codedgrad::codes::berrut::Dct::new(12);
    /// ```
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self { plan: DctPlanner::new().plan_dct2(workers) }
    }

    fn scale(&self, k: usize) -> f64 {
        let n = self.plan.len() as f64;
        if k == 0 { n.recip().sqrt() } else { (2.0 / n).sqrt() }
    }

    /// Values to coefficients, in place.
    ///
    /// # Panics
    /// When there is not one value per worker.
    ///
    /// ```
    /// let mut values = [3.0];
    /// codedgrad::codes::berrut::Dct::new(1).forward(&mut values);
    /// assert_eq!(values, [3.0]);
    /// ```
    pub fn forward(&self, values: &mut [f64]) {
        self.plan.process_dct2(values);
        values.iter_mut().enumerate().for_each(|(k, c)| *c *= self.scale(k));
    }

    /// Coefficients to values, in place.
    ///
    /// # Panics
    /// When there is not one coefficient per worker.
    ///
    /// ```
    /// use codedgrad::codes::berrut::Dct;
    /// let (dct, mut values) = (Dct::new(3), [1.0, -2.0, 5.0]);
    /// dct.forward(&mut values);
    /// dct.inverse(&mut values);
    /// assert!((values[1] + 2.0).abs() < 1e-15);
    /// ```
    pub fn inverse(&self, coefficients: &mut [f64]) {
        coefficients
            .iter_mut()
            .enumerate()
            .for_each(|(k, c)| *c *= self.scale(k) * if k == 0 { 2.0 } else { 1.0 });
        self.plan.process_dct3(coefficients);
    }

    /// The parity part `[N-m x d]` of what all workers have sent, `d` coordinates each:
    /// coefficients `m .. N-1` of every coordinate, in one pass over the outputs. Missing outputs
    /// count as zeros.
    ///
    /// # Formula
    /// ```text
    /// S = H v,  H = rows m .. N-1 of the DCT-II matrix
    /// ```
    /// where `v` `[N x d]` are the outputs and `m` the dimension. Cost: O(d N log N).
    ///
    /// # Panics
    /// When there is not one output per worker, all of one length.
    ///
    /// ```
    /// use codedgrad::codes::berrut::{Dct, Points};
    /// let z = Points::FirstKind.of(5);
    /// let outputs: Vec<[f64; 2]> = z.iter().map(|z| [1.0 + z, 3.0 * z * z]).collect();
    /// let outputs: Vec<&[f64]> = outputs.iter().map(|y| &y[..]).collect();
    /// let parity = Dct::new(5).parity(&outputs, 3);
    /// assert_eq!(parity.len(), 2);
    /// assert!(
    ///     parity.concat().iter().all(|s| s.abs() < 1e-15),
    ///     "polynomials of degree below 3 are codewords"
    /// );
    /// ```
    #[must_use]
    pub fn parity(&self, outputs: &[&[f64]], dimension: usize) -> Vec<Vec<f64>> {
        let workers = self.plan.len();
        assert_eq!(outputs.len(), workers, "one output per worker");
        let length = outputs[0].len();
        assert!(outputs.iter().all(|output| output.len() == length), "outputs of one length");
        let mut parity = vec![vec![0.0; length]; workers.saturating_sub(dimension)];
        let mut tile = vec![0.0; TILE * workers];
        let mut scratch = vec![0.0; self.plan.get_scratch_len()];
        for start in (0..length).step_by(TILE) {
            let end = length.min(start + TILE);
            for (worker, output) in outputs.iter().enumerate() {
                output[start..end]
                    .iter()
                    .zip(tile[worker..].iter_mut().step_by(workers))
                    .for_each(|(x, cell)| *cell = *x);
            }
            for column in tile.chunks_mut(workers).take(end - start) {
                self.plan.process_dct2_with_scratch(column, &mut scratch);
            }
            for (k, row) in (dimension..).zip(&mut parity) {
                let scale = self.scale(k);
                row[start..end]
                    .iter_mut()
                    .zip(tile[k..].iter().step_by(workers))
                    .for_each(|(s, c)| *s = scale * c);
            }
        }
        parity
    }
}
