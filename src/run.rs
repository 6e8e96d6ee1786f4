//! A run, said once: its workers, how large batches are, which jobs make a step, how long it waits,
//! and in which numbers vectors travel.
//!
//! [`RunConfig`] is the value that the engine, the coordinator and the port of its workers hold; a
//! trainer, a command line and a record of a run hold its parts. The numbers that a run may have
//! are constants beside the parts that have them.

use crate::ids::{Job, Step};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// A run, for any scheme and anything that is trained.
///
/// ```
/// use codedgrad::ids::Step;
/// use codedgrad::run::{Limits, RunConfig, Shape};
/// let usual = RunConfig::new(Shape::new(4, 8), 1000, 50);
/// assert_eq!((usual.shape.samples(), usual.first, usual.end), (8, Step(0), Step(50)));
/// let patient = Limits { max_wait_seconds: 600.0, ..usual.limits };
/// let resumed = RunConfig { limits: patient, first: Step(20), ..usual };
/// assert_eq!(resumed.jobs.of(20..50), 20..50);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunConfig {
    /// Who computes, and how batches are cut.
    pub shape: Shape,
    /// The jobs of its steps.
    pub jobs: Jobs,
    /// How long the run waits for a worker.
    pub limits: Limits,
    /// Format in which vectors travel between processes, by whose precision decodes are judged.
    pub format: NumberFormat,
    /// Numbers in a gradient.
    pub length: usize,
    /// Numbers in a worker's result: those of a gradient, unless a judge makes one of it.
    pub result_length: usize,
    /// Decided steps kept for those who missed some; a worker that misses more takes over a peer's
    /// state. More than the scheme's delay, since so many and one more may be decided at once.
    pub log_steps: u64,
    /// First step, counted over all models.
    pub first: Step,
    /// One past the last step.
    pub end: Step,
}

impl RunConfig {
    /// Numbers that a gradient may have.
    pub const LENGTH: RangeInclusive<u64> = 1..=1 << 36;
    /// Decided steps that may be kept.
    pub const LOG_STEPS: RangeInclusive<u64> = 1..=1 << 20;
    /// Most decided steps that are kept if nothing else is said.
    pub const USUAL_LOG_STEPS: u64 = 16;
    /// Bytes of `f32` that they take at most, as long as a scheme's delay does not ask for more.
    pub const USUAL_LOG_BYTES: usize = 256 << 20;

    /// A run over gradients of `length` numbers, everything else as is usual, to be changed field
    /// by field.
    ///
    /// These defaults are those of every way to make a run: [`Builder`](crate::train::Builder), the
    /// bundled trainer, `codedgrad serve`, the Python package and `simulate --rules trainer`. One
    /// job per step, of one model. A round is given up after [`Limits::max_wait_seconds`] = 60. The
    /// run does not wait for lost workers (`return_seconds` = 0) or go on with fewer (`min_workers`
    /// = none). Approximate schemes wait for no late worker (`grace_seconds` = 0). Vectors travel
    /// as `f32`, results are added up by one tree,
    /// and [`RunConfig::usual_log_steps`] decided steps are kept.
    #[must_use]
    pub fn new(shape: Shape, length: usize, steps: u64) -> Self {
        Self {
            shape,
            jobs: Jobs::default(),
            limits: Limits::default(),
            format: NumberFormat::default(),
            length,
            result_length: length,
            log_steps: Self::usual_log_steps(length, 0),
            first: Step(0),
            end: Step(steps),
        }
    }

    /// Decided steps that are kept for those who missed some, if nothing else is said: 16, fewer
    /// where they would take more than 256 MiB, and always one more than the scheme's delay.
    ///
    /// ```
    /// use codedgrad::run::RunConfig;
    /// assert_eq!(RunConfig::usual_log_steps(1000, 0), 16);
    /// // 100 million numbers are 381 MiB.
    /// assert_eq!(RunConfig::usual_log_steps(100_000_000, 0), 1);
    /// assert_eq!(RunConfig::usual_log_steps(100_000_000, 3), 4);
    /// ```
    #[must_use]
    pub fn usual_log_steps(length: usize, delay: usize) -> u64 {
        let each = size_of::<f32>() * length.max(1);
        let bounded = (Self::USUAL_LOG_BYTES / each) as u64;
        bounded.min(Self::USUAL_LOG_STEPS).max(delay as u64 + 1)
    }

