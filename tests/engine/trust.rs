//! Which results count: those that were computed with parameters known to be right.

use super::{CONFIG, Config, Driver, applies, assigned, folded};
use codedgrad::ids::{Job, Step, Task, Worker, WorkerSet};
use codedgrad::schedulers::{Action, EngineError, Input, UnfitReason};

/// A run under `groups:s=1` whose first step is committed, and nothing is reported yet.
fn begun(workers: u32, config: Config) -> Driver {
    let (mut driver, _) = Driver::new("groups:s=1", workers as usize, 4, config);
    for worker in 0..workers {
        driver.answer(worker, 0, true).unwrap();
    }
    let committed = commit(&mut driver, workers, 0);
    assert_eq!(applies(&committed).len(), workers as usize);
    driver
}

/// The same run of four, of whose replicas the last one has turned out to be wrong.
fn one_is_wrong() -> Driver {
    let mut driver = begun(4, CONFIG);
    for (worker, digest) in [(0, 7), (1, 7), (2, 7), (3, 9)] {
        driver.applied(worker, 0, digest);
    }
    driver
}

fn commit(driver: &mut Driver, workers: u32, step: u64) -> Vec<Action> {
    for worker in 0..workers {
        if worker > 0 {
            let freed = driver.give(driver.idle(worker));
            assert!(freed.is_ok());
        }
    }
    let first = driver.held(0, step, 0);
    if first.iter().any(|action| matches!(action, Action::Commit { .. })) {
        first
    } else {
        driver.held(1, step, 0)
    }
}

fn unverified(actions: &[Action]) -> Option<Vec<u32>> {
    actions.iter().find_map(|action| {
        let Action::Commit { unverified, .. } = action else { return None };
        Some(unverified.iter().map(|worker| worker.0).collect())
    })
}

fn diverged(actions: &[Action]) -> Vec<u32> {
    let worker = |action: &Action| {
        if let Action::Diverged { worker, .. } = action { Some(worker.0) } else { None }
    };
    actions.iter().filter_map(worker).collect()
}

fn resyncs(actions: &[Action]) -> Vec<(u32, u32)> {
    let resync = |action: &Action| {
        if let Action::Resync { worker, from } = action { Some((worker.0, from.0)) } else { None }
    };
    actions.iter().filter_map(resync).collect()
}

#[test]
fn what_two_workers_have_alike_is_right_and_others_do_not_count() {
    let mut driver = begun(4, CONFIG);
    assert!(driver.applied(0, 0, 7).is_empty());
    assert!(driver.applied(2, 0, 7).is_empty());
    let wrong = driver.applied(3, 0, 9);
    assert_eq!(diverged(&wrong), [3]);
    // It had been given its task already: it drops that, and what comes of it all the same is
    // thrown away.
    assert!(wrong.contains(&driver.abandons(3)), "{wrong:?}");
    let task = Task { job: Job(1), piece: 3, plan: 0 };
    let answered = driver.answer(3, 1, true).unwrap();
    assert_eq!(answered[0], Action::Discard { worker: Worker(3), task });
    assert_eq!(resyncs(&answered), [(3, 0)]);
    assert!(
        folded(&driver.answer(0, 1, true).unwrap()).is_none(),
        "the other group has no worker yet"
    );
    assert_eq!(folded(&driver.answer(2, 1, true).unwrap()), Some(vec![0, 2]));
    driver.held(0, 1, 0);
    assert_eq!(unverified(&driver.held(2, 1, 0)), Some(vec![]));
}

#[test]
fn a_result_waits_while_it_is_in_dispute_whether_its_worker_is_right() {
    let mut driver = begun(4, CONFIG);
    driver.applied(0, 0, 7);
    driver.applied(1, 0, 9);
    assert!(driver.answer(0, 1, true).unwrap().is_empty());
    assert!(driver.answer(1, 1, true).unwrap().is_empty());
    driver.applied(2, 0, 9);
    // Now it is known: worker 1's result counts, and worker 0's is thrown away.
    let closed = driver.answer(2, 1, true).unwrap();
    assert_eq!(folded(&closed), Some(vec![1, 2]), "{closed:?}");
}

