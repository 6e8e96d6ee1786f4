//! When a round waits no longer.

#![cfg(test)]

use super::*;
use crate::codes::SchemeSpec;
use crate::run::{RunConfig, Shape};
use crate::schedulers::{Action, Input, Settings};

/// Who is missing, needed and enough, once some have answered.
fn waits(text: &str, answered: &[u32]) -> [Vec<u32>; 3] {
    let scheme = text.parse::<SchemeSpec>().unwrap().scheme(4, 4, 0..2).unwrap();
    let run = RunConfig::new(Shape::new(4, 4), 10, 2);
    let mut engine = Engine::new(scheme, run, Settings::default()).unwrap();
    assert_eq!(engine.waits_for(), None, "nothing has begun");
    let mut actions = Vec::new();
    engine.handle(0.5, Input::Begin, &mut actions).unwrap();
    for action in std::mem::take(&mut actions) {
        let Action::Compute { worker, order, tasks, .. } = action else { continue };
        for (task, _) in tasks.into_iter().filter(|_| answered.contains(&worker.0)) {
            let done = Input::Done { worker, order, task, finite: true, digest: None };
            engine.handle(1.0, done, &mut actions).unwrap();
        }
    }
    let open = engine.waits_for().unwrap();
    assert!(!open.needs_return, "no worker is lost");
    assert_eq!((open.step, open.round, open.opened_at), (Step(0), Round(0), 0.5));
    assert_eq!(open.summing, answered.len() == 2 && text != "uncoded");
    [open.missing, open.needed, open.enough]
        .map(|workers| workers.iter().map(|worker| worker.0).collect())
}

/// Whether a round needs the return of a worker once these are lost, a second after it began;
/// checks by when, if it does.
fn needs_return(text: &str, lost: &[u32]) -> bool {
    let scheme = text.parse::<SchemeSpec>().unwrap().scheme(4, 4, 0..2).unwrap();
    let mut config = RunConfig::new(Shape::new(4, 4), 10, 2);
    config.limits.return_seconds = 60.0;
    let mut engine = Engine::new(scheme, config, Settings::default()).unwrap();
    let mut actions = Vec::new();
    engine.handle(0.5, Input::Begin, &mut actions).unwrap();
    for worker in lost {
        let lost = Input::Lost { worker: Worker(*worker), kept: true };
        engine.handle(1.0, lost, &mut actions).unwrap();
    }
    let open = engine.waits_for().unwrap();
    // Rounds stay open for a minute in any case.
    assert_eq!(open.returns_by, open.needs_return.then_some(60.5));
    open.needs_return
}

#[test]
fn it_is_told_whether_the_lost_are_needed() {
    assert!(needs_return("uncoded", &[2]));
    assert!(!needs_return("groups:s=1", &[2]));
    assert!(needs_return("groups:s=1", &[2, 3]), "a whole group");
    assert!(!needs_return("queue:m=1", &[2]));
}

#[test]
fn it_is_told_who_is_needed_and_who_would_do() {
    assert_eq!(waits("uncoded", &[0, 2]), [vec![1, 3], vec![1, 3], vec![]]);
    assert_eq!(waits("uncoded", &[0, 1, 2]), [vec![3], vec![3], vec![3]]);
    assert_eq!(waits("groups:s=1", &[]), [vec![0, 1, 2, 3], vec![], vec![]]);
    assert_eq!(waits("groups:s=1", &[1]), [vec![0, 2, 3], vec![], vec![2, 3]]);
    assert_eq!(waits("groups:s=1", &[1, 2]), [vec![0, 1, 2, 3], vec![], vec![]], "not held");
}
