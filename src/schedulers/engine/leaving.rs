//! Workers that leave for good, and what a run is without them.
//!
//! The run does not wait for a worker that left. Others compute what it had, the run is planned for
//! them, or it ends with an error that names it. But the first that leaves may only be the first of
//! all, whose loops end after the same step. Then they end the run, and that is no error. So where
//! a round cannot close without workers that left, the error waits until another worker goes on,
//! and a moment more.
//!
//! A worker that was told to end has not come to the end of its loop. Where fewer may make the run,
//! it is waited for like one that is lost, since another may come in its place; where all have gone
//! and one of them was told to, the run is not at its end.

use super::super::roster::Roster;
use super::steps::Steps;
use crate::ids::{Worker, WorkerSet};

/// How long after a worker has gone on the others may still leave. All may be told to end at once,
/// also those that wait for tasks, and on a busy host a Python ends slowly.
const SETTLE_SECONDS: f64 = 3.0;

/// Who goes: who has left for good, is about to leave or is to be done without, and whether that
/// ends the run. Its [engine](super::Engine) writes it; others read it.
///
/// It is told of who is about to leave (`departs`), leaves for good (`left`), is to be done without
/// (`drain`), is lost, and is back (`joined`); it is asked who goes and who stays. Where the open
/// round cannot close without who has left (`block`), it is asked after every event whether that is
/// the end (`ends_the_run`). Whether all have left is asked whenever one is lost or let go
/// (`end_it_together`).
#[derive(Debug)]
pub struct Departures {
    /// Workers that said that they do not come back.
    left: WorkerSet,
    /// Workers that are gone since they were told to end, whether they come back or not.
    told: WorkerSet,
    /// Workers that are there and said that they are about to leave.
    departing: WorkerSet,
    /// Workers that are to be done without, whether they are there or not.
    drained: WorkerSet,
    /// The open round cannot close without workers that have left.
    blocked: bool,
    /// All workers have left, and ended the run.
    ended: bool,
    /// All workers are gone that were there at the last step, some of them since they were told to.
    preempted: bool,
    /// When the run ends for it, since a worker has gone on.
    pub(super) ends_at: Option<f64>,
}

impl Departures {
    pub(super) fn new(workers: usize) -> Self {
        let nobody = WorkerSet::empty(workers);
        Self {
            left: nobody.clone(),
            told: nobody.clone(),
            departing: nobody.clone(),
            drained: nobody,
            blocked: false,
            ended: false,
            preempted: false,
            ends_at: None,
        }
    }

    /// A worker that is there is about to leave.
    pub(super) fn departs(&mut self, worker: Worker) {
        self.departing.insert(worker);
    }

    /// Whether a worker that is there has said that it leaves.
    #[must_use]
    pub fn is_leaving(&self, worker: Worker) -> bool {
        self.departing.contains(worker)
    }

    /// These workers alone are to be done without.
    pub(super) fn drain(&mut self, workers: WorkerSet) {
        self.drained = workers;
    }

    /// Who is done without, whether it is there or not.
    #[must_use]
    pub fn drained(&self) -> &WorkerSet {
        &self.drained
    }

    /// A worker does not come back by itself, once it is lost; one that was `told` to end is waited
    /// for where others may come in its place.
    pub(super) fn left(&mut self, worker: Worker, told: bool, others_may_come: bool) {
        if told {
            self.told.insert(worker);
        }
        if !(told && others_may_come) {
            self.left.insert(worker);
        }
    }

    /// Whether a worker has left, or will at once, since it was told to end.
    #[must_use]
    pub fn was_told(&self, worker: Worker) -> bool {
        self.told.contains(worker)
    }

    /// Whether a worker has said that it does not come back.
    #[must_use]
    pub fn has_left(&self, worker: Worker) -> bool {
        self.left.contains(worker)
    }

    /// A worker is lost.
    pub(super) fn lost(&mut self, worker: Worker) {
        self.departing.remove(worker);
    }

