//! The sums of steps: what they are made of, who holds them, and how nodes make them together. No
//! transport, no clock.
//!
//! [`StepSums`] stands between a driver and its engine: it knows which sum of a step counts
//! and who holds it. `exchange` has the machines by which workers and coordinator make
//! sums over connections; a transport drives them, and carries what they tell each other
//! ([`SumCommand`], [`SumReport`], [`PeerMessage`]) and the chunks of vectors, each with a
//! [`Header`]. What a worker keeps for them is in its [`ledger`]; a [`collective`] sums where
//! vectors lie.

mod chunks;
pub mod collective;
#[cfg_attr(
    not(feature = "tcp"),
    expect(dead_code, unused_imports, reason = "only connections drive its machines so far")
)]
pub(crate) mod exchange;
pub mod ledger;
mod messages;
mod steps;
mod terms;
#[cfg(test)]
mod tests;

pub use chunks::{CHUNK, COORDINATOR, Header, Kind, chunk_range, chunks};
pub use exchange::{Exchange, StalledSum, SumCounts};
pub use messages::{NotFinite, Owner, PeerMessage, Predecessor, SumCommand, SumPlan, SumReport};
pub use steps::StepSums;
pub(crate) use terms::lock;
pub use terms::{DecodedSum, SumId, SumNotice, TaskSpent};