    /// Whether the run can be made under a scheme for so many workers and units, whose jobs take
    /// `delay` rounds more than one.
    ///
    /// # Errors
    /// [`ConfigError`] with what would be right.
    pub fn check(&self, workers: usize, units: u32, delay: usize) -> Result<(), ConfigError> {
        let Shape { workers: of_run, units: cut, .. } = self.shape;
        for (what, scheme, run) in [
            ("workers", workers as u64, of_run as u64),
            ("units of a batch", u64::from(units), u64::from(cut)),
        ] {
            if scheme != run {
                return Err(ConfigError::Shape { what, scheme, run });
            }
        }
        self.jobs.check(delay)
    }
}

/// Who computes, and how batches are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of workers.
    pub workers: usize,
    /// Units of a batch, in which it is cut into shares.
    pub units: u32,
    /// Consecutive samples that each unit is.
    pub unit_samples: usize,
}

impl Shape {
    /// Workers that a run may have.
    pub const WORKERS: RangeInclusive<u64> = 1..=4096;
    /// Units that a batch may have: what is known of a step grows with them.
    pub const UNITS: RangeInclusive<u64> = 1..=1 << 22;
    /// Samples that a unit may have.
    pub const UNIT_SAMPLES: RangeInclusive<u64> = 1..=1 << 32;

    /// Workers and units of one sample each.
    #[must_use]
    pub fn new(workers: usize, units: u32) -> Self {
        Self { workers, units, unit_samples: 1 }
    }

    /// Samples of a batch.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.unit_samples * self.units as usize
    }
}

/// Which jobs make up the steps of a run: several of one model are summed to one step, or each is
/// the step of one of several models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jobs {
    /// Models trained in turn: step `t` is of model `t mod models`. Under a scheme whose jobs
    /// overlap there must be one for each that is open, or tasks would be computed at parameters
    /// that lack steps: step `t` is computed with those after step `t - models`.
    pub models: u64,
    /// Jobs whose sum is one step. The jobs of a step are all decoded before those of the next
    /// begin; with one job per step they overlap, as those of models trained in turn.
    pub micro_steps: u64,
}

impl Default for Jobs {
    fn default() -> Self {
        Self { models: 1, micro_steps: 1 }
    }
}

impl Jobs {
    /// Jobs that a run may have, whether steps or batches of them.
    pub const COUNT: RangeInclusive<u64> = 1..=1 << 48;

    /// The jobs of some steps, by their numbers.
    #[must_use]
    pub fn of(&self, steps: Range<u64>) -> Range<u64> {
        steps.start * self.micro_steps..steps.end * self.micro_steps
    }

    /// The steps that must be applied before some jobs are computed: of each model, the one before
    /// its step.
    pub(crate) fn before(&self, jobs: impl Iterator<Item = Job>) -> Vec<Step> {
        let before = |job: Job| job.step(self.micro_steps).0.checked_sub(self.models).map(Step);
        jobs.filter_map(before).collect::<BTreeSet<Step>>().into_iter().collect()
    }

    /// Whether the jobs of a scheme that overlap are there: each takes `delay` rounds more than
    /// one.
    ///
    /// # Errors
    /// [`ConfigError`] with what would be right.
    pub fn check(&self, delay: usize) -> Result<(), ConfigError> {
        let Self { micro_steps, models } = *self;
        let rounds = delay as u64 + 1;
        match (models, micro_steps) {
            (0, _) => Err(ConfigError::NoModels),
            (_, 0) => Err(ConfigError::NoJobs),
            (2.., 2..) => Err(ConfigError::ModelsAndMicroSteps { models, micro_steps }),
            (_, 1) if models < rounds => Err(ConfigError::TooFewModels { rounds, models }),
            _ => Ok(()),
        }
    }
}

