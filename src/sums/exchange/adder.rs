//! The terms of a chunk that are here, and how they are added up by the one tree.

use super::block::{Block, Blocks};
use crate::gpu::{Source, SumCheck, Term, fold_chunk};
use crate::run::NumberFormat;
use std::ops::Range;
use std::sync::Arc;

/// Where a term, or a subtree of terms, of a chunk is.
#[derive(Debug)]
pub(super) enum Content {
    /// The worker itself holds the term.
    Mine,
    /// The same, once it is looked up.
    Slice(Arc<Vec<f32>>, Range<usize>),
    Came(Block),
}

/// The terms of a chunk from `start` on, added up: an aligned block of a power of two of them.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) start: usize,
    pub(super) size: usize,
    /// By which it is multiplied, 1 once terms are added up.
    pub(super) weight: f32,
    pub(super) content: Content,
    /// Who sent it, of a term of another node.
    pub(super) from: Option<u32>,
}

impl Node {
    /// It as a term.
    fn term(&self) -> Term<'_> {
        let source = match &self.content {
            Content::Came(block) => block.source(),
            Content::Slice(numbers, range) => Source::F32(&numbers[range.clone()]),
            Content::Mine => unreachable!("it is looked up before it is added"),
        };
        Term { weight: self.weight, source }
    }

    /// Whether it is the left half of an aligned block, and the other one its right half.
    pub(super) fn is_sibling_of(&self, right: &Self) -> bool {
        self.size == right.size
            && self.start.is_multiple_of(2 * self.size)
            && self.start + self.size == right.start
    }

    pub(super) fn has_come(&self) -> bool {
        matches!(self.content, Content::Came(_))
    }
}

/// Adds up subtrees of a chunk.
pub(super) struct Adder<'a> {
    /// The numbers of a term of the worker's own.
    pub(super) mine: &'a dyn Fn(usize) -> Option<Content>,
    pub(super) blocks: &'a Blocks,
    /// Numbers in the chunk.
    pub(super) count: usize,
}

impl Adder<'_> {
    fn look_up(&self, node: &mut Node) -> Option<()> {
        if matches!(node.content, Content::Mine) {
            node.content = (self.mine)(node.start)?;
        }
        Some(())
    }

    /// Puts the sum of a node and the next one in their place; false if it is not finite, and they
    /// stay: it can still be told whose fault that is.
    fn add(&self, nodes: &mut Vec<Node>, at: usize) -> Option<bool> {
        self.look_up(nodes.get_mut(at)?)?;
        self.look_up(nodes.get_mut(at + 1)?)?;
        // Out of place: a term of the worker's own is its gradient, which must not change.
        let mut sum = self.blocks.take(self.count, NumberFormat::F32);
        if !fold_chunk(&[nodes[at].term(), nodes[at + 1].term()], sum.floats_mut()).finite {
            self.blocks.give(sum);
            return Some(false);
        }
        let right = nodes.remove(at + 1);
        let left = &mut nodes[at];
        left.size += right.size;
        (left.weight, left.from) = (1.0, None);
        self.give(std::mem::replace(&mut left.content, Content::Came(sum)));
        self.give(right.content);
        Some(true)
    }

    fn give(&self, content: Content) {
        if let Content::Came(block) = content {
            self.blocks.give(block);
        }
    }

    /// Adds up halves of aligned blocks, until so many nodes are left; false if some sum of them is
    /// not finite.
    pub(super) fn add_siblings(&self, nodes: &mut Vec<Node>, least: usize) -> Option<bool> {
        let mut at = 0;
        while at + 1 < nodes.len() && nodes.len() > least {
            if nodes[at].is_sibling_of(&nodes[at + 1]) {
                if !self.add(nodes, at)? {
                    return Some(false);
                }
                // The sum may be half of the next larger block, together with what is before it.
                at = at.saturating_sub(1);
            } else {
                at += 1;
            }
        }
        Some(true)
    }

    /// Adds up all terms of a chunk into `out`, by the tree of [`crate::gpu::Combine`] over them;
    /// gives them back if their sum is not finite. None if a term of the worker's own is not here
    /// any more.
    pub(super) fn fold(
        &self,
        mut nodes: Vec<Node>,
        out: &mut [f32],
    ) -> Option<Result<SumCheck, Vec<Node>>> {
        // Where nothing was added early, one pass over all terms does it, and makes the same tree.
        if nodes.iter().any(|node| node.size > 1) {
            let mut finite = self.add_siblings(&mut nodes, 2)?;
            // What is left at the end is added from right to left.
            while finite && nodes.len() > 2 {
                let last = nodes.len() - 2;
                finite = self.add(&mut nodes, last)?;
            }
            if !finite {
                return Some(Err(nodes));
            }
        }
        for node in &mut nodes {
            self.look_up(node)?;
        }
        let terms: Vec<Term<'_>> = nodes.iter().map(Node::term).collect();
        let folded = fold_chunk(&terms, out);
        drop(terms);
        if !folded.finite {
            return Some(Err(nodes));
        }
        nodes.into_iter().for_each(|node| self.give(node.content));
        Some(Ok(folded))
    }

    /// Takes out the terms whose senders are to blame for a sum that is not finite; gives these and
    /// their terms.
    pub(super) fn refuse(&self, nodes: &mut Vec<Node>, format: NumberFormat) -> Vec<(usize, u32)> {
        let mut alone = self.blocks.take(self.count, NumberFormat::F32);
        let mut is_bad = |node: &Node| node.has_come() && is_bad(&node.term(), format, &mut alone);
        let is_refused = |node: &mut Node| node.from.is_some() && is_bad(node);
        let refused: Vec<Node> = nodes.extract_if(.., is_refused).collect();
        self.blocks.give(alone);
        let whose = refused.iter().filter_map(|node| Some((node.start, node.from?))).collect();
        refused.into_iter().for_each(|node| self.give(node.content));
        whose
    }

    /// The terms of a chunk are not needed any more.
    pub(super) fn spend(&self, nodes: Vec<Node>) {
        nodes.into_iter().for_each(|node| self.give(node.content));
    }
}

/// Whether the sender of such a term is at fault. Finite numbers may be infinite in a narrow
/// format: that is no node's fault.
fn is_bad(term: &Term<'_>, format: NumberFormat, alone: &mut Block) -> bool {
    let one = Term { weight: 1.0, source: term.source };
    let finite = fold_chunk(&[one], alone.floats_mut()).finite;
    !finite && (format == NumberFormat::F32 || alone.floats_mut().iter().any(|x| x.is_nan()))
}

#[cfg(test)]
mod tests;
