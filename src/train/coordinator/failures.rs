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
mod tests;
