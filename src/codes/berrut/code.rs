//! The code: points, the encoder's matrix, and decoders for any survivors.

use super::error::BerrutError;
use super::interpolate::{Interpolant, lagrange_rows};
use super::points::{Nodes, Points, data_points};
use crate::ids::Worker;

/// How shares are made of the data blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoder {
    /// Berrut's rational interpolant, as in the papers.
    Berrut,
    /// The natural cubic spline, the default: outputs are smoother, decodes more accurate.
    Spline,
    /// The polynomial through the blocks: a polynomial function of degree `D` then is decoded
    /// exactly from `D (K-1) + 1` outputs.
    Lagrange,
}

/// A code for any function of `K` data blocks on `N` workers.
///
/// # Formula
/// ```text
/// share_i = u(z_i) = sum_j E_ij X_j          E: [N x K], rows sum to 1
/// f(X_j) ~ sum_{i in F} D_ji f(share_i)      D: [K x |F|], rows sum to 1
/// ```
/// where `X_j` are the data blocks at `alpha_j`, `z_i` the workers' points and `F` the survivors.
/// `E` interpolates the blocks, `D` the outputs. Source: Jahani-Nezhad, Maddah-Ali, arXiv
/// 2009.08327 (Berrut's interpolant); Moradi et al., LeTCC, arXiv 2406.00300 (splines).
///
/// ```
/// use codedgrad::codes::berrut::{BerrutCode, Encoder, Interpolant, Points};
/// use codedgrad::ids::Worker;
/// let code = BerrutCode::new(2, 7, Points::SecondKind, Encoder::Spline)?;
/// let survivors = [0, 1, 3, 4, 6].map(Worker);
/// let rows = code.decode_rows(&survivors, Interpolant::SPLINE)?;
/// assert_eq!((rows.len(), rows[0].len()), (2, 5));
/// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct BerrutCode {
    points: Points,
    encoder: Encoder,
    alpha: Vec<f64>,
    z: Vec<f64>,
    rows: Vec<Vec<f64>>,
}

impl BerrutCode {
    /// A code for `blocks` data blocks on `workers` workers. Cost: O(N K).
    ///
    /// # Errors
    /// [`BerrutError::NoBlocks`] and [`BerrutError::TooManyBlocks`] unless `1 <= K <= N`.
    ///
    /// ```
    /// use codedgrad::codes::berrut::{BerrutCode, Encoder, Points};
    /// assert!(BerrutCode::new(4, 12, Points::FirstKind, Encoder::Berrut).is_ok());
    /// assert!(BerrutCode::new(5, 4, Points::FirstKind, Encoder::Berrut).is_err());
    /// ```
    pub fn new(
        blocks: usize,
        workers: usize,
        points: Points,
        encoder: Encoder,
    ) -> Result<Self, BerrutError> {
        if blocks == 0 {
            return Err(BerrutError::NoBlocks);
        }
        if blocks > workers {
            return Err(BerrutError::TooManyBlocks { blocks, workers });
        }
        let (alpha, z) = (data_points(blocks), points.of(workers));
        let nodes = Nodes::new(alpha.clone())?;
        let rows = match encoder {
            Encoder::Berrut => Interpolant::Berrut.rows(&nodes, &z)?,
            Encoder::Spline => Interpolant::SPLINE.rows(&nodes, &z)?,
            Encoder::Lagrange => lagrange_rows(&alpha, &z),
        };
        let mut code = Self { points, encoder, alpha, z, rows };
        for (worker, block) in points.uncoded(blocks, workers) {
            code.rows[worker.index()] =
                (0..blocks).map(|j| if j == block.index() { 1.0 } else { 0.0 }).collect();
        }
        Ok(code)
    }

