//! Runs that fewer workers may make than they have seats for: who is planned for, and when.

use super::{CONFIG, Config, Driver, applies, assigned};
use codedgrad::codes::SchemeSpec;
use codedgrad::ids::{Step, Worker, WorkerSet};
use codedgrad::schedulers::{Action, EngineError, Input, PlannedScheme};

const UNITS: u32 = 12;
const STEPS: u64 = 9;

/// A run that `least` workers may make, which begins without some; and what it begins with.
fn begin(
    scheme: &str,
    workers: usize,
    (least, settle_seconds): (usize, f64),
    empty: &[u32],
) -> (Driver, Vec<Action>) {
    let spec: SchemeSpec = scheme.parse().unwrap();
    let made = spec.scheme(workers, UNITS, 0..STEPS).unwrap();
    let config =
        Config { return_seconds: 40.0, min_workers: Some(least), settle_seconds, ..CONFIG };
    let replan = PlannedScheme::by(spec, UNITS, 0..STEPS);
    let mut driver = Driver::of(config.replanned(made, STEPS, Some(replan)).unwrap());
    for worker in empty {
        driver.lost(*worker);
    }
    let begun = driver.give(Input::Begin).unwrap();
    (driver, begun)
}

impl Driver {
    fn lost(&mut self, worker: u32) -> Vec<Action> {
        self.give(Input::Lost { worker: Worker(worker), kept: true }).unwrap()
    }

    fn joined(&mut self, worker: u32, next: Option<Step>) -> Vec<Action> {
        self.give(Input::Joined { worker: Worker(worker), next }).unwrap()
    }

    /// All workers do what they were told, until a step is decided: what follows from that.
    fn decides(&mut self, told: Vec<Action>) -> Vec<Action> {
        let mut left: Vec<Action> = told;
        while !left.is_empty() {
            let inputs: Vec<Input> = left.drain(..).flat_map(does).collect();
            for input in inputs {
                left.extend(self.give(input).unwrap());
                if left.iter().any(|action| matches!(action, Action::Commit { .. })) {
                    return left;
                }
            }
        }
        panic!("no step is decided");
    }
}

/// What comes of an action.
fn does(action: Action) -> Vec<Input> {
    match action {
        Action::Compute { worker, order, tasks, .. } => {
            let done = |task| Input::Done { worker, order, task, finite: true, digest: None };
            tasks.into_iter().map(|(task, _)| done(task)).collect()
        }
        Action::Abandon { worker, order, .. } => vec![Input::Idle { worker, order }],
        Action::Sum { step, .. } => vec![Input::Summed { step, digest: 9 }],
        _ => Vec::new(),
    }
}

/// For whom the run is planned by these actions, where it is.
fn planned(actions: &[Action]) -> Option<Vec<u32>> {
    let members = actions.iter().find_map(|action| match action {
        Action::Replanned { members, .. } => Some(members),
        _ => None,
    })?;
    Some(members.iter().map(|worker| worker.0).collect())
}

#[test]
fn a_state_that_is_taken_over_is_waited_for_by_nobody() {
    let (mut driver, begun) = begin("uncoded", 3, (1, 10.0), &[2]);
    assert_eq!((planned(&begun), assigned(&begun)), (Some(vec![0, 1]), vec![0, 1]));
    let joined = driver.at(0.5).joined(2, None);
    assert!(matches!(joined[..], [Action::Resync { worker: Worker(2), .. }]), "{joined:?}");
    let next = driver.at(1.0).decides(begun);
    assert_eq!((planned(&next), assigned(&next)), (None, vec![0, 1]));
    let synced = driver.give(Input::Synced { worker: Worker(2), next: Step(0) }).unwrap();
    assert_eq!((applies(&synced), planned(&synced)), (vec![(2, 0)], None), "not within a round");
    let next = driver.at(2.0).decides(next);
    assert_eq!((planned(&next), assigned(&next)), (Some(vec![0, 1, 2]), vec![0, 1, 2]));
    driver.at(3.0).decides(next);
}

