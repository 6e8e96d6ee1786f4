//! When a worker's answer counts as arrived: by the wall clock plus an injected delay, or by a model.

use crate::delays::{Delays, Unit};
use crate::ids::{Job, Task, Worker};
use crate::transport::Notice;
use std::time::{Duration, Instant};

/// The model of a virtual clock: nobody sleeps, and a run's record is reproducible to the byte.
///
/// # Formula
/// ```text
/// arrival = assigned + c n load + d_i - min(d)
/// ```
/// where `c` is [`VirtualClock::step_seconds`], `n` the number of workers, `load` the fraction of the
/// batch in the task and `d` the round's delays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VirtualClock {
    /// Modelled compute time of an uncoded step, `c`.
    pub step_seconds: f64,
}

#[derive(Debug)]
enum Clock {
    Wall { origin: Instant, paused: Duration },
    Virtual { now: f64, model: VirtualClock },
}

/// A task a worker is at, or its answer that is kept until it is due.
#[derive(Debug)]
struct Out {
    task: Task,
    late_by: f64,
    due: Option<f64>,
    notice: Option<Notice>,
    abandoned: bool,
}

/// Clock and injected delays of one run.
#[derive(Debug)]
pub struct Pace {
    clock: Clock,
    delays: Vec<Vec<f64>>,
    outs: Vec<Option<Out>>,
    /// The job whose lateness each worker was charged last.
    charged: Vec<Option<Job>>,
    /// Under a virtual clock: answers to tasks abandoned long ago, still to come.
    owed: Vec<u32>,
}

/// What to do next.
#[derive(Debug)]
pub(super) enum Next {
    /// This notice counts as arrived now.
    Arrived(Worker, Notice),
    /// The deadline is reached.
    Deadline,
    /// Wait for workers, at most so long.
    Wait(Option<Duration>),
}

impl Pace {
    /// A wall clock that starts now, with delays injected for `rounds` rounds; `step_seconds` is the
    /// calibrated compute time of an uncoded step.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one clock of a training run")]
    pub fn wall(workers: usize, delays: &Delays, rounds: usize, step_seconds: f64) -> Self {
        Self::new(Clock::Wall { origin: Instant::now(), paused: Duration::ZERO }, workers, delays, rounds, step_seconds)
    }

    /// A virtual clock that starts at `now` seconds.
    #[must_use]
    pub fn modelled(workers: usize, delays: &Delays, rounds: usize, model: VirtualClock, now: f64) -> Self {
        Self::new(Clock::Virtual { now, model }, workers, delays, rounds, model.step_seconds)
    }

    fn new(clock: Clock, workers: usize, delays: &Delays, rounds: usize, step_seconds: f64) -> Self {
        let unit = match delays.unit() {
            Unit::StepTimes => step_seconds,
            Unit::Seconds => 1.0,
        };
        let late = |mut row: Vec<f64>| {
            row.resize(workers, 0.0);
            let least = row.iter().copied().fold(f64::INFINITY, f64::min);
            row.into_iter().map(|d| (d - least) * unit).collect::<Vec<f64>>()
        };
        let delays = delays.rows(rounds).into_iter().map(late).collect();
        Self { clock, delays, outs: (0..workers).map(|_| None).collect(), charged: vec![None; workers], owed: vec![0; workers] }
    }

    /// Seconds since the start, pauses left out.
    #[must_use]
    pub fn now(&self) -> f64 {
        match &self.clock {
            Clock::Wall { origin, paused } => (origin.elapsed() - *paused).as_secs_f64(),
            Clock::Virtual { now, .. } => *now,
        }
    }