    /// A worker that was gone is back.
    pub(super) fn joined(&mut self, worker: Worker) {
        // Who is there again has changed its mind, or is another process under its number.
        self.left.remove(worker);
        self.told.remove(worker);
        self.preempted = false;
    }

    /// Whether a worker is about to leave, or to be done without.
    pub(super) fn goes(&self, worker: Worker) -> bool {
        self.departing.contains(worker) || self.drained.contains(worker)
    }

    /// Workers that are there and about to leave, or are to be done without.
    pub(super) fn going(&self, roster: &Roster) -> WorkerSet {
        let mut going = self.departing.clone();
        going.unite(&self.drained);
        let there = |worker: &Worker| !roster.is_lost(*worker);
        WorkerSet::of(going.capacity(), going.iter().filter(there))
    }

    /// Whether a worker goes, or may.
    pub(super) fn any_goes(&self) -> bool {
        !self.departing.is_empty() || !self.drained.is_empty()
    }

    /// Who can come to hold a decoded vector, and stays.
    pub(super) fn staying(&self, roster: &Roster) -> WorkerSet {
        let stays = roster.fit().filter(|worker| !self.goes(*worker));
        WorkerSet::of(self.drained.capacity(), stays)
    }

    /// Workers that have left for good.
    pub(super) fn gone_for_good(&self, roster: &Roster) -> WorkerSet {
        let gone = self.left.iter().filter(|worker| roster.is_lost(*worker));
        WorkerSet::of(self.left.capacity(), gone)
    }

    /// Whether a worker is lost that may come back.
    pub(super) fn may_return(&self, roster: &Roster) -> bool {
        roster.dead().iter().any(|worker| !self.left.contains(worker))
    }

    /// The open round cannot close; [`Departures::ends_the_run`] tells what follows.
    pub(super) fn block(&mut self) {
        self.blocked = true;
    }

    /// Whether a round that cannot close without who has left may be looked at.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// The round can close after all, or is over.
    pub(super) fn unblock(&mut self) {
        (self.blocked, self.ends_at) = (false, None);
    }

    /// Whether the run is over, since it cannot go on without who has left and the others go on.
    /// `goes_on` tells whether one of them has.
    pub(super) fn ends_the_run(&mut self, now: f64, roster: &Roster, goes_on: bool) -> bool {
        // No worker is there that could still leave as well.
        if roster.first_alive().is_none() {
            return true;
        }
        // Known once, it stays known: who went on may be lost before the moment is over.
        if self.ends_at.is_none() && goes_on {
            self.ends_at = Some(now + SETTLE_SECONDS);
        }
        self.ends_at.is_some_and(|ends_at| now >= ends_at)
    }

    /// After one is lost: whether all workers have left after the same step, and ended the run by
    /// it; `last` are those that were sent it.
    pub(super) fn end_it_together(
        &mut self,
        roster: &Roster,
        last: &WorkerSet,
        steps: &Steps,
    ) -> bool {
        // Who was lost before the last step has no part in its end, and is not waited for; who was
        // there may come back and go on.
        let left = self.gone_for_good(roster);
        let all = !last.is_empty() && last.iter().all(|worker| left.contains(worker));
        let over = roster.first_alive().is_none() && steps.has_begun() && !last.is_empty();
        self.ended = over && all;
        self.preempted = over
            && last.iter().all(|worker| left.contains(worker) || self.told.contains(worker))
            && last.iter().any(|worker| self.told.contains(worker));
        self.ended
    }

    /// Whether all workers that were there at the last decided step are gone, and not by their own
    /// will: one of them was told to end.
    #[must_use]
    pub fn are_preempted(&self) -> bool {
        self.preempted
    }

    /// Whether all workers have left, and ended the run together after its last decided step.
    #[must_use]
    pub fn ended_the_run(&self) -> bool {
        self.ended
    }
}