#[test]
fn where_nobody_else_has_reported_a_step_is_not_verified() {
    let mut driver = begun(2, CONFIG);
    driver.applied(0, 0, 7);
    assert_eq!(
        folded(&driver.answer(0, 1, true).unwrap()),
        Some(vec![0]),
        "no worker waits for the other"
    );
    driver.give(driver.idle(1)).unwrap();
    driver.held(0, 1, 0);
    assert_eq!(unverified(&driver.held(1, 1, 0)), Some(vec![0]));
    // The driver's own replica settles it.
    driver.give(Input::Own { step: Step(1), digest: 70 }).unwrap();
    driver.applied(0, 1, 70);
    driver.answer(0, 2, true).unwrap();
    driver.give(driver.idle(1)).unwrap();
    driver.held(0, 2, 0);
    assert_eq!(unverified(&driver.held(1, 2, 0)), Some(vec![]));
}

#[test]
fn a_run_without_digests_says_nothing_of_them() {
    let mut driver = begun(2, CONFIG);
    for worker in 0..2 {
        driver
            .give(Input::Applied { worker: Worker(worker), step: Step(0), digest: None })
            .unwrap();
    }
    driver.answer(0, 1, true).unwrap();
    driver.give(driver.idle(1)).unwrap();
    driver.held(0, 1, 0);
    assert_eq!(unverified(&driver.held(1, 1, 0)), Some(vec![]));
}

/// It counted, since no worker had reported anything else; all that was made of it begins again.
#[test]
fn what_counted_and_turns_out_to_be_wrong_is_computed_again() {
    let mut driver = begun(4, CONFIG);
    driver.applied(0, 0, 9);
    assert!(driver.answer(0, 1, true).unwrap().is_empty());
    driver.applied(2, 0, 7);
    driver.answer(2, 1, true).unwrap();
    let found = driver.applied(3, 0, 7);
    assert_eq!(diverged(&found), [0]);
    assert!(found.contains(&Action::Restart { step: Step(1) }), "{found:?}");
    let again = driver.answer(2, 1, true).unwrap();
    assert!(folded(&again).is_none(), "{again:?}");
}

#[test]
fn a_state_that_turns_out_to_be_wrong_is_fetched_elsewhere() {
    let mut driver = one_is_wrong();
    assert_eq!(resyncs(&driver.give(driver.idle(3)).unwrap()), [(3, 0)]);
    driver.give(Input::Synced { worker: Worker(3), next: Step(1) }).unwrap();
    let taken = driver
        .give(Input::StateLoaded { worker: Worker(3), step: Step(0), digest: Some(1) })
        .unwrap();
    assert_eq!(diverged(&taken), [3]);
    let again = [taken, driver.give(driver.idle(3)).unwrap()].concat();
    assert_eq!(resyncs(&again), [(3, 1)], "worker 0's is not asked for again");
    driver.give(Input::Synced { worker: Worker(3), next: Step(1) }).unwrap();
    let taken = driver
        .give(Input::StateLoaded { worker: Worker(3), step: Step(0), digest: Some(7) })
        .unwrap();
    assert!(diverged(&taken).is_empty());
}

/// Found by a test of the Python loop: the only worker that had applied the last step was asked for
/// its state, and stood still, while all others waited.
#[test]
fn a_state_that_does_not_come_is_asked_of_who_waits_for_orders() {
    let mut driver = one_is_wrong();
    assert_eq!(resyncs(&driver.give(driver.idle(3)).unwrap()), [(3, 0)]);
    let overdue = Input::StateOverdue { worker: Worker(3), from: Worker(0) };
    assert_eq!(driver.give(overdue).unwrap(), [], "all others compute");
    driver.answer(1, 1, true).unwrap();
    assert_eq!(resyncs(&driver.give(overdue).unwrap()), [(3, 1)]);
    assert_eq!(driver.give(overdue).unwrap(), [], "it waits for another's by now");
    driver.give(Input::Synced { worker: Worker(3), next: Step(1) }).unwrap();
    let word = Input::StateLoaded { worker: Worker(3), step: Step(0), digest: Some(7) };
    assert!(diverged(&driver.give(word).unwrap()).is_empty());
}

/// Who takes over a state drops what waits before it, the order to hand over its own among it.
#[test]
fn a_state_is_not_waited_for_of_who_takes_over_one_itself() {
    let mut driver = one_is_wrong();
    assert_eq!(resyncs(&driver.give(driver.idle(3)).unwrap()), [(3, 0)]);
    driver.give(Input::StepUnavailable { worker: Worker(0) }).unwrap();
    let freed = driver.give(driver.idle(0)).unwrap();
    assert_eq!(resyncs(&freed), [(0, 1), (3, 1)]);
}

