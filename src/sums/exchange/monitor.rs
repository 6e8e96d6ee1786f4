//! An exchange as its coordinator sees it, and whose fault it is when it does not go on.
//!
//! When an exchange stands still, the node to blame is one that others wait for and that waits for
//! none. The coordinator ends its connection.

use super::told::SumAssignment;
use super::waits::{WaitGraph, Waits};
use crate::ids::{Step, Summand, Task, Worker, named};
use crate::sums::{COORDINATOR, Owner, SumNotice, SumPlan, SumReport, chunks};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;
use std::time::Instant;

/// Why a sum comes to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VoidReason {
    /// A node that sums is lost, or does not answer: others can go on with what they have.
    Interrupted,
    /// Something in it may be wrong, or not all nodes get it: it is made from its beginning.
    Refused,
}

/// Who has which part in an exchange.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// Who has something that is summed.
    pub(super) term_holders: BTreeSet<u32>,
    /// Who sums which chunks, over connections.
    pub(super) owners: Vec<Owner>,
    /// What workers were told of that.
    pub(super) told: Option<SumAssignment>,
    /// Who can be asked for each term, where workers sum over connections.
    pub(super) askable: Vec<Vec<u32>>,
    /// A worker that has something that is summed is lost: it cannot be made again of the same.
    pub(super) is_orphaned: bool,
    /// Whose result of which task may be summed while it is computed, as long as none is changed.
    pub(super) announced: BTreeSet<(Worker, Task)>,
}

impl Parts {
    /// Who sums can ask any holder of these terms.
    pub(super) fn can_ask(&mut self, terms: &[Summand]) {
        let holders = |term: &Summand| term.holders.iter().map(|piece| piece.worker.0).collect();
        self.askable = terms.iter().map(holders).collect();
    }
}

/// What the decision of a sum takes, and what was decided.
#[derive(Debug, Default)]
pub(super) struct Decision {
    /// Of whom two must hold the sum, or the one that there is.
    pub(super) counted: BTreeSet<u32>,
    /// The digest of what was decided.
    digest: Option<u64>,
}

/// An exchange.
#[derive(Debug)]
pub(super) struct ExchangeMonitor {
    /// What was heard of it while it is only expected that the step will be made of it.
    pub(super) expected: Option<Vec<(u32, SumReport)>>,
    /// When it was begun, or when the last of what it is made of was there.
    pub(super) begun: Instant,
    pub(super) receivers: Vec<u32>,
    pub(super) parts: Parts,
    /// It comes to nothing, and is made again by another attempt.
    pub(super) void: Option<VoidReason>,
    /// Who gets the sum without asking for it.
    pub(super) given: BTreeSet<u32>,
    /// Who has the whole sum, with which digest, if it takes one.
    pub(super) holders: BTreeMap<u32, Option<u64>>,
    pub(super) decision: Decision,
    pub(super) waits: Waits,
    /// Holders not reported yet, since the sum has not come by here.
    pub(super) unreported: Vec<(Worker, SumNotice)>,
    /// Its step is decided.
    pub(super) done: bool,
    /// The group that makes it, if it is not made by connections.
    pub(super) group: Option<u64>,
    /// The coordinator sums it by itself, and sees what it is made of.
    pub(super) own: bool,
    /// A node says that it is not finite.
    pub(super) overflowed: bool,
}

impl ExchangeMonitor {
    /// Of a sum that these are to get, begun now; of what it is made is told later, if at all.
    pub(super) fn new(receivers: Vec<u32>, begun: Instant) -> Self {
        Self {
            expected: None,
            begun,
            receivers,
            parts: Parts::default(),
            void: None,
            given: BTreeSet::new(),
            holders: BTreeMap::new(),
            decision: Decision::default(),
            waits: Waits::default(),
            unreported: Vec::new(),
            done: false,
            group: None,
            own: false,
            overflowed: false,
        }
    }

    /// Of a plan that all nodes are told, where these hold its terms; `expected` as the field.
    pub(super) fn of_plan(
        plan: &SumPlan,
        expected: Option<Vec<(u32, SumReport)>>,
        holders: &[u32],
        length: usize,
        begun: Instant,
    ) -> Self {
        let mut monitor = Self { expected, ..Self::new(plan.receivers.clone(), begun) };
        monitor.parts.term_holders.extend(holders);
        monitor.given.extend(&plan.receivers);
        monitor.group = plan.group;
        if plan.group.is_none() {
            monitor.parts.owners = plan.all_owners(chunks(length));
        }
        monitor
    }

    /// As many holders as a decision needs: two, so that the sum outlives the loss of either; a
    /// worker alone is enough for itself.
    pub(super) fn needed(&self) -> usize {
        self.decision.counted.len().clamp(1, 2)
    }

