//! What the planner is asked, and what it refuses.

use crate::codes::registry::{Family, Registry, SearchLimits};
use crate::codes::sequential::{Accept, Horizon};
use crate::codes::{ParameterError, SchemeSpec};
use crate::delays::Growth;
use crate::ids::Job;
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

/// Thirty years. Longer times are slips, and sums of them are no numbers.
const SECONDS_MAX: f64 = 1e9;

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
        let least = self.growth.least();
        self.cells(self.rows, "time", &|time| time >= 0.0)?;
        self.cells(self.rows, "time of at most 1e9 s", &|time| time <= SECONDS_MAX)?;
        for (round, row) in (1..).zip(self.rows) {
            if let Some(worker) = row.iter().position(|delay| *delay < least) {
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
        for (name, value, least) in [
            ("dispatch", self.dispatch, 0.0),
            ("max_work", self.max_work.min(f64::MAX), 1.0),
            ("cut", self.cut as f64, 1.0),
            ("accumulate", self.accumulate as f64, 1.0),
        ] {
            if !(value.is_finite() && value >= least) {
                return Err(PlanError::Limit { name, value, least });
            }
        }
        if self.rows.len() < self.accumulate {
            return Err(PlanError::Steps { rounds: self.rows.len(), accumulate: self.accumulate });
        }
        Ok(())
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

/// A question that cannot be answered. Rounds count from 1, workers from 0.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum PlanError {
    /// No numbers at all.
    #[error("the trace has no rounds or no workers")]
    Empty,
    /// A row of another length.
    #[error("round {round} has a {what} for {found} workers, not for {workers}")]
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
    #[error("round {round}, worker {worker}: {value} is no {what}")]
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
        "round {round}, worker {worker}: a delay of {delay} s is less than base load x slope = \
         {least} s; a smaller slope or base load fits this trace"
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
    /// Costs of shares for other rounds.
    #[error("costs of shares for {found} rounds, but the trace has {expected}")]
    Rounds {
        /// Rounds with costs.
        found: usize,
        /// Rounds with times.
        expected: usize,
    },
    /// A step longer than the trace.
    #[error("a step of {accumulate} rounds does not fit into a trace of {rounds}")]
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
    #[error("{name} = {value}: must be a number of at least {least}")]
    Limit {
        /// Which.
        name: &'static str,
        /// As given.
        value: f64,
        /// The least that makes sense.
        least: f64,
    },
}
