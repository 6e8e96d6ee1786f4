//! Rounds in which every finished task counts by itself and may bring the next one.

use super::{PlayedRound, Rules};
use crate::codes::sequential::{Scheme, lateness};
use crate::ids::{Run, Task, Worker, WorkerSet};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The delays of a round.
struct Clock<'a> {
    rules: &'a Rules,
    units: f64,
    /// Seconds of a pull; none where the order that opens a round has all tasks.
    pull: f64,
    row: &'a [f64],
}

impl Clock<'_> {
    /// When a worker is done with so many units, in so many tasks.
    fn at(&self, worker: Worker, units: u32, tasks: u32) -> f64 {
        let load = f64::from(units) / self.units;
        self.rules.time(self.row[worker.index()], load) + f64::from(tasks) * self.pull
    }
}

/// The end of a run: units and tasks that its worker has done by then in this round.
#[derive(Clone, Copy, Default)]
struct End {
    units: u32,
    tasks: u32,
}

/// What a worker has to do: the runs `next..end` of the round's list.
#[derive(Clone, Copy, Default)]
struct Hand {
    next: usize,
    end: usize,
}

/// A run ends. Ordered by time, at one instant by worker, then by place in the round's list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Event(u128);

impl Event {
    /// Times that are not negative are ordered as their bits are.
    fn new(at: f64, worker: Worker, run: usize) -> Self {
        Self(u128::from(at.to_bits()) << 64 | u128::from(worker.0) << 32 | run as u128)
    }

    fn at(self) -> f64 {
        f64::from_bits((self.0 >> 64) as u64)
    }

    fn run(self) -> usize {
        self.0 as u32 as usize
    }
}

/// Plays rounds, one after the other.
#[derive(Default)]
pub(super) struct Player {
    hands: Vec<Hand>,
    /// How and when each run ends.
    ends: Vec<End>,
    times: Vec<f64>,
    events: BinaryHeap<Reverse<Event>>,
    /// Tasks of the worker that is handed some now.
    own: Vec<Task>,
}

impl Player {
    /// Plays one round to its close; runs that are handed out on the way are added to `runs`. None
    /// if it never closes.
    pub(super) fn play(
        &mut self,
        scheme: &mut dyn Scheme,
        runs: &mut Vec<Run>,
        row: &[f64],
        rules: &Rules,
    ) -> Option<PlayedRound> {
        let workers = row.len();
        let facts = scheme.facts();
        let pull = if facts.pulls { rules.dispatch } else { 0.0 };
        let clock = Clock { rules, units: f64::from(facts.units), pull, row };
        self.hands.clear();
        self.hands.resize(workers, Hand::default());
        self.ends.clear();
        self.times.clear();
        self.plan(runs, &clock);
        let fast = scheme.fast_forward().and_then(|fast| fast.closes_at(runs, &self.times));
        let now = match fast {
            Some(now) => self.report(scheme, runs, now),
            None => self.follow(scheme, runs, &clock)?,
        };
        let mut missing = WorkerSet::empty(workers);
        let mut late = vec![None; workers];
        let mut units = 0;
        for (worker, hand) in Worker::all(workers).zip(&self.hands).filter(|(_, hand)| hand.end > 0)
        {
            units += u64::from(self.ends[hand.end - 1].units);
            if hand.next < hand.end {
                let (run, end) = (runs[hand.next], self.ends[hand.next]);
                let units = |task| scheme.facts().units_of(scheme.parts(worker, task));
                let done = done_by(now, run, end, &clock, units);
                super::report(scheme, Some(done).filter(|done| done.count > 0).into_iter());
                missing.insert(worker);
            } else {
                let at = self.times[hand.end - 1];
                late[worker.index()] = Some(lateness(at, now));
            }
        }
        let alone = row.iter().map(|delay| rules.time(*delay, 1.0 / workers as f64));
        let (_, candidates) = super::deadline(alone, rules.mu);
        let unfinished = missing.len();
        Some(PlayedRound {
            seconds: now,
            missing,
            candidates,
            unfinished,
            units,
            late,
            ..PlayedRound::default()
        })
    }

    /// Puts the runs that are new in the list into their workers' hands.
    fn plan(&mut self, runs: &[Run], clock: &Clock<'_>) {
        let known = self.ends.len();
        for (at, run) in runs.iter().enumerate().skip(known) {
            let hand = &mut self.hands[run.worker.index()];
            let before = hand.end.checked_sub(1).map(|last| self.ends[last]).unwrap_or_default();
            if hand.next == hand.end {
                hand.next = at;
            }
            hand.end = at + 1;
            let end = End { units: before.units + run.units, tasks: before.tasks + run.count };
            self.ends.push(end);
            self.times.push(clock.at(run.worker, end.units, end.tasks));
        }
    }

    /// Reports all runs that end by `now`.
    fn report(&mut self, scheme: &mut dyn Scheme, runs: &[Run], now: f64) -> f64 {
        for (at, run) in runs.iter().enumerate() {
            if self.times[at] <= now {
                self.hands[run.worker.index()].next = at + 1;
            }
        }
        let ended = runs.iter().zip(&self.times).filter(|(_, end)| **end <= now);
        super::report(scheme, ended.map(|(run, _)| *run));
        now
    }

    /// Reports one run after the other until the round closes, and tells when that is.
    fn follow(
        &mut self,
        scheme: &mut dyn Scheme,
        runs: &mut Vec<Run>,
        clock: &Clock<'_>,
    ) -> Option<f64> {
        let event =
            |at: usize, run: Run, times: &[f64]| Reverse(Event::new(times[at], run.worker, at));
        self.events.clear();
        self.events.extend(runs.iter().enumerate().map(|(at, run)| event(at, *run, &self.times)));
        let nobody = WorkerSet::empty(self.hands.len());
        let mut now = 0.0;
        while !scheme.admits(&nobody) {
            now = self.events.peek()?.0.at();
            while let Some(Reverse(end)) =
                self.events.peek().copied().filter(|end| end.0.at() == now)
            {
                self.events.pop();
                let (at, run) = (end.run(), runs[end.run()]);
                super::report(scheme, [run].into_iter());
                self.hands[run.worker.index()].next = at + 1;
                if self.hands[run.worker.index()].end == at + 1 {
                    super::hand_out(scheme, [run.worker].into_iter(), &mut self.own, runs);
                    let known = self.ends.len();
                    self.plan(runs, clock);
                    self.events
                        .extend((known..runs.len()).map(|at| event(at, runs[at], &self.times)));
                }
            }
        }
        Some(now)
    }
}

/// What is done by `now` of the run that a worker is in the middle of.
fn done_by(now: f64, run: Run, end: End, clock: &Clock<'_>, units: impl Fn(Task) -> u32) -> Run {
    let before = End { units: end.units - run.units, tasks: end.tasks - run.count };
    let mut done = Run { count: 0, units: 0, ..run };
    for task in run.tasks() {
        let next = Run { count: done.count + 1, units: done.units + units(task), ..run };
        if clock.at(run.worker, before.units + next.units, before.tasks + next.count) > now {
            break;
        }
        done = next;
    }
    done
}

#[cfg(test)]
mod tests;
