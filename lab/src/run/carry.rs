//! How the steps of one run, or of a block of it, are made: by threads of this process.

use super::observer::RunObserver;
use super::plan::{ClockKind, Plan};
use super::record::Line;
use crate::trainer::{LocalRun, ReplicaState, RunStart, TrainError, run_in_place};
use codedgrad::delays::Delays;
use codedgrad::train::{Outcome, RunClock, VirtualClock};

/// Makes a run, or what is left of it.
pub(super) fn train(
    local: (&LocalRun, bool),
    (states, until, run_clock): (&[ReplicaState], u64, RunClock),
    observer: &mut RunObserver<'_>,
) -> Result<Outcome, TrainError> {
    let rounds = observer.lines.iter().rev().find_map(|line| line.record.rounds.last());
    let start = RunStart {
        states,
        step: observer.lines.len() as u64,
        round: rounds.map_or(0, |round| round.round + 1),
    };
    let batches = observer.reference.batches;
    run_in_place(local, start, until, batches, run_clock, observer)
}

/// What time a plan's run goes by, from its last line on.
pub(super) fn run_clock(
    plan: &Plan,
    (delays, rounds): &(Delays, usize),
    step_seconds: f64,
    last: Option<&Line>,
) -> RunClock {
    match plan.timing.clock {
        ClockKind::Wall => RunClock::wall(plan.shape.workers, delays, *rounds, step_seconds),
        ClockKind::Virtual => {
            let now = last.map_or(0.0, |line| line.record.committed);
            RunClock::modelled(
                plan.shape.workers,
                delays,
                *rounds,
                VirtualClock { step_seconds },
                now,
            )
        }
    }
}
