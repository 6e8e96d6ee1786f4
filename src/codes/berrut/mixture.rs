//! Berrut codes as schemes of training: tasks are mixtures of blocks of the batch.
//!
//! # Construction
//! The batch is cut into `K` blocks. Worker `i` computes the gradient at the mixture
//! `sum_j E_ij X_j` of their data, rows of [`BerrutCode`]; the sum of the gradients at the blocks
//! is interpolated from the answers that come.
//!
//! # Guarantee
//! Approximate: the matrix is decoded as if gradients were linear in the data, which tells the
//! error of a linear function only. Exact up to rounding where the workers that hold blocks as they
//! are all answer (`N` an odd multiple of `K` for `sbacc`). Byzantine workers are located by
//! the receiver of the results (the crate `codedgrad-lab`).
//!
//! # Cost
//! Every worker computes one block, `1/K` of the batch, so the work is `N/K` batches. A decode
//! costs O(K n^3).
//!
//! # Numerics
//! Amplification below 5 for every set of 8 or 10 of 12 workers that passes the gate (`K = 4`);
//! those that do not wait for one more answer.
//!
//! # Source
//! As [`super`]; mixtures of micro-batches are Jahani-Nezhad, Maddah-Ali, arXiv 2009.08327, known
//! from its abstract.

use super::{BerrutCode, Encoder, Interpolant, Points};
use crate::codes::sequential::{Horizon, OneRound};
use crate::codes::{
    Choice, Decoder, Facts, GradientCode, ParameterError, Report, Row, Status, judge,
};
use crate::ids::{Cut, Share, Worker, WorkerSet};
use std::sync::Arc;

/// Mean square error that the decode of a linear function may have.
const ERROR_MAX: f64 = 0.25;

/// The parameters of a scheme of mixtures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixtureParameters {
    /// Blocks of a batch, `K`.
    pub blocks: usize,
    /// Stragglers that a round may close without; as many as can be spared if not given.
    pub stragglers: Option<usize>,
    /// Byzantine workers that are looked for, `A`.
    pub byzantine: usize,
    /// Where the workers' points are: of the first kind (`sbacc`) or the second (`bacc`).
    pub points: Points,
}

impl MixtureParameters {
    /// Answers needed by default: `2K` without Byzantine workers, `ceil(1.5 K) + 2A` with some.
    ///
    /// ```
    /// use codedgrad::codes::berrut::{MixtureParameters, Points};
    /// let points = Points::FirstKind;
    /// let secured = MixtureParameters { blocks: 4, stragglers: None, byzantine: 2, points };
    /// assert_eq!(secured.answers(), 10);
    /// assert_eq!(MixtureParameters { byzantine: 0, ..secured }.answers(), 8);
    /// ```
    #[must_use]
    pub fn answers(&self) -> usize {
        if self.byzantine == 0 {
            self.blocks.saturating_mul(2)
        } else {
            self.blocks
                .saturating_mul(3)
                .div_ceil(2)
                .saturating_add(self.byzantine.saturating_mul(2))
        }
    }
}

/// A code whose shares are mixtures of blocks.
///
/// # Formula
/// ```text
/// sum_j f(X_j) ~ sum_{i in F} c_i f( sum_j E_ij X_j )      c_i = sum_j D_ji
/// ```
/// where `X_j` are the `K` blocks, `F` the survivors, and `E` `[N x K]`, `D` `[K x |F|]` the
/// matrices of [`BerrutCode`] with spline encoder and decoder.
///
/// ```
/// use codedgrad::codes::berrut::{Mixture, MixtureParameters, Points};
/// use codedgrad::codes::{Choice, GradientCode, decode};
/// use codedgrad::ids::WorkerSet;
/// let code = Mixture::new(
///     12,
///     MixtureParameters { blocks: 4, stragglers: None, byzantine: 0, points: Points::FirstKind },
/// )?;
/// let (weights, report) = decode(&code, &WorkerSet::full(12), Choice::Fewest);
/// assert_eq!(weights[1], 1.0, "worker 1 holds block 0 as it is");
/// assert!(report.residual < 1e-9 && code.facts().tolerance == 4);
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mixture {
    plan: Arc<Plan>,
}

#[derive(Debug)]
struct Plan {
    code: BerrutCode,
    facts: Facts,
    rows: Vec<Row>,
}

