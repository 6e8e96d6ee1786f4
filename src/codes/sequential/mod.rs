//! Schemes: who is assigned which task, and when a result's weight is final.
//!
//! [`Scheme`] is the only thing the round engine and the trainer know of a code. A one-round code
//! becomes a scheme by [`OneRound`].

#[cfg(test)]
mod closure;
pub(super) mod m_sgc;
mod models;
mod one_round;
mod scheme;
mod slots;
pub(super) mod sr_sgc;
mod stream;

pub use m_sgc::{MSgc, MSgcParameters};
pub use models::Accept;
pub use one_round::OneRound;
pub use scheme::{FastForward, Outlook, ResultUse, RoundEvent, Scheme};
pub use slots::SlotKind;
pub use sr_sgc::{SrSgc, SrSgcParameters};
pub(super) use stream::JobStream;

use super::{Defect, GradientCode, ParameterError, Report};
use crate::ids::{Job, Part, Share, Worker, WorkerSet};
use std::ops::Range;

/// What is fixed about a scheme once its parameters are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SchemeFacts {
    /// Number of workers, `n`.
    pub workers: usize,
    /// Units of each batch.
    pub units: u32,
    /// Rounds a job may take beyond its first, `T`.
    pub delay: usize,
    /// Largest fraction of a batch that one worker touches in a round.
    pub load: f64,
    /// The same of each worker, where they differ; empty where all have the same.
    pub loads: Vec<f64>,
    /// Any so many stragglers of one round are tolerated.
    pub tolerance: usize,
    /// Largest normalised error a decode may have; 0 for exact schemes.
    pub error_max: f64,
    /// Whether every finished task counts by itself, and not only all of a worker's round together.
    pub partial: bool,
    /// Whether a worker asks for its tasks one at a time, within the round: each costs a pull. Else
    /// the order that opens the round has them all.
    pub pulls: bool,
    /// Whether gradients are plain sums of results that are plain sums: no coefficient and no
    /// weight but 1.
    pub plain: bool,
    /// How many Byzantine workers the scheme can find out (of every group, where it votes); 0 = it
    /// trusts all.
    pub byzantine: usize,
    /// The group of every worker, where the members of a group return equal results and
    /// [vote](crate::codes::Verifier) which are right; empty where no worker votes.
    pub voting_groups: Vec<u32>,
    /// Whether a decoded job can be opened again. If not, all that is undecided is
    /// [begun again](Scheme::restart).
    pub reopens: bool,
    /// Whether a task's result is the gradient at the mixture of its parts' data, not the mixture
    /// of their gradients.
    pub mixture: bool,
    /// What is wrong with the code, as the last decode has shown: nothing decoded so is applied.
    pub defect: Option<Defect>,
}

impl SchemeFacts {
    /// Whether each worker has one task in a round, which does not depend on what others do.
    pub(crate) fn has_fixed_tasks(&self) -> bool {
        self.delay == 0 && self.byzantine == 0 && !(self.partial || self.pulls)
    }

    /// Those of an exact scheme of one round without feedback, coefficients allowed, that bears no
    /// straggler.
    #[must_use]
    pub fn new(workers: usize, units: u32, load: f64) -> Self {
        Self {
            workers,
            units,
            delay: 0,
            load,
            loads: Vec::new(),
            tolerance: 0,
            error_max: 0.0,
            partial: false,
            pulls: false,
            plain: false,
            byzantine: 0,
            voting_groups: Vec::new(),
            reopens: true,
            mixture: false,
            defect: None,
        }
    }

    /// The fraction of a batch that a worker touches in a round.
    #[must_use]
    pub fn load_of_worker(&self, worker: Worker) -> f64 {
        self.loads.get(worker.index()).copied().unwrap_or(self.load)
    }

    /// Units of a task of these parts. A mixture of blocks is computed as one of them.
    #[must_use]
    pub fn units_of(&self, parts: &[Part]) -> u32 {
        let counts = parts.iter().map(|part| part.units.count());
        if self.mixture { counts.max().unwrap_or(0) } else { counts.sum() }
    }

    /// The fraction of the batch that a task of these parts is.
    #[must_use]
    pub fn load_of(&self, parts: &[Part]) -> f64 {
        f64::from(self.units_of(parts)) / f64::from(self.units)
    }

    /// Whether the coordinator has to see results as they were received, to vote on them or judge
    /// them.
    #[must_use]
    pub fn looks_at_results(&self) -> bool {
        self.byzantine > 0 || self.mixture
    }

    /// Whether an answer that comes after its round has closed may still count.
    #[must_use]
    pub fn takes_late(&self) -> bool {
        self.delay > 0 && !self.partial
    }
}

/// Over what a scheme runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Horizon {
    /// Number of workers, `n`.
    pub workers: usize,
    /// Units of each batch; as many as the scheme itself cuts it into if not given.
    pub units: Option<u32>,
    /// Its jobs.
    pub jobs: Range<Job>,
    /// Which stragglers a round may close without.
    pub accept: Accept,
}

/// Rounds of the longest window, and rows of the largest table of tasks.
const WINDOW_MAX: usize = 100_000;
const ROWS_MAX: usize = 1 << 22;

/// Refuses workers and windows of a scheme over rounds that cannot be.
fn check_window(
    scheme: &'static str,
    workers: usize,
    (burst, window): (usize, usize),
) -> Result<(), ParameterError> {
    if workers == 0 {
        return Err(ParameterError::NoWorkers);
    }
    if burst.max(window) > WINDOW_MAX {
        let problem = format!("B={burst}, W={window}: both must be at most {WINDOW_MAX}");
        return Err(ParameterError::Conditions { scheme, problem });
    }
    Ok(())
}

/// The shares that no worker outside `missing` holds.
fn unheld(code: &dyn GradientCode, missing: &WorkerSet) -> impl Iterator<Item = Share> + use<> {
    let mut held = vec![false; code.facts().shares()];
    for worker in missing.complement().iter() {
        code.row(worker).iter().for_each(|(share, _)| held[share.index()] = true);
    }
    (0..).map(Share).zip(held).filter(|(_, held)| !held).map(|(share, _)| share)
}

/// How late a worker was with all its tasks, for [`Scheme::close`]: the time that it took by the
/// time that the round took.
pub(crate) fn lateness(arrival: f64, round: f64) -> f64 {
    if round > 0.0 { arrival / round } else { 1.0 }
}

/// Whose results are in a gradient, and their weights, one per worker; no weights where workers
/// have more than one result in it.
pub(crate) fn by_worker(
    workers: usize,
    results: impl ExactSizeIterator<Item = (Worker, f64)>,
) -> (WorkerSet, Vec<f64>) {
    let count = results.len();
    let (mut survivors, mut weights) = (WorkerSet::empty(workers), vec![0.0; workers]);
    for (worker, weight) in results {
        survivors.insert(worker);
        weights[worker.index()] = weight;
    }
    if count > survivors.len() {
        weights.clear();
    }
    (survivors, weights)
}

/// The report of an uncoded sum.
pub(crate) const UNCODED: Report =
    Report { decodable: true, residual: 0.0, amplification: 1.0, coverage: 1.0, error: 0.0 };

/// The worst of several decodes in every respect; that of an uncoded sum if there are none.
pub(crate) fn worst(reports: impl Iterator<Item = Report>) -> Report {
    reports.fold(UNCODED, |worst, report| Report {
        decodable: worst.decodable && report.decodable,
        residual: worst.residual.max(report.residual),
        amplification: worst.amplification.max(report.amplification),
        coverage: worst.coverage.min(report.coverage),
        error: worst.error.max(report.error),
    })
}