#[test]
fn who_can_be_done_without_is_kept_for_a_while_and_its_partner_is_not_missed_then() {
    let (mut driver, mut told) = begin("groups:s=1", 4, (2, 1.0), &[]);
    driver.at(0.5).lost(0);
    told.retain(|action| !matches!(action, Action::Compute { worker: Worker(0), .. }));
    let next = driver.at(1.4).decides(told);
    assert_eq!((planned(&next), assigned(&next)), (None, vec![1, 2, 3]));
    let mut next = driver.at(1.5).decides(next);
    assert_eq!((planned(&next), assigned(&next)), (Some(vec![1, 2, 3]), vec![1, 2, 3]));
    // Of four workers it was the only one left of its group.
    assert_eq!((driver.lost(1), driver.deadline()), (vec![], Some(51.5)));
    next.retain(|action| !matches!(action, Action::Compute { worker: Worker(1), .. }));
    driver.decides(next);
}

#[test]
fn who_is_back_in_time_has_its_part_again() {
    let (mut driver, mut told) = begin("groups:s=1", 4, (2, 1.0), &[]);
    driver.lost(0);
    told.retain(|action| !matches!(action, Action::Compute { worker: Worker(0), .. }));
    told.extend(driver.at(0.9).joined(0, Some(Step(0))));
    for now in [1.0, 2.0] {
        told = driver.at(now).decides(told);
        assert_eq!((planned(&told), assigned(&told)), (None, vec![0, 1, 2, 3]));
    }
}

#[test]
fn what_does_not_fit_so_few_is_told_once() {
    let misfit = |actions: &[Action]| {
        actions.iter().find_map(|action| match action {
            Action::Replanned { misfit, again, .. } => Some((misfit.clone(), *again)),
            _ => None,
        })
    };
    let (mut driver, _) = begin("groups:l=3", 3, (2, 1.0), &[]);
    let told = driver.lost(2);
    assert_eq!(misfit(&told), Some((Some("groups:l=3".into()), true)));
    driver.joined(2, Some(Step(0)));
    let next = driver.at(1.0).decides(told);
    assert_eq!(misfit(&next), Some((None, false)), "between two rounds");
    assert_eq!(misfit(&driver.lost(2)), Some((None, true)));
}

#[test]
fn with_fewer_than_the_least_a_return_is_waited_for() {
    let (mut driver, told) = begin("uncoded", 3, (2, 1.0), &[]);
    let again = driver.lost(0);
    assert_eq!(planned(&again), Some(vec![1, 2]), "at once");
    drop(told);
    assert_eq!((driver.at(2.0).lost(1), driver.deadline()), (vec![], Some(42.0)));
    let again = driver.at(30.0).joined(0, Some(Step(0)));
    assert_eq!(planned(&again), Some(vec![0, 2]), "there are enough again");
    driver.lost(2);
    let error = driver.at(70.0).give(Input::Tick).unwrap_err();
    assert!(matches!(&error, EngineError::TooManyLost { dead, .. } if dead.len() == 2), "{error}");
}

impl Driver {
    fn leaving(&mut self, worker: u32) -> Vec<Action> {
        self.give(Input::Leaving { worker: Worker(worker) }).unwrap()
    }
}

/// Who is let go by these actions, and who of them leaves.
fn let_go(actions: &[Action]) -> Vec<(u32, bool)> {
    let gone = actions.iter().filter_map(|action| match action {
        Action::LetGo { worker, leaves } => Some((worker.0, *leaves)),
        _ => None,
    });
    gone.collect()
}

fn restarts(actions: &[Action]) -> usize {
    actions.iter().filter(|action| matches!(action, Action::Restart { .. })).count()
}

#[test]
fn who_leaves_finishes_its_task_and_no_round_begins_again() {
    let (mut driver, begun) = begin("uncoded", 3, (2, 10.0), &[]);
    assert!(driver.at(0.5).leaving(1).is_empty(), "its task is awaited");
    let next = driver.at(1.0).decides(begun);
    assert_eq!((planned(&next), assigned(&next)), (Some(vec![0, 2]), vec![0, 2]));
    assert_eq!((let_go(&next), applies(&next).len()), (vec![(1, true)], 3), "after its last step");
    // Nothing of it is undecided: what begins again has not begun.
    assert!(driver.lost(1).is_empty() && driver.engine.roster().is_lost(Worker(1)));
    driver.at(2.0).decides(next);
}