impl Mixture {
    /// A code for `workers` workers.
    ///
    /// # Errors
    /// [`ParameterError::TooFewMixtures`] when more answers are needed than workers are there,
    /// [`ParameterError::TooManyStragglers`] when so many cannot be spared,
    /// [`ParameterError::Conditions`] without blocks.
    pub fn new(workers: usize, parameters: MixtureParameters) -> Result<Self, ParameterError> {
        let MixtureParameters { blocks, stragglers, byzantine: wrong, points } = parameters;
        let needed = parameters.answers();
        if workers < needed {
            return Err(ParameterError::TooFewMixtures { blocks, workers, needed, wrong });
        }
        let spare = workers - needed;
        let stragglers = stragglers.unwrap_or(spare);
        if stragglers > spare {
            return Err(condition(format!(
                "s={stragglers} of {workers} workers cannot be spared, {needed} answers are \
                 needed: s must be at most {spare}"
            )));
        }
        let code = BerrutCode::new(blocks, workers, points, Encoder::Spline)
            .map_err(|error| condition(error.to_string()))?;
        let row = |row: &Vec<f64>| {
            (0..).map(Share).zip(row.iter().copied()).filter(|(_, e)| *e != 0.0).collect()
        };
        let rows = code.rows().iter().map(row).collect();
        let share = 1.0 / blocks as f64;
        let facts = Facts {
            workers,
            share_weights: vec![share; blocks],
            tolerance: stragglers,
            load: share,
            error_max: ERROR_MAX,
        };
        Ok(Self { plan: Arc::new(Plan { code, facts, rows }) })
    }

    /// The matrices behind it.
    #[must_use]
    pub fn code(&self) -> &BerrutCode {
        &self.plan.code
    }

    /// The scheme over a horizon.
    ///
    /// # Errors
    /// [`ParameterError::Conditions`] unless the batch has a multiple of `K` units.
    pub(in crate::codes) fn over(
        self,
        horizon: Horizon,
        wrong: usize,
    ) -> Result<OneRound, ParameterError> {
        let blocks = self.plan.code.blocks() as u32;
        let units = horizon.units.unwrap_or(blocks);
        if !units.is_multiple_of(blocks) {
            return Err(condition(format!(
                "blocks of equal size are mixed: {units} micro-batches are no multiple of \
                 K={blocks}"
            )));
        }
        Ok(OneRound::new(Box::new(self), Cut::new(units, blocks)?, horizon.jobs).mixing(wrong))
    }

    /// How well weights decode a linear function.
    ///
    /// # Panics
    /// When there is not one weight per worker.
    #[must_use]
    pub fn report(&self, weights: &[f64]) -> Report {
        judge(&self.plan.rows, &self.plan.facts.share_weights, weights, true)
    }
}

fn condition(problem: String) -> ParameterError {
    ParameterError::Conditions { scheme: "bacc and sbacc", problem }
}

impl GradientCode for Mixture {
    fn facts(&self) -> &Facts {
        &self.plan.facts
    }

    fn row(&self, worker: Worker) -> &[(Share, f64)] {
        &self.plan.rows[worker.index()]
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(MixtureDecoder {
            arrived: WorkerSet::empty(self.plan.facts.workers),
            mixture: self.clone(),
        })
    }
}

struct MixtureDecoder {
    mixture: Mixture,
    arrived: WorkerSet,
}

impl MixtureDecoder {
    fn needed(&self) -> usize {
        let facts = self.mixture.facts();
        facts.workers - facts.tolerance
    }
}

impl Decoder for MixtureDecoder {
    fn arrive(&mut self, worker: Worker) -> Status {
        if !self.arrived.insert(worker) {
            return Status::Useless;
        }
        if self.arrived.len() == self.needed() { Status::Decodable } else { Status::Pending }
    }

    fn weights(&mut self, _: Choice, out: &mut [f64]) -> Report {
        assert_eq!(out.len(), self.arrived.capacity(), "one weight per worker");
        out.fill(0.0);
        let survivors: Vec<Worker> = self.arrived.iter().collect();
        if let Ok(weights) = self.mixture.code().sum_weights(&survivors, Interpolant::SPLINE) {
            survivors.iter().zip(weights).for_each(|(worker, weight)| out[worker.index()] = weight);
        }
        Report { decodable: survivors.len() >= self.needed(), ..self.mixture.report(out) }
    }

    fn reset(&mut self) {
        self.arrived.clear();
    }
}

#[cfg(test)]
mod tests;
