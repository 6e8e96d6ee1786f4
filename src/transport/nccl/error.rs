//! What can go wrong with NCCL.

use super::rules::{MANY_RANKS_SWITCH, Version};
use super::watch::Phase;
use crate::gpu::cuda::CudaError;
use std::time::Duration;
use thiserror::Error;

/// What NCCL cannot do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NcclError {
    /// The library is not there.
    #[error(
        "no libnccl.so.2; `pip install nvidia-nccl-cu12` has it, its folder goes on \
         LD_LIBRARY_PATH ({reason})"
    )]
    NoLibrary {
        /// What the loader said.
        reason: String,
    },
    /// The library lacks a function.
    #[error("libnccl.so.2 has no {symbol}; NCCL {} or newer is needed", Version::OLDEST)]
    NoSymbol {
        /// Its name.
        symbol: &'static str,
    },
    /// The library is too old.
    #[error("this is NCCL {version}; {} or newer is needed", Version::OLDEST)]
    TooOld {
        /// Its version.
        version: Version,
    },
    /// Not the 256 hexadecimal digits of an id.
    #[error("a communicator's id is 256 hexadecimal digits, not these {length} characters")]
    BadId {
        /// How many bytes there are.
        length: usize,
    },
    /// No rank of this process.
    #[error("no rank of this process is among those to connect")]
    NoRanks,
    /// A rank that cannot be, or one that is there twice or not here.
    #[error("rank {rank} is not one of {size}, is there twice, or is not of this process")]
    Rank {
        /// Which.
        rank: usize,
        /// Ranks of the communicator.
        size: usize,
    },
    /// Two ranks on one GPU, with a library that cannot do that.
    #[error(
        "ranks {first} and {second} share GPU {device}, for which NCCL {} is needed; this is \
         {version}",
        Version::MANY_RANKS
    )]
    SharedDevice {
        /// One rank.
        first: usize,
        /// The other.
        second: usize,
        /// Their device.
        device: usize,
        /// The library's version.
        version: Version,
    },
    /// Two ranks on one GPU without the switch for it.
    #[error(
        "ranks {first} and {second} share GPU {device}, which NCCL does as an experiment only: set \
         {MANY_RANKS_SWITCH}=1"
    )]
    Switch {
        /// One rank.
        first: usize,
        /// The other.
        second: usize,
        /// Their device.
        device: usize,
    },
    /// Not one vector, or weight, for each rank of this process.
    #[error("{found} vectors or weights for {expected} ranks of this process")]
    Count {
        /// Ranks of this process.
        expected: usize,
        /// What was given.
        found: usize,
    },
    /// A vector unlike the first one in length or format.
    #[error("the vector of rank {rank} has another length or format than the first rank's")]
    Unlike {
        /// Whose.
        rank: usize,
    },
    /// A vector that lies on another device than its rank.
    #[error("the vector of rank {rank} does not lie on its GPU")]
    Elsewhere {
        /// Whose.
        rank: usize,
    },
    /// NCCL says no. The group is aborted.
    #[error("NCCL, {phase}: {reason}")]
    Refused {
        /// WorkerState what.
        phase: Phase,
        /// Its words.
        reason: String,
    },
    /// The time is up: a rank is dead, or never came. The group is aborted.
    #[error(
        "NCCL, {phase}: {busy} of this process's ranks were not done after {limit:?}; is a peer \
         dead?"
    )]
    Late {
        /// WorkerState what.
        phase: Phase,
        /// Ranks of this process that still waited.
        busy: usize,
        /// The limit.
        limit: Duration,
    },
    /// Even giving up took too long: the devices may still be at it.
    #[error("NCCL did not give up within {limit:?}; this process should end")]
    Stuck {
        /// The limit.
        limit: Duration,
    },
    /// A part of a vector that is not in it, or of a rank that there is not.
    #[error("rank {rank} cannot have elements {start} to {end} of a vector of {length}")]
    Part {
        /// Whose.
        rank: usize,
        /// First element.
        start: usize,
        /// One past the last.
        end: usize,
        /// Elements there are.
        length: usize,
    },
    /// The group was given up before.
    #[error("this group was aborted: those that are left must join a new one")]
    Aborted,
    /// The driver refused something.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}
