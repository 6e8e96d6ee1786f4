//! Workers in other processes and on other hosts, over TCP.
//!
//! Every worker has one connection to the coordinator ([`TcpTransport`] there, [`TcpLink`] at the
//! worker); where workers sum ([`Exchange::is_by_workers`]) they also have one to each other, and
//! vectors never go through the coordinator. `docs/protocol.md` describes the bytes.

mod callers;
mod calls;
mod client;
mod commands;
mod coordinator;
mod door;
mod environment;
mod join;
mod listen;
mod mailbox;
mod members;
mod network;
mod pipe;
mod port;
pub mod security;
mod sent;
mod server;
mod states;
mod status;
mod threads;
mod unreadable;

pub use super::wire::Welcome;
pub use crate::sums::{Exchange, StalledSum, SumCounts};
pub use client::TcpLink;
pub use environment::{Environment, EnvironmentError, Secrets, host_name};
pub use join::Join;
pub use listen::Listen;
pub use mailbox::Waker;
pub use network::{Listener, Network, Promise, Sockets};
pub use port::Port;
pub use server::{GatheredWorkers, TcpTransport};
pub use status::{TcpStatus, WorkerStatus};
pub use threads::{IO_THREADS, set_io_threads};

use super::wire::WireError;
use security::SecurityError;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;
use thiserror::Error;
use threads::runtime;
use tokio::runtime::{Handle, Runtime};

/// How long a stranger may take to show who it is.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long a decided sum may be on its way before it is asked for.
const OVERDUE: Duration = Duration::from_secs(1);

impl Welcome {
    /// Sums that are kept, for those who lack them.
    fn kept(&self) -> usize {
        self.log_steps as usize + 1
    }
}

/// Why there is no connection.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TcpError {
    /// The port cannot be opened.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// No process of ours answers.
    #[error("cannot reach {address}: {reason}")]
    Unreachable {
        /// Whom.
        address: String,
        /// Why.
        reason: String,
    },
    /// The coordinator does not want this worker.
    #[error("the coordinator refuses: {reason}")]
    Refused {
        /// Why.
        reason: String,
        /// Whether that may be different in a while: [`Join::patience`] was over.
        again: bool,
        /// In how many seconds it may be, if the coordinator says so.
        wait: u32,
    },
    /// Another process has this worker's number.
    #[error("another process has taken this worker's place")]
    Replaced,
    /// The coordinator is of another release.
    #[error("cannot join the run at {address}: {source}; both must be of one release")]
    Version {
        /// Where it is.
        address: String,
        /// Which version it speaks.
        source: WireError,
    },
    /// A format that not all ways of an exchange have.
    #[error(
        "vectors go between GPUs as they are, in f32: exchange nccl has no bf16 on the wire; take \
         f32, or another exchange"
    )]
    Narrow,
    /// A format that no frame has.
    #[error("wire is F16: over TCP it must be F32 or Bf16")]
    Format,
    /// One side does not know the other.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// The operating system gives no threads.
    #[error("cannot start the threads of the transport: {0}")]
    Threads(std::io::Error),
    /// A number of threads out of range.
    #[error(
        "{told:?} threads for the transport: CODEDGRAD_IO_THREADS is from {} to {}",
        IO_THREADS.start(), IO_THREADS.end()
    )]
    IoThreads {
        /// What was told.
        told: String,
    },
}

/// A number that no other process has: the standard library seeds its hashers at random.
fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Waits for work of the transport's threads. A thread of another runtime may not wait, so one of
/// our own does it for such a caller.
fn wait<F>(runtime: &Runtime, work: F) -> F::Output
where
    F: Future + Send,
    F::Output: Send,
{
    if Handle::try_current().is_err() {
        return runtime.block_on(work);
    }
    let waiting = || runtime.block_on(work);
    std::thread::scope(|scope| scope.spawn(waiting).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
