//! Who sums which chunks of which terms, and who gets the sum.

use crate::ids::Worker;
use crate::sums::{Owner, SumPlan, chunks};
use std::collections::BTreeSet;

/// Stripes that are joined to one, at most, where the chunks of a lost owner are shared: more share
/// them evenly, and make the plan longer.
const STRIPES_JOINED: usize = 8;

impl SumPlan {
    /// Which term of the sum a term of this plan is.
    pub(super) fn place(&self, term: usize) -> u32 {
        self.places.get(term).copied().unwrap_or(term as u32)
    }

    /// Who sums which of all `count` chunks: the owners of every stripe.
    pub(super) fn all_owners(&self, count: usize) -> Vec<Owner> {
        match self.stripe {
            Some(stripe) => of_all_stripes(&self.owners, stripe, count),
            None => self.owners.clone(),
        }
    }

    /// Which of all `count` chunks another node sums than in the exchange that this one carries on.
    pub(super) fn moved(&self, count: usize) -> Vec<usize> {
        let Some(before) = &self.predecessor else { return Vec::new() };
        let before = nodes_of(&of_all_stripes(&before.owners, before.stripe, count), count);
        let now = nodes_of(&self.all_owners(count), count);
        (0..count).filter(|chunk| before[*chunk] != now[*chunk]).collect()
    }

    /// Whether nothing that is summed is still to be computed.
    pub(super) fn is_of_results_that_are_there(&self) -> bool {
        self.stripe.is_none()
    }

    /// Who sends a term that is there to the owner of that place, or is that owner.
    pub(super) fn sender(&self, place: usize, term: usize) -> Option<u32> {
        let piece = self.terms[term].source(Worker(self.owners[place].node), place)?;
        Some(piece.worker.0)
    }
}

/// The owners of every stripe of `count` chunks.
pub(super) fn of_all_stripes(owners: &[Owner], stripe: usize, count: usize) -> Vec<Owner> {
    let stripe = stripe.max(1);
    let mut all = Vec::new();
    for first in (0..count).step_by(stripe) {
        let last = (first + stripe).min(count);
        let of_stripe = owners.iter().map(|owner| Owner {
            node: owner.node,
            start: first.saturating_add(owner.start).min(last),
            end: first.saturating_add(owner.end).min(last),
        });
        all.extend(of_stripe.filter(|owner| owner.start < owner.end));
    }
    all
}

/// Who sums each of `count` chunks.
pub(super) fn nodes_of(owners: &[Owner], count: usize) -> Vec<Option<u32>> {
    let mut nodes = vec![None; count];
    for owner in owners {
        let end = owner.end.min(count);
        nodes[owner.start.min(end)..end].fill(Some(owner.node));
    }
    nodes
}

/// Gives the chunks of a lost owner to the others in turn: the chunks of a stripe, and who sums
/// which. None if there are no others.
///
/// The others keep what they have, so that nothing of theirs is summed again. A stripe becomes as
/// long as several of before, up to [`STRIPES_JOINED`] of them, for few chunks of one stripe could
/// not be shared by many.
pub(super) fn without(lost: u32, owners: &[Owner], stripe: usize) -> Option<(usize, Vec<Owner>)> {
    let heirs: BTreeSet<u32> =
        owners.iter().map(|owner| owner.node).filter(|node| *node != lost).collect();
    let joined = heirs.len().min(STRIPES_JOINED);
    let mut turns = heirs.iter().cycle();
    let mut all: Vec<Owner> = Vec::new();
    for first in (0..joined).map(|at| at * stripe) {
        for owner in owners {
            let (start, end) = (first + owner.start, first + owner.end);
            if owner.node != lost {
                all.push(Owner { start, end, ..*owner });
                continue;
            }
            let heir = |(start, node): (usize, &u32)| Owner { node: *node, start, end: start + 1 };
            all.extend((start..end).zip(turns.by_ref()).map(heir));
        }
    }
    (joined > 0).then_some((joined * stripe, all))
}

/// Cuts a vector's chunks among nodes, as evenly as whole chunks can be.
pub(super) fn share_out(nodes: &[u32], length: usize) -> Vec<Owner> {
    share_chunks(nodes, chunks(length))
}

/// The same for so many chunks.
pub(super) fn share_chunks(nodes: &[u32], count: usize) -> Vec<Owner> {
    // No node is told of an empty part.
    let nodes = &nodes[..nodes.len().min(count).max(1)];
    let edge = |at: usize| count * at / nodes.len();
    nodes
        .iter()
        .enumerate()
        .map(|(at, node)| Owner { node: *node, start: edge(at), end: edge(at + 1) })
        .collect()
}

#[cfg(test)]
mod tests;
