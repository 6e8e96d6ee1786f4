//! When failures end a run, and what they are blamed on.

#![cfg(test)]

use super::*;
use crate::ids::WorkerSet;
use crate::run::Shape;

#[test]
fn those_that_were_at_it_at_once_count_as_one() {
    let run = RunConfig::new(Shape::new(4, 4), 1, 9);
    let mut failures = Failures::default();
    let fails = |failures: &mut Failures, worker| {
        let failed = Some(FailedUnit { job: Job(2), unit: 1, samples: 1..2 });
        let word = ExitReason::failed(failed, "bad");
        failures.heard((Worker(worker), Step(2), Step(2)), word, &run, false);
        failures.take_fatal()
    };
    (0..4).for_each(|worker| failures.gave(Worker(worker)));
    assert!((0..4).all(|worker| fails(&mut failures, worker).is_none()), "the first try");
    failures.gave(Worker(0));
    assert!(fails(&mut failures, 0).is_none(), "the second");
    failures.gave(Worker(3));
    let fatal = fails(&mut failures, 3);
    assert!(
        matches!(fatal, Some(RunError::UnitFailed { tries: 3, worker: Worker(3), .. })),
        "{fatal:?}"
    );
    failures.release(Job(3));
    assert_eq!(failures.len(), 0);
}

/// What a worker says of a body that fails, and what that ends the run by.
fn fails(failures: &mut Failures, place: &str, step: u64, needed: bool) -> Option<RunError> {
    let run = RunConfig::new(Shape::new(4, 4), 1, 9);
    let word = ExitReason::failed(None, "OSError: no space left").at(place);
    // In the body of the step before, which is decided.
    let next = Step(step.saturating_sub(1));
    failures.heard((Worker(1), Step(step), next), word, &run, needed);
    failures.take_fatal()
}

/// One that is started again applies what it had applied before, and fails before its step.
#[test]
fn steps_that_are_applied_once_more_are_no_progress() {
    let run = RunConfig::new(Shape::new(4, 4), 1, 9);
    let mut failures = Failures::default();
    let fails = |failures: &mut Failures| {
        let word = ExitReason::failed(None, "KeyError").at("train.py:3 KeyError");
        failures.heard((Worker(1), Step(4), Step(4)), word, &run, false);
        failures.take_fatal().is_some()
    };
    for _ in 0..2 {
        assert!(!fails(&mut failures));
        (0..4).for_each(|step| failures.gets_through(Worker(1), Some(Step(step))));
    }
    assert!(fails(&mut failures), "the third time");
}

#[test]
fn what_happens_again_at_one_place_ends_the_run() {
    let mut failures = Failures::default();
    // Of a worker that gets through a step in between, it is not the same again.
    for step in [2, 3, 5, 6] {
        if step == 5 {
            failures.gets_through(Worker(1), Some(Step(3)));
        }
        assert!(fails(&mut failures, "train.py:7 OSError", step, true).is_none());
        // It fails in bodies, and that is no body, nor is a step of before.
        failures.gets_through(Worker(1), None);
        failures.gets_through(Worker(1), Some(Step(step - 2)));
    }
    assert!(fails(&mut failures, "train.py:9 OSError", 6, true).is_none(), "another place");
    assert!(fails(&mut failures, "train.py:9 OSError", 6, true).is_none());
    let fatal = fails(&mut failures, "train.py:9 OSError", 6, true).unwrap().to_string();
    let said = "step 6: worker 1 failed 3 times at train.py:9 OSError, and said: OSError: no \
                space left";
    assert_eq!(fatal, said);
    // What names no place, such as Ctrl-C, is nothing that happens again.
    assert!((0..9).all(|_| fails(&mut failures, "", 6, true).is_none()));
}

#[test]
fn before_the_first_step_who_is_needed_is_not_tried_for_long() {
    for needed in [false, true] {
        let mut failures = Failures::default();
        assert!(fails(&mut failures, "train.py:7 OSError", 0, needed).is_none());
        let fatal = fails(&mut failures, "train.py:7 OSError", 0, needed);
        assert_eq!(fatal.is_some(), needed);
    }
}

#[test]
fn a_script_that_is_wrong_ends_the_run_at_once() {
    let run = RunConfig::new(Shape::new(4, 4), 1, 9);
    let mut failures = Failures::default();
    let word = ExitReason::misuse("RuntimeError: lr was changed");
    failures.heard((Worker(1), Step(4), Step(4)), word, &run, false);
    let said = "step 4: worker 1: RuntimeError: lr was changed";
    assert_eq!(failures.take_fatal().unwrap().to_string(), said);
}

#[test]
fn what_workers_said_is_why_a_run_cannot_go_on() {
    let mut failures = Failures::default();
    fails(&mut failures, "train.py:7 OSError", 4, false);
    let error = || EngineError::NoState { worker: Worker(0) };
    let said = failures.caused(error(), Step(4), |_| true).to_string();
    assert!(said.starts_with("worker 1 failed: OSError: no space left (worker 0 "), "{said}");
    let of_another_step = failures.caused(error(), Step(5), |_| true);
    assert_eq!(of_another_step.to_string(), error().to_string());
    let dead = WorkerSet::of(4, [Worker(0)]);
    let error = || EngineError::TooManyLost { step: Step(4), dead: dead.clone(), tolerance: 0 };
    for (is_lost, said) in [(true, "worker 1 failed: "), (false, "step 4 cannot")] {
        let caused = failures.caused(error(), Step(4), |_| is_lost);
        assert!(caused.to_string().starts_with(said), "{caused}");
    }
    failures.sent_away(Worker(2), Step(5), "its parameters differ");
    for (who, said) in [(2, "worker 2 failed: its parameters differ ("), (3, "step 6 cannot")] {
        let left = WorkerSet::of(4, [Worker(who)]);
        let error = EngineError::Left { step: Step(6), left, tolerance: 0 };
        assert!(failures.caused(error, Step(6), |_| true).to_string().starts_with(said));
    }
}
