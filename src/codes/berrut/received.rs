//! What the survivors sent, as the locators see it: outputs as columns, or their Gram matrix.

use super::code::{BerrutCode, check_workers};
use super::error::BerrutError;
use super::interpolate::{Interpolant, chebyshev};
use super::points::{Nodes, Points};
use crate::ids::Worker;
use nalgebra::DMatrix;

/// Outputs of the survivors of a code on points of the first kind, `d` coordinates or sketches
/// each.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedOutputs {
    pub(super) at: Survivors,
    /// `[n x d]`
    pub(super) values: DMatrix<f64>,
}

/// The inner products of the survivors' outputs, `G = Y Y^T` `[n x n]`: all that trimming looks at.
#[derive(Clone, Debug, PartialEq)]
pub struct Gram {
    pub(super) at: Survivors,
    pub(super) entries: DMatrix<f64>,
}

/// Who has answered, and from where.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Survivors {
    pub(super) workers: usize,
    pub(super) blocks: usize,
    pub(super) list: Vec<Worker>,
    pub(super) z: Vec<f64>,
}

impl Survivors {
    fn new(code: &BerrutCode, survivors: &[Worker]) -> Result<Self, BerrutError> {
        if code.points() != Points::FirstKind {
            return Err(BerrutError::NotACodeword);
        }
        check_workers(survivors, code.workers())?;
        if survivors.is_empty() {
            return Err(BerrutError::NoSurvivors);
        }
        let z = survivors.iter().map(|worker| code.worker_points()[worker.index()]).collect();
        Ok(Self { workers: code.workers(), blocks: code.blocks(), list: survivors.to_vec(), z })
    }

    /// Number of survivors, `n`.
    pub(super) fn count(&self) -> usize {
        self.list.len()
    }

    /// `[T_k(z_i)]` `[n x columns]`.
    pub(super) fn basis(&self, columns: usize) -> DMatrix<f64> {
        DMatrix::from_row_iterator(
            self.count(),
            columns,
            self.z.iter().flat_map(|z| chebyshev(*z, columns)),
        )
    }

    /// `B B^T`, the projection on what polynomials of degree below `dimension` cannot reach, over
    /// the positions kept.
    pub(super) fn parity_projection(&self, dimension: usize) -> DMatrix<f64> {
        let q = self.basis(dimension).qr().q();
        DMatrix::identity(self.count(), self.count()) - &q * q.transpose()
    }

    pub(super) fn workers_at(&self, positions: &[usize]) -> Vec<Worker> {
        let mut workers: Vec<Worker> = positions.iter().map(|i| self.list[*i]).collect();
        workers.sort_unstable();
        workers
    }
}

impl ReceivedOutputs {
    /// The outputs of the survivors, given in ascending order.
    ///
    /// # Errors
    /// [`BerrutError::NotACodeword`] for points of the second kind, [`BerrutError::OutputShape`]
    /// for outputs of different lengths, and the errors of a list that is none.
    ///
    /// ```
    /// use codedgrad::codes::berrut::{BerrutCode, Encoder, Points, ReceivedOutputs};
    /// use codedgrad::ids::Worker;
    /// let code = BerrutCode::new(2, 3, Points::FirstKind, Encoder::Lagrange)?;
    /// assert!(ReceivedOutputs::new(&code, &[Worker(0), Worker(2)], &[&[1.0], &[2.0]]).is_ok());
    /// let unequal: [&[f64]; 2] = [&[1.0], &[2.0, 3.0]];
    /// assert!(ReceivedOutputs::new(&code, &[Worker(0), Worker(2)], &unequal).is_err());
    /// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
    /// ```
    ///
    /// # Panics
    /// When there is not one output per survivor.
    pub fn new(
        code: &BerrutCode,
        survivors: &[Worker],
        outputs: &[&[f64]],
    ) -> Result<Self, BerrutError> {
        assert_eq!(survivors.len(), outputs.len(), "one output per survivor");
        let at = Survivors::new(code, survivors)?;
        let length = outputs[0].len();
        if let Some(other) = outputs.iter().position(|output| output.len() != length) {
            let (expected, found) = (vec![length], vec![outputs[other].len()]);
            return Err(BerrutError::OutputShape { worker: survivors[other], expected, found });
        }
        Ok(Self {
            values: DMatrix::from_row_iterator(
                at.count(),
                length,
                outputs.iter().copied().flatten().copied(),
            ),
            at,
        })
    }

