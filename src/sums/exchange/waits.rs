//! Who waits for whom in an exchange, by their own words.

use super::blame::blamed;
use super::{AGAIN, QUIET, WORD};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A node to which nothing comes, by its own word.
#[derive(Debug)]
struct WaitingNode {
    since: Instant,
    /// When it said so last; a node that waits says so again and again.
    said: Instant,
    /// Whose chunks it lacks.
    on: Vec<u32>,
}

/// Who waits for whom in an exchange.
///
/// It is told when a node [says](Self::says) that it waits, [has](Self::has_all) all that it waited
/// for, and is [lost](Self::forget). What is known of it at a moment is a [`WaitGraph`].
#[derive(Debug, Default)]
pub(super) struct Waits(BTreeMap<u32, WaitingNode>);

impl Waits {
    /// A node says that nothing has come to it for a while; whether that is news.
    pub(super) fn says(&mut self, node: u32, on: Vec<u32>, now: Instant) -> bool {
        let since = self.lately(now).find(|(other, _)| *other == node);
        let since = since.map(|(_, waiting)| waiting.since);
        self.0.insert(node, WaitingNode { since: since.unwrap_or(now), said: now, on });
        since.is_none()
    }

    /// A node waits for nothing any more.
    pub(super) fn has_all(&mut self, node: u32) {
        self.0.remove(&node);
    }

    /// A node is lost.
    pub(super) fn forget(&mut self, node: u32) {
        self.0.remove(&node);
        self.0.values_mut().for_each(|waiting| waiting.on.retain(|other| *other != node));
    }

    /// Whose chunks a node lacks, by its last word.
    pub(super) fn of(&self, node: u32) -> &[u32] {
        self.0.get(&node).map_or(&[], |waiting| &waiting.on)
    }

    /// Whether a node has said lately that it waits.
    pub(super) fn is_waiting(&self, node: u32, now: Instant) -> bool {
        self.lately(now).any(|(waiting, _)| waiting == node)
    }

    /// Whether nothing has come to some node for longer than that.
    pub(super) fn are_longer(&self, than: Duration, now: Instant) -> bool {
        // It had waited for a while when it first said so.
        self.lately(now).any(|(_, waiting)| now.duration_since(waiting.since) + QUIET > than)
    }

    fn lately(&self, now: Instant) -> impl Iterator<Item = (u32, &WaitingNode)> {
        let all = self.0.iter().map(|(node, waiting)| (*node, waiting));
        all.filter(move |(_, waiting)| now.duration_since(waiting.said) < WORD)
    }

    /// Those who have said so lately.
    pub(super) fn known(&self, now: Instant) -> WaitGraph {
        let waits = |(node, waiting): (u32, &WaitingNode)| (node, waiting.on.clone());
        WaitGraph(self.lately(now).map(waits).collect())
    }

    /// Those who have said so more than once, and just now.
    pub(super) fn insisting(&self, now: Instant) -> WaitGraph {
        let insists = |(node, waiting): (&u32, &WaitingNode)| {
            let is_recent = now.duration_since(waiting.said) < AGAIN;
            (is_recent && waiting.said > waiting.since).then(|| (*node, waiting.on.clone()))
        };
        WaitGraph(self.0.iter().filter_map(insists).collect())
    }
}

/// For every node that waits, the nodes whose chunks it lacks.
#[derive(Debug)]
pub(super) struct WaitGraph(BTreeMap<u32, Vec<u32>>);

impl WaitGraph {
    /// Who waits.
    pub(super) fn nodes(&self) -> impl Iterator<Item = u32> {
        self.0.keys().copied()
    }

    /// Those of whom others lack something and who lack nothing themselves; those of whom most do
    /// first.
    pub(super) fn blamed(&self) -> Vec<u32> {
        let nodes: BTreeSet<u32> =
            self.0.iter().flat_map(|(node, on)| on.iter().chain([node])).copied().collect();
        let nodes: Vec<u32> = nodes.into_iter().collect();
        let index = |node: &u32| nodes.binary_search(node).ok();
        let on = |node| self.0.get(node).into_iter().flatten().filter_map(index).collect();
        let waits_for: Vec<Vec<usize>> = nodes.iter().map(on).collect();
        blamed(&waits_for).into_iter().map(|index| nodes[index]).collect()
    }

    /// How many wait for each node.
    pub(super) fn waiters(&self) -> BTreeMap<u32, usize> {
        let mut waiters: BTreeMap<u32, usize> = BTreeMap::new();
        for node in self.0.values().flatten() {
            *waiters.entry(*node).or_default() += 1;
        }
        waiters
    }

    /// Those of the nodes `of` that cannot send each other something: who waits for another one
    /// that waits for it; if that is so of all of them, only those for which most wait.
    ///
    /// None if there is no such node, or if none of `of` would be left without them. None also if a
    /// node waits for one that does not wait: that one must go on, or is to blame.
    pub(super) fn cut_off(&self, of: &BTreeSet<u32>) -> Option<Vec<u32>> {
        if !self.blamed().is_empty() {
            return None;
        }
        let waits_for =
            |one: u32, other: u32| self.0.get(&one).is_some_and(|on| on.contains(&other));
        let is_cut_off = |node: &u32| {
            let on = self.0.get(node).into_iter().flatten();
            on.copied().any(|other| waits_for(other, *node))
        };
        let (mut cut_off, mut others): (Vec<u32>, Vec<u32>) =
            of.iter().partition(|it| is_cut_off(it));
        if others.is_empty() {
            let waiters = self.waiters();
            let most = cut_off.iter().map(|node| waiters.get(node)).max();
            (cut_off, others) = of.iter().partition(|node| Some(waiters.get(node)) == most);
        }
        (!cut_off.is_empty() && !others.is_empty()).then_some(cut_off)
    }
}

#[cfg(test)]
mod tests;
