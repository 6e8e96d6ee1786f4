//! Who says that a sum is not finite, and whose numbers were not; and who has changed what it had
//! announced.
//!
//! The coordinator believes its own eyes only: it has such a sum made once more with itself as the
//! one who sums, and sees whose terms are not finite, if any. If all of it is finite, a worker has
//! sent a sum that was not, or a worker that got none says so.

use super::events::{CoordinatorEffect, give_up, report};
use super::suspects::Suspects;
use crate::ids::{Step, Task, Worker};
use crate::sums::{NotFinite, SumId, SumNotice};
use std::collections::{BTreeMap, BTreeSet};

/// Why the coordinator sums a step.
#[derive(Debug, Default)]
struct Doubt {
    /// By the attempt at its sum and the worker that says so: whose numbers are not finite.
    accusers: BTreeMap<(u32, u32), NotFinite>,
    /// Results that are not what was announced of them: they will not be done.
    changed: BTreeSet<(Worker, Task)>,
}

/// The steps that are summed by the coordinator, and why.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    steps: BTreeMap<Step, Doubt>,
    /// Who sends terms that are not finite, or says so of others.
    suspects: Suspects,
}

/// Who is wrong where a sum is finite.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Culprits {
    /// Those who said that this very sum is not.
    pub(super) deny: BTreeSet<u32>,
    /// Of the sum that others made: some, one of whom has lied.
    pub(super) one_of: Option<BTreeSet<u32>>,
}

impl Doubts {
    /// Whether the coordinator is to make the sum of a step by itself.
    pub(super) fn of(&self, step: Step) -> bool {
        self.steps.contains_key(&step)
    }

    /// The coordinator is to make the sum of a step by itself from now on.
    pub(super) fn raise(&mut self, step: Step) {
        self.steps.entry(step).or_default();
    }

    /// The same, since a result that may be in the sum is not what was announced of it.
    pub(super) fn changed(&mut self, step: Step, result: (Worker, Task)) {
        self.steps.entry(step).or_default().changed.insert(result);
    }

    /// Whether a result is not what was announced of it.
    pub(super) fn is_changed(&self, worker: u32, task: Task) -> bool {
        self.steps.values().any(|doubt| doubt.changed.contains(&(Worker(worker), task)))
    }

    /// A worker says of a sum that is under way that it is not finite.
    pub(super) fn accuse(&mut self, sum: SumId, worker: u32, of: NotFinite) {
        let doubt = self.steps.entry(sum.step).or_default();
        doubt.accusers.entry((sum.attempt, worker)).or_default().extend(of);
    }

    /// The same of a sum that is over: it counts if others said so too.
    pub(super) fn accuse_too(&mut self, sum: SumId, worker: u32, of: NotFinite) {
        if let Some(doubt) = self.steps.get_mut(&sum.step)
            && doubt.accusers.keys().any(|accuser| accuser.0 == sum.attempt)
        {
            doubt.accusers.entry((sum.attempt, worker)).or_default().extend(of);
        }
    }

    /// A worker says that a term came of another as numbers that are not finite. Who sends such
    /// counts for nothing in the step, as if the coordinator had seen it, once it can be told from
    /// who says so; who says so of others is lost.
    pub(super) fn suspect_term(
        &mut self,
        sum: SumId,
        (worker, holder): (u32, u32),
        out: &mut Vec<CoordinatorEffect>,
    ) {
        let found = self.suspects.one_of(&BTreeSet::from([worker, holder]));
        tracing::warn!(
            "{}: a term of {} came of {} and is not finite",
            Worker(worker),
            sum.step,
            Worker(holder)
        );
        if found == Some(holder) {
            report(holder, SumNotice::ResultNotFinite { sum }, out);
        } else if let Some(worker) = found {
            let reason =
                format!("it says that terms of {} are not finite, of several workers", sum.step);
            give_up(worker, reason, out);
        }
    }

    /// Whose terms of a step are said not to be finite.
    pub(super) fn accused(&self, step: Step) -> BTreeSet<u32> {
        let words = self.steps.get(&step).into_iter().flat_map(|doubt| doubt.accusers.values());
        words.flat_map(|of| &of.terms_of).copied().collect()
    }

    /// The sum is not finite: those who said so were right.
    pub(super) fn are_right(&mut self, step: Step) {
        self.steps.get_mut(&step).into_iter().for_each(|doubt| doubt.accusers.clear());
    }

    /// The sum is finite: gives those who must have lied.
    pub(super) fn are_wrong(&mut self, sum: SumId) -> Culprits {
        let doubt = self.steps.get_mut(&sum.step);
        let accusers = doubt.map(|doubt| std::mem::take(&mut doubt.accusers)).unwrap_or_default();
        let mut wrong = Culprits::default();
        for ((accused, worker), of) in accusers {
            if accused == sum.attempt {
                wrong.deny.insert(worker);
                continue;
            }
            // Who sums finite terms beyond what numbers hold says so of itself: terms of others may
            // be smaller. And terms are asked of others.
            if of.sums_of.contains(&worker) || of.sums_of.is_empty() && !of.terms_of.is_empty() {
                continue;
            }
            let mut one_of = BTreeSet::from([worker]);
            // Several others cannot all have lied, if one alone does.
            if let Some(owner) = of.sums_of.first().filter(|_| of.sums_of.len() == 1) {
                one_of.insert(*owner);
            }
            wrong.one_of = Some(match wrong.one_of {
                Some(before) => before.intersection(&one_of).copied().collect(),
                None => one_of,
            });
        }
        // No single worker can have told all lies: several lie, and the words do not tell which.
        wrong.one_of = wrong.one_of.filter(|workers| !workers.is_empty());
        wrong
    }

    /// A step is decided.
    pub(super) fn release(&mut self, step: Step) {
        self.steps.retain(|doubted, _| *doubted > step);
    }

    /// A worker is lost, whatever it said.
    pub(super) fn forget(&mut self, worker: u32) {
        for doubt in self.steps.values_mut() {
            doubt.accusers.retain(|(_, by), _| *by != worker);
            doubt.changed.retain(|(of, _)| of.0 != worker);
        }
    }
}

#[cfg(test)]
mod tests;
