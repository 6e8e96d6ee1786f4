//! The current round: who was given tasks in it, who has answered, and until when it is held open.

use super::super::events::{Action, RoundReport};
use super::super::roster::Roster;
use super::active::ActiveScheme;
use crate::codes::sequential::{RoundEvent, SchemeFacts, lateness};
use crate::ids::{Round, Worker, WorkerSet};
use crate::run::RunConfig;

/// How far the run is with its current round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Phase {
    /// No round was open yet.
    NotBegun,
    /// It is open.
    Collecting,
    /// It is closed, and sums are waited for.
    Summing,
    /// None opens any more.
    Finished,
}

impl Phase {
    /// Whether the run has begun its first round, or ended without one.
    pub(super) fn has_begun(self) -> bool {
        self != Self::NotBegun
    }

    /// Whether answers count.
    pub(super) fn is_open(self) -> bool {
        self == Self::Collecting
    }

    /// Whether the round is closed, and sums are waited for.
    pub(super) fn is_summing(self) -> bool {
        self == Self::Summing
    }

    /// Whether no round opens any more.
    pub(super) fn is_over(self) -> bool {
        self == Self::Finished
    }
}

/// The time, and until when the round may stay open, or the next one would.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) now: f64,
    pub(super) patience_ends: f64,
}

/// The current round, also between its close and the opening of the next.
///
/// [`CurrentRound::open`] forgets the round before. While answers come in, it is told of whoever is
/// given tasks, answers, fails, or counts for nothing more; [`CurrentRound::missing`] then says who
/// is not there, [`CurrentRound::held_open`] how long it is waited for them, and
/// [`CurrentRound::report`] what was seen. After [`CurrentRound::close`] sums are waited for, until
/// it is opened again or another is, or [`CurrentRound::finish`].
#[derive(Debug)]
pub(super) struct CurrentRound {
    phase: Phase,
    /// For how long it may stay open without being admitted.
    max_wait_seconds: f64,
    /// Number of the next round.
    next: u64,
    opened_at: f64,
    /// Since when patience is tried: the same, or when the round was opened again.
    waits_since: f64,
    /// When the first answer of the round was in.
    first_answer: Option<f64>,
    /// When the round could have closed first, where grace is given.
    closes_at: Option<f64>,
    /// When a round that is held open should be looked at again.
    wake_at: Option<f64>,
    arrivals: Vec<Option<f64>>,
    /// Workers that have had tasks in this round.
    worked: WorkerSet,
    erased: WorkerSet,
    /// Workers that came back in this round and can do nothing before the next one.
    resting: WorkerSet,
    /// Workers with a result that was not finite among the tasks they are at.
    failed: WorkerSet,
    assigned_units: u64,
}

impl CurrentRound {
    /// Before the first round, which will have this number.
    pub(super) fn new(workers: usize, next: u64, max_wait_seconds: f64) -> Self {
        let nobody = WorkerSet::empty(workers);
        Self {
            phase: Phase::NotBegun,
            max_wait_seconds,
            next,
            opened_at: 0.0,
            waits_since: 0.0,
            first_answer: None,
            closes_at: None,
            wake_at: None,
            arrivals: vec![None; workers],
            worked: nobody.clone(),
            erased: nobody.clone(),
            resting: nobody.clone(),
            failed: nobody,
            assigned_units: 0,
        }
    }

    /// Opens the next round.
    pub(super) fn open(&mut self, now: f64) {
        self.phase = Phase::Collecting;
        self.next += 1;
        (self.opened_at, self.waits_since) = (now, now);
        self.first_answer = None;
        self.closes_at = None;
        self.wake_at = None;
        self.arrivals.fill(None);
        // Cleared, not made again: a round is opened for every step.
        self.worked.clear();
        self.erased.clear();
        self.resting.clear();
        self.failed.clear();
        self.assigned_units = 0;
    }

    /// The round goes on after its close: answers come in again.
    pub(super) fn reopen(&mut self, now: f64) {
        self.phase = Phase::Collecting;
        self.waits_since = now;
    }

    /// It is closed, and sums are waited for.
    pub(super) fn close(&mut self) {
        self.phase = Phase::Summing;
    }

    /// How far the run is with it.
    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// When it was opened.
    pub(super) fn opened_at(&self) -> f64 {
        self.opened_at
    }

    pub(super) fn number(&self) -> Round {
        Round(self.next - 1)
    }

    /// Until when the round may stay open without being admitted.
    pub(super) fn patience_ends(&self) -> f64 {
        self.waits_since + self.max_wait_seconds
    }

    /// The time, and until when what is under way may take.
    pub(super) fn at(&self, now: f64) -> Moment {
        let patience_ends = match self.phase {
            Phase::Collecting => self.patience_ends(),
            _ => now + self.max_wait_seconds,
        };
        Moment { now, patience_ends }
    }

    /// No round opens any more.
    pub(super) fn finish(&mut self) -> Action {
        self.phase = Phase::Finished;
        Action::Finish
    }

    /// How long answers have been waited for.
    pub(super) fn waited(&self, now: f64) -> f64 {
        now - self.waits_since
    }

