//! Sums that are made while their results are computed.

#![cfg(test)]

use super::*;
use crate::codes::SchemeSpec;
use crate::ids::Step;
use crate::run::{RunConfig, Shape};
use crate::schedulers::{Input, Settings};

fn started(scheme: &str, workers: usize) -> (Engine, Vec<Action>) {
    let shape = Shape::new(workers, 12);
    let scheme = scheme.parse::<SchemeSpec>().unwrap().scheme(workers, 12, 0..9).unwrap();
    let mut engine =
        Engine::new(scheme, RunConfig::new(shape, 10, 2), Settings::default()).unwrap();
    let mut actions = Vec::new();
    engine.handle(0.0, Input::Begin, &mut actions).unwrap();
    (engine, actions)
}

/// The holders of each term of a step that is given out, whose number this is.
fn holders(of: Step, actions: &[Action]) -> Option<Vec<Vec<u32>>> {
    let Action::Expect { step, terms } = actions.iter().find(|action| {
        // What is expected is told before the tasks.
        matches!(action, Action::Expect { .. } | Action::Compute { .. })
    })?
    else {
        return None;
    };
    assert!(*step == of && terms.iter().all(|term| term.weight == 1.0));
    let workers = |term: &Summand| term.holders.iter().map(|piece| piece.worker.0).collect();
    Some(terms.iter().map(workers).collect())
}

#[test]
fn groups_are_alternatives() {
    assert_eq!(holders(Step(0), &started("uncoded", 3).1), Some(vec![vec![0], vec![1], vec![2]]));
    assert_eq!(holders(Step(0), &started("groups:s=1", 4).1), Some(vec![vec![0, 1], vec![2, 3]]));
    assert_eq!(
        holders(Step(0), &started("groups:s=2", 6).1),
        Some(vec![vec![0, 1, 2], vec![3, 4, 5]])
    );
}

/// A worker that is still at its last task holds a term too, of whom it comes sooner or later.
#[test]
fn who_is_still_busy_is_expected_too() {
    let (mut engine, opened) = started("groups:s=1", 4);
    let mut actions = Vec::new();
    let task_of = |worker: u32, actions: &[Action]| {
        actions.iter().find_map(|action| match action {
            Action::Compute { worker: of, order, tasks, .. } if of.0 == worker => {
                Some((*order, tasks[0].0))
            }
            _ => None,
        })
    };
    for worker in [0, 2] {
        let (order, task) = task_of(worker, &opened).unwrap();
        let worker = Worker(worker);
        let done = Input::Done { worker, order, task, finite: true, digest: None };
        engine.handle(1.0, done, &mut actions).unwrap();
    }
    actions.clear();
    engine.handle(1.5, Input::Summed { step: Step(0), digest: 7 }, &mut actions).unwrap();
    assert_eq!(task_of(1, &actions), None, "it is told to drop what it is at");
    assert_eq!(holders(Step(1), &actions), Some(vec![vec![0, 1], vec![2, 3]]));
    let Some(Action::Expect { terms, .. }) =
        actions.iter().find(|action| matches!(action, Action::Expect { .. }))
    else {
        panic!()
    };
    let expected = terms[0].holders[1].task;
    // And that is the task that it is given.
    let (order, _) = task_of(1, &opened).unwrap();
    let idle = Input::Idle { worker: Worker(1), order };
    engine.handle(1.6, idle, &mut actions).unwrap();
    assert_eq!(task_of(1, &actions).unwrap().1, expected);
}

#[test]
fn what_depends_on_who_answers_is_not_expected() {
    for scheme in ["cyclic:s=1", "groups:s=1,rescale", "queue:m=2", "ring:reach=2"] {
        assert_eq!(holders(Step(0), &started(scheme, 4).1), None, "{scheme}");
    }
}
