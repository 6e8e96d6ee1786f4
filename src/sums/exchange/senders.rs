//! Of whom the chunks of a sum come.

use crate::sums::COORDINATOR;

/// Who sends each chunk of a sum.
#[derive(Debug)]
pub(super) struct Senders {
    /// Who sums it, by the plan.
    owners: Vec<Option<u32>>,
    /// Who sends it besides, as the coordinator has said.
    besides: Vec<Option<u32>>,
}

impl Senders {
    /// Of a sum of so many chunks of which nothing is known.
    pub(super) fn new(count: usize) -> Self {
        Self { owners: vec![None; count], besides: vec![None; count] }
    }

    pub(super) fn plan(&mut self, owners: Vec<Option<u32>>) {
        self.owners = owners;
    }

    pub(super) fn name(&mut self, besides: Vec<Option<u32>>) {
        self.besides = besides;
    }

    /// Whether a node sums a chunk.
    pub(super) fn owns(&self, node: u32, chunk: usize) -> bool {
        self.owners.get(chunk).copied().flatten() == Some(node)
    }

    /// Whether a chunk counts if it comes of this node.
    pub(super) fn include(&self, node: u32, chunk: usize) -> bool {
        let is_named = self.besides.get(chunk).copied().flatten() == Some(node);
        node == COORDINATOR || is_named || self.owns(node, chunk)
    }
}
