//! Cyclic repetition with random coefficients: the reference every paper compares with.
//!
//! # Construction
//! Worker `i` holds the `s+1` shares from `i` on, cyclically. The coefficients are the null vectors
//! of `s+1` neighbouring columns of a random `H` `[s x n]` whose rows sum to 0.
//!
//! # Guarantee
//! Any `s` stragglers (with probability 1 over `H`); load `(s+1)/n`.
//!
//! # Cost
//! Once O(n^3 + n s^3) for the coefficients and the null space. An arrival is O(1), weights are
//! O(s^3 + n s).
//!
//! # Numerics
//! Poor, by its nature: amplification 100 at `n = 16`, thousands from 64 workers on, and from
//! `n = 256, s = 15` on even the residual of f64 weights misses the gate. [`super::MinLoad`] has
//! the same load and tolerance without that; this code is here to be compared with.
//!
//! # Source
//! Tandon, Lei, Dimakis, Karampatziakis, "Gradient Coding", ICML 2017 (arXiv 1612.03301), Algorithm
//! 2. Decoding over the dual as in Raviv, Tamo, Tandon, Dimakis (arXiv 1707.03858).

use super::dual::{DualDecoder, Plan, Rule};
use super::family::{Family, Recipe};
use super::linear::Dual;
use super::verify::verify;
use super::{Decoder, Facts, Gate, GradientCode, ParameterError, Row, TableError};
use crate::ids::{Share, Worker};
use crate::run::NumberFormat;
use nalgebra::{DMatrix, DVector};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use std::sync::Arc;

/// Up to so many workers a random cyclic code is the best of several.
const CHOSEN_WORKERS_MAX: usize = 12;
/// How many it is chosen from.
const DRAWS: u64 = 16;
/// Beyond this number of workers random cyclic codes are hardly ever of use.
pub(super) const SOUND_MAX: usize = 32;

/// The reference of the literature.
pub(super) const FAMILY: Family = Family {
    name: "cyclic",
    examples: &["cyclic:s=2,seed=7"],
    summary: "the literature's random coefficients, at the load of min-load; for few workers (seed=7 if \
        not given)",
    ..Family::new(|fields| {
        let stragglers = fields.need("s")?;
        let seed = fields.seed()?;
        let recipe = Recipe::code(move |workers| {
            if workers <= CHOSEN_WORKERS_MAX {
                return Cyclic::best_of(DRAWS, workers, stragglers, seed);
            }
            Cyclic::new(workers, stragglers, seed)
        });
        Ok(recipe.warning(move |workers| {
            let warning = format!(
                "random cyclic codes of more than {SOUND_MAX} workers amplify rounding errors \
                 hundreds to thousands of times; min-load:s={stragglers} has the same load and \
                 tolerance without that"
            );
            (workers > SOUND_MAX).then_some(warning)
        }))
    })
};

/// Beyond this the null space takes minutes, as coefficients do before where `s` is near `n`; no
/// wire type bears the amplification.
const WORKERS_MAX: usize = 1024;

/// The random cyclic code of `n` workers for `s` stragglers.
///
/// # Formula
/// ```text
/// H [s x n] normal, last column = -(sum of the others)     J = (i, i+1 .. i+s) mod n
/// B_iJ0 = 1        B_iJ[1..] = -H_J[1..]^-1 H_J0            load = (s+1)/n
/// ```
/// so that every row of `B`, and the all-ones vector, lie in the null space of `H`, of dimension
/// `n - s`.
///
/// ```
/// use codedgrad::codes::{Cyclic, GradientCode};
/// use codedgrad::ids::Worker;
/// let code = Cyclic::new(8, 2, 7)?;
/// assert_eq!((code.facts().load, code.facts().tolerance), (0.375, 2));
/// assert_eq!(code.row(Worker(7)).iter().map(|x| x.0.0).collect::<Vec<_>>(), [0, 1, 7]);
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cyclic {
    plan: Arc<Plan>,
}

impl Cyclic {
    /// A code for `workers` of which any `stragglers` may be missing, drawn from a seed.
    ///
    /// # Errors
    /// [`ParameterError::NoWorkers`], [`ParameterError::TooManyStragglers`],
    /// [`ParameterError::CyclicTooLarge`] beyond 1024 workers, and
    /// [`ParameterError::IllConditioned`] where rounding leaves nothing that could be decoded.
    ///
    /// ```
    /// use codedgrad::codes::Cyclic;
    /// assert!(Cyclic::new(16, 3, 7).is_ok());
    /// assert!(Cyclic::new(4, 4, 7).is_err());
    /// ```
    pub fn new(workers: usize, stragglers: usize, seed: u64) -> Result<Self, ParameterError> {
        super::groups::count_tolerating(workers, stragglers)?;
        if workers > WORKERS_MAX {
            return Err(ParameterError::CyclicTooLarge { workers, stragglers, most: WORKERS_MAX });
        }
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut check =
            DMatrix::from_fn(stragglers, workers, |_, _| StandardNormal.sample(&mut random));
        for mut row in check.row_iter_mut() {
            row[workers - 1] = 0.0;
            row[workers - 1] = -row.sum();
        }
        Self::over(&check)
    }

