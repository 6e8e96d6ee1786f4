//! What a step will be made of, where it can be known before the answers.

use super::{Coordinator, RunError};
use crate::codes::sequential::SchemeFacts;
use crate::ids::{Job, Piece, Step, Summand, Task, Units, Worker};
use crate::schedulers::{Action, Assignment};
use crate::transport::{Stage, SumRequest, Transport};
use std::collections::BTreeMap;

/// The terms of the step for which tasks are handed out, in the order in which they are summed;
/// none if they depend on who answers. Those who are given theirs `later` hold terms too.
///
/// If every task is a plain sum of consecutive units, and the tasks of different units cut the
/// batch into parts that do not overlap, an exact decode takes one of those that have the same
/// units, with weight 1, and it does not matter which: they are alternatives. So it is with
/// replication in groups, and without a code.
pub(super) fn expected_terms(
    facts: &SchemeFacts,
    actions: &[Action],
    later: &[Assignment],
) -> Option<(Job, Vec<Summand>)> {
    let alternatives = facts.has_fixed_tasks() && facts.error_max == 0.0 && !facts.mixture;
    let mut classes: BTreeMap<(u32, u32), Vec<(Worker, Task)>> = BTreeMap::new();
    let mut job = None;
    for action in actions.iter().filter(|_| alternatives) {
        let Action::Compute { worker, tasks, .. } = action else { continue };
        let [(task, parts)] = &tasks[..] else { return None };
        let [part] = &parts[..] else { return None };
        if part.coefficient != 1.0 || *job.get_or_insert(task.job) != task.job {
            return None;
        }
        let Units { start, end } = part.units;
        classes.entry((start, end)).or_default().push((*worker, *task));
    }
    let mut next = 0;
    for (start, end) in classes.keys() {
        if *start != next {
            return None;
        }
        next = *end;
    }
    let piece = |(worker, task): (Worker, Task)| Piece { worker, task };
    let term = |holders: Vec<(Worker, Task)>| Summand {
        weight: 1.0,
        holders: holders.into_iter().map(piece).collect(),
    };
    for (worker, tasks) in later {
        let [(task, parts)] = &tasks[..] else { continue };
        let units = parts.first().map(|part| (part.units.start, part.units.end));
        if let Some(holders) = units.and_then(|units| classes.get_mut(&units)) {
            holders.push((*worker, *task));
            holders.sort_unstable();
        }
    }
    let terms = classes.into_values().map(term).collect();
    Some((job?, terms)).filter(|_| next == facts.units)
}

impl<T: Transport> Coordinator<T> {
    /// The step that is handed out by these actions, and what it will be made of, if that is known.
    pub(super) fn expected(&mut self, actions: &[Action]) -> Option<(Step, Vec<Summand>)> {
        let hands_out = |action: &Action| matches!(action, Action::Compute { .. });
        if self.config().jobs.micro_steps > 1 || !actions.iter().any(hands_out) {
            return None;
        }
        let later = self.engine.tasks_to_come();
        let (job, terms) = expected_terms(self.engine.plan().facts(), actions, &later)?;
        Some((job.step(1), terms))
    }

    /// Lets workers begin to sum a step while they compute it.
    pub(super) fn expect(&mut self, step: Step, terms: &[Summand]) -> Result<(), RunError> {
        let (length, spares_one) =
            (self.config().length, self.engine.plan().spares_one(self.engine.roster()));
        let (counted, stage) = (&self.nobody(), Stage::Expected);
        let sum = self.gradients.sums.expect(step, terms);
        let request = SumRequest { sum, terms, length, spares_one, counted, stage };
        self.transport.make_sum(request)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