/// How long the run waits for a worker, and with how few it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Seconds a round may stay open before the run gives up on workers that never came.
    pub max_wait_seconds: f64,
    /// Seconds, and at most `max_wait_seconds`, for which lost workers may come back when those
    /// that are left are too few to go on; 0 = the run ends at once.
    #[serde(default)]
    pub return_seconds: f64,
    /// Seconds an approximate scheme waits for more arrivals after it could close; exact schemes
    /// never do.
    pub grace_seconds: f64,
    /// Deadline tolerance of schemes over rounds: no round closes without a worker before `(1+mu)`
    /// times its first answer.
    pub mu: f64,
    /// Where more workers are gone than the scheme can do without, the run is planned again for
    /// those who are left, as long as those are so many or more, if at all.
    #[serde(default)]
    pub min_workers: Option<usize>,
    /// Seconds, where `min_workers` is given, for which a lost worker that the scheme can do
    /// without keeps its part in the plan: it may be started again, and to plan without it and back
    /// changes who sums what.
    #[serde(default = "Limits::usual_settle")]
    pub settle_seconds: f64,
    /// The run ends when so many workers were lost by errors in one unit of one step; those that
    /// were at it at once count as one.
    #[serde(default = "Limits::usual_unit_tries")]
    pub unit_tries: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_wait_seconds: 60.0,
            return_seconds: 0.0,
            grace_seconds: 0.0,
            mu: 1.0,
            min_workers: None,
            settle_seconds: Self::SETTLE_SECONDS,
            unit_tries: Self::UNIT_TRIES,
        }
    }
}

impl Limits {
    /// How many workers may be lost by errors in one unit of one step, unless told.
    pub const UNIT_TRIES: u32 = 3;

    /// For how long a lost worker keeps its part in the plan, unless told.
    pub const SETTLE_SECONDS: f64 = 10.0;

    fn usual_settle() -> f64 {
        Self::SETTLE_SECONDS
    }

    fn usual_unit_tries() -> u32 {
        Self::UNIT_TRIES
    }

    /// The longest wait: a year.
    pub const WAIT_MAX: Duration = Duration::from_secs(365 * 86_400);
}

/// Why no run can be made as a [`RunConfig`] says.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A scheme that is not for this run.
    #[error("the scheme is made for {scheme} {what}, the run has {run}")]
    Shape {
        /// Of what the numbers are.
        what: &'static str,
        /// Those of the scheme.
        scheme: u64,
        /// Those of the run.
        run: u64,
    },
    /// Steps without jobs.
    #[error("micro_steps is 0: a step is the sum of 1 or more jobs")]
    NoJobs,
    /// Nothing to train.
    #[error("models is 0: a run trains 1 or more models")]
    NoModels,
    /// Jobs overlap, and there is not one model for each.
    #[error(
        "a job may take {rounds} rounds under this scheme, so that {rounds} jobs overlap: they \
         must be the steps of {rounds} or more interleaved models, not of {models}, or several \
         must add up to one step (micro_steps of 2 or more)"
    )]
    TooFewModels {
        /// Rounds that a job may take, and models that are enough: the scheme's delay and one.
        rounds: u64,
        /// Models there are.
        models: u64,
    },
    /// Several models, each with several jobs per step.
    #[error(
        "{models} models with {micro_steps} batches per step: jobs are either the steps of several \
         models or the batches of one step"
    )]
    ModelsAndMicroSteps {
        /// Models there are.
        models: u64,
        /// Jobs of a step.
        micro_steps: u64,
    },
}

/// Format of the numbers of vectors.
///
/// ```
/// use codedgrad::run::NumberFormat;
/// let format: NumberFormat = "bf16".parse()?;
/// assert_eq!((format, format.bytes(), format.name()), (NumberFormat::Bf16, 2, "bf16"));
/// let error = "f8".parse::<NumberFormat>().unwrap_err();
/// assert_eq!(error, "\"f8\" is no number format; it is f32, bf16 or f16");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NumberFormat {
    /// 32-bit floats: 24 bits of precision.
    #[default]
    F32,
    /// bfloat16: half the bytes, 8 bits of precision.
    Bf16,
    /// IEEE half precision: half the bytes, 11 bits of precision. No vector travels over TCP in it.
    F16,
}

impl NumberFormat {
    /// Its name: `f32`, `bf16` or `f16`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// Bytes of one number.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }
}

impl fmt::Display for NumberFormat {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

impl FromStr for NumberFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::F32, Self::Bf16, Self::F16]
            .into_iter()
            .find(|format| format.name() == text)
            .ok_or_else(|| format!("{text:?} is no number format; it is f32, bf16 or f16"))
    }
}

#[cfg(test)]
mod tests;
