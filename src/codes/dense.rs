//! A user's own code: a matrix from a paper, a file or a program.
//!
//! # Construction
//! The matrix `B` `[n x k]` as given; all shares are equal parts of the batch.
//!
//! # Guarantee
//! Survivors decode as soon as their rows span the all-ones vector; of an approximate code, as
//! soon as they come so close to it as the error allows. The tolerance is found by trying every
//! straggler set of one size after the other, as long as the sets of a size are few enough; it is
//! then a proven one that the code may exceed. [`DenseCode::claiming`] states another, for `verify`
//! to check.
//!
//! # Cost
//! Once: a rank-revealing factorisation, O(n^2 max(n, k)), and the sets that are tried. An arrival
//! is O(k) per row already there; weights with `t` stragglers are O(t^2 (n - rank) + n t).
//!
//! # Numerics
//! Orthonormal bases throughout; weights of smallest norm. What amplification the matrix has is its
//! author's affair: the gate refuses what is too large.
//!
//! # Source
//! The condition `1 in span(B_S)` is Tandon, Lei, Dimakis, Karampatziakis, "Gradient Coding", ICML
//! 2017 (arXiv 1612.03301), Lemma 1. The decoder works on the left null space of `B`, as circulant
//! codes are decoded over their dual by Raviv, Tamo, Tandon, Dimakis (arXiv 1707.03858).

use super::dual::{DualDecoder, Plan, Rule};
use super::family::{Family, Fields, Recipe, within};
use super::linear::Dual;
use super::table::{self, TableError};
use super::verify::{binomial, next_combination};
use super::{Choice, Decoder, Facts, GradientCode, ParameterError, Row, Status, judge};
use crate::ids::{Share, Worker};
use std::sync::Arc;

/// A user's own matrix.
pub(super) const FAMILY: Family = Family {
    name: "matrix",
    examples: &["matrix:FILE"],
    summary: "your own matrix, a line of coefficients per worker; with s= it is checked that any \
        s stragglers are tolerated, with err= it is approximate: a step is applied at that \
        normalised error or less, and lines may be zero",
    ..Family::new(|fields| {
        let claim = fields.take("s")?;
        let error_max = fields.take("err")?;
        let path = fields.path()?;
        let text = Fields::contents(&path)?;
        let file = path.clone();
        let recipe = Recipe::code_of_file(path, move || {
            let matrix = matrix(&text).map_err(within(&file))?;
            let code = match error_max {
                None => DenseCode::new(&matrix),
                Some(error_max) => DenseCode::approximate(&matrix, error_max),
            };
            let code = code.map_err(within(&file))?;
            match claim {
                None => Ok(code),
                Some(stragglers) => code.claiming(stragglers),
            }
        });
        Ok(recipe.claiming(claim))
    })
};

/// Straggler sets of one size that are tried to prove a tolerance.
const SETS_TRIED_MAX: u64 = 50_000;
/// Multiplications in the least squares over the sets of one size, where each set takes some.
const MULTIPLICATIONS_MAX: u64 = 200_000_000;
/// What a cell of a matrix may be.
const COEFFICIENT: &str = "a finite number of at most 1e100";
/// Larger coefficients overflow when they are squared.
const COEFFICIENT_MAX: f64 = 1e100;

/// A gradient code given by its matrix.
///
/// # Formula
/// ```text
/// survivors S decode iff some a_S has a_S B_S = 1
/// s = the largest number such that every set of n - s survivors does
/// ```
/// where `B_S` are the rows of the survivors and `1` is the all-ones vector `[k]`.
///
/// ```
/// use codedgrad::codes::{Choice, DenseCode, GradientCode, decode};
/// use codedgrad::ids::{Worker, WorkerSet};
/// // The example of Tandon et al. 2017, Figure 1: 3 workers, any 1 straggler.
/// let code = DenseCode::new(&[vec![0.5, 1.0, 0.0], vec![0.0, 1.0, -1.0], vec![0.5, 0.0, 1.0]])?;
/// assert_eq!(code.facts().tolerance, 1);
/// let (weights, report) =
///     decode(&code, &WorkerSet::of(3, [Worker(0), Worker(1)]), Choice::MinimumNorm);
/// assert!(report.decodable);
/// assert!((weights[0] - 2.0).abs() < 1e-12 && (weights[1] + 1.0).abs() < 1e-12);
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DenseCode {
    plan: Arc<Plan>,
    /// Whether the tolerance is only claimed.
    claimed: bool,
}

