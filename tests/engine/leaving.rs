//! Workers that leave for good: they are not waited for, and all together they end a run.

use super::{CONFIG, Config, Driver, assigned, folded};
use codedgrad::codes::SchemeSpec;
use codedgrad::ids::{Step, Worker, WorkerSet};
use codedgrad::schedulers::{Action, EngineError, Input, PlannedScheme};

/// Waits long for those that may come back.
const PATIENT: Config = Config { return_seconds: 40.0, ..CONFIG };

impl Driver {
    fn leaves(&mut self, worker: u32) -> Result<Vec<Action>, EngineError> {
        self.goes(worker, false)
    }

    fn goes(&mut self, worker: u32, told: bool) -> Result<Vec<Action>, EngineError> {
        let mut actions = self.give(Input::Left { worker: Worker(worker), told })?;
        actions.extend(self.give(Input::Lost { worker: Worker(worker), kept: true })?);
        Ok(actions)
    }

    /// A step of an uncoded run of two workers is computed and decided.
    fn step(&mut self, step: u64) {
        for worker in [0, 1] {
            self.answer(worker, step, true).unwrap();
        }
        for worker in [0, 1] {
            let attempt = self.sums.of(Step(step)).attempt;
            self.held(worker, step, attempt);
        }
    }
}

fn left(error: &EngineError) -> Vec<u32> {
    let EngineError::Left { left, .. } = error else { panic!("{error}") };
    left.iter().map(|worker| worker.0).collect()
}

#[test]
fn who_leaves_is_not_waited_for_and_who_is_lost_is() {
    let (mut driver, _) = Driver::new("uncoded", 2, 3, PATIENT);
    assert!(driver.give(Input::Lost { worker: Worker(1), kept: true }).unwrap().is_empty());
    assert_eq!(driver.deadline(), Some(40.0), "it may come back");
    let (mut driver, _) = Driver::new("uncoded", 2, 3, PATIENT);
    assert!(driver.leaves(1).unwrap().is_empty(), "worker 0 may leave in its task as well");
    driver.at(2.0).answer(0, 0, true).unwrap();
    assert_eq!(driver.deadline(), Some(5.0), "it has gone on, which is decided at once");
    assert!(driver.at(2.5).give(Input::Tick).unwrap().is_empty());
    let error = driver.at(5.0).give(Input::Tick).unwrap_err();
    assert_eq!(left(&error), [1]);
    assert_eq!(
        error.to_string(),
        "step 0 cannot be computed: workers {1} have left the run and do not come back, and the \
         scheme tolerates no straggler"
    );
}

#[test]
fn who_leaves_and_is_tolerated_is_missed_by_nobody() {
    let (mut driver, _) = Driver::new("groups:s=1", 4, 3, PATIENT);
    driver.leaves(0).unwrap();
    driver.answer(2, 0, true).unwrap();
    assert_eq!(folded(&driver.answer(1, 0, true).unwrap()), Some(vec![1, 2]));
    for worker in [1, 2] {
        driver.held(worker, 0, 0);
    }
    // Its partner is lost, and may come back; the run does not wait for the one that has left.
    driver.at(1.0).give(Input::Lost { worker: Worker(1), kept: true }).unwrap();
    assert_eq!(driver.deadline(), Some(41.0));
    let back = driver.at(2.0).give(Input::Joined { worker: Worker(1), next: Some(Step(1)) });
    assert_eq!(assigned(&back.unwrap()), [1]);
    driver.leaves(1).unwrap();
    driver.answer(2, 1, true).unwrap();
    let ends = driver.deadline().unwrap();
    assert_eq!(left(&driver.at(ends).give(Input::Tick).unwrap_err()), [0, 1]);
}

#[test]
fn a_worker_that_has_left_may_come_again() {
    let (mut driver, _) = Driver::new("uncoded", 2, 3, PATIENT);
    driver.leaves(1).unwrap();
    let joined = driver.give(Input::Joined { worker: Worker(1), next: Some(Step(0)) }).unwrap();
    assert_eq!(assigned(&joined), [1]);
    driver.step(0);
    driver.give(Input::Lost { worker: Worker(1), kept: true }).unwrap();
    assert_eq!(driver.deadline(), Some(40.0), "it has not said it again");
}

#[test]
fn all_who_leave_after_the_same_step_end_the_run() {
    for applied in [false, true] {
        let (mut driver, _) = Driver::new("uncoded", 2, 3, PATIENT);
        driver.step(0);
        if applied {
            // They leave in their tasks of the next step, not while they apply this one.
            driver.applied(0, 0, 7);
            driver.applied(1, 0, 7);
        }
        assert!(driver.leaves(0).unwrap().is_empty(), "worker 1 may do the same");
        assert!(driver.at(20.0).give(Input::Tick).unwrap().is_empty(), "it takes its time");
        assert_eq!(driver.leaves(1).unwrap().last(), Some(&Action::Finish));
        assert!(driver.engine.leaving().ended_the_run());
    }
}