    /// The best of `draws` codes with the seeds from `seed` on: the one with the smallest worst
    /// amplification over its straggler sets.
    ///
    /// # Errors
    /// As [`Cyclic::new`].
    ///
    /// # Panics
    /// When `draws` is 0.
    ///
    /// ```
    /// use codedgrad::codes::Cyclic;
    /// assert!(Cyclic::best_of(10, 7, 2, 8).is_ok());
    /// ```
    pub fn best_of(
        draws: u64,
        workers: usize,
        stragglers: usize,
        seed: u64,
    ) -> Result<Self, ParameterError> {
        assert!(draws > 0, "at least one code to choose from");
        let mut best: Option<(f64, Self)> = None;
        for seed in (0..draws).map(|draw| seed.wrapping_add(draw)) {
            let code = match Self::new(workers, stragglers, seed) {
                Err(ParameterError::IllConditioned { .. }) => continue,
                code => code?,
            };
            let found =
                verify(&code, &Gate::new(NumberFormat::F32, code.facts()), seed, &mut |_, _| ());
            if best.as_ref().is_none_or(|(least, _)| found.worst_amplification < *least) {
                best = Some((found.worst_amplification, code));
            }
        }
        best.map(|(_, code)| code).ok_or(ParameterError::IllConditioned { workers, stragglers })
    }

    /// The code of a given `H` `[s x n]`, whose rows sum to 0.
    ///
    /// # Errors
    /// [`ParameterError::NoWorkers`], [`ParameterError::TooManyStragglers`],
    /// [`ParameterError::Table`] for a row of another length than `workers`, and
    /// [`ParameterError::IllConditioned`] when some `s` neighbouring columns of `H` depend on each
    /// other or its rows do not sum to 0.
    ///
    /// ```
    /// use codedgrad::codes::{Cyclic, GradientCode};
    /// use codedgrad::ids::{Share, Worker};
    /// let code = Cyclic::from_check_matrix(3, &[vec![1.0, 2.0, -3.0]])?;
    /// assert_eq!(code.row(Worker(0)), [(Share(0), 1.0), (Share(1), -0.5)]);
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    pub fn from_check_matrix(workers: usize, check: &[Vec<f64>]) -> Result<Self, ParameterError> {
        super::groups::count_tolerating(workers, check.len())?;
        if let Some(row) = check.iter().position(|row| row.len() != workers) {
            return Err(TableError::Ragged {
                line: row + 1,
                found: check[row].len(),
                expected: workers,
            }
            .into());
        }
        Self::over(&DMatrix::from_fn(check.len(), workers, |i, j| check[i][j]))
    }

    fn over(check: &DMatrix<f64>) -> Result<Self, ParameterError> {
        let (stragglers, workers) = check.shape();
        let ill = || ParameterError::IllConditioned { workers, stragglers };
        let mut rows = Vec::with_capacity(workers);
        for i in 0..workers {
            let window: Vec<usize> = (i + 1..=i + stragglers).map(|j| j % workers).collect();
            let inverse_of: DMatrix<f64> = check.select_columns(&window);
            let target: DVector<f64> = -check.column(i);
            let coefficients = if stragglers == 0 {
                target
            } else {
                inverse_of.lu().solve(&target).ok_or_else(ill)?
            };
            let mut row: Row = vec![(Share(i as u32), 1.0)];
            row.extend(window.iter().zip(coefficients.iter()).map(|(&j, &x)| (Share(j as u32), x)));
            row.sort_by_key(|entry| entry.0);
            rows.push(row);
        }
        let facts = Facts {
            workers,
            share_weights: vec![1.0 / workers as f64; workers],
            tolerance: stragglers,
            load: (stragglers + 1) as f64 / workers as f64,
            error_max: 0.0,
        };
        let dual = Dual::new(&rows, &facts.share_weights).ok_or_else(ill)?;
        Ok(Self { plan: Arc::new(Plan { facts, rows, dual: Some(dual), rule: Rule::Count }) })
    }
}

impl GradientCode for Cyclic {
    fn facts(&self) -> &Facts {
        &self.plan.facts
    }

    fn row(&self, worker: Worker) -> &[(Share, f64)] {
        &self.plan.rows[worker.index()]
    }

    fn proof(&self) -> Option<&'static str> {
        Some("Tandon et al. 2017, Algorithm 2, with probability 1")
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(DualDecoder::new(&self.plan))
    }
}
