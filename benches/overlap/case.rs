//! What is measured.

use super::processes::Outcome;
use tokio::runtime::{Builder, Runtime};

/// Layers of the model, which are computed one after the other, forward and backward.
pub(super) const LAYERS: usize = 16;
/// By what the workers are told how many loops a core makes in a second.
pub(super) const LOOPS: &str = "--loops-per-second";

/// What is measured, from the command line; the workers get it by the same words.
#[derive(Clone)]
pub(super) struct Case {
    pub(super) scheme: String,
    pub(super) workers: usize,
    pub(super) units: usize,
    pub(super) elements: usize,
    pub(super) steps: u64,
    pub(super) warmup: u64,
    /// Seconds that a worker computes in a step, a third of them forward.
    pub(super) compute: f64,
    pub(super) buckets: usize,
    /// The one who is late in all steps, or another one in every step.
    pub(super) late_worker: Option<i64>,
    pub(super) factor: f64,
    pub(super) netns: Option<String>,
    pub(super) in_series: bool,
    /// How many loops a core makes in a second, where computing is loops and not sleep.
    pub(super) busy: Option<f64>,
    /// The worker that dies in the backward pass of the middle step.
    pub(super) killed: Option<u32>,
}

impl Case {
    pub(super) fn parse(words: &[String]) -> Outcome<Self> {
        let value = |name: &str| {
            words.iter().position(|word| word == name).and_then(|at| words.get(at + 1))
        };
        let number = |name: &str, default: f64| -> Outcome<f64> {
            Ok(value(name).map_or(Ok(default), |text| text.parse())?)
        };
        let quick = words.iter().any(|word| word == "--test");
        let workers = number("--workers", 4.0)? as usize;
        Ok(Self {
            scheme: value("--scheme").map_or("uncoded".into(), Clone::clone),
            workers,
            units: number("--units", workers as f64)? as usize,
            elements: number("--elements", if quick { 2e6 } else { f64::from(1 << 24) })? as usize,
            steps: number("--steps", if quick { 3.0 } else { 10.0 })? as u64,
            warmup: number("--warmup", if quick { 1.0 } else { 3.0 })? as u64,
            compute: number("--compute", if quick { 0.1 } else { 1.0 })?,
            buckets: number("--buckets", LAYERS as f64)? as usize,
            late_worker: value("--late-worker").map(|text| text.parse()).transpose()?,
            factor: number("--factor", 10.0)?,
            netns: value("--netns").cloned(),
            in_series: words.iter().any(|word| word == "--in-series"),
            busy: value(LOOPS).map(|text| text.parse()).transpose()?,
            killed: value("--kill").map(|text| text.parse()).transpose()?,
        })
    }

    pub(super) fn runtime(&self) -> Outcome<Runtime> {
        Ok(Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
    }

    pub(super) fn factor_of(&self, worker: u32, step: u64) -> f64 {
        let late = match self.late_worker {
            Some(late) if late < 0 => step % self.workers as u64 == u64::from(worker),
            Some(late) => late == i64::from(worker),
            None => false,
        };
        if late { self.factor } else { 1.0 }
    }
}
