//! What is done has the units of its tasks.

#![cfg(test)]

use super::*;
use crate::delays::Growth;
use crate::ids::Job;

#[test]
fn what_is_done_has_the_units_of_its_tasks() {
    let growth = Some(Growth::Proportional { base: 1.0 });
    let rules = Rules { close: super::super::Close::All, mu: 1.0, growth, dispatch: 0.0 };
    let clock = Clock { rules: &rules, units: 8.0, pull: 0.0, row: &[8.0] };
    let first = Task { job: Job(0), piece: 4, plan: 0 };
    let run = Run { worker: Worker(0), first, count: 4, units: 4 };
    // A bundle of two units comes before it.
    let end = End { units: 6, tasks: 5 };
    let done = |now| done_by(now, run, end, &clock, |_| 1);
    assert_eq!(done(4.5), Run { count: 2, units: 2, ..run });
    assert_eq!(done(2.9), Run { count: 0, units: 0, ..run });
}