#[test]
fn all_who_are_told_to_leave_have_not_made_the_run_to_its_end() {
    // One that has left by itself is not asked, where the other was told to.
    for first in [false, true] {
        let (mut driver, _) = Driver::new("uncoded", 2, 3, PATIENT);
        driver.step(0);
        driver.goes(0, first).unwrap();
        assert!(!driver.engine.leaving().are_preempted(), "worker 1 is there");
        assert_eq!(driver.goes(1, true).unwrap().last(), Some(&Action::Finish));
        assert!(driver.engine.leaving().are_preempted());
    }
    let (mut driver, _) = Driver::new("uncoded", 2, 3, PATIENT);
    driver.step(0);
    driver.leaves(0).unwrap();
    driver.leaves(1).unwrap();
    assert!(!driver.engine.leaving().are_preempted(), "their loops have ended");
}

/// Of a run that may be made by fewer, so that others may come in their place.
fn pool() -> Driver {
    let config = Config { min_workers: Some(1), ..PATIENT };
    let scheme = SchemeSpec::uncoded().scheme(2, 2, 0..3).unwrap();
    let replan = PlannedScheme::by(SchemeSpec::uncoded(), 2, 0..3);
    let mut driver = Driver::of(config.replanned(scheme, 3, Some(replan)).unwrap());
    driver.give(Input::Begin).unwrap();
    driver
}

#[test]
fn who_is_told_to_leave_a_pool_is_waited_for() {
    let mut driver = pool();
    driver.step(0);
    driver.goes(0, true).unwrap();
    assert!(!driver.engine.leaving().has_left(Worker(0)));
    assert!(!driver.goes(1, true).unwrap().contains(&Action::Finish));
    assert_eq!(driver.deadline(), Some(40.0), "others may come");
    assert!(driver.engine.leaving().are_preempted());
    // One that does makes it go on.
    driver.at(1.0).give(Input::Joined { worker: Worker(0), next: Some(Step(1)) }).unwrap();
    assert!(!driver.engine.leaving().are_preempted());
    driver.give(Input::Lost { worker: Worker(0), kept: true }).unwrap();
    assert!(!driver.engine.leaving().are_preempted(), "this time it was told nothing");
    assert!(driver.at(41.0).give(Input::Tick).is_err());
}

#[test]
fn who_asks_for_the_end_and_leaves_ends_the_run() {
    for asked in [false, true] {
        let (mut driver, _) = Driver::new("uncoded", 2, 9, PATIENT);
        driver.step(0);
        if asked {
            assert!(driver.give(Input::Finish { after: Step(0) }).unwrap().is_empty());
        }
        let ends = driver.leaves(0).unwrap().contains(&Action::Finish);
        assert_eq!((ends, driver.deadline().is_none()), (asked, asked));
        assert!(
            !driver.engine.states().are_settled(driver.engine.roster())
                && !driver.engine.leaving().ended_the_run()
        );
        driver.applied(1, 0, 7);
        assert!(driver.engine.states().are_settled(driver.engine.roster()));
    }
    // Where others can do what is open, that is decided first.
    let (mut driver, _) = Driver::new("groups:s=1", 2, 9, PATIENT);
    driver.answer(0, 0, true).unwrap();
    driver.held(0, 0, 0);
    driver.held(1, 0, 0);
    driver.give(Input::Finish { after: Step(0) }).unwrap();
    assert!(!driver.leaves(0).unwrap().contains(&Action::Finish));
    driver.give(driver.idle(1)).unwrap();
    driver.answer(1, 1, true).unwrap();
    assert_eq!(driver.held(1, 1, 0).last(), Some(&Action::Finish));
}

#[test]
fn who_goes_on_does_not_leave_with_the_others() {
    let (mut driver, _) = Driver::new("uncoded", 2, 3, PATIENT);
    driver.step(0);
    driver.leaves(0).unwrap();
    driver.at(5.0).applied(1, 0, 7);
    assert_eq!(driver.deadline(), Some(8.0), "it has applied what worker 0 has not");
    assert_eq!(left(&driver.at(8.0).give(Input::Tick).unwrap_err()), [0]);
}

#[test]
fn nothing_is_ended_before_a_step_is_made() {
    let (mut driver, _) = Driver::new("uncoded", 2, 3, PATIENT);
    driver.leaves(0).unwrap();
    assert_eq!(left(&driver.leaves(1).unwrap_err()), [0, 1]);
}

#[test]
fn a_run_that_may_be_made_by_fewer_goes_on_without_who_leaves() {
    let mut driver = pool();
    let (members, scheme) = (WorkerSet::of(2, [Worker(0)]), "uncoded".to_owned());
    assert!(driver.leaves(1).unwrap().contains(&Action::Replanned {
        members,
        scheme,
        misfit: None,
        again: true
    }));
    assert_eq!(assigned(&driver.give(driver.idle(0)).unwrap()), [0]);
}
