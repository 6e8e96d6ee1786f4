//! An exchange as its coordinator sees it, and whose fault it is when it does not go on.

use super::STALL;
use crate::ids::Worker;
use crate::transport::Notice;
use crate::transport::wire::COORDINATOR;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// A node to which nothing comes, by its own word.
#[derive(Debug)]
struct Waiting {
    since: Instant,
    /// When it said so last; whoever waits says so again and again.
    said: Instant,
    /// Whose chunks it lacks.
    on: Vec<u32>,
}

/// An exchange.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) begun: Instant,
    pub(super) receivers: Vec<u32>,
    pub(super) holders: BTreeSet<u32>,
    waiting: BTreeMap<u32, Waiting>,
    /// Holders not reported yet, since the sum has not come by here.
    pub(super) unreported: Vec<(Worker, Notice)>,
    /// Its step is decided.
    pub(super) done: bool,
}

impl Running {
    pub(super) fn new(receivers: Vec<u32>, begun: Instant) -> Self {
        Self { begun, receivers, holders: BTreeSet::new(), waiting: BTreeMap::new(), unreported: Vec::new(), done: false }
    }

    /// A node says that nothing has come to it for a while.
    pub(super) fn waits(&mut self, node: u32, on: Vec<u32>, now: Instant) {
        let since = self.still_waiting(now).find(|(other, _)| *other == node).map_or(now, |(_, waiting)| waiting.since);
        self.waiting.insert(node, Waiting { since, said: now, on });
    }

    /// A node has the whole sum.
    pub(super) fn holds(&mut self, node: u32) {
        self.holders.insert(node);
        self.waiting.remove(&node);
    }

    /// A node is gone.
    pub(super) fn forget(&mut self, node: u32) {
        self.holders.remove(&node);
        self.waiting.remove(&node);
        self.waiting.values_mut().for_each(|waiting| waiting.on.retain(|other| *other != node));
        self.receivers.retain(|receiver| *receiver != node);
        self.unreported.retain(|(holder, _)| holder.0 != node);
    }

    fn still_waiting(&self, now: Instant) -> impl Iterator<Item = (u32, &Waiting)> {
        self.waiting.iter().map(|(node, waiting)| (*node, waiting)).filter(move |(_, waiting)| now.duration_since(waiting.said) < STALL)
    }

    /// Whether some node waits in vain for `patience`, or the whole takes longer than `longest`.
    pub(super) fn is_stuck(&self, now: Instant, patience: Duration, longest: Duration) -> bool {
        let in_vain = |(_, waiting): (u32, &Waiting)| now.duration_since(waiting.since) + STALL > patience;
        !self.done && (now.duration_since(self.begun) > longest || self.still_waiting(now).any(in_vain))
    }

    /// The worker for whom most wait; one that waits itself is a victim, unless everybody waits.
    pub(super) fn culprit(&self, now: Instant) -> Option<u32> {
        let mut blames: BTreeMap<u32, usize> = BTreeMap::new();
        self.still_waiting(now).flat_map(|(_, waiting)| &waiting.on).for_each(|node| *blames.entry(*node).or_default() += 1);
        // Who came later owes nothing.
        blames.retain(|node, _| *node != COORDINATOR && self.receivers.contains(node));
        let waits = |node: u32| self.still_waiting(now).any(|(other, _)| other == node);
        blames.into_iter().max_by_key(|(node, blames)| (!waits(*node), *blames, Reverse(*node))).map(|(node, _)| node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn who_gets_chunks_does_not_wait_in_vain() {
        let begun = Instant::now();
        let at = |seconds: f64| begun + Duration::from_secs_f64(seconds);
        let mut running = Running::new(vec![0, 1, 2], begun);
        let longest = 60 * SECOND;
        // Nothing comes to worker 0 from worker 2 for a while, then something does.
        [1.0, 1.5, 2.0].into_iter().for_each(|seconds| running.waits(0, vec![2], at(seconds)));
        assert!(!running.is_stuck(at(2.0), 3 * SECOND, longest));
        assert!(!running.is_stuck(at(4.5), 3 * SECOND, longest), "it does not say so any more");
        running.waits(0, vec![2], at(6.0));
        assert!(!running.is_stuck(at(6.5), 3 * SECOND, longest), "it had got something in between");
        [6.5, 7.0, 7.5, 8.1].into_iter().for_each(|seconds| running.waits(0, vec![2], at(seconds)));
        assert!(running.is_stuck(at(8.1), 3 * SECOND, longest));
        assert!(running.is_stuck(at(61.0), 3 * SECOND, longest), "and there is an end to everything");
        running.done = true;
        assert!(!running.is_stuck(at(8.1), 3 * SECOND, longest));
    }

    #[test]
    fn who_waits_is_a_victim() {
        let now = Instant::now();
        let mut running = Running::new(vec![0, 1, 2], now);
        running.waits(0, vec![1, 2], now);
        running.waits(1, vec![2, COORDINATOR], now);
        assert_eq!(running.culprit(now), Some(2));
        running.waits(2, vec![0], now);
        running.waits(COORDINATOR, vec![0], now);
        assert!(running.culprit(now).is_some(), "when everybody waits, somebody is it");
        running.forget(2);
        running.holds(0);
        assert_eq!(running.culprit(now), Some(0), "as the coordinator says");
    }
}
