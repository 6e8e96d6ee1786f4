//! Passes over the host's memory that a gradient takes on its way, by the kind of place that takes
//! them.
//!
//! A *pass* reads or writes as many bytes of the host's memory as a gradient has. To copy a
//! gradient takes two: one to read it and one to write it. Every place of this library counts the
//! bytes that it reads and writes of messages, sums and decoded gradients, whole or in chunks.
//!
//! # Formula
//! ```text
//! passes = bytes / (4 d s)
//! ```
//! where `d` is the length of a gradient and `s` the number of steps in which the bytes were
//! counted.
//!
//! # What is left out
//! - What a trainer does with its memory: it writes messages and applies decoded gradients.
//! - What the kernel and TLS do with frames, in buffers of their own.
//! - A second look at a tile of 4,096 numbers, which is in the first-level cache. A second look at
//!   a chunk of 65,536 numbers counts.
//! - States of replicas on their way to other workers.
//! - Debug builds also overwrite each message with NaN, which does not count.
//!
//! Counters are those of the process: workers and a coordinator that share it are added up. Look
//! before and after some steps, and subtract.
//!
//! ```
//! use codedgrad::gpu::add_into;
//! use codedgrad::passes::counted;
//! let added = || counted().into_iter().find(|(place, _)| *place == "add").map(|found| found.1);
//! let (before, mut sum) = (added(), [1.0; 1000]);
//! add_into(&mut sum, 1.0, &[2.0; 1000]);
//! // Two are read and one is written.
//! assert_eq!(added().zip(before).map(|(now, before)| (now - before) / 4000), Some(3));
//! ```

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// What a place does with a gradient's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassPlace {
    /// A trainer's gradient becomes a message.
    Gather,
    /// A decoded gradient is written to where the trainer wants it.
    Scatter,
    /// A message is overwritten with zeros.
    Clear,
    /// A vector is added to another, as in a worker's tree of micro-batches.
    Add,
    /// A vector is multiplied or rounded where it lies.
    Scale,
    /// Terms are multiplied by their weights and added up.
    Sum,
    /// A search for numbers that are not finite.
    Scan,
    /// A digest is taken or compared.
    Digest,
    /// Numbers that are final early are hashed, to see later whether they have changed.
    Hash,
    /// Numbers that are final early are copied for the nodes that sum them.
    Announce,
    /// Chunks are copied between vectors and blocks, and rounded to the wire's format.
    Copy,
    /// Chunks are written to connections.
    FrameOut,
    /// Chunks are read from connections.
    FrameIn,
    /// Results are compared with each other, to find Byzantine workers.
    Judge,
    /// Parameters are hashed after a step.
    Parameters,
}

impl PassPlace {
    /// All of them, in the order in which they are declared.
    pub const ALL: [Self; 15] = [
        Self::Gather,
        Self::Scatter,
        Self::Clear,
        Self::Add,
        Self::Scale,
        Self::Sum,
        Self::Scan,
        Self::Digest,
        Self::Hash,
        Self::Announce,
        Self::Copy,
        Self::FrameOut,
        Self::FrameIn,
        Self::Judge,
        Self::Parameters,
    ];

    /// Its name, as [`counted`] gives it.
    ///
    /// ```
    /// use codedgrad::passes::PassPlace;
    /// assert_eq!(PassPlace::FrameOut.name(), "frame_out");
    /// ```
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Clear => "clear",
            Self::Add => "add",
            Self::Scale => "scale",
            Self::Sum => "sum",
            Self::Scan => "scan",
            Self::Digest => "digest",
            Self::Hash => "hash",
            Self::Announce => "announce",
            Self::Copy => "copy",
            Self::FrameOut => "frame_out",
            Self::FrameIn => "frame_in",
            Self::Judge => "judge",
            Self::Parameters => "parameters",
        }
    }
}

static BYTES: [AtomicU64; PassPlace::ALL.len()] =
    [const { AtomicU64::new(0) }; PassPlace::ALL.len()];

/// Notes that a place has read and written so many bytes: once per vector or chunk.
///
/// ```
/// use codedgrad::passes::{PassPlace, count, counted};
/// count(PassPlace::Gather, 8);
/// assert!(counted().iter().any(|(place, bytes)| *place == "gather" && *bytes >= 8));
/// ```
pub fn count(place: PassPlace, bytes: usize) {
    BYTES[place as usize].fetch_add(bytes as u64, Relaxed);
}

/// The bytes that each place has read and written since the process began.
///
/// ```
/// assert!(codedgrad::passes::counted().iter().any(|(place, _)| *place == "frame_in"));
/// ```
#[must_use]
pub fn counted() -> Vec<(&'static str, u64)> {
    let bytes = |place: PassPlace| (place.name(), BYTES[place as usize].load(Relaxed));
    PassPlace::ALL.map(bytes).to_vec()
}
