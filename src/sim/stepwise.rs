//! Rounds in which every finished task counts by itself and may bring the next one.

use super::{Played, Rules};
use crate::codes::sequential::Scheme;
use crate::ids::{Task, Worker, WorkerSet};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// A worker and what it still has to do: first a run of tasks that is reported at its end, then others.
#[derive(Default)]
struct Hand {
    tasks: VecDeque<Task>,
    run: usize,
    /// Units and tasks done before the current run, and at its end.
    before: (u32, u32),
    end: (u32, u32),
    finished_at: f64,
    worked: bool,
}

/// The clock of one worker.
struct Pace<'a> {
    rules: &'a Rules,
    units: u32,
    delay: f64,
}

impl Pace<'_> {
    /// When so many units, in so many tasks, are done.
    fn at(&self, (units, tasks): (u32, u32)) -> f64 {
        self.rules.time(self.delay, f64::from(units) / f64::from(self.units)) + f64::from(tasks) * self.rules.dispatch
    }
}

impl Hand {
    /// Begins the next run, if there is anything to do, and tells when it ends.
    fn start(&mut self, scheme: &dyn Scheme, worker: Worker, pace: &Pace<'_>) -> Option<f64> {
        let decisive = self.tasks.iter().position(|task| scheme.decisive(worker, *task));
        self.run = decisive.map_or(self.tasks.len(), |at| at + 1);
        self.worked |= self.run > 0;
        let units: u32 = self.tasks.iter().take(self.run).map(|task| scheme.units(worker, *task)).sum();
        self.end = (self.before.0 + units, self.before.1 + self.run as u32);
        (self.run > 0).then(|| pace.at(self.end))
    }

    /// Reports the whole run.
    fn finish(&mut self, scheme: &mut dyn Scheme, worker: Worker) {
        self.tasks.drain(..self.run).for_each(|task| {
            scheme.returned(worker, task);
        });
        self.before = self.end;
    }

    /// Reports what is done of a run that has not ended by `now`.
    fn give_up(&self, scheme: &mut dyn Scheme, worker: Worker, pace: &Pace<'_>, now: f64) {
        let (mut units, mut tasks) = self.before;
        for task in self.tasks.iter().take(self.run) {
            units += scheme.units(worker, *task);
            tasks += 1;
            if pace.at((units, tasks)) > now {
                return;
            }
            scheme.returned(worker, *task);
        }
    }
}

/// A time as something that can be ordered.
#[derive(Clone, Copy, PartialEq)]
struct Instant(f64);

impl Eq for Instant {}

impl PartialOrd for Instant {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Instant {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Plays one round to its close; tasks that are handed out on the way are added to `tasks`. None if it
/// never closes.
pub(super) fn play(scheme: &mut dyn Scheme, tasks: &mut Vec<(Worker, Task)>, row: &[f64], rules: &Rules) -> Option<Played> {
    let (workers, units) = (row.len(), scheme.facts().units);
    let pace = |worker: Worker| Pace { rules, units, delay: row[worker.index()] };
    let mut hands: Vec<Hand> = (0..workers).map(|_| Hand::default()).collect();
    tasks.iter().for_each(|(worker, task)| hands[worker.index()].tasks.push_back(*task));
    let mut events = BinaryHeap::new();
    for (worker, hand) in Worker::all(workers).zip(&mut hands) {
        events.extend(hand.start(scheme, worker, &pace(worker)).map(|at| Reverse((Instant(at), worker))));
    }
    let mut now = 0.0;
    let mut fresh = Vec::new();
    while !scheme.admits(&WorkerSet::empty(workers)) {
        now = events.peek()?.0.0.0;
        while events.peek().is_some_and(|next| next.0.0.0 == now) {
            let Reverse((_, worker)) = events.pop()?;
            let (hand, pace) = (&mut hands[worker.index()], pace(worker));
            hand.finished_at = now;
            hand.finish(scheme, worker);
            if hand.tasks.is_empty() {
                scheme.assign(worker, &mut fresh);
                tasks.extend(fresh.iter().map(|task| (worker, *task)));
                hand.tasks.extend(fresh.drain(..));
            }
            events.extend(hand.start(scheme, worker, &pace).map(|at| Reverse((Instant(at), worker))));
        }
    }
    for (worker, hand) in Worker::all(workers).zip(&hands) {
        hand.give_up(scheme, worker, &pace(worker), now);
    }
    let mut unfinished = 0;
    for (worker, hand) in Worker::all(workers).zip(&hands).filter(|(_, hand)| hand.worked) {
        let ratio = if now > 0.0 { hand.finished_at / now } else { 1.0 };
        let in_time = hand.tasks.is_empty();
        unfinished += usize::from(!in_time);
        scheme.observe(worker, in_time.then_some(ratio));
    }
    let share = 1.0 / workers as f64;
    let alone: Vec<f64> = row.iter().map(|delay| rules.time(*delay, share)).collect();
    let (_, candidates) = super::deadline(&alone, rules.mu);
    let missing = WorkerSet::of(workers, Worker::all(workers).filter(|worker| !hands[worker.index()].tasks.is_empty()));
    Some(Played { seconds: now, missing, candidates, waited_out: false, unfinished })
}
