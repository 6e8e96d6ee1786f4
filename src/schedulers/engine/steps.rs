//! The steps of a run and how far it is.

use crate::ids::{Job, Step};
use crate::run::RunConfig;
use std::ops::Range;

/// The steps of a run, in order: decided, next, and those that come after.
#[derive(Debug)]
pub(super) struct Steps {
    first: Step,
    /// First step that is not decided.
    pub(super) next: Step,
    end: Step,
    /// End of the jobs the scheme knows of.
    known: Job,
    micro_steps: u64,
    /// How many decided steps can still be sent.
    log_steps: u64,
    /// Whether it was asked for an early end.
    pub(super) end_is_asked: bool,
}

impl Steps {
    /// The steps of a run; [`Steps::begin`] is to come first.
    pub(super) fn new(run: &RunConfig) -> Self {
        let micro_steps = run.jobs.micro_steps;
        Self {
            first: run.first,
            next: run.first,
            end: run.end,
            known: run.first.jobs(micro_steps).start,
            micro_steps,
            log_steps: run.log_steps,
            end_is_asked: false,
        }
    }

    /// The jobs a scheme is given at once: those of all steps that are left, or of one step of
    /// several.
    pub(super) fn range(&self) -> Range<Job> {
        let first = self.next.jobs(self.micro_steps);
        if self.micro_steps > 1 { first } else { first.start..Job(self.end.0) }
    }

    /// Begins the next jobs, which the scheme is to be told.
    pub(super) fn begin(&mut self) -> Range<Job> {
        let range = self.range();
        self.known = range.end;
        range
    }

    /// Whether the next step has no jobs that the scheme knows of.
    pub(super) fn are_to_begin(&self) -> bool {
        self.next.jobs(self.micro_steps).start >= self.known
    }

    /// Whether a step is decided.
    pub(super) fn has_begun(&self) -> bool {
        self.next > self.first
    }

    /// The next step is decided.
    pub(super) fn decided(&mut self) {
        self.next = self.next.next();
    }

    /// The last step of a run that is to end after this one: what is being decided comes first.
    /// None where it ends no sooner by it.
    pub(super) fn shortened_to(&self, after: Step) -> Option<Step> {
        let last = after.max(self.next);
        (last.next() < self.end).then_some(last)
    }

    /// No step comes after the one that [`Self::shortened_to`] has found.
    pub(super) fn end_after(&mut self, after: Step) {
        self.end_is_asked = true;
        if let Some(last) = self.shortened_to(after) {
            self.end = last.next();
        }
    }

    pub(super) fn are_over(&self) -> bool {
        self.next >= self.end
    }

    /// Whether all that was decided from a step on can still be sent.
    pub(super) fn are_recent(&self, from: Step) -> bool {
        (self.first..=self.next).contains(&from) && self.next.0 - from.0 <= self.log_steps
    }

    /// The step of the same one of so many models before a step, if it is of this run.
    pub(super) fn before(&self, step: Step, models: u64) -> Option<Step> {
        step.0.checked_sub(models).map(Step).filter(|before| *before >= self.first)
    }
}
