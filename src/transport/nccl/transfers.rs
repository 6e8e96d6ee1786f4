//! Vectors between two ranks.

use crate::gpu::cuda::{DeviceSource, DeviceTarget};

/// A vector that a rank of this process sends.
#[derive(Debug)]
pub struct OutgoingVector<'a> {
    /// Which rank, of this process.
    pub from: usize,
    /// To which.
    pub to: usize,
    /// The vector, on the GPU of `from`.
    pub vector: DeviceSource<'a>,
}

/// A vector that a rank of this process receives.
#[derive(Debug)]
pub struct IncomingVector<'a> {
    /// Which rank, of this process.
    pub at: usize,
    /// From which.
    pub from: usize,
    /// Where to, on the GPU of `at`.
    pub vector: DeviceTarget<'a>,
}