impl DenseCode {
    /// A code from the rows of its matrix, one per worker.
    ///
    /// # Errors
    /// [`ParameterError::Table`] for a matrix without rows or columns, ragged, with entries that
    /// are not finite or beyond 1e100, or a row of zeros; [`ParameterError::SpanMissesOnes`] when
    /// not even all workers together can decode, with the share that is worst off.
    ///
    /// ```
    /// use codedgrad::codes::DenseCode;
    /// assert!(DenseCode::new(&[vec![1.0, 0.0], vec![0.0, 2.0]]).is_ok());
    /// let error = DenseCode::new(&[vec![1.0, 0.0], vec![2.0, 0.0]]).unwrap_err().to_string();
    /// assert!(error.contains("share 1"), "{error}");
    /// ```
    pub fn new(matrix: &[Vec<f64>]) -> Result<Self, ParameterError> {
        let rows = sparse(matrix, false)?;
        let mut facts = facts(&rows, matrix[0].len(), 0.0);
        let Some(dual) = Dual::new(&rows, &facts.share_weights) else {
            return Err(misses(&rows, facts.shares()));
        };
        facts.tolerance = proven_tolerance(&rows, &facts, &dual);
        let plan = Plan { facts, rows, dual: Some(dual), rule: Rule::Span };
        Ok(Self { plan: Arc::new(plan), claimed: false })
    }

    /// An approximate code from the rows of its matrix, which may be zero: decodes are accepted up
    /// to the normalised error `error_max`, by the weights with the least.
    ///
    /// # Errors
    /// [`ParameterError::Table`] as [`DenseCode::new`], but for rows of zeros;
    /// [`ParameterError::ErrorOutOfRange`] unless `0 <= error_max < 1`;
    /// [`ParameterError::Unbalanced`] when the error is larger even with all workers there.
    ///
    /// ```
    /// use codedgrad::codes::{Choice, DenseCode, GradientCode, decode};
    /// use codedgrad::ids::{Worker, WorkerSet};
    /// // Worker 3 has drawn no share.
    /// let rows = [vec![1.0, 1.0, 0.0], vec![0.0, 1.0, 1.0], vec![1.0, 0.0, 1.0], vec![0.0; 3]];
    /// let code = DenseCode::approximate(&rows, 0.12)?;
    /// assert_eq!(code.facts().tolerance, 1);
    /// let survivors = WorkerSet::of(4, [0, 1, 3].map(Worker));
    /// let (weights, report) = decode(&code, &survivors, Choice::MinimumNorm);
    /// assert!(report.decodable && (report.error - 1.0 / 9.0).abs() < 1e-12);
    /// assert!((weights[0] - 2.0 / 3.0).abs() < 1e-12 && weights[3] == 0.0);
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    pub fn approximate(matrix: &[Vec<f64>], error_max: f64) -> Result<Self, ParameterError> {
        if !(0.0..1.0).contains(&error_max) {
            return Err(ParameterError::ErrorOutOfRange { error_max });
        }
        let rows = sparse(matrix, true)?;
        let facts = facts(&rows, matrix[0].len(), error_max);
        let mut plan = Arc::new(Plan { facts, rows, dual: None, rule: Rule::Error(error_max) });
        let tolerance = tolerance_tried(&plan)
            .map_err(|error| ParameterError::Unbalanced { error, error_max })?;
        Arc::make_mut(&mut plan).facts.tolerance = tolerance;
        Ok(Self { plan, claimed: false })
    }

    /// A code from text: one line per worker, coefficients separated by commas.
    ///
    /// # Errors
    /// As [`DenseCode::new`], cells named by line and column.
    ///
    /// ```
    /// use codedgrad::codes::{DenseCode, GradientCode};
    /// let code = DenseCode::from_csv("1, 0\n0, 1\n1, 1\n")?;
    /// assert_eq!((code.facts().workers, code.facts().tolerance), (3, 1));
    /// assert!(
    ///     DenseCode::from_csv("1,0\n0,x").unwrap_err().to_string().contains("line 2, column 2")
    /// );
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    pub fn from_csv(text: &str) -> Result<Self, ParameterError> {
        Self::new(&matrix(text)?)
    }

    /// The same code with a tolerance that its author states, not checked yet.
    ///
    /// # Errors
    /// [`ParameterError::TooManyStragglers`] unless `stragglers` is below the number of workers.
    ///
    /// ```
    /// use codedgrad::codes::{verify, DenseCode, Gate, GradientCode};
    /// use codedgrad::run::NumberFormat;
    /// let code = DenseCode::from_csv("1,0\n0,1\n1,1")?.claiming(2)?;
    /// let gate = Gate::new(NumberFormat::F32, code.facts());
    /// let verified = verify(&code, &gate, 7, &mut |_, _| ());
    /// assert_eq!(verified.failures.len(), 2, "worker 2 decodes alone, the others do not");
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    pub fn claiming(self, stragglers: usize) -> Result<Self, ParameterError> {
        let workers = self.plan.facts.workers;
        if stragglers >= workers {
            return Err(ParameterError::TooManyStragglers { stragglers, workers });
        }
        let mut plan = Arc::unwrap_or_clone(self.plan);
        plan.facts.tolerance = stragglers;
        Ok(Self { plan: Arc::new(plan), claimed: true })
    }
}

/// The coefficients that a text has, a line per worker.
fn matrix(text: &str) -> Result<Vec<Vec<f64>>, TableError> {
    table::read(text, COEFFICIENT, |x: &f64| x.abs() <= COEFFICIENT_MAX)
}