    /// Who is to get the sum, and has not got it.
    pub(super) fn lacking(&self) -> impl Iterator<Item = u32> {
        let has = |node: &u32| self.holders.contains_key(node);
        self.receivers.iter().copied().filter(move |node| !has(node))
    }

    /// A worker of which it can be said what has become of it: everything that is reported is of
    /// some worker.
    pub(super) fn some_worker(&self) -> u32 {
        self.receivers.iter().copied().find(|node| *node != COORDINATOR).unwrap_or_default()
    }

    /// It comes to nothing; whether that is news.
    pub(super) fn end(&mut self, why: VoidReason) -> bool {
        let is_news = self.void.is_none();
        // No node goes on with what may be wrong.
        if is_news || why == VoidReason::Refused {
            self.void = Some(why);
        }
        is_news
    }

    /// Whether its step may yet turn out to be made of it.
    pub(super) fn is_expected(&self) -> bool {
        self.expected.is_some() && self.void.is_none()
    }

    /// Whether the sum can be made and decided without a worker: others that answer have each of
    /// its terms, and enough of those that are counted are left to hold it.
    pub(super) fn can_do_without(&self, worker: u32, answers: impl Fn(u32) -> bool) -> bool {
        if self.parts.is_orphaned {
            return false;
        }
        let asked = self.can_ask(|holder| *holder != worker && answers(*holder));
        let counted = self.decision.counted.iter().filter(|counted| **counted != worker);
        (asked || !self.parts.term_holders.contains(&worker)) && counted.count() >= self.needed()
    }

    /// Whether each of its terms can be had of one of these, where workers ask for them.
    pub(super) fn can_ask(&self, somebody: impl Fn(&u32) -> bool) -> bool {
        let askable = &self.parts.askable;
        !askable.is_empty() && askable.iter().all(|holders| holders.iter().any(&somebody))
    }

    /// Whether enough of those that are to be counted get the sum: one that came after the others
    /// were told is not sent it before it is decided.
    pub(super) fn reaches(&self, counted: &BTreeSet<u32>) -> bool {
        let told = counted.iter().filter(|node| self.receivers.contains(node)).take(2);
        told.count() >= counted.len().min(2)
    }

    /// Who can hand the sum to a node that lacks it: if there is a choice, none of those for whom
    /// it waits in vain.
    pub(super) fn giver(&self, to: u32, is_there: impl Fn(u32) -> bool) -> Option<u32> {
        // A connection may be broken in one direction only, and neither end has noticed.
        let on = self.waits.of(to);
        self.holders
            .keys()
            .copied()
            .filter(|holder| *holder != to && is_there(*holder))
            .min_by_key(|holder| on.contains(holder))
    }

    /// A node has the whole sum; false if not the bytes that were decided.
    pub(super) fn holds(&mut self, node: u32, digest: Option<u64>) -> bool {
        self.waits.has_all(node);
        let right =
            self.decision.digest.is_none() || digest.is_none() || digest == self.decision.digest;
        if right {
            self.holders.insert(node, digest);
        }
        right
    }

    /// Whether nodes hold different bytes.
    pub(super) fn differ(&self) -> bool {
        let mut digests = self.holders.values().flatten();
        let first = digests.next();
        digests.any(|digest| Some(digest) != first)
    }

    /// These bytes are applied; gives back who holds others, and is no holder any more.
    pub(super) fn decided(&mut self, digest: u64) -> Vec<u32> {
        if self.decision.digest.replace(digest) == Some(digest) {
            return Vec::new();
        }
        let wrong = |held: Option<u64>| held.is_some_and(|held| held != digest);
        let nodes =
            self.holders.iter().filter(|(_, held)| wrong(**held)).map(|(node, _)| *node).collect();
        self.holders.retain(|_, held| !wrong(*held));
        nodes
    }

    /// A node is lost; whether the sum cannot be made without it, and none of the workers that are
    /// left has it.
    pub(super) fn forget(&mut self, node: u32) -> bool {
        self.holders.remove(&node);
        self.given.remove(&node);
        self.waits.forget(node);
        self.receivers.retain(|receiver| *receiver != node);
        self.decision.counted.remove(&node);
        self.unreported.retain(|(holder, _)| holder.0 != node);
        // What it has said of an expected sum it would be taken to hold still.
        self.expected.iter_mut().for_each(|reports| reports.retain(|report| report.0 != node));
        let had_terms = self.parts.term_holders.contains(&node);
        self.parts.is_orphaned |= had_terms;
        let summed = self.parts.owners.iter().any(|owner| owner.node == node);
        self.holders.is_empty() && (had_terms || summed)
    }

    /// Whether some node waits in vain for `patience`, or the whole takes longer than `longest`.
    pub(super) fn is_stuck(&self, now: Instant, patience: Duration, longest: Duration) -> bool {
        let is_in_vain = || self.waits.are_longer(patience, now);
        self.is_under_way() && (now.duration_since(self.begun) > longest || is_in_vain())
    }

