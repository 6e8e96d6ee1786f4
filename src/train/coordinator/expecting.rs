//! What a step will be made of, where it can be known before the answers.

use crate::codes::sequential::SchemeFacts;
use crate::ids::{Job, Task, Units, Worker};
use crate::schedulers::Action;
use crate::transport::{Piece, Summand, What};
use std::collections::BTreeMap;

/// The terms of the step for which tasks are handed out, in the order in which they are summed;
/// none if they depend on who answers.
///
/// If every task is a plain sum of consecutive units, and the tasks of different units cut the
/// batch into parts that do not overlap, an exact decode takes one of those that have the same
/// units, with weight 1, and it does not matter which: they are alternatives. So it is with
/// replication in groups, and without a code.
pub(super) fn expected_terms(
    facts: &SchemeFacts,
    actions: &[Action],
) -> Option<(Job, Vec<Summand>)> {
    let alternatives = facts.delay == 0
        && facts.byzantine == 0
        && facts.error_max == 0.0
        && !(facts.mixture || facts.partial || facts.pulls);
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
    let terms = classes.into_values().map(term).collect();
    Some((job?, terms)).filter(|_| next == facts.units)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::SchemeSpec;
    use crate::run::{RunConfig, Shape};
    use crate::schedulers::{Engine, Input};

    /// The holders of each term of the first step.
    fn holders(scheme: &str, workers: usize) -> Option<Vec<Vec<u32>>> {
        let shape = Shape::new(workers, 12);
        let scheme = scheme.parse::<SchemeSpec>().unwrap().scheme(workers, 12, 0..9).unwrap();
        let mut engine = Engine::new(scheme, RunConfig::new(shape, 10, 2), 0).unwrap();
        let mut actions = Vec::new();
        engine.handle(0.0, Input::Begin, &mut actions).unwrap();
        let (job, terms) = expected_terms(engine.facts(), &actions)?;
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

    #[test]
    fn what_depends_on_who_answers_is_not_expected() {
        for scheme in ["cyclic:s=1", "groups:s=1,rescale", "queue:m=2", "ring:reach=2"] {
            assert_eq!(holders(scheme, 4), None, "{scheme}");
        }
    }
}
