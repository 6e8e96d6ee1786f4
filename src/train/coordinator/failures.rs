//! Units that cost one worker after the other: a run ends rather than try them for ever.

use super::RunError;
use crate::ids::{Job, Step, Worker};
use crate::run::RunConfig;
use crate::transport::Parting;
use std::collections::BTreeMap;

/// How often workers were lost for a unit of a step that is not decided. Those that were at it at
/// once, as where a code has several compute it, count as one.
#[derive(Debug, Default)]
pub(super) struct Failures {
    counts: BTreeMap<(Job, u32), Tries>,
    /// Tries that were counted so far, for any unit.
    counted: u64,
    /// How many were counted when each worker was given what it is at.
    begun: BTreeMap<Worker, u64>,
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

impl Failures {
    /// A worker is given tasks.
    pub(super) fn gave(&mut self, worker: Worker) {
        self.begun.insert(worker, self.counted);
    }

    /// The last word of a worker that is lost during a step.
    pub(super) fn heard(&mut self, worker: Worker, step: Step, word: Parting, run: &RunConfig) {
        let Some(unit) = word.failed else { return };
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
            let (tries, reason) = (tries.count, word.reason);
            self.fatal = Some(RunError::UnitFailed { step: of, unit, tries, worker, reason });
        }
    }

    /// Why the run cannot go on.
    pub(super) fn take_fatal(&mut self) -> Option<RunError> {
        self.fatal.take()
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
    use crate::run::Shape;
    use crate::transport::FailedUnit;

    #[test]
    fn those_that_were_at_it_at_once_count_as_one() {
        let run = RunConfig::new(Shape::new(4, 4), 1, 9);
        let mut failures = Failures::default();
        let fails = |failures: &mut Failures, worker| {
            let failed = Some(FailedUnit { job: Job(2), unit: 1, samples: 1..2 });
            let word = Parting { failed, for_good: false, reason: "bad".into() };
            failures.heard(Worker(worker), Step(2), word, &run);
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
}