    /// Number of data blocks, `K`.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.alpha.len()
    }

    /// Number of workers, `N`.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.z.len()
    }

    /// Which kind of points the workers have.
    #[must_use]
    pub fn points(&self) -> Points {
        self.points
    }

    /// How shares are made.
    #[must_use]
    pub fn encoder(&self) -> Encoder {
        self.encoder
    }

    /// The points of the data blocks, `alpha` `[K]`, descending.
    #[must_use]
    pub fn data_points(&self) -> &[f64] {
        &self.alpha
    }

    /// The points of the workers, `z` `[N]`, descending.
    #[must_use]
    pub fn worker_points(&self) -> &[f64] {
        &self.z
    }

    /// The encoder's matrix `E` `[N x K]`, one row per worker.
    #[must_use]
    pub fn rows(&self) -> &[Vec<f64>] {
        &self.rows
    }

    /// The decoder's matrix `D` `[K x |F|]` for the survivors, given in ascending order. Cost: O(K
    /// |F|), least squares O(|F| m^2) more.
    ///
    /// # Errors
    /// [`BerrutError::NoSurvivors`], [`BerrutError::UnknownWorker`], [`BerrutError::Duplicate`] and
    /// [`BerrutError::Unsorted`] for lists that are none, and those of [`Interpolant::rows`].
    ///
    /// ```
    /// use codedgrad::codes::berrut::{BerrutCode, Encoder, Interpolant, Points};
    /// use codedgrad::ids::Worker;
    /// let code = BerrutCode::new(4, 9, Points::SecondKind, Encoder::Berrut)?;
    /// let rows = code.decode_rows(&[0, 1, 3, 4, 6, 7, 8].map(Worker), Interpolant::Berrut)?;
    /// assert_eq!(rows[0], [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], "worker 1 holds block 0 as it is");
    /// assert!(code.decode_rows(&[Worker(1), Worker(0)], Interpolant::Berrut).is_err());
    /// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
    /// ```
    pub fn decode_rows(
        &self,
        survivors: &[Worker],
        by: Interpolant,
    ) -> Result<Vec<Vec<f64>>, BerrutError> {
        check_workers(survivors, self.workers())?;
        let nodes = Nodes::new(survivors.iter().map(|worker| self.z[worker.index()]).collect())?;
        by.rows(&nodes, &self.alpha)
    }

    /// The weights `c` `[|F|]` of the sum of all decoded outputs, `sum_j f(X_j) ~ sum_i c_i y_i`:
    /// the column sums of the decoder's matrix. The sum then costs one pass over the outputs
    /// instead of `K`.
    ///
    /// # Errors
    /// As [`BerrutCode::decode_rows`].
    ///
    /// ```
    /// use codedgrad::codes::berrut::{BerrutCode, Encoder, Interpolant, Points};
    /// use codedgrad::ids::Worker;
    /// let code = BerrutCode::new(3, 9, Points::FirstKind, Encoder::Spline)?;
    /// let weights = code.sum_weights(&[0, 1, 2, 3, 5, 6, 7, 8].map(Worker), Interpolant::SPLINE)?;
    /// assert!((weights.iter().sum::<f64>() - 3.0).abs() < 1e-12);
    /// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
    /// ```
    pub fn sum_weights(
        &self,
        survivors: &[Worker],
        by: Interpolant,
    ) -> Result<Vec<f64>, BerrutError> {
        let rows = self.decode_rows(survivors, by)?;
        Ok(column_sums(&rows))
    }
}

pub(super) fn column_sums(rows: &[Vec<f64>]) -> Vec<f64> {
    (0..rows.first().map_or(0, Vec::len)).map(|i| rows.iter().map(|row| row[i]).sum()).collect()
}

/// Whether these are workers of the code in ascending order.
pub(super) fn check_workers(list: &[Worker], workers: usize) -> Result<(), BerrutError> {
    for (position, worker) in list.iter().enumerate() {
        if worker.index() >= workers {
            return Err(BerrutError::UnknownWorker { worker: *worker, workers });
        }
        if list[..position].contains(worker) {
            return Err(BerrutError::Duplicate { worker: *worker });
        }
        if let Some(before) = list[..position].last().filter(|before| *before > worker) {
            return Err(BerrutError::Unsorted { before: *before, after: *worker });
        }
    }
    Ok(())
}