    /// Whether time is modelled.
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        matches!(self.clock, Clock::Virtual { .. })
    }

    /// Does something that is no part of the run, such as writing its record, with the clock stopped.
    pub(super) fn pause<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let Clock::Wall { origin, paused } = &mut self.clock else { return work() };
        let before = origin.elapsed();
        let result = work();
        *paused += origin.elapsed() - before;
        result
    }

    /// Injected lateness of a round in seconds, one number per worker.
    pub(super) fn lateness(&self, round: u64) -> &[f64] {
        self.delays.get(round as usize).map_or(&[], Vec::as_slice)
    }

    /// A worker is given a task that is `share` of the batch. Its lateness is charged once per job, with the
    /// first task.
    pub(super) fn assigned(&mut self, worker: Worker, task: Task, share: f64) {
        let first = self.charged[worker.index()].replace(task.job) != Some(task.job);
        let late_by = self.lateness(task.job.0).get(worker.index()).copied().filter(|_| first).unwrap_or(0.0);
        let due = match &self.clock {
            Clock::Wall { .. } => None,
            Clock::Virtual { now, model } => Some(now + model.step_seconds * self.outs.len() as f64 * share + late_by),
        };
        self.outs[worker.index()] = Some(Out { task, late_by, due, notice: None, abandoned: false });
    }

    /// A worker's task is not wanted any more. If it is free at once, the answer it may have given.
    pub(super) fn abandoned(&mut self, worker: Worker) -> Option<Option<Notice>> {
        let out = self.outs[worker.index()].as_mut()?;
        let notice = out.notice.take();
        let free = self.is_virtual() || notice.is_some();
        if !free {
            self.outs[worker.index()].as_mut()?.abandoned = true;
            return None;
        }
        if notice.is_none() {
            self.owed[worker.index()] += 1;
        }
        self.outs[worker.index()] = None;
        Some(notice)
    }

    /// Whether a worker is still busy with something nobody wants.
    pub(super) fn is_leaving(&self, worker: Worker) -> bool {
        self.owed[worker.index()] > 0 || self.outs[worker.index()].as_ref().is_some_and(|out| out.abandoned)
    }

    /// Takes in what came from a worker; gives back what counts at once.
    pub(super) fn arrived(&mut self, worker: Worker, notice: Notice) -> Option<Notice> {
        let now = self.now();
        let wall = !self.is_virtual();
        let slot = &mut self.outs[worker.index()];
        let stale = match (&notice, slot.as_ref()) {
            (Notice::Done { task, .. }, Some(out)) => *task != out.task,
            (Notice::Done { .. }, None) => true,
            (Notice::Freed, _) => self.owed[worker.index()] > 0,
            (Notice::Lost { .. }, _) => false,
            _ => return Some(notice),
        };
        if stale {
            let owed = &mut self.owed[worker.index()];
            *owed = owed.saturating_sub(1);
            return Some(notice).filter(|notice| matches!(notice, Notice::Done { .. }));
        }
        match slot {
            Some(out) if !out.abandoned && (matches!(notice, Notice::Done { .. }) || !wall) => {
                if wall {
                    out.due = Some(now + out.late_by);
                }
                out.notice = Some(notice);
                None
            }
            _ => {
                *slot = None;
                Some(notice)
            }
        }
    }

    /// What happens next, given when the engine wants to be woken at the latest.
    pub(super) fn next(&mut self, deadline: Option<f64>) -> Next {
        let key = |(index, out): (usize, &Option<Out>)| out.as_ref().and_then(|out| Some((out.due?, index, out.notice.is_some())));
        let first = self.outs.iter().enumerate().filter_map(key).min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let limit = deadline.unwrap_or(f64::INFINITY);
        let due = first.map_or(f64::INFINITY, |first| first.0);
        let now = match &mut self.clock {
            Clock::Wall { .. } => self.now(),
            Clock::Virtual { .. } if first.is_some_and(|first| !first.2) && due <= limit => return Next::Wait(None),
            Clock::Virtual { now, .. } if due.min(limit).is_finite() => {
                *now = now.max(due.min(limit));
                *now
            }
            Clock::Virtual { now, .. } => *now,
        };
        if due <= now
            && due <= limit
            && let Some((worker, notice)) = first.and_then(|(_, index, _)| Some((Worker(index as u32), self.outs[index].take()?.notice?)))
        {
            return Next::Arrived(worker, notice);
        }
        if limit <= now {
            return Next::Deadline;
        }
        let wait = due.min(limit) - now;
        Next::Wait(wait.is_finite().then(|| Duration::from_secs_f64(wait.max(1e-6))))
    }
}
