//! Attempts at sums: which one counts, and what follows when one fails.

#![cfg(test)]

use super::*;
use crate::codes::SchemeSpec;
use crate::ids::{Job, OrderId, Piece, Step, Summand, Task, Worker};
use crate::run::{RunConfig, Shape};
use crate::schedulers::{Action, Engine, EngineError, Input, Settings};

const STEP: Step = Step(0);

fn task(worker: u32) -> Task {
    Task { job: Job(0), piece: worker, plan: 0 }
}

/// Two workers' results of a step, of which each is a term.
fn terms() -> Vec<Summand> {
    let piece = |worker| Piece { worker: Worker(worker), task: task(worker) };
    let term = |worker| Summand { weight: 1.0, holders: vec![piece(worker)] };
    [0, 1].map(term).to_vec()
}

/// The engine of two workers and its sums, in a step that is made of what was expected; `meanwhile`
/// happens while it is computed.
fn asked_after(meanwhile: impl Fn(&mut Engine, &mut StepSums)) -> (Engine, StepSums) {
    asked_of(2, meanwhile)
}

fn asked_of(workers: u32, meanwhile: impl Fn(&mut Engine, &mut StepSums)) -> (Engine, StepSums) {
    let count = workers as usize;
    let scheme = "uncoded".parse::<SchemeSpec>().unwrap().scheme(count, workers, 0..1).unwrap();
    let run = RunConfig::new(Shape::new(count, workers), 1000, 1);
    let mut sums = StepSums::new(run.limits.max_wait_seconds);
    let (mut engine, mut actions) =
        (Engine::new(scheme, run, Settings::default()).unwrap(), Vec::new());
    sums.handle(&mut engine, 0.0, Input::Begin, &mut actions).unwrap();
    meanwhile(&mut engine, &mut sums);
    for worker in 0..workers {
        let (task, order) = (task(worker), OrderId(u64::from(worker) + 1));
        let worker = Worker(worker);
        let done = Input::Done { worker, order, task, finite: true, digest: None };
        sums.handle(&mut engine, 1.0, done, &mut actions).unwrap();
    }
    assert!(matches!(actions.last(), Some(Action::Sum { step: STEP, .. })));
    (engine, sums)
}

#[test]
fn a_step_that_is_made_of_what_was_expected_is_the_same_attempt() {
    assert_eq!(asked_after(|_, _| {}).1.of(STEP).attempt, 0);
    let other = |_: &mut Engine, sums: &mut StepSums| sums.expect(STEP, &terms()[..1]);
    assert_eq!(asked_after(other).1.of(STEP).attempt, 2, "what is expected last counts");
}

#[test]
fn what_fails_while_it_is_expected_is_expected_again() {
    let fails = |_: &mut Engine, sums: &mut StepSums| sums.failed(SumId::first(STEP));
    let told = |engine: &mut Engine, sums: &mut StepSums| {
        let mut actions = Vec::new();
        sums.handle(engine, 0.5, Input::Tick, &mut actions).unwrap();
        actions
    };
    let again = |engine: &mut Engine, sums: &mut StepSums| {
        fails(engine, sums);
        assert_eq!(told(engine, sums), [Action::Expect { step: STEP, terms: terms() }]);
        sums.failed(SumId::first(STEP));
        assert_eq!(told(engine, sums), [], "the attempt before does not count");
    };
    for meanwhile in [&fails as &dyn Fn(&mut Engine, &mut StepSums), &again] {
        let attempt = asked_after(meanwhile).1.of(STEP).attempt;
        assert_eq!(attempt, 1, "as it failed, it is no sum of the step");
    }
}

#[test]
fn what_is_expected_of_a_step_that_begins_again_is_void() {
    let expect = |step| Action::Expect { step, terms: terms() };
    let again = Action::Restart { step: STEP };
    let mut actions = vec![expect(STEP), again.clone(), expect(STEP), expect(STEP.next())];
    steps::drop_void(0, &mut actions);
    assert_eq!(actions, [again.clone(), expect(STEP), expect(STEP.next())]);
    let mut earlier = vec![expect(STEP), again];
    steps::drop_void(1, &mut earlier);
    assert_eq!(earlier.len(), 2, "what came before is another's");
}

/// What fails once it is asked for is asked for again, as another attempt.
#[test]
fn what_fails_when_it_is_asked_for_is_another_attempt() {
    let (mut engine, mut sums) = asked_after(|_, _| {});
    let mut actions = Vec::new();
    sums.failed(SumId::first(STEP));
    sums.settle(&mut engine, 1.5, &mut actions).unwrap();
    assert!(matches!(actions.last(), Some(Action::Sum { step: STEP, .. })), "{actions:?}");
    assert_eq!(sums.of(STEP).attempt, 1);
}

/// One of three workers holds the sum when another is lost with its result, and then it fails. No
/// worker can make it of the same results, and the run does not wait for it.
#[test]
fn what_fails_without_one_of_its_results_begins_again() {
    let (mut engine, mut sums) = asked_of(3, |_, _| {});
    let mut actions = Vec::new();
    sums.held(Worker(1), SumId::first(STEP), 7);
    let lost = Input::Lost { worker: Worker(0), kept: false };
    sums.handle(&mut engine, 1.5, lost, &mut actions).unwrap();
    assert!(engine.is_summing() && actions.is_empty(), "worker 2 may get it: {actions:?}");
    sums.failed(SumId::first(STEP));
    let error = sums.settle(&mut engine, 1.6, &mut actions).unwrap_err();
    assert!(matches!(error, EngineError::TooManyLost { step: STEP, .. }), "at once: {error}");
}
