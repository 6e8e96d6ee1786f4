//! What the planner is asked, and what it refuses.

use crate::codes::registry::{Family, Registry, SearchLimits};
use crate::codes::sequential::{Accept, Horizon};
use crate::codes::{ParameterError, SchemeSpec};
use crate::delays::{Growth, TIME_MAX, in_few_digits};
use crate::ids::Job;
use crate::spelling::several;
use serde::Serialize;
use thiserror::Error;

/// When the rounds of the schemes of a plan close.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClosingRules {
    /// Those of schemes without delay as soon as they can be decoded, those of others step by step,
    /// with the deadline that is found best for each.
    #[default]
    Usual,
    /// As the authors of sequential gradient coding close them: all schemes wait for the slowest
    /// where the deadline of twice the fastest answer does not do.
    Paper,
}

impl ClosingRules {
    /// Deadline tolerance of [`ClosingRules::Paper`].
    pub const PAPER_MU: f64 = 1.0;
}

/// A trace, and what is allowed.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Seconds of every worker's answer, one row per round, uncoded or at the load that `growth`
    /// says.
    pub rows: &'a [Vec<f64>],
    /// How these times grow with the load.
    pub growth: Growth,
    /// Seconds that pulling one task within a round costs, for `queue` and `ring`.
    pub dispatch: f64,
    /// Rounds a job may be late; 0 where the next step needs the gradient of this one.
    pub max_delay: usize,
    /// Work that is allowed, in uncoded batches per job: 1 or more.
    pub max_work: f64,
    /// Micro-batches in a worker's share of a round: how finely `queue` and `defer` may cut it.
    pub cut: usize,
    /// Rounds in an optimizer step of one model: only their sum counts. A job is then a whole step.
    pub accumulate: usize,
    /// Whether schemes may be recommended that do not give the gradient of the whole batch.
    pub inexact: bool,
    /// What each worker's share costs (tokens, bytes), in the shape of `rows`, where it is known.
    pub share_costs: Option<&'a [Vec<f64>]>,
    /// What is to be tried besides `uncoded`: [`Registry::families`], or some of them.
    pub families: &'a [Family],
    /// Schemes that are compared with the families' best, such as a matrix of one's own.
    pub also: &'a [SchemeSpec],
    /// When rounds close.
    pub rules: ClosingRules,
    /// Whether the times may have been taken anywhere, also after workers had waited for one
    /// another: then nothing is recommended where they look so.
    pub taken_anywhere: bool,
}

impl<'a> Question<'a> {
    /// All families of ours, at most three rounds late, at any work.
    #[must_use]
    pub fn new(rows: &'a [Vec<f64>], growth: Growth) -> Self {
        Self {
            rows,
            growth,
            dispatch: 0.0,
            max_delay: 3,
            max_work: f64::INFINITY,
            cut: 16,
            accumulate: 1,
            inexact: false,
            share_costs: None,
            families: Registry::builtin().families(),
            also: &[],
            rules: ClosingRules::Usual,
            taken_anywhere: false,
        }
    }

    /// Between which limits parameters are looked for.
    pub(super) fn limits(&self) -> SearchLimits {
        let Self { max_delay, cut, accumulate, .. } = *self;
        let workers = self.rows.first().map_or(0, Vec::len);
        SearchLimits { workers, max_delay, cut, accumulate }
    }

    pub(super) fn check(&self) -> Result<(), PlanError> {
        let workers = self.rows.first().map_or(0, Vec::len);
        if workers == 0 {
            return Err(PlanError::Empty);
        }
        self.check_growth()?;
        let least = self.growth.least();
        if self.rows.iter().flatten().all(|time| *time == 0.0) {
            return Err(PlanError::NoTime);
        }
        self.cells(self.rows, "time", &|time| time >= 0.0)?;
        self.cells(self.rows, "time of at most 1e9 s", &|time| time <= TIME_MAX)?;
        for (round, row) in (1..).zip(self.rows) {
            if let Some(worker) = row.iter().position(|delay| !self.growth.allows(*delay)) {
                return Err(PlanError::Negative { round, worker, delay: row[worker], least });
            }
        }
        if let Some(costs) = self.share_costs {
            if costs.len() != self.rows.len() {
                return Err(PlanError::Rounds { found: costs.len(), expected: self.rows.len() });
            }
            self.cells(costs, "cost of a share", &|cost| cost > 0.0)?;
        }
        for spec in self.also {
            let jobs = Job(0)..Job(1);
            let horizon = Horizon { workers, units: None, jobs, accept: Accept::Lookahead };
            spec.over(horizon)?;
            spec.check_claim(workers)?;
        }
        limited("dispatch", self.dispatch, (0.0, TIME_MAX))?;
        limited("max_work", self.max_work, (1.0, f64::INFINITY))?;
        limited("cut", self.cut as f64, (1.0, f64::INFINITY))?;
        limited("accumulate", self.accumulate as f64, (1.0, f64::INFINITY))?;
        if self.rows.len() < self.accumulate {
            return Err(PlanError::Steps { rounds: self.rows.len(), accumulate: self.accumulate });
        }
        Ok(())
    }