#[test]
fn who_refuses_every_state_is_sent_away() {
    let mut driver = one_is_wrong();
    driver.give(driver.idle(3)).unwrap();
    let mut last = Vec::new();
    for from in [0, 1, 2] {
        driver.give(Input::Synced { worker: Worker(3), next: Step(1) }).unwrap();
        last = driver
            .give(Input::BadState { worker: Worker(3), from: Some(Worker(from)), refused: true })
            .unwrap();
        last.extend(driver.give(driver.idle(3)).unwrap());
    }
    let sent_away = Action::Dismiss { worker: Worker(3), why: UnfitReason::RefusesStates };
    assert!(last.contains(&sent_away), "{last:?}");
}

#[test]
fn a_replica_that_differs_three_times_running_is_sent_away() {
    let mut driver = one_is_wrong();
    driver.give(driver.idle(3)).unwrap();
    let mut takes_over = |digest| {
        driver.give(Input::Synced { worker: Worker(3), next: Step(1) }).unwrap();
        let word = Input::StateLoaded { worker: Worker(3), step: Step(0), digest: Some(digest) };
        driver.give(word).unwrap()
    };
    let sent_away = Action::Dismiss { worker: Worker(3), why: UnfitReason::Differs };
    let second = takes_over(9);
    assert!(diverged(&second) == [3] && !second.contains(&sent_away), "{second:?}");
    let third = takes_over(8);
    assert!(diverged(&third) == [3] && third.contains(&sent_away), "{third:?}");
}

#[test]
fn a_worker_ends_the_run_once_the_step_at_hand_is_decided() {
    let mut driver = begun(2, CONFIG);
    driver.give(Input::Finish { after: Step(0) }).unwrap();
    driver.answer(0, 1, true).unwrap();
    driver.give(driver.idle(1)).unwrap();
    driver.held(0, 1, 0);
    let last = driver.held(1, 1, 0);
    assert_eq!(last.last(), Some(&Action::Finish));
    assert!(assigned(&last).is_empty());
}

/// A worker's word on its parameters after step 0.
fn says(driver: &mut Driver, worker: u32, digest: u64) -> Result<Vec<Action>, EngineError> {
    driver.give(Input::Applied { worker: Worker(worker), step: Step(0), digest: Some(digest) })
}

fn tied(workers: usize, sides: &[&[u32]]) -> Result<Vec<Action>, EngineError> {
    let side = |side: &&[u32]| WorkerSet::of(workers, side.iter().copied().map(Worker));
    let sides = sides.iter().map(side).collect();
    Err(EngineError::Tied { step: Step(0), sides, agreed: None, next: Step(0) })
}

#[test]
fn where_one_differs_from_one_the_run_ends() {
    for digests in [[7, 9], [9, 7]] {
        for first in [0, 1] {
            let mut driver = begun(2, CONFIG);
            assert_eq!(says(&mut driver, first, digests[0]), Ok(vec![]));
            let second = says(&mut driver, 1 - first, digests[1]);
            assert_eq!(second, tied(2, &[&[0], &[1]]));
            let said = second.unwrap_err().to_string();
            assert!(
                said.contains("workers {0} against workers {1}")
                    && said.contains("begin again")
                    && said.contains("three workers or s=2")
                    && said.contains("verify=0"),
                "{said}"
            );
        }
    }
}

#[test]
fn where_a_pair_differs_from_a_pair_the_run_ends_whoever_says_so_last() {
    for order in [[0, 1, 2, 3], [2, 3, 0, 1], [0, 2, 1, 3], [3, 0, 2, 1]] {
        let mut driver = begun(4, CONFIG);
        for worker in &order[..3] {
            says(&mut driver, *worker, u64::from(7 + worker / 2)).unwrap();
        }
        let last = order[3];
        assert_eq!(
            says(&mut driver, last, u64::from(7 + last / 2)),
            tied(4, &[&[0, 1], &[2, 3]]),
            "{order:?}"
        );
    }
}

