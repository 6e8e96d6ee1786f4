//! What a step will be made of, where it can be known before the answers.

use super::{Coordinator, RunError};
use crate::codes::sequential::SchemeFacts;
use crate::ids::{Job, Step, Task, Units, Worker};
use crate::schedulers::{Action, Given};
use crate::sums::{Piece, Summand, What};
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
    later: &[Given],
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
    let piece = |(worker, task): (Worker, Task)| Piece { worker, what: What::Result(task) };
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
mod tests {
    use super::*;
    use crate::codes::SchemeSpec;
    use crate::run::{RunConfig, Shape};
    use crate::schedulers::{Engine, Input, Settings};

    /// The holders of each term of the first step.
    fn holders(scheme: &str, workers: usize) -> Option<Vec<Vec<u32>>> {
        let shape = Shape::new(workers, 12);
        let scheme = scheme.parse::<SchemeSpec>().unwrap().scheme(workers, 12, 0..9).unwrap();
        let mut engine =
            Engine::new(scheme, RunConfig::new(shape, 10, 2), Settings::default()).unwrap();
        let mut actions = Vec::new();
        engine.handle(0.0, Input::Begin, &mut actions).unwrap();
        let (job, terms) = expected_terms(engine.plan().facts(), &actions, &[])?;
        assert_eq!(job, Job(0));
        assert!(terms.iter().all(|term| term.weight == 1.0));
        let workers = |term: &Summand| term.holders.iter().map(|piece| piece.worker.0).collect();
        Some(terms.iter().map(workers).collect())
    }

    #[test]
    fn groups_are_alternatives() {
        assert_eq!(holders("uncoded", 3), Some(vec![vec![0], vec![1], vec![2]]));
        assert_eq!(holders("groups:s=1", 4), Some(vec![vec![0, 1], vec![2, 3]]));
        assert_eq!(holders("groups:s=2", 6), Some(vec![vec![0, 1, 2], vec![3, 4, 5]]));
    }

    /// A worker that is still at its last task holds a term too, of whom it comes sooner or later.
    #[test]
    fn who_is_still_busy_is_expected_too() {
        let scheme = "groups:s=1".parse::<SchemeSpec>().unwrap().scheme(4, 12, 0..9).unwrap();
        let mut engine =
            Engine::new(scheme, RunConfig::new(Shape::new(4, 12), 10, 2), Settings::default())
                .unwrap();
        let (mut actions, mut opened) = (Vec::new(), Vec::new());
        engine.handle(0.0, Input::Begin, &mut opened).unwrap();
        let tasks_of = |worker: u32, actions: &[Action]| {
            actions.iter().find_map(|action| match action {
                Action::Compute { worker: of, tasks, .. } if of.0 == worker => Some(tasks.clone()),
                _ => None,
            })
        };
        for worker in [0, 2] {
            let (task, _) = tasks_of(worker, &opened).unwrap()[0].clone();
            let worker = Worker(worker);
            let done = Input::Done { worker, task, finite: true, digest: None };
            engine.handle(1.0, done, &mut actions).unwrap();
        }
        actions.clear();
        let step = crate::ids::Step(0);
        engine.handle(1.5, Input::Summed { step, digest: 7 }, &mut actions).unwrap();
        assert_eq!(tasks_of(1, &actions), None, "it is told to drop what it is at");
        let later = engine.tasks_to_come();
        assert_eq!(later.iter().map(|(worker, _)| worker.0).collect::<Vec<_>>(), [1, 3]);
        let (job, terms) = expected_terms(engine.plan().facts(), &actions, &later).unwrap();
        let holders = |term: &Summand| term.holders.iter().map(|piece| piece.worker.0).collect();
        assert_eq!(job, Job(1));
        let holders: Vec<Vec<u32>> = terms.iter().map(holders).collect();
        assert_eq!(holders, [[0, 1], [2, 3]]);
        // And that is the task that it is given.
        let idle = Input::Idle { worker: Worker(1) };
        engine.handle(1.6, idle, &mut actions).unwrap();
        assert_eq!(tasks_of(1, &actions), Some(later[0].1.clone()));
    }

    #[test]
    fn what_depends_on_who_answers_is_not_expected() {
        for scheme in ["cyclic:s=1", "groups:s=1,rescale", "queue:m=2", "ring:reach=2"] {
            assert_eq!(holders(scheme, 4), None, "{scheme}");
        }
    }
}
