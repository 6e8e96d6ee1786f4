//! Sums that are made while their results are computed.

#![cfg(test)]

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
        Engine::new(scheme, RunConfig::new(Shape::new(4, 12), 10, 2), Settings::default()).unwrap();
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
