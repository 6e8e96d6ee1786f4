//! What a step will be made of, where it can be known before the answers.

use super::super::events::Action;
use super::Engine;
use crate::ids::{Piece, Summand, Task, Units, Worker};
use std::collections::BTreeMap;

impl Engine {
    /// What the step will be made of whose tasks are given by these actions, if it depends on no
    /// answer. Those who get theirs later hold terms too.
    ///
    /// If every task is a plain sum of consecutive units, and the tasks of different units cut the
    /// batch into parts that do not overlap, an exact decode takes one of those that have the same
    /// units, with weight 1, and it does not matter which: they are alternatives. So it is with
    /// replication in groups, and without a code.
    pub(super) fn expected(&mut self, given: &[Action]) -> Option<Action> {
        let facts = self.plan.facts();
        let units = facts.units;
        let alternatives = facts.has_fixed_tasks() && facts.error_max == 0.0 && !facts.mixture;
        // Of a step of several jobs no sum can begin before the last one's tasks are given.
        if !alternatives || self.config.jobs.micro_steps > 1 {
            return None;
        }
        // By their place in the batch, which is that of their terms in the sum.
        let mut classes: BTreeMap<(u32, u32), Vec<(Worker, Task)>> = BTreeMap::new();
        let mut job = None;
        for action in given {
            let Action::Compute { worker, tasks, .. } = action else { continue };
            let [(task, parts)] = &tasks[..] else { return None };
            let [part] = &parts[..] else { return None };
            if part.coefficient != 1.0 || *job.get_or_insert(task.job) != task.job {
                return None;
            }
            let Units { start, end } = part.units;
            classes.entry((start, end)).or_default().push((*worker, *task));
        }
        let step = job?.step(1);
        // A unit that no plain task has is decoded from others, of whom nothing is known yet.
        let mut next = 0;
        for (start, end) in classes.keys() {
            if *start != next {
                return None;
            }
            next = *end;
        }
        let comes =
            |worker: &Worker| !self.round.sits_out(*worker) && !self.roster.is_stale(*worker);
        // Told to drop what they are at. To a scheme of fixed tasks it is all the same how often it
        // is asked.
        let later: Vec<Worker> = self.roster.dropping().filter(comes).collect();
        for worker in later {
            let tasks = self.plan.scheme.assign(worker);
            let [(task, parts)] = &tasks[..] else { continue };
            let units = parts.first().map(|part| (part.units.start, part.units.end));
            if let Some(holders) = units.and_then(|units| classes.get_mut(&units)) {
                holders.push((worker, *task));
                holders.sort_unstable();
            }
        }
        let piece = |(worker, task): (Worker, Task)| Piece { worker, task };
        let term = |holders: Vec<(Worker, Task)>| Summand {
            weight: 1.0,
            holders: holders.into_iter().map(piece).collect(),
        };
        let terms = classes.into_values().map(term).collect();
        Some(Action::Expect { step, terms }).filter(|_| next == units)
    }
}

#[cfg(test)]
mod tests;
