//! What the engine is told about a run beside its scheme.

use crate::codes::sequential::SchemeFacts;
use crate::run::NumberFormat;
use thiserror::Error;

/// Where results are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reduce {
    /// All at once when a step is decoded, by one tree over the units of its batch: where every
    /// task is a micro-batch the sum has the bits of uncoded training, whoever computed what.
    /// Workers keep every result until then.
    #[default]
    Tree,
    /// At each worker, as soon as a result's weight is final: it keeps one sum per open step.
    Worker,
}

/// What the engine is told about a run beside its scheme.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Seconds a round may stay open before the run gives up on whoever never came.
    pub max_wait_seconds: f64,
    /// Seconds an approximate scheme waits for more arrivals after it could close; exact schemes
    /// never do.
    pub grace_seconds: f64,
    /// Number format of messages, for the gate.
    pub wire: NumberFormat,
    /// Decoded steps kept for those who missed some; whoever misses more takes over a peer's state.
    /// More than the scheme's delay, since so many and one more may be decided at once.
    pub log_steps: u64,
    /// Jobs whose sum is one step. The jobs of a step are all decoded before those of the next
    /// begin; with one job per step they overlap, as those of models trained in turn.
    pub micro_steps: u64,
    /// Models trained in turn: step `t` is of model `t mod models`. Under a scheme whose jobs
    /// overlap there must be one for each that is open, or tasks would be computed at parameters
    /// that lack steps: step `t` is computed with those after step `t - models`.
    pub models: u64,
    /// Deadline tolerance of schemes over rounds: no round closes without anybody before `(1+mu)`
    /// times its first answer.
    pub mu: f64,
    /// Where results are added up.
    pub reduce: Reduce,
    /// Seconds, and at most `max_wait_seconds`, for which lost workers may come back when those
    /// that are left are too few to go on; 0 = the run ends at once.
    pub return_seconds: f64,
    /// Whether the driver can hand out a state itself where no worker has one:
    /// [`Action::Restore`](super::Action::Restore).
    pub restores: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_wait_seconds: 60.0,
            grace_seconds: 0.0,
            wire: NumberFormat::F32,
            log_steps: 16,
            micro_steps: 1,
            models: 1,
            mu: 1.0,
            reduce: Reduce::Tree,
            return_seconds: 0.0,
            restores: false,
        }
    }
}

impl Config {
    /// Whether a run can be made under a scheme as it is told here.
    ///
    /// # Errors
    /// [`ConfigError`] with what would be right.
    pub fn check(&self, facts: &SchemeFacts) -> Result<(), ConfigError> {
        let Self { micro_steps, models, .. } = *self;
        let rounds = facts.delay as u64 + 1;
        match (models, micro_steps) {
            (0, _) => Err(ConfigError::NoModels),
            (_, 0) => Err(ConfigError::NoJobs),
            (2.., 2..) => Err(ConfigError::ModelsAndMicroSteps { models, micro_steps }),
            (_, 1) if models < rounds => Err(ConfigError::TooFewModels { rounds, models }),
            _ => Ok(()),
        }
    }
}

/// Why no run can be made as a [`Config`] says.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Steps without jobs.
    #[error("micro_steps is 0: a step is the sum of 1 or more jobs")]
    NoJobs,
    /// Nothing to train.
    #[error("models is 0: a run trains 1 or more models")]
    NoModels,
    /// Jobs overlap, and there is not one model for each.
    #[error(
        "a job may take {rounds} rounds under this scheme, so that {rounds} jobs overlap: they \
         must be the steps of {rounds} or more \
         models trained in turn, not of {models}, or several must add up to one step (micro_steps of 2 or more)"
    )]
    TooFewModels {
        /// Rounds that a job may take, and models that are enough: the scheme's delay and one.
        rounds: u64,
        /// Models there are.
        models: u64,
    },
    /// Several models, each with several jobs per step.
    #[error(
        "{models} models with {micro_steps} micro-steps each: jobs are either the steps of several \
         models or the micro-steps of one"
    )]
    ModelsAndMicroSteps {
        /// Models there are.
        models: u64,
        /// Jobs of a step.
        micro_steps: u64,
    },
}
