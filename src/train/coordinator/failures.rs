//! Errors that workers are lost by: what happens again and again ends a run, rather than be tried
//! for ever, and so does a script that is wrong.

use super::RunError;
use crate::ids::{Job, Step, Worker};
use crate::run::RunConfig;
use crate::schedulers::EngineError;
use crate::transport::{ExitReason, FailedUnit};
use std::collections::BTreeMap;

/// Before the first step is decided a worker that the scheme needs is tried so often: what is wrong
/// with a script is wrong from its beginning, and meanwhile the others can do nothing.
const FIRST_TRIES: u32 = 2;

/// How often workers were lost for a unit of a step that is not decided, and each of them at one
/// place of its program. Those that were at a unit at once, as where a code has several compute it,
/// count as one.
#[derive(Debug, Default)]
pub(super) struct Failures {
    counts: BTreeMap<(Job, u32), Tries>,
    /// Tries that were counted so far, for any unit.
    counted: u64,
    /// How many were counted when each worker was given what it is at.
    begun: BTreeMap<Worker, u64>,
    /// Where each worker was lost, and how often one life after the other. Its last word, and in
    /// which step it was said.
    lives: BTreeMap<Worker, Lives>,
    /// Why the run ends, once that is so.
    fatal: Option<RunError>,
}

/// Tries at a unit.
#[derive(Debug, Default)]
struct Tries {
    count: u32,
    /// How many were counted when the last of them was.
    last: u64,
}

/// Lives of a worker that ended at one place.
#[derive(Debug)]
struct Lives {
    place: String,
    count: u32,
    step: Step,
    /// The first step that the worker had not applied then.
    next: Step,
    word: ExitReason,
}

impl Failures {
    /// A worker is given tasks.
    pub(super) fn gave(&mut self, worker: Worker) {
        self.begun.insert(worker, self.counted);
    }

    /// The last word of a worker that is lost during a step, and had not applied all before it;
    /// `needed` tells whether the round that is open cannot close without it.
    pub(super) fn heard(
        &mut self,
        (worker, step, next): (Worker, Step, Step),
        word: ExitReason,
        run: &RunConfig,
        needed: bool,
    ) {
        if word.misuse {
            self.fatal = Some(RunError::Misuse { step, worker, word: Box::new(word) });
            return;
        }
        let place = word.place.clone().unwrap_or_default();
        let before = self.lives.remove(&worker).filter(|lives| lives.place == place);
        let count = 1 + before.map_or(0, |lives| lives.count);
        let first = needed && step == run.first;
        let most = run.limits.unit_tries;
        let most = if first { most.min(FIRST_TRIES) } else { most };
        if count >= most && !place.is_empty() {
            let (place, word) = (place.clone(), Box::new(word.clone()));
            self.fatal = Some(RunError::FailsAgain { step, worker, tries: count, place, word });
        }
        let unit = word.failed.clone();
        let reason = word.reason.clone();
        self.lives.insert(worker, Lives { place, count, step, next, word });
        if let Some(unit) = unit {
            self.failed(worker, step, (unit, reason), run);
        }
    }

    /// A unit was not computed.
    fn failed(
        &mut self,
        worker: Worker,
        step: Step,
        (unit, reason): (FailedUnit, String),
        run: &RunConfig,
    ) {
        let of = unit.job.step(run.jobs.micro_steps);
        // What a worker says must not fill the memory.
        let open = step.0..=step.0.saturating_add(run.jobs.models);
        if unit.unit >= run.shape.units || !open.contains(&of.0) {
            return;
        }
        let tries = self.counts.entry((unit.job, unit.unit)).or_default();
        if self.begun.get(&worker).is_some_and(|begun| *begun < tries.last) {
            return;
        }
        self.counted += 1;
        tries.last = self.counted;
        tries.count += 1;
        if tries.count >= run.limits.unit_tries {
            let tries = tries.count;
            self.fatal = Some(RunError::UnitFailed { step: of, unit, tries, worker, reason });
        }
    }

    /// Why the run cannot go on.
    pub(super) fn take_fatal(&mut self) -> Option<RunError> {
        self.fatal.take()
    }

    /// A worker is sent away, and does not come back.
    pub(super) fn sent_away(&mut self, worker: Worker, step: Step, why: &str) {
        let (place, word) = (String::new(), ExitReason::failed(None, why));
        self.lives.insert(worker, Lives { place, count: 0, step, next: step, word });
    }

    /// A worker has applied a step, or else computed a task: it gets through what it was lost in
    /// before, if that was such a one. Steps that it had applied before say nothing: one that is
    /// started again applies them once more.
    pub(super) fn gets_through(&mut self, worker: Worker, applied: Option<Step>) {
        let is_such = |lives: &Lives| match applied {
            Some(step) => lives.word.failed.is_none() && step >= lives.next,
            None => lives.word.failed.is_some(),
        };
        if self.lives.get(&worker).is_some_and(is_such) {
            self.lives.remove(&worker);
        }
    }

    /// An error of the engine in this step, with what a worker said that is lost for the same.
    pub(super) fn caused(
        &self,
        error: EngineError,
        step: Step,
        is_lost: impl Fn(Worker) -> bool,
    ) -> RunError {
        let is_why = |(worker, lives): &(&Worker, &Lives)| match &error {
            EngineError::Left { left, .. } => left.contains(**worker),
            // Who is back is not missing.
            EngineError::TooManyLost { .. } => lives.step == step && is_lost(**worker),
            // Who is back came without a state, which it had.
            EngineError::NoState { .. } => lives.step == step,
            _ => false,
        };
        let Some((worker, lives)) = self.lives.iter().find(is_why) else { return error.into() };
        RunError::Failed { worker: *worker, word: Box::new(lives.word.clone()), error }
    }

    /// Jobs before this one are decided.
    pub(super) fn release(&mut self, end: Job) {
        self.counts.retain(|(job, _), _| *job >= end);
    }

    /// Units that are counted.
    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }
}

#[cfg(test)]
mod tests {
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
}