    /// When the round should be looked at again, if it is held open.
    pub(super) fn wake_at(&self) -> Option<f64> {
        self.wake_at
    }

    /// It is looked at again.
    pub(super) fn awake(&mut self) {
        self.wake_at = None;
    }

    /// A worker has tasks of so many units; `partial` = what it answered before in this round still
    /// counts as its answer.
    pub(super) fn gave(&mut self, worker: Worker, units: u64, partial: bool) {
        self.assigned_units += units;
        self.worked.insert(worker);
        // A scheme of one answer per round starts over with new tasks; one with feedback has
        // answered already, and only adds to it.
        if !partial {
            self.arrivals[worker.index()] = None;
        }
    }

    /// Whether no worker was given anything.
    pub(super) fn is_idle(&self) -> bool {
        self.assigned_units == 0
    }

    /// Whether a worker is given nothing more in this round.
    pub(super) fn sits_out(&self, worker: Worker) -> bool {
        self.erased.contains(worker) || self.resting.contains(worker)
    }

    /// A worker has done all its tasks.
    pub(super) fn answered(&mut self, worker: Worker, now: f64) {
        self.arrivals[worker.index()] = Some(now - self.opened_at);
        self.first_answer.get_or_insert(now - self.opened_at);
    }

    /// Whether a worker has answered is forgotten.
    pub(super) fn unanswered(&mut self, worker: Worker) {
        self.arrivals[worker.index()] = None;
    }

    /// One of the results that a worker is at is not finite.
    pub(super) fn failed(&mut self, worker: Worker) {
        self.failed.insert(worker);
    }

    /// Whether one was, now that the worker is done with all of them.
    pub(super) fn has_failed(&mut self, worker: Worker) -> bool {
        self.failed.remove(worker)
    }

    /// Workers count for nothing more in the round, as the scheme is told.
    pub(super) fn erase(
        &mut self,
        workers: impl IntoIterator<Item = Worker>,
        scheme: &mut ActiveScheme,
    ) {
        for worker in workers {
            self.erased.insert(worker);
            scheme.on(RoundEvent::Gone(worker));
        }
    }

    /// A worker's answer turned out to be none.
    pub(super) fn erased(&mut self, worker: Worker) {
        self.erased.insert(worker);
        self.unanswered(worker);
    }

    /// Who counts for nothing more.
    pub(super) fn all_erased(&self) -> &WorkerSet {
        &self.erased
    }

    /// A worker that was dead is there: it may be new to this round's tasks.
    pub(super) fn joined(&mut self, worker: Worker) {
        self.worked.remove(worker);
    }

    /// A worker that came back can do nothing before the next round.
    pub(super) fn rest(&mut self, worker: Worker) {
        self.resting.insert(worker);
    }

    pub(super) fn resting(&self) -> &WorkerSet {
        &self.resting
    }

    /// Those who have not answered: still computing, erased or dead. Who has nothing to do is not
    /// missing.
    pub(super) fn missing(&self, roster: &Roster) -> WorkerSet {
        let mut owing = self.worked.clone();
        owing.unite(&self.erased);
        owing.unite(&self.resting);
        let mut missing = WorkerSet::empty(self.arrivals.len());
        for (worker, arrival) in Worker::all(self.arrivals.len()).zip(&self.arrivals) {
            if arrival.is_none() && (owing.contains(worker) || !roster.is_ready(worker)) {
                missing.insert(worker);
            }
        }
        missing
    }

    /// Whether a round that could close is held open for those who are still out; then it is to be
    /// looked at again.
    pub(super) fn held_open(&mut self, now: f64, facts: &SchemeFacts, config: &RunConfig) -> bool {
        // A scheme that takes late answers could close at once and pay for it in later rounds;
        // approximate ones get more exact with every answer.
        let at = if facts.takes_late() && self.assigned_units > 0 {
            self.first_answer
                .map_or(f64::INFINITY, |first| self.opened_at + (1.0 + config.limits.mu) * first)
        } else if facts.error_max > 0.0 && config.limits.grace_seconds > 0.0 {
            *self.closes_at.get_or_insert(now + config.limits.grace_seconds)
        } else {
            return false;
        };
        let held = now < at;
        // Without an end there is nothing to wake up for: an answer will.
        if held {
            self.wake_at = Some(at).filter(|at| at.is_finite());
        }
        held
    }

    /// How late each worker is, if the round closes now: the time it took by that of the round;
    /// none without an answer.
    pub(super) fn lateness(&self, now: f64) -> Vec<Option<f64>> {
        let lasted = now - self.opened_at;
        let late = |arrival: &Option<f64>| arrival.map(|arrival| lateness(arrival, lasted));
        self.arrivals.iter().map(late).collect()
    }

    /// What was seen of the round, which closes.
    pub(super) fn report(&self, now: f64, units: u32, wrong: Vec<Worker>) -> RoundReport {
        RoundReport {
            round: self.number(),
            opened_at: self.opened_at,
            closed_at: now,
            arrivals: self.arrivals.clone(),
            erased: self.erased.iter().collect(),
            work: self.assigned_units as f64 / f64::from(units),
            wrong,
        }
    }
}