    /// The worker to blame for that; where some wait for each other, the one for which most wait.
    pub(super) fn culprit(&self, now: Instant) -> Option<u32> {
        let waiting = self.waits.known(now);
        let blamed = waiting.blamed().into_iter().find(|node| self.owes(*node));
        blamed.or_else(|| Some(self.most_waited_for(&waiting)?.0))
    }

    /// A worker for which others wait, who have said so more than once and lately, and that says
    /// nothing: rather one that does not hold the sum. Where some wait for each other, the one for
    /// which several wait, and more than for any other.
    pub(super) fn idle(&self, now: Instant) -> Option<u32> {
        if !self.is_under_way() {
            return None;
        }
        let insisting = self.waits.insisting(now);
        // Who has only stopped waiting goes on, and may owe something for that moment.
        let is_silent = |node: &u32| !self.waits.is_waiting(*node, now);
        let silent = insisting.blamed().into_iter().filter(is_silent);
        let owing = silent.filter(|node| self.owes(*node));
        owing.min_by_key(|node| self.holders.contains_key(node)).or_else(|| {
            let (node, waiters, others) = self.most_waited_for(&insisting)?;
            (waiters > others.max(1)).then_some(node)
        })
    }

    /// Owners that cannot send each other something, and whose chunks others who answer should own:
    /// these may get what both send. Who was told to own nothing does not answer, as far as is
    /// known, before it holds a sum.
    pub(super) fn owners_cut_off(&self, now: Instant, able: &BTreeSet<u32>) -> Option<Vec<u32>> {
        if !self.is_under_way() || self.parts.is_orphaned {
            return None;
        }
        let owners: BTreeSet<u32> = self.parts.owners.iter().map(|owner| owner.node).collect();
        self.waits.insisting(now).cut_off(&owners.intersection(able).copied().collect())
    }

    /// The worker for which most wait, for how many, and for how many the next one.
    fn most_waited_for(&self, waiting: &WaitGraph) -> Option<(u32, usize, usize)> {
        let mut waiters = waiting.waiters();
        waiters.retain(|node, _| self.owes(*node));
        let most = waiters.iter().max_by_key(|(node, count)| (**count, Reverse(**node)));
        let (node, count) = most.map(|(node, count)| (*node, *count))?;
        waiters.remove(&node);
        Some((node, count, waiters.into_values().max().unwrap_or(0)))
    }

    /// Whether a node is a worker that was told of it: who came later owes nothing.
    fn owes(&self, node: u32) -> bool {
        node != COORDINATOR && self.receivers.contains(&node)
    }

    /// Whether fewer hold it than its decision needs.
    pub(super) fn lacks_holders(&self) -> bool {
        self.holders.len() < self.needed()
    }

    /// Whether it lacks holders, or has some that are not reported before it is here too.
    pub(super) fn is_waited_for(&self) -> bool {
        self.lacks_holders() || !self.unreported.is_empty()
    }

    /// Whether it may still be made, and is not only expected.
    fn is_under_way(&self) -> bool {
        self.expected.is_none() && !self.done && self.void.is_none()
    }

    /// What is known of it while nodes wait in vain for `patience`.
    pub(super) fn stalled(
        &self,
        step: Step,
        now: Instant,
        patience: Duration,
    ) -> Option<StalledSum> {
        if !self.is_stuck(now, patience, Duration::MAX) {
            return None;
        }
        let workers = |nodes: Vec<u32>| {
            nodes.into_iter().filter(|node| *node != COORDINATOR).map(Worker).collect()
        };
        let waiting = self.waits.known(now);
        Some(StalledSum {
            step,
            seconds: now.duration_since(self.begun).as_secs_f64(),
            waiting: workers(waiting.nodes().collect()),
            waited_for: workers(waiting.blamed()),
        })
    }
}

/// A sum that stands still.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StalledSum {
    /// Of which step.
    pub step: Step,
    /// How long it takes so far.
    pub seconds: f64,
    /// Who waits for something of it, by their own word.
    pub waiting: Vec<Worker>,
    /// For whom all of these wait in the end; none if they wait for each other.
    pub waited_for: Vec<Worker>,
}

impl fmt::Display for StalledSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, seconds, waiting, waited_for } = self;
        write!(f, "the sum of step {} stands still, begun {seconds:.1} s ago: ", step.0)?;
        let names = |workers: &[Worker]| named(workers, |_| None);
        match &waited_for[..] {
            [] => write!(f, "{} wait for each other", names(waiting)),
            waited_for => write!(f, "{} held up by {}", names(waiting), names(waited_for)),
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any moment will do: only differences count")]
mod tests;
