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
    /// Of a step that is summed while it is computed, chunks of a stripe: the owners are of each.
    /// None of a plan for results that are there.
    pub(in crate::transport) stripe: Option<usize>,
    pub(in crate::transport) receivers: Vec<u32>,
}

impl Plan {
    /// Which term of the sum a term of this plan is.
    pub(super) fn place(&self, term: usize) -> u32 {
        self.places.get(term).copied().unwrap_or(term as u32)
    }

    /// Who sums which of all `count` chunks: the owners of every stripe.
    pub(super) fn all_owners(&self, count: usize) -> Vec<Owner> {
        let Some(stripe) = self.stripe else { return self.owners.clone() };
        let stripe = stripe.max(1);
        let mut owners = Vec::new();
        for first in (0..count).step_by(stripe) {
            let last = (first + stripe).min(count);
            let of_stripe = self.owners.iter().map(|owner| Owner {
                node: owner.node,
                start: first.saturating_add(owner.start).min(last),
                end: first.saturating_add(owner.end).min(last),
            });
            owners.extend(of_stripe.filter(|owner| owner.start < owner.end));
        }
        owners
    }

    /// Whose vector is used for a term at the owner of that place.
    pub(super) fn source(&self, place: usize, term: usize) -> Option<(u32, What)> {
        let piece = self.terms[term].source(Worker(self.owners[place].node), place)?;
        Some((piece.worker.0, piece.what))
    }
}

/// Cuts a vector's chunks among nodes, as evenly as whole chunks can be.
pub(super) fn share_out(nodes: &[u32], length: usize) -> Vec<Owner> {
    share_chunks(nodes, chunks(length))
}

/// The same for so many chunks.
pub(super) fn share_chunks(nodes: &[u32], count: usize) -> Vec<Owner> {
    let nodes = &nodes[..nodes.len().min(count).max(1)];
    let edge = |at: usize| count * at / nodes.len();
    nodes
        .iter()
        .enumerate()
        .map(|(at, node)| Owner { node: *node, start: edge(at), end: edge(at + 1) })
        .collect()
}
