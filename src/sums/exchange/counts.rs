//! What has come of the sums of a run, counted by the machine that has them made.

use serde::{Deserialize, Serialize};

/// What has come of the sums of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SumCounts {
    /// Exchanges that came to an end.
    pub exchanges: u64,
    /// How many of them a collective made.
    pub by_collective: u64,
    /// Seconds of the last one, from the plan to the second holder.
    pub exchange_seconds: f64,
    /// Sums that workers were told to begin while their step was computed.
    pub expected: u64,
    /// How many steps were made of such a sum.
    pub confirmed: u64,
    /// How many were made of another one, after all.
    pub replaced: u64,
    /// Workers that can sum by a collective now, among themselves.
    pub group: usize,
}
