//! Who sums which chunks of which terms, and who gets the sum.

use crate::ids::{Step, Worker};
use crate::transport::wire::{Owner, chunks};
use crate::transport::{Summand, What};

/// What everybody who takes part is told.
#[derive(Clone, Debug)]
pub(in crate::transport) struct Plan {
    pub(in crate::transport) step: Step,
    pub(in crate::transport) attempt: u32,
    /// Which terms these are, for a node that is told of some only.
    pub(in crate::transport) places: Vec<u32>,
    pub(in crate::transport) terms: Vec<Summand>,
    pub(in crate::transport) owners: Vec<Owner>,
    pub(in crate::transport) receivers: Vec<u32>,
}

impl Plan {
    /// Which term of the sum a term of this plan is.
    pub(super) fn place(&self, term: usize) -> u32 {
        self.places.get(term).copied().unwrap_or(term as u32)
    }

    /// Whose vector is used for a term at the owner of that place.
    pub(super) fn source(&self, place: usize, term: usize) -> Option<(u32, What)> {
        let piece = self.terms[term].source(Worker(self.owners[place].node), place)?;
        Some((piece.worker.0, piece.what))
    }
}

/// Cuts a vector's chunks among nodes, as evenly as whole chunks can be.
pub(super) fn share_out(nodes: &[u32], length: usize) -> Vec<Owner> {
    let (count, nodes) = (chunks(length), &nodes[..nodes.len().min(chunks(length)).max(1)]);
    let edge = |at: usize| count * at / nodes.len();
    nodes
        .iter()
        .enumerate()
        .map(|(at, node)| Owner { node: *node, start: edge(at), end: edge(at + 1) })
        .collect()
}