    /// Their Gram matrix. Cost: O(n^2 d).
    ///
    /// ```
    /// use codedgrad::codes::berrut::{BerrutCode, Encoder, Points, ReceivedOutputs};
    /// use codedgrad::ids::Worker;
    /// let code = BerrutCode::new(1, 2, Points::FirstKind, Encoder::Spline)?;
    /// let outputs: [&[f64]; 2] = [&[3.0, 4.0], &[0.0, 2.0]];
    /// let gram = ReceivedOutputs::new(&code, &[Worker(0), Worker(1)], &outputs)?.gram();
    /// assert_eq!(gram.rows(), [vec![25.0, 8.0], vec![8.0, 4.0]]);
    /// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
    /// ```
    #[must_use]
    pub fn gram(&self) -> Gram {
        Gram { at: self.at.clone(), entries: &self.values * self.values.transpose() }
    }

    /// The errors of workers that are known to be wrong, `[|wrong| x d]`: what they sent less the
    /// polynomial of degree below `dimension` through the others, which is the solution of
    /// `min |S - H_E e|`.
    ///
    /// # Errors
    /// [`BerrutError::Dimension`] when too few others are left, [`BerrutError::UnknownWorker`] for
    /// a worker that is no survivor, and those of a list that is none.
    ///
    /// ```
    /// use codedgrad::codes::berrut::{BerrutCode, Encoder, Points, ReceivedOutputs};
    /// use codedgrad::ids::Worker;
    /// let code = BerrutCode::new(2, 4, Points::FirstKind, Encoder::Lagrange)?;
    /// let outputs: [&[f64]; 4] = [&[1.0], &[1.0], &[6.0], &[1.0]];
    /// let received = ReceivedOutputs::new(&code, &[0, 1, 2, 3].map(Worker), &outputs)?;
    /// assert!((received.errors_of(&[Worker(2)], 1)?[0][0] - 5.0).abs() < 1e-12);
    /// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
    /// ```
    pub fn errors_of(
        &self,
        wrong: &[Worker],
        dimension: usize,
    ) -> Result<Vec<Vec<f64>>, BerrutError> {
        check_workers(wrong, self.at.workers)?;
        if let Some(worker) = wrong.iter().find(|worker| !self.at.list.contains(worker)) {
            return Err(BerrutError::UnknownWorker { worker: *worker, workers: self.at.workers });
        }
        let (bad, kept): (Vec<usize>, Vec<usize>) =
            (0..self.at.count()).partition(|i| wrong.contains(&self.at.list[*i]));
        let nodes = Nodes::new(kept.iter().map(|i| self.at.z[*i]).collect())?;
        let targets: Vec<f64> = bad.iter().map(|i| self.at.z[*i]).collect();
        let rows = Interpolant::LeastSquares { dimension }.rows(&nodes, &targets)?;
        let fit = |row: &[f64], column: usize| {
            row.iter().zip(&kept).map(|(w, i)| w * self.values[(*i, column)]).sum::<f64>()
        };
        let error = |(i, row): (&usize, &Vec<f64>)| {
            (0..self.values.ncols()).map(|c| self.values[(*i, c)] - fit(row, c)).collect()
        };
        Ok(bad.iter().zip(&rows).map(error).collect())
    }
}

impl Gram {
    /// A Gram matrix from its entries, row by row, of survivors given in ascending order.
    ///
    /// # Errors
    /// [`BerrutError::NotACodeword`] for points of the second kind, and the errors of a list that
    /// is none.
    ///
    /// # Panics
    /// When there are not `n^2` entries.
    ///
    /// ```
    /// use codedgrad::codes::berrut::{BerrutCode, Encoder, Gram, Points};
    /// use codedgrad::ids::Worker;
    /// let code = BerrutCode::new(1, 2, Points::FirstKind, Encoder::Spline)?;
    /// assert!(Gram::new(&code, &[Worker(0), Worker(1)], &[25.0, 8.0, 8.0, 4.0]).is_ok());
    /// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
    /// ```
    pub fn new(
        code: &BerrutCode,
        survivors: &[Worker],
        entries: &[f64],
    ) -> Result<Self, BerrutError> {
        assert_eq!(entries.len(), survivors.len() * survivors.len(), "a square matrix");
        let at = Survivors::new(code, survivors)?;
        Ok(Self { entries: DMatrix::from_row_slice(at.count(), at.count(), entries), at })
    }

    /// Its rows.
    ///
    /// ```
    /// use codedgrad::codes::berrut::{BerrutCode, Encoder, Gram, Points};
    /// use codedgrad::ids::Worker;
    /// let code = BerrutCode::new(1, 1, Points::FirstKind, Encoder::Spline)?;
    /// assert_eq!(Gram::new(&code, &[Worker(0)], &[2.0])?.rows(), [[2.0]]);
    /// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
    /// ```
    #[must_use]
    pub fn rows(&self) -> Vec<Vec<f64>> {
        self.entries.row_iter().map(|row| row.iter().copied().collect()).collect()
    }
}
