//! What is known of a coordinator's connections.

use crate::ids::{Worker, WorkerSet};
use crate::sums::exchange::{StalledSum, SumCounts};

/// What is known of one worker's connection.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct WorkerStatus {
    /// Its name.
    pub identity: String,
    /// Where it called from.
    pub address: String,
    /// With which others it may fail at once; empty where it does not say.
    #[serde(default)]
    pub domain: String,
    /// Whether it is connected.
    pub connected: bool,
    /// How many times it has joined.
    pub epoch: u32,
    /// For how long nothing was heard of it.
    pub silent_seconds: f64,
    /// Why the last call for its number was refused for good, if it was: since it trains something
    /// else.
    #[serde(default)]
    pub refused: Option<String>,
}

/// What is known of a coordinator's connections.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TcpStatus {
    /// One entry per worker.
    pub workers: Vec<WorkerStatus>,
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// What has come of sums.
    #[serde(flatten)]
    pub sums: SumCounts,
    /// A sum that stands still for a second.
    #[serde(default)]
    pub stalled: Option<StalledSum>,
    /// Calls that were refused.
    pub refused: u64,
    /// Exchanges, sums and states that are kept.
    pub kept: u64,
}

impl TcpStatus {
    /// Which of the workers are there.
    ///
    /// ```
    /// use codedgrad::ids::Worker;
    /// use codedgrad::transport::tcp::{TcpStatus, WorkerStatus};
    /// let there = WorkerStatus { connected: true, ..WorkerStatus::default() };
    /// let workers = vec![WorkerStatus::default(), there];
    /// let status = TcpStatus { workers, ..TcpStatus::default() };
    /// assert!(status.connected().iter().eq([Worker(1)]));
    /// ```
    #[must_use]
    pub fn connected(&self) -> WorkerSet {
        let seats = Worker::all(self.workers.len()).zip(&self.workers);
        let there = seats.filter(|(_, seat)| seat.connected).map(|(worker, _)| worker);
        WorkerSet::of(self.workers.len(), there)
    }
}

#[cfg(test)]
mod tests;
