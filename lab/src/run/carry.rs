//! How the steps of one run, or of a block of it, are made: by threads, by processes of this
//! command, or by workers that have joined.

use super::network::{Leg, Team};
use super::observer::RunObserver;
use super::plan::{ClockKind, Plan, TransportKind};
use super::record::Line;
use crate::trainer::{LocalRun, ReplicaState, RunStart, StepRange, run_in_place};
use anyhow::anyhow;
use codedgrad::delays::Delays;
use codedgrad::train::{Outcome, RunClock, VirtualClock};
use codedgrad_shell::failure::Failure;

/// Makes a run, or what is left of it, by workers that have joined or by some of its own; how it
/// went, unless it could not be tried.
pub(super) fn train(
    (local, stays): (&LocalRun, bool),
    (states, until, run_clock): (&[ReplicaState], u64, RunClock),
    team: Option<Team>,
    observer: &mut RunObserver<'_>,
) -> Result<anyhow::Result<Outcome>, Failure> {
    let (plan, batches) = (observer.plan, observer.reference.batches);
    let rounds = observer.lines.iter().rev().find_map(|line| line.record.rounds.last());
    let start = RunStart {
        states,
        step: observer.lines.len() as u64,
        round: rounds.map_or(0, |round| round.round + 1),
    };
    if plan.sums.transport == TransportKind::Local {
        let done = run_in_place((local, stays), start, until, batches, run_clock, observer);
        return Ok(done.map_err(anyhow::Error::new));
    }
    let leg = Leg { run: local, plan, batches, folder: observer.folder, start };
    let team = match team {
        Some(team) => Some(team),
        // A coordinator's workers are others' processes: it has no board without them.
        None if observer.board.is_some() => {
            return Err(Failure::Work(anyhow!("its workers have been told that the run is over")));
        }
        None => Team::start(&leg, observer.interrupted)?,
    };
    let Some(team) = team else { return Ok(Ok(Outcome::Stopped)) };
    let range = StepRange { step: start.step, end: until, round: start.round };
    Ok(team.carry(local, range, batches, run_clock, observer))
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
