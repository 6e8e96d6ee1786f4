//! Dropping the slowest workers: the biased baseline, not a code.
//!
//! # Construction
//! Every worker its own share, as uncoded; the round closes when all but `b` have answered, and the
//! sum over the `m` answers is scaled by `n/m`.
//!
//! # Guarantee
//! None on the gradient: the samples of slow workers are missing, every time. A shard on a slow
//! machine is under-represented for as long as the machine is slow.
//!
//! # Cost
//! Load `1/n`, decode O(n).
//!
//! # Numerics
//! Amplification at most `sqrt(n/(n-b))`; normalised error `b/(n-b)` with `b` missing.
//!
//! # Source
//! Backup workers: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting Distributed Synchronous SGD",
//! arXiv 1604.00981; what elastic trainers do when they divide by the number of those who took
//! part.

use super::family::{ClosedForm, Family, Recipe, Space, Traits, WaitsFor, keyed};
use super::{Choice, Decoder, Facts, GradientCode, ParameterError, Report, Row, Status, judge};
use crate::ids::{Share, Worker};
use std::sync::Arc;

/// The biased baseline.
pub(super) const FAMILY: Family = Family {
    name: "drop",
    examples: &["drop:b=1"],
    summary: "the b slowest of every step are left out, and their samples lost (biased)",
    traits: Traits { biased: true, ..Traits::NONE },
    spaces: Some(|limits| vec![Space::of([keyed("b", 1..limits.workers)])]),
    ..Family::new(|fields| {
        let dropped = fields.need("b")?;
        let form = move |workers: usize| {
            let workers = workers as f64;
            let waits_for = WaitsFor::AllBut { stragglers: dropped };
            let coverage = 1.0 - dropped as f64 / workers;
            Some(ClosedForm { waits_for, load: 1.0 / workers, coverage })
        };
        Ok(Recipe::code(move |workers| DropSlowest::new(workers, dropped)).closed_form(form))
    })
};

/// Uncoded shares of which the `b` slowest are dropped.
///
/// # Formula
/// ```text
/// a_i = n / m   for the m >= n - b workers that answered
/// ```
/// where `n` is the number of workers and `b` the number that may be dropped.
///
/// ```
/// use codedgrad::codes::{decode, Choice, DropSlowest};
/// use codedgrad::ids::{Worker, WorkerSet};
/// let code = DropSlowest::new(4, 1)?;
/// let (weights, report) = decode(&code, &WorkerSet::of(4, [0, 1, 2].map(Worker)), Choice::Fewest);
/// assert_eq!(weights[0], 4.0 / 3.0);
/// assert_eq!((report.decodable, report.coverage), (true, 0.75));
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DropSlowest {
    plan: Arc<(Facts, Vec<Row>)>,
}

impl DropSlowest {
    /// `workers` of which up to `dropped` are not waited for.
    ///
    /// # Errors
    /// [`ParameterError::NoWorkers`] without workers, [`ParameterError::DropOutOfRange`] unless
    /// `1 <= dropped < workers`.
    ///
    /// ```
    /// use codedgrad::codes::DropSlowest;
    /// assert!(DropSlowest::new(8, 2).is_ok());
    /// assert!(DropSlowest::new(8, 8).is_err());
    /// ```
    pub fn new(workers: usize, dropped: usize) -> Result<Self, ParameterError> {
        if workers == 0 {
            return Err(ParameterError::NoWorkers);
        }
        if dropped == 0 || dropped >= workers {
            return Err(ParameterError::DropOutOfRange { dropped, workers });
        }
        let facts = Facts {
            workers,
            share_weights: vec![1.0 / workers as f64; workers],
            tolerance: dropped,
            load: 1.0 / workers as f64,
            error_max: dropped as f64 / (workers - dropped) as f64,
        };
        let rows = (0..workers as u32).map(|j| vec![(Share(j), 1.0)]).collect();
        Ok(Self { plan: Arc::new((facts, rows)) })
    }
}

impl GradientCode for DropSlowest {
    fn facts(&self) -> &Facts {
        &self.plan.0
    }

    fn row(&self, worker: Worker) -> &[(Share, f64)] {
        &self.plan.1[worker.index()]
    }

    fn proof(&self) -> Option<&'static str> {
        Some("any answers but b are accepted")
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(DropDecoder {
            plan: Arc::clone(&self.plan),
            arrived: vec![false; self.plan.0.workers],
            count: 0,
        })
    }
}

struct DropDecoder {
    plan: Arc<(Facts, Vec<Row>)>,
    arrived: Vec<bool>,
    count: usize,
}

impl DropDecoder {
    fn needed(&self) -> usize {
        self.plan.0.workers - self.plan.0.tolerance
    }
}

impl Decoder for DropDecoder {
    fn arrive(&mut self, worker: Worker) -> Status {
        if std::mem::replace(&mut self.arrived[worker.index()], true) {
            return Status::Useless;
        }
        self.count += 1;
        if self.count == self.needed() { Status::Decodable } else { Status::Pending }
    }

    fn weights(&mut self, _: Choice, out: &mut [f64]) -> Report {
        let (facts, rows) = &*self.plan;
        assert_eq!(out.len(), facts.workers, "one weight per worker");
        let scale = facts.workers as f64 / self.count.max(1) as f64;
        for (weight, arrived) in out.iter_mut().zip(&self.arrived) {
            *weight = if *arrived { scale } else { 0.0 };
        }
        judge(rows, &facts.share_weights, out, self.count >= self.needed())
    }

    fn reset(&mut self) {
        self.arrived.fill(false);
        self.count = 0;
    }
}
