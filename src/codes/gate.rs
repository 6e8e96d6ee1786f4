//! What a decode must satisfy before its result may reach an optimizer.

use super::{Defect, Facts, Report};
use crate::run::NumberFormat;
use std::fmt;
use thiserror::Error;

/// Largest residual of an exact decode.
pub const RESIDUAL_MAX: f64 = 1e-9;
/// Slack on the normalised error of an approximate decode, for rounding.
const ERROR_SLACK: f64 = 1e-9;

/// The gate of one run.
///
/// ```
/// use codedgrad::codes::{decode, Choice, Gate, GradientCode, Groups};
/// use codedgrad::ids::{Worker, WorkerSet};
/// use codedgrad::run::NumberFormat;
/// let code = Groups::new(4, 2)?;
/// let gate = Gate::new(NumberFormat::F32, code.facts());
/// let all = decode(&code, &WorkerSet::full(4), Choice::Fewest).1;
/// assert!(gate.check(&all).is_ok());
/// let lost = decode(&code, &WorkerSet::of(4, [Worker(0), Worker(1)]), Choice::Fewest).1;
/// assert!(gate.check(&lost).is_err());
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    amplification_max: f64,
    error_max: f64,
    better: Alternative,
}

/// A decode that must not be applied, with the numbers that say why.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum GateError {
    /// The decoded gradient would not be the whole sum.
    #[error(
        "the decode is not exact: residual {residual:.3e} (at most {RESIDUAL_MAX:e}), normalised \
         error {error:.3e} (at most {error_max:.3e}), coverage {coverage:.3}; {better}"
    )]
    Inexact {
        /// Largest deviation of a share's coefficient from 1.
        residual: f64,
        /// Normalised decoding error.
        error: f64,
        /// What the code allows.
        error_max: f64,
        /// Fraction of the batch that is in the result.
        coverage: f64,
        /// Codes that would do.
        better: Alternative,
    },
    /// Rounding errors of the messages would grow too far.
    #[error(
        "the decode amplifies rounding errors {amplification:.1} times (at most \
         {amplification_max} for this wire type); {better}"
    )]
    Amplified {
        /// Amplification of this decode.
        amplification: f64,
        /// What the wire type bears.
        amplification_max: f64,
        /// Codes that would do.
        better: Alternative,
    },
    /// The code's decoder does not do what its rows say.
    #[error("the code has a defect: {0}")]
    Defect(Defect),
}

/// What to use instead of a code that its gate refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alternative {
    tolerance: usize,
    approximate: bool,
}

impl fmt::Display for Alternative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.tolerance.max(1);
        match self.approximate {
            true => write!(f, "groups:s={s} is exact, graph with a larger d= or err= may pass"),
            false => write!(
                f,
                "min-load:s={s} has the least load with small amplification, groups:s={s} never \
                 amplifies"
            ),
        }
    }
}

impl Gate {
    /// The gate of a code with these facts whose messages travel in a number format, which sets how
    /// much amplification a decode can bear: up to 256 with the 24 bits of f32, up to 8 with the 8
    /// of bf16 or the 11 of f16.
    ///
    /// ```
    /// use codedgrad::codes::{Gate, GradientCode, Groups};
    /// use codedgrad::run::NumberFormat;
    /// let gate = Gate::new(NumberFormat::Bf16, Groups::uncoded(4)?.facts());
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    #[must_use]
    pub fn new(format: NumberFormat, facts: &Facts) -> Self {
        Self::of(format, facts.tolerance, facts.error_max)
    }

    /// The same of what has no other facts.
    pub(crate) fn of(format: NumberFormat, tolerance: usize, error_max: f64) -> Self {
        let amplification_max = match format {
            NumberFormat::F32 => 256.0,
            NumberFormat::Bf16 | NumberFormat::F16 => 8.0,
        };
        let better = Alternative { tolerance, approximate: error_max > 0.0 };
        Self { amplification_max, error_max, better }
    }

    /// Whether a decode may be applied.
    ///
    /// # Errors
    /// [`GateError`] with the numbers when it may not.
    ///
    /// ```
    /// use codedgrad::codes::{Gate, GateError, GradientCode, Groups, Report};
    /// use codedgrad::run::NumberFormat;
    /// let gate = Gate::new(NumberFormat::Bf16, Groups::uncoded(4)?.facts());
    /// let noisy = Report {
    ///     decodable: true,
    ///     residual: 0.0,
    ///     amplification: 9.0,
    ///     coverage: 1.0,
    ///     error: 0.0,
    /// };
    /// assert!(matches!(gate.check(&noisy), Err(GateError::Amplified { .. })));
    /// # Ok::<(), codedgrad::codes::ParameterError>(())
    /// ```
    pub fn check(&self, report: &Report) -> Result<(), GateError> {
        let Report { residual, error, coverage, amplification, .. } = *report;
        let exact = residual <= RESIDUAL_MAX;
        let allowed =
            coverage > 0.0 && error <= self.error_max * (1.0 + ERROR_SLACK) && self.error_max > 0.0;
        if !exact && !allowed {
            return Err(GateError::Inexact {
                residual,
                error,
                error_max: self.error_max,
                coverage,
                better: self.better,
            });
        }
        if amplification > self.amplification_max {
            return Err(GateError::Amplified {
                amplification,
                amplification_max: self.amplification_max,
                better: self.better,
            });
        }
        Ok(())
    }
}