/// What is known of rows before it is known what they tolerate.
fn facts(rows: &[Row], shares: usize, error_max: f64) -> Facts {
    let touched = rows.iter().map(Vec::len).max().unwrap_or(0);
    Facts {
        workers: rows.len(),
        share_weights: vec![1.0 / shares as f64; shares],
        tolerance: 0,
        load: touched as f64 / shares as f64,
        error_max,
    }
}

fn sparse(matrix: &[Vec<f64>], zeros: bool) -> Result<Vec<Row>, TableError> {
    let expected = matrix.first().map_or(0, Vec::len);
    if expected == 0 {
        return Err(TableError::NoLines);
    }
    let mut rows = Vec::new();
    for (line, cells) in (1..).zip(matrix) {
        if cells.len() != expected {
            return Err(TableError::Ragged { line, found: cells.len(), expected });
        }
        if let Some(column) = cells.iter().position(|x| x.is_nan() || x.abs() > COEFFICIENT_MAX) {
            let cell = cells[column].to_string();
            return Err(TableError::Cell { line, column: column + 1, cell, expected: COEFFICIENT });
        }
        let row: Row =
            (0..).map(Share).zip(cells.iter().copied()).filter(|(_, x)| *x != 0.0).collect();
        if row.is_empty() && !zeros {
            return Err(TableError::ZeroLine { line });
        }
        rows.push(row);
    }
    Ok(rows)
}

/// The error of a matrix whose rows do not span the all-ones vector.
fn misses(rows: &[Row], shares: usize) -> ParameterError {
    let all: Vec<&Row> = rows.iter().collect();
    let mut alpha = vec![0.0; shares];
    for (row, weight) in rows.iter().zip(super::linear::least_squares(&all, shares)) {
        row.iter().for_each(|&(share, x)| alpha[share.index()] += weight * x);
    }
    let off = |share: &usize| (alpha[*share] - 1.0).abs();
    let share = (0..shares).max_by(|a, b| off(a).total_cmp(&off(b))).unwrap_or(0);
    ParameterError::SpanMissesOnes { share, coefficient: alpha[share] }
}

/// The largest `s` for which all sets of `s` stragglers were tried and decode.
fn proven_tolerance(rows: &[Row], facts: &Facts, dual: &Dual) -> usize {
    let mut holders = vec![0usize; facts.shares()];
    rows.iter().flatten().for_each(|(share, _)| holders[share.index()] += 1);
    let most = holders.into_iter().min().unwrap_or(0).saturating_sub(1);
    let mut weights = vec![0.0; rows.len()];
    let mut decodes = |missing: &[usize]| {
        dual.independent(missing) || {
            dual.weights(missing, &mut weights);
            judge(rows, &facts.share_weights, &weights, true).residual <= super::gate::RESIDUAL_MAX
        }
    };
    for stragglers in 1..=most {
        if binomial(rows.len(), stragglers) > SETS_TRIED_MAX {
            return stragglers - 1;
        }
        let mut missing: Vec<usize> = (0..stragglers).collect();
        loop {
            if !decodes(&missing) {
                return stragglers - 1;
            }
            if !next_combination(&mut missing, rows.len()) {
                break;
            }
        }
    }
    most
}

/// The largest `s` for which all sets of `s` stragglers were tried and leave an accepted error. It
/// fails with the error of all workers together if even that is too large.
fn tolerance_tried(plan: &Arc<Plan>) -> Result<usize, f64> {
    let workers = plan.facts.workers;
    let mut decoder = DualDecoder::new(plan);
    let decodes = |decoder: &mut DualDecoder, missing: &[usize]| {
        decoder.reset();
        let mut there = Worker::all(workers).filter(|worker| !missing.contains(&worker.index()));
        there.any(|worker| decoder.arrive(worker) == Status::Decodable)
    };
    if !decodes(&mut decoder, &[]) {
        return Err(decoder.weights(Choice::MinimumNorm, &mut vec![0.0; workers]).error);
    }
    let entries = plan.rows.len().saturating_mul(plan.facts.shares());
    let each = entries.saturating_mul(workers.min(plan.facts.shares())) as u64;
    for stragglers in 1..workers {
        if binomial(workers, stragglers).saturating_mul(each) > MULTIPLICATIONS_MAX {
            return Ok(stragglers - 1);
        }
        let mut missing: Vec<usize> = (0..stragglers).collect();
        loop {
            if !decodes(&mut decoder, &missing) {
                return Ok(stragglers - 1);
            }
            if !next_combination(&mut missing, workers) {
                break;
            }
        }
    }
    Ok(workers - 1)
}

impl GradientCode for DenseCode {
    fn facts(&self) -> &Facts {
        &self.plan.facts
    }

    fn row(&self, worker: Worker) -> &[(Share, f64)] {
        &self.plan.rows[worker.index()]
    }

    fn proof(&self) -> Option<&'static str> {
        (!self.claimed).then_some("all sets of so many were tried")
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(DualDecoder::new(&self.plan))
    }
}