/// Results of who differs count for nothing until the third has reported, and that one is waited
/// for as long as for answers.
#[test]
fn a_third_that_has_applied_the_step_decides() {
    let dispute = || {
        let (mut driver, _) = Driver::new("groups:s=2", 3, 4, CONFIG);
        driver.answer(0, 0, true).unwrap();
        commit(&mut driver, 3, 0);
        driver.at(10.0).applied(0, 0, 7);
        driver.applied(1, 0, 9);
        assert_eq!(driver.answer(0, 1, true), Ok(vec![]));
        assert_eq!(driver.answer(1, 1, true), Ok(vec![]));
        driver
    };
    let mut driver = dispute();
    let decided = driver.at(20.0).applied(2, 0, 9);
    assert_eq!(diverged(&decided), [0]);
    assert_eq!(folded(&decided), Some(vec![1]));
    let mut driver = dispute();
    assert_eq!(driver.deadline(), Some(50.0), "the round's, which opened at 0");
    driver.give(Input::Lost { worker: Worker(2), kept: true }).unwrap_err();
    let mut driver = dispute();
    driver.at(49.0).give(Input::Tick).unwrap();
    // Without a word of it there is none who could decide.
    let error = driver.at(50.0).give(Input::Tick).unwrap_err();
    assert_eq!(Err(error), tied(3, &[&[0], &[1]]));
}

#[test]
fn who_has_taken_over_a_state_does_not_decide() {
    let (mut driver, _) = Driver::new("groups:s=2", 3, 4, CONFIG);
    driver.give(Input::Lost { worker: Worker(2), kept: true }).unwrap();
    driver.answer(0, 0, true).unwrap();
    commit(&mut driver, 2, 0);
    driver.applied(0, 0, 7);
    let joined = driver.give(Input::Joined { worker: Worker(2), next: None }).unwrap();
    assert_eq!(resyncs(&joined), [(2, 0)]);
    driver.give(Input::Synced { worker: Worker(2), next: Step(1) }).unwrap();
    let word = Input::StateLoaded { worker: Worker(2), step: Step(0), digest: Some(7) };
    driver.give(word).unwrap();
    assert_eq!(says(&mut driver, 1, 9), tied(3, &[&[0], &[1]]));
}

/// The loss that shows that no other worker will tell ends the run by itself, too.
#[test]
fn a_tie_is_told_before_what_it_comes_with() {
    let (mut driver, _) = Driver::new("uncoded", 3, 4, CONFIG);
    for worker in 0..3 {
        driver.answer(worker, 0, true).unwrap();
    }
    commit(&mut driver, 3, 0);
    driver.applied(0, 0, 7);
    driver.applied(1, 0, 9);
    let lost = driver.give(Input::Lost { worker: Worker(2), kept: true });
    assert_eq!(lost, tied(3, &[&[0], &[1]]));
}

/// What was summed of a result that counted, since nothing else had been reported.
#[test]
fn a_sum_of_results_that_come_into_dispute_is_not_decided() {
    let (mut driver, _) = Driver::new("groups:s=2", 3, 4, CONFIG);
    driver.answer(0, 0, true).unwrap();
    commit(&mut driver, 3, 0);
    driver.applied(0, 0, 7);
    assert_eq!(folded(&driver.answer(0, 1, true).unwrap()), Some(vec![0]));
    let disputed = driver.applied(1, 0, 9);
    assert!(disputed.contains(&Action::Restart { step: Step(1) }), "{disputed:?}");
    assert_eq!(driver.held(0, 1, 0), [], "it is void");
    assert_eq!(driver.held(1, 1, 0), []);
}

/// Also after the last step: it is not over before it is known what was trained.
#[test]
fn the_last_step_too_ends_in_a_tie() {
    let (mut driver, _) = Driver::new("groups:s=1", 2, 1, CONFIG);
    driver.answer(0, 0, true).unwrap();
    assert_eq!(commit(&mut driver, 2, 0).last(), Some(&Action::Finish));
    assert_eq!(says(&mut driver, 0, 7), Ok(vec![]));
    assert_eq!(says(&mut driver, 1, 9), tied(2, &[&[0], &[1]]));
    let (mut driver, _) = Driver::new("groups:s=2", 3, 1, CONFIG);
    driver.answer(0, 0, true).unwrap();
    commit(&mut driver, 3, 0);
    assert_eq!(driver.deadline(), None);
    driver.at(10.0).applied(0, 0, 7);
    driver.applied(1, 0, 9);
    assert_eq!(driver.deadline(), Some(60.0));
    let error = driver.at(60.0).give(Input::Tick).unwrap_err();
    assert_eq!(Err(error), tied(3, &[&[0], &[1]]));
}
