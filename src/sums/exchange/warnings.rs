//! Warnings of what other nodes send that is wrong: one of each kind, however often it comes.

use super::name_of;
use std::collections::{BTreeMap, BTreeSet};

/// Kinds of wrong words that are told of one node.
const KINDS: usize = 16;

/// What was warned of, by who sent it.
#[derive(Debug, Default)]
pub(crate) struct Warnings(BTreeMap<u32, BTreeSet<String>>);

impl Warnings {
    /// Tells what a node sent that is wrong, if that is to be told.
    pub(crate) fn warn(&mut self, node: u32, reason: &str) {
        if self.is_new(node, reason) {
            tracing::warn!("from {}: {reason} (more of the kind is not told)", name_of(node));
        }
    }

    /// Whether a reason is to be told: the first of its kind, of not too many. Reasons that differ
    /// in numbers alone are of one kind.
    fn is_new(&mut self, node: u32, reason: &str) -> bool {
        let kinds = self.0.entry(node).or_default();
        let kind: String = reason.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        kinds.len() < KINDS && kinds.insert(kind)
    }
}

#[cfg(test)]
mod tests;
