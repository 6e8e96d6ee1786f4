//! What a run waits for: the round that is open, who hangs, and whether it takes too long.

use super::{Coordinator, Flow, IncidentKind, Observer, RoundRecord};
use crate::ids::{Worker, WorkerSet, named};
use crate::schedulers::{Input, OpenRound};
use crate::transport::{Dismissal, Notice, Order, Transport};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt;

/// How often, in seconds, an observer is told what is waited for.
const TELL: f64 = 1.0;
/// Rounds by which it is judged what is usual.
const USUAL_OF: usize = 50;
/// A round is stuck that is open for so many seconds and so many times the usual ones.
const STUCK_SECONDS: f64 = 5.0;
const STUCK_TIMES: f64 = 10.0;
/// A state is overdue that was asked for so many seconds ago, and so many usual rounds.
const OVERDUE_SECONDS: f64 = 1.0;
const OVERDUE_TIMES: f64 = 3.0;
/// A trainer hangs that drops nothing for so many seconds, and so many times a usual answer.
const HANGS_SECONDS: f64 = 60.0;
const HANGS_TIMES: f64 = 20.0;
const HANGS: &str = "worker unresponsive: it has not stopped a cancelled task for 60 s or more";
/// A worker that leaves ends by itself with its notice; it is given up so many seconds after it.
const OVER_NOTICE: f64 = 5.0;
const STAYS: &str = "it has not ended though its notice is over";

/// The middle of some numbers, the greater one of two.
pub(in crate::train) fn median(numbers: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = numbers.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// A worker that has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MissingWorker {
    /// Who.
    pub worker: Worker,
    /// For how many seconds it has had tasks that it has not answered; none if it has none.
    pub order_seconds: Option<f64>,
}

/// A round that is open, and for whom it waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitingRound {
    /// The current step.
    pub step: u64,
    /// Number of the round.
    pub round: u64,
    /// For how long it is open.
    pub open_seconds: f64,
    /// How long rounds are open usually: the median of the last 50.
    pub usual_seconds: Option<f64>,
    /// How many workers there are.
    pub workers: usize,
    /// Whether enough have answered, and the sum of that is made and held.
    pub summing: bool,
    /// Who has not answered; of a sum, who does not say that it holds it.
    pub missing: Vec<MissingWorker>,
    /// Those of them without each of whom the round cannot close.
    pub needed: Vec<Worker>,
    /// Those of them whose answer alone would let it close.
    pub enough: Vec<Worker>,
    /// Whether it cannot close unless a lost worker comes back.
    #[serde(default)]
    pub needs_return: bool,
    /// After how many seconds more the run ends if no worker comes back, where that is so.
    #[serde(default)]
    pub ends_within_seconds: Option<f64>,
}

impl WaitingRound {
    /// In words, with what else is known of a worker.
    pub fn words(&self, known: impl Fn(Worker) -> Option<String>) -> String {
        let named = |workers: &[Worker]| named(workers, &known);
        let missing: Vec<Worker> = self.missing.iter().map(|it| it.worker).collect();
        let mut words = format!("step {} open for {:.1} s: ", self.step, self.open_seconds);
        if self.summing {
            return match &missing[..] {
                [] => words + "no connected worker holds its sum",
                missing => words + &format!("its sum is not held by {}", named(missing)),
            };
        }
        words += &format!("{} of {} answered", self.workers - missing.len(), self.workers);
        match (&self.needed[..], &self.enough[..]) {
            (needed @ [_, ..], _) => words += &format!(", needs {}", named(needed)),
            ([], enough @ [_, _, ..]) => {
                words += &format!(", any one of {} would do", named(enough));
            }
            ([], [one]) => words += &format!(", {} would do", named(&[*one])),
            ([], []) if !missing.is_empty() => words += &format!(", without {}", named(&missing)),
            ([], []) => {}
        }
        if let Some(seconds) = self.ends_within_seconds {
            words += &format!("; unless a lost worker comes back, the run ends in {seconds:.0} s");
        }
        words
    }
}

impl fmt::Display for WaitingRound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words(|_| None))
    }
}

/// What is known of rounds and workers, to judge whether a worker hangs.
#[derive(Debug)]
pub(super) struct Watchdog {
    /// When it is told next what is waited for.
    tell_at: f64,
    /// Seconds of the last rounds, and of the median answers in them.
    rounds: VecDeque<f64>,
    answers: VecDeque<f64>,
    /// When the round opened that was called stuck, while it is.
    stuck: Option<f64>,
    /// Since when workers are to drop what they compute, and have said nothing.
    leaving: Vec<Option<f64>>,
    /// When the notice is over that each worker has given.
    notices: Vec<Option<f64>>,
    /// The least time after which a trainer hangs.
    hangs_seconds: f64,
}

