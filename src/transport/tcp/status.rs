//! What is known of a coordinator's connections.

use crate::ids::{Worker, WorkerSet};
use crate::sums::exchange::StalledSum;

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
    /// Exchanges that came to an end.
    pub exchanges: u64,
    /// How many of them a collective made.
    #[serde(default, alias = "woven")]
    pub by_collective: u64,
    /// Sums that workers were told to begin while their step was computed.
    #[serde(default)]
    pub expected: u64,
    /// How many steps were made of such a sum.
    #[serde(default)]
    pub confirmed: u64,
    /// How many were made of another one, after all.
    #[serde(default)]
    pub replaced: u64,
    /// Workers that can sum by a collective now, among themselves.
    #[serde(default)]
    pub group: usize,
    /// A sum that stands still for a second.
    #[serde(default)]
    pub stalled: Option<StalledSum>,
    /// Seconds of the last one, from the plan to the second holder.
    pub exchange_seconds: f64,
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