    /// Refuses times that cannot be once all shares of a round are taken to cost the same.
    pub(super) fn check_evened(&self, rows: &[Vec<f64>]) -> Result<(), PlanError> {
        let least = self.growth.least();
        for (round, row) in (1..).zip(rows) {
            for (worker, seconds) in row.iter().copied().enumerate() {
                if seconds.is_nan() || seconds > TIME_MAX {
                    return Err(PlanError::Costs { round, worker, seconds });
                }
                if !self.growth.allows(seconds) {
                    return Err(PlanError::Negative { round, worker, delay: seconds, least });
                }
            }
        }
        Ok(())
    }

    fn check_growth(&self) -> Result<(), PlanError> {
        match self.growth {
            Growth::Proportional { base } => {
                limited("base load", base, (Growth::PROPORTIONAL_BASE_MIN, TIME_MAX))
            }
            Growth::Additive { base, slope } => {
                limited("base load", base, (0.0, TIME_MAX))?;
                limited("slope", slope, (0.0, TIME_MAX))
            }
        }
    }

    fn cells(
        &self,
        rows: &[Vec<f64>],
        what: &'static str,
        legal: &dyn Fn(f64) -> bool,
    ) -> Result<(), PlanError> {
        let workers = self.rows[0].len();
        for (round, row) in (1..).zip(rows) {
            if row.len() != workers {
                return Err(PlanError::Ragged { what, round, found: row.len(), workers });
            }
            if let Some(worker) = row.iter().position(|value| !(value.is_finite() && legal(*value)))
            {
                return Err(PlanError::Cell { what, round, worker, value: row[worker] });
            }
        }
        Ok(())
    }
}

/// Refuses a number out of bounds, by its name.
fn limited(name: &'static str, value: f64, (least, most): (f64, f64)) -> Result<(), PlanError> {
    if value > most {
        return Err(PlanError::TooLarge { name, value, most });
    }
    if value.is_nan() || value < least {
        return Err(PlanError::Limit { name, value, least });
    }
    Ok(())
}

/// A question that cannot be answered. Rounds count from 1, workers from 0.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum PlanError {
    /// No numbers at all.
    #[error("the trace has no rounds or no workers")]
    Empty,
    /// No worker takes any time.
    #[error("all times are 0: there is nothing to wait for")]
    NoTime,
    /// A row of another length.
    #[error("round {round} has a {what} for {}, not for {workers}", several(*found, "worker"))]
    Ragged {
        /// Of what.
        what: &'static str,
        /// Which.
        round: usize,
        /// Its numbers.
        found: usize,
        /// How many were expected.
        workers: usize,
    },
    /// A number that cannot be.
    #[error("round {round}, worker {worker}: {} is no {what}", in_few_digits(*value))]
    Cell {
        /// Of what.
        what: &'static str,
        /// Round.
        round: usize,
        /// Worker.
        worker: usize,
        /// The number.
        value: f64,
    },
    /// A time that the load model would turn negative.
    #[error(
        "round {round}, worker {worker}: a delay of {} s is less than base load x slope = {} s; a \
         smaller slope or base load fits this trace",
        in_few_digits(*delay),
        in_few_digits(*least)
    )]
    Negative {
        /// Round.
        round: usize,
        /// Worker.
        worker: usize,
        /// Its time.
        delay: f64,
        /// What the load alone would cost.
        least: f64,
    },
    /// A time that is too long once all shares are taken to cost the same.
    #[error(
        "round {round}, worker {worker}: if its share had cost as much as the others of its round, \
         it would have taken {} s, more than {TIME_MAX:e}: do these costs belong to this trace?",
        in_few_digits(*seconds)
    )]
    Costs {
        /// Round.
        round: usize,
        /// Worker.
        worker: usize,
        /// Its time then.
        seconds: f64,
    },
    /// Costs of shares for other rounds.
    #[error("costs of shares for {}, but the trace has {expected}", several(*found, "round"))]
    Rounds {
        /// Rounds with costs.
        found: usize,
        /// Rounds with times.
        expected: usize,
    },
    /// A step longer than the trace.
    #[error("a step of {} does not fit into a trace of {rounds}", several(*accumulate, "round"))]
    Steps {
        /// Rounds of the trace.
        rounds: usize,
        /// Rounds of a step.
        accumulate: usize,
    },
    /// A scheme that there is none of, for so many workers.
    #[error(transparent)]
    Scheme(#[from] ParameterError),
    /// A limit that excludes everything.
    #[error(
        "{name} = {}: must be a number of at least {}",
        in_few_digits(*value),
        in_few_digits(*least)
    )]
    Limit {
        /// Which.
        name: &'static str,
        /// As given.
        value: f64,
        /// The least that makes sense.
        least: f64,
    },
    /// A limit with which times would be no numbers.
    #[error("{name} = {}: must be at most {most:e}", in_few_digits(*value))]
    TooLarge {
        /// Which.
        name: &'static str,
        /// As given.
        value: f64,
        /// The most that is possible.
        most: f64,
    },
}