impl Watchdog {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            tell_at: 0.0,
            rounds: VecDeque::new(),
            answers: VecDeque::new(),
            stuck: None,
            leaving: vec![None; workers],
            notices: vec![None; workers],
            hangs_seconds: HANGS_SECONDS,
        }
    }

    /// A worker is told to drop its tasks.
    pub(super) fn abandoned(&mut self, worker: Worker, now: f64) {
        self.leaving[worker.index()].get_or_insert(now);
    }

    /// A worker has said what became of its tasks, or is lost.
    pub(super) fn heard(&mut self, worker: Worker) {
        self.leaving[worker.index()] = None;
    }

    /// A worker leaves, and ends by itself by then. Whether that is new.
    pub(super) fn leaves(&mut self, worker: Worker, by: f64) -> bool {
        let notice = &mut self.notices[worker.index()];
        let is_new = notice.is_none();
        notice.get_or_insert(by);
        is_new
    }

    /// A worker is lost, or has left.
    pub(super) fn lost(&mut self, worker: Worker) {
        self.notices[worker.index()] = None;
    }

    /// A round is closed.
    pub(super) fn closed(&mut self, round: &RoundRecord) {
        for (kept, new) in
            [(&mut self.rounds, Some(round.seconds)), (&mut self.answers, round.median_arrival())]
        {
            kept.extend(new);
            if kept.len() > USUAL_OF {
                kept.pop_front();
            }
        }
    }

    /// The run goes on: after how many seconds, if it was stuck.
    pub(super) fn goes_on(&mut self, now: f64) -> Option<f64> {
        self.stuck.take().map(|opened| now - opened)
    }

    /// Whether a round is called stuck from now on.
    fn gets_stuck(&mut self, open_seconds: f64, now: f64) -> bool {
        let usual = median(self.rounds.iter().copied()).unwrap_or(0.0);
        let stuck = open_seconds > STUCK_SECONDS.max(STUCK_TIMES * usual);
        stuck && self.stuck.replace(now - open_seconds).is_none()
    }

    /// How long a worker may take to hand over its state before another is asked.
    fn patience_for_states(&self) -> f64 {
        let usual = median(self.rounds.iter().copied()).unwrap_or(0.0);
        OVERDUE_SECONDS.max(OVERDUE_TIMES * usual)
    }

    /// A worker that is to be given up, and why: its trainer hangs, or it has not ended with its
    /// notice.
    fn hanging(&self, now: f64) -> Option<(Worker, &'static str)> {
        let usual = median(self.answers.iter().copied()).unwrap_or(0.0);
        let limit = self.hangs_seconds.max(HANGS_TIMES * usual);
        let hangs = |since: &Option<f64>| since.is_some_and(|since| now - since > limit);
        let over = |by: &Option<f64>| by.is_some_and(|by| now - by > OVER_NOTICE);
        let first = |found: Option<usize>| Worker::all(self.leaving.len()).nth(found?);
        let hanging = first(self.leaving.iter().position(hangs)).map(|worker| (worker, HANGS));
        hanging.or_else(|| Some((first(self.notices.iter().position(over))?, STAYS)))
    }
}

impl<T: Transport> Coordinator<T> {
    /// The same coordinator, to which a trainer hangs that drops nothing for so many seconds after
    /// its results are not wanted any more, and for 20 usual answers: its worker is lost, instead
    /// of being carried for ever by a code that does without it. 60 s if not told.
    #[must_use]
    pub fn hangs_after(mut self, seconds: f64) -> Self {
        self.watchdog.hangs_seconds = seconds;
        self
    }

    /// What the run waits for; nothing under a modelled clock, which stands still meanwhile.
    pub(super) fn waiting(&self) -> Option<WaitingRound> {
        if self.run_clock.is_virtual() {
            return None;
        }
        let open = self.gradients.sums.waits_for(&self.engine)?;
        let OpenRound { step, round, opened_at, summing, missing, .. } = open;
        let now = self.run_clock.now();
        let list = |workers: &WorkerSet| workers.iter().collect();
        let of_missing = |worker| MissingWorker {
            worker,
            order_seconds: self.spending.since(worker).map(|since| now - since),
        };
        Some(WaitingRound {
            step: step.0,
            round: round.0,
            open_seconds: now - opened_at,
            usual_seconds: median(self.watchdog.rounds.iter().copied()),
            workers: missing.capacity(),
            summing,
            missing: missing.iter().map(of_missing).collect(),
            needed: list(&open.needed),
            enough: list(&open.enough),
            needs_return: open.needs_return,
            ends_within_seconds: open.returns_by.map(|by| (by - now).max(0.0)),
        })
    }

    /// Looks after what is waited for, now and then: gives back a worker that is given up since
    /// its trainer hangs.
    pub(super) fn look_for_hangs(
        &mut self,
        now: f64,
        observer: &mut dyn Observer<T::Vector>,
    ) -> Option<(Worker, Notice)> {
        if now < self.watchdog.tell_at || self.run_clock.is_virtual() {
            return None;
        }
        if let Some((worker, why)) = self.watchdog.hanging(now) {
            let reason = why.to_owned();
            let dismissal = Dismissal::GivenUp { reason: reason.clone() };
            self.transport.send(worker, Order::Dismiss(dismissal));
            return Some((worker, Notice::Lost { reason }));
        }
        self.watchdog.tell_at = now + TELL;
        // A worker hands its state over between two tasks, and may be the slowest: it must not hold
        // up another whose answer would do.
        let overdue = self.replicas.overdue(now - self.watchdog.patience_for_states());
        self.inbox.add(overdue.map(|(worker, from)| Input::StateOverdue { worker, from }));
        let waiting = self.waiting()?;
        if self.watchdog.gets_stuck(waiting.open_seconds, now) {
            self.tell(IncidentKind::Stuck { waiting: Box::new(waiting.clone()) }, observer);
        }
        if observer.waiting(&waiting) == Flow::Stop {
            self.stopper().stop();
        }
        None
    }
}

#[cfg(test)]
mod tests;