#[test]
fn who_leaves_goes_on_where_it_is_needed() {
    let (mut driver, begun) = begin("uncoded", 3, (2, 10.0), &[2]);
    driver.at(0.5).leaving(1);
    let next = driver.at(1.0).decides(begun);
    assert_eq!((planned(&next), assigned(&next), let_go(&next)), (None, vec![0, 1], vec![]));
    let joined = driver.at(1.5).joined(2, Some(Step(1)));
    assert_eq!((applies(&joined), let_go(&joined)), (vec![], vec![]));
    let next = driver.at(2.0).decides(next);
    assert_eq!((planned(&next), let_go(&next)), (Some(vec![0, 2]), vec![(1, true)]));
}

#[test]
fn who_gives_its_state_is_kept_until_it_has() {
    let (mut driver, begun) = begin("uncoded", 2, (1, 10.0), &[1]);
    let joined = driver.at(0.5).joined(1, None);
    assert!(joined.contains(&Action::Resync { worker: Worker(1), from: Worker(0) }));
    driver.leaving(0);
    let next = driver.at(1.0).decides(begun);
    assert_eq!((planned(&next), let_go(&next)), (None, vec![]), "it is the only one");
    driver.give(Input::Synced { worker: Worker(1), next: Step(1) }).unwrap();
    let next = driver.at(2.0).decides(next);
    assert_eq!((planned(&next), let_go(&next)), (Some(vec![1]), vec![(0, true)]));
}

#[test]
fn without_a_least_who_leaves_is_missing_from_the_next_step_on() {
    let (mut driver, begun) = Driver::new("groups:s=1", 4, STEPS, CONFIG);
    driver.leaving(1);
    let next = driver.at(1.0).decides(begun);
    assert_eq!((let_go(&next), assigned(&next).contains(&1)), (vec![(1, true)], false));
    let next = driver.at(2.0).decides(next);
    assert_eq!((restarts(&next), driver.engine.leaving().has_left(Worker(1))), (0, true));
}

#[test]
fn a_run_ends_at_once_if_nobody_takes_over_from_who_leaves() {
    let (mut driver, begun) = Driver::new("uncoded", 2, STEPS, CONFIG);
    driver.leaving(1);
    let next = driver.at(1.0).decides(begun);
    assert_eq!(let_go(&next), [(1, true)]);
    driver.applied(0, 0, 7);
    let error = driver.at(9.0).give(Input::Tick).unwrap_err();
    assert!(matches!(error, EngineError::Left { .. }), "{error}");
    // All of them together have ended it.
    let (mut driver, begun) = Driver::new("uncoded", 2, STEPS, CONFIG);
    driver.leaving(0);
    driver.leaving(1);
    let last = driver.at(1.0).decides(begun);
    assert_eq!((let_go(&last).len(), last.last()), (2, Some(&Action::Finish)));
    assert!(driver.engine.leaving().ended_the_run());
}

#[test]
fn who_is_drained_is_let_in_again_and_a_drain_too_many_is_refused() {
    let set = |workers: &[u32]| WorkerSet::of(4, workers.iter().copied().map(Worker));
    let (mut driver, begun) = begin("uncoded", 4, (2, 10.0), &[3]);
    assert_eq!(driver.engine.drain(set(&[1])), Ok(()));
    let next = driver.at(1.0).decides(begun);
    assert_eq!((planned(&next), let_go(&next)), (Some(vec![0, 2]), vec![(1, false)]));
    driver.lost(1);
    assert_eq!(driver.engine.drain(set(&[1, 2])), Err(set(&[2])), "two are needed");
    // One that comes all the same has no part.
    let came = driver.at(1.5).joined(1, Some(Step(1)));
    assert_eq!((assigned(&came), let_go(&came)), (vec![], vec![(1, false)]));
    assert_eq!(driver.engine.drain(set(&[])), Ok(()));
    driver.at(1.6).joined(1, Some(Step(1)));
    let next = driver.at(2.0).decides(next);
    assert_eq!(planned(&next), Some(vec![0, 1, 2]));
    // Without a least the scheme says who can be done without.
    let (mut driver, begun) = Driver::new("groups:s=1", 4, STEPS, CONFIG);
    assert_eq!(driver.engine.drain(set(&[0])), Ok(()));
    assert_eq!(driver.engine.drain(set(&[0, 1])), Err(set(&[1])), "they have the same samples");
    let next = driver.at(1.0).decides(begun);
    assert_eq!((let_go(&next), assigned(&next)), (vec![(0, false)], vec![1, 2, 3]));
}
