//! What the exchanges of a node have in common with its connections.

use super::block::{Blocks, Vectors};
use super::reassembly::ReassemblyBuffers;
use crate::run::NumberFormat;

/// What the exchanges of a node have in common with its connections.
#[derive(Clone, Debug)]
pub(crate) struct NodeContext {
    /// A worker, or the coordinator.
    pub(crate) me: u32,
    /// Numbers in a vector.
    pub(crate) length: usize,
    /// The format of numbers on the wire.
    pub(crate) format: NumberFormat,
    /// Whether digests are of bits, as a collective takes them.
    pub(crate) of_bits: bool,
    pub(crate) blocks: Blocks,
    pub(crate) vectors: Vectors,
    pub(crate) buffers: ReassemblyBuffers,
    /// How many sums are kept, for those who lack them.
    pub(crate) kept_max: usize,
}

#[cfg(test)]
impl NodeContext {
    pub(super) fn of_tests(me: u32, length: usize) -> Self {
        Self {
            me,
            length,
            format: NumberFormat::F32,
            of_bits: false,
            blocks: Blocks::new(length),
            vectors: Vectors::default(),
            buffers: ReassemblyBuffers::default(),
            kept_max: 4,
        }
    }
}
