//! Rounds in which every finished task counts by itself and may bring the next one.

use super::{Played, Rules};
use crate::codes::sequential::Scheme;
use crate::ids::{Task, Worker, WorkerSet};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// A worker and what it still has to do.
#[derive(Default)]
struct Hand {
    tasks: VecDeque<Task>,
    units: u32,
    started: u32,
    finished_at: f64,
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
    let mut hands: Vec<Hand> = (0..workers).map(|_| Hand::default()).collect();
    tasks.iter().for_each(|(worker, task)| hands[worker.index()].tasks.push_back(*task));
    let mut events = BinaryHeap::new();
    let start = |scheme: &dyn Scheme, hand: &mut Hand, worker: Worker, events: &mut BinaryHeap<_>| {
        let Some(task) = hand.tasks.front() else { return };
        hand.units += scheme.parts(worker, *task).iter().map(|part| part.units.count()).sum::<u32>();
        hand.started += 1;
        let load = f64::from(hand.units) / f64::from(units);
        let at = rules.load.time(row[worker.index()], load) + f64::from(hand.started) * rules.dispatch;
        events.push(Reverse((Instant(at), worker)));
    };
    for worker in Worker::all(workers) {
        start(scheme, &mut hands[worker.index()], worker, &mut events);
    }
    let mut now = 0.0;
    let mut fresh = Vec::new();
    while !scheme.admits(&WorkerSet::empty(workers)) {
        now = events.peek()?.0.0.0;
        while events.peek().is_some_and(|next| next.0.0.0 == now) {
            let Reverse((_, worker)) = events.pop()?;
            let hand = &mut hands[worker.index()];
            hand.finished_at = now;
            if let Some(task) = hand.tasks.pop_front() {
                scheme.returned(worker, task);
            }
            if hand.tasks.is_empty() {
                scheme.assign(worker, &mut fresh);
                tasks.extend(fresh.iter().map(|task| (worker, *task)));
                hand.tasks.extend(fresh.drain(..));
            }
            start(scheme, hand, worker, &mut events);
        }
    }
    let mut unfinished = 0;
    for (worker, hand) in Worker::all(workers).zip(&hands).filter(|(_, hand)| hand.started > 0) {
        let ratio = if now > 0.0 { hand.finished_at / now } else { 1.0 };
        let in_time = hand.tasks.is_empty();
        unfinished += usize::from(!in_time);
        scheme.observe(worker, in_time.then_some(ratio));
    }
    let share = 1.0 / workers as f64;
    let alone: Vec<f64> = row.iter().map(|delay| rules.load.time(*delay, share)).collect();
    let deadline = (1.0 + rules.mu) * alone.iter().copied().fold(f64::INFINITY, f64::min);
    let candidates = alone.iter().filter(|delay| **delay > deadline).count();
    let missing = WorkerSet::of(workers, Worker::all(workers).filter(|worker| !hands[worker.index()].tasks.is_empty()));
    Some(Played { seconds: now, missing, candidates, waited_out: false, unfinished })
}
