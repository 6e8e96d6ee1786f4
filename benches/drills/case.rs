//! What a run of the drills is, and what befalls it.

use super::tap::{Drill, Phase};
use std::time::Duration;

pub(crate) const WORKERS: usize = 4;
pub(crate) const UNITS: u32 = 8;

/// When a coordinator is killed.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) enum End {
    /// While workers compute a step.
    InCompute(u64),
    /// Between the commit of a step and the order to apply it.
    AtCommit(u64),
}

/// A run, and what happens in it.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct Case {
    pub(crate) workers: usize,
    pub(crate) exchange: String,
    pub(crate) elements: usize,
    pub(crate) steps: u64,
    /// Seconds of computing in a step.
    pub(crate) compute_seconds: f64,
    /// For how long, at most, the coordinator is at something else at each commit.
    pub(crate) busy_seconds: f64,
    pub(crate) drill: Option<Drill>,
    pub(crate) end: Option<End>,
}

impl Case {
    /// The time for one of a worker's units; every second worker takes a tenth longer, unless both
    /// of a group are to be asked: who is late when a step begins is not expected to help.
    pub(crate) fn part(&self, worker: u32) -> Duration {
        let equal = self.drill.is_some_and(|drill| drill.phase == Phase::Asked);
        Duration::from_secs_f64(
            self.compute_seconds / f64::from(self.units_of_task())
                * if worker % 2 == 1 && !equal { 1.1 } else { 1.0 },
        )
    }

    /// Units of a worker's task: under `groups:s=1` two workers compute each.
    pub(crate) fn units_of_task(&self) -> u32 {
        UNITS / self.workers as u32 * 2
    }
}
