//! Which state every worker has, how one that is behind takes over another's, and how long it is
//! waited for who may come back with one.

use super::super::events::{Action, EngineError};
use super::super::roster::{Activity, Roster};
use super::active::ActiveScheme;
use super::leaving::Departures;
use super::round::Moment;
use super::steps::Steps;
use crate::codes::sequential::RoundEvent;
use crate::ids::{Step, Worker, WorkerSet};
use crate::run::{Limits, RunConfig};
use std::collections::BTreeMap;

/// A worker that finds no state to go on from in so many is at fault itself.
const UNFIT_MAX: u32 = 3;

/// A worker must take over a state before it does anything else: it drops what it is at. The run
/// does not wait for it to hold a sum any more ([`Roster::able_to_hold`]).
pub(super) fn recall(
    worker: Worker,
    roster: &mut Roster,
    scheme: &mut ActiveScheme,
) -> Option<Action> {
    roster.mark_stale(worker);
    let order = roster.abandon(worker, false)?;
    scheme.on(RoundEvent::Dropped(worker));
    Some(Action::Abandon { worker, order, late_counts: false })
}

/// Which steps the state of a worker has.
#[derive(Clone, Copy, Debug)]
struct AppliedSteps {
    /// Steps below this one are applied or on their way to it.
    sent: Step,
    /// Steps below this one are applied.
    applied: Step,
}

/// Which steps are applied to each worker's state, and whose state one that is behind takes over.
/// Its [engine](super::Engine) writes it; others read it.
///
/// It says who is sent a step (`send`, `unsent`) and is told what is applied (`applied`). Who is
/// behind is given another's state (`resync`). Once that is in, it is told so (`replaced`,
/// `sent_state`), and then what became of it: `went_on`, or `refused` and `distrust`. Where no
/// worker has a state, and one with a state may come back, the run waits until `returns_by`.
#[derive(Debug)]
pub struct States {
    limits: Limits,
    /// Whether the driver can hand out a state itself.
    restores: bool,
    workers: Vec<AppliedSteps>,
    /// Workers whose state turned out to be wrong or useless when another took it over.
    bad_donors: WorkerSet,
    /// Until when a worker must have come back for the run to go on.
    pub(super) returns_by: Option<f64>,
    /// Whose state each worker was sent and has said nothing of.
    donors: BTreeMap<Worker, Worker>,
    /// How many states in a row a worker could not go on from.
    unfit: BTreeMap<Worker, u32>,
}

impl States {
    /// All workers have the state that the run begins with.
    pub(super) fn new(workers: usize, run: &RunConfig, restores: bool) -> Self {
        let its = AppliedSteps { sent: run.first, applied: run.first };
        Self {
            limits: run.limits,
            restores,
            workers: vec![its; workers],
            bad_donors: WorkerSet::empty(workers),
            returns_by: None,
            donors: BTreeMap::new(),
            unfit: BTreeMap::new(),
        }
    }

    /// The workers that get a committed step now. One that would have more than `log_steps` steps
    /// on their way to it is stale instead. If all would, the farthest stays and can hand over its
    /// state.
    pub(super) fn send(&mut self, step: Step, log_steps: u64, roster: &mut Roster) -> Vec<Worker> {
        let fit: Vec<Worker> = roster.fit().collect();
        let applied = |worker: &Worker| self.next_of(*worker);
        let farthest =
            fit.iter().copied().max_by_key(|worker| (applied(worker), std::cmp::Reverse(*worker)));
        // Measured against the worker that is farthest: if all are behind, no worker could hand
        // over a state, so the farthest stays.
        let enough = farthest
            .map_or(0, |worker| applied(&worker).0.min((step.0 + 1).saturating_sub(log_steps)));
        let mut receivers = Vec::new();
        for worker in fit {
            let its = &mut self.workers[worker.index()];
            if its.applied.0 < enough {
                roster.mark_stale(worker);
                continue;
            }
            its.sent = step.next();
            receivers.push(worker);
        }
        receivers
    }

    /// The steps a worker is still to be sent, given that all below `committed` are decided.
    pub(super) fn unsent(&mut self, worker: Worker, committed: Step) -> Vec<Step> {
        let its = &mut self.workers[worker.index()];
        // Marked as sent at once: a second call must not send them again.
        let steps = (its.sent.0..committed.0).map(Step).collect();
        its.sent = committed;
        steps
    }

    /// Notes that a step is applied.
    pub(super) fn applied(&mut self, worker: Worker, step: Step) {
        let its = &mut self.workers[worker.index()];
        // Reports of a connection and of the one before it may come in either order.
        its.applied = its.applied.max(step.next());
    }

    /// A worker has another state, in which everything below `next` is applied.
    pub(super) fn replaced(&mut self, worker: Worker, next: Step) {
        // What was sent before the state is part of it.
        self.workers[worker.index()] = AppliedSteps { sent: next, applied: next };
    }

    /// First step that a worker has not applied, as far as it has said.
    #[must_use]
    pub fn next_of(&self, worker: Worker) -> Step {
        self.workers[worker.index()].applied
    }

    /// Whether all workers that are there have applied all that is decided, and are behind in
    /// nothing. What that takes is done also after the last step.
    #[must_use]
    pub fn are_settled(&self, roster: &Roster) -> bool {
        let mut all = Worker::all(self.workers.len()).zip(&self.workers);
        all.all(|(worker, its)| {
            let is_behind = roster.is_syncing(worker) || roster.is_stale(worker);
            roster.is_lost(worker) || !is_behind && its.applied >= its.sent
        })
    }

    /// Workers that were sent all that is decided, whether they are there or not.
    pub(super) fn sent_all(&self, decided: Step) -> WorkerSet {
        let all = Worker::all(self.workers.len()).zip(&self.workers);
        let sent = all.filter(|(_, its)| its.sent == decided).map(|(worker, _)| worker);
        WorkerSet::of(self.workers.len(), sent)
    }

    /// Whether a worker that is there has gone on where others left. It has applied more than those
    /// that left last, or has nothing left to apply or to compute.
    pub(super) fn any_goes_on(&self, roster: &Roster, leaving: &Departures, decided: Step) -> bool {
        let sent_all = self.sent_all(decided);
        let left = sent_all.iter().filter(|worker| leaving.has_left(*worker));
        let last = left.map(|worker| self.next_of(worker)).min();
        roster.here().any(|worker| {
            let AppliedSteps { sent, applied } = self.workers[worker.index()];
            // It waits for what comes next, as one that is about to leave does not.
            roster.is_idle(worker) && applied == sent || last.is_none_or(|last| applied > last)
        })
    }

    /// Whether it makes sense to wait for a worker to come back.
    pub(super) fn may_return(&self, roster: &Roster, leaving: &Departures) -> bool {
        self.limits.return_seconds > 0.0 && leaving.may_return(roster)
    }

    /// Sets by when a worker must be back for the run to go on, if no earlier call has.
    pub(super) fn await_returns(&mut self, Moment { now, patience_ends }: Moment) {
        // Never longer than the round itself may stay open.
        let by = (now + self.limits.return_seconds).min(patience_ends);
        self.returns_by.get_or_insert(by);
    }

    /// A worker that can hand over its state: alive, up to date, not the one in need.
    pub(super) fn provider(
        &self,
        needy: Worker,
        roster: &Roster,
        leaving: &Departures,
    ) -> Option<Worker> {
        self.most_recent(roster, leaving, |worker| worker != needy)
    }

    /// A worker waits long for the state of one that may hang: it takes over that of another, if
    /// one that waits for orders has a state that steps can be sent after.
    pub(super) fn resync_from_another(
        &mut self,
        needy: Worker,
        asked: Worker,
        steps: &Steps,
        roster: &mut Roster,
        leaving: &Departures,
    ) -> Option<Action> {
        if *roster.doing(needy) != (Activity::Syncing { from: Some(asked) }) {
            return None;
        }
        let could = |worker| ![needy, asked].contains(&worker) && roster.is_idle(worker);
        let from = self.most_recent(roster, leaving, could)?;
        if !steps.are_recent(self.next_of(from)) {
            return None;
        }
        *roster.doing(needy) = Activity::Syncing { from: Some(from) };
        Some(Action::Resync { worker: needy, from })
    }

    fn most_recent(
        &self,
        roster: &Roster,
        leaving: &Departures,
        keep: impl Fn(Worker) -> bool,
    ) -> Option<Worker> {
        let mut fit: Vec<Worker> = roster
            .fit()
            .filter(|worker| !self.bad_donors.contains(*worker) && keep(*worker))
            .collect();
        // Who goes is not kept by it, if it can be helped. The most recent state leaves the fewest
        // steps to be sent after it.
        fit.sort_by_key(|worker| (leaving.goes(*worker), std::cmp::Reverse(self.next_of(*worker))));
        fit.first().copied()
    }

    /// Lets no other take over a worker's state any more.
    pub(super) fn distrust(&mut self, donor: Worker) {
        self.bad_donors.insert(donor);
    }

    /// Has a worker take over a state, if another worker or the driver has one.
    pub(super) fn resync(
        &mut self,
        worker: Worker,
        at: Moment,
        roster: &mut Roster,
        leaving: &Departures,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        let from = self.provider(worker, roster, leaving);
        *roster.doing(worker) = Activity::Syncing { from };
        match from {
            Some(from) => out.push(Action::Resync { worker, from }),
            None if self.restores => out.push(Action::Restore { worker }),
            None if self.may_return(roster, leaving) => {
                *roster.doing(worker) = Activity::Nothing;
                self.await_returns(at);
            }
            None => return Err(EngineError::NoState { worker }),
        }
        // What it was asked for before it drops with the state that it takes over.
        self.resync_those_waiting_for(worker, at, roster, leaving, out)
    }

    /// Has all who are idle and behind take over a state.
    pub(super) fn resync_idle(
        &mut self,
        at: Moment,
        roster: &mut Roster,
        leaving: &Departures,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        let needy = roster.stale_idle();
        needy.into_iter().try_for_each(|worker| self.resync(worker, at, roster, leaving, out))
    }

    /// Gives the workers that were about to take over this one's state another one's.
    pub(super) fn resync_those_waiting_for(
        &mut self,
        donor: Worker,
        at: Moment,
        roster: &mut Roster,
        leaving: &Departures,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        let needy = roster.waiting_for(donor);
        needy.into_iter().try_for_each(|worker| self.resync(worker, at, roster, leaving, out))
    }

    /// Whether no worker came back in time.
    pub(super) fn is_over(&self, now: f64) -> bool {
        self.returns_by.is_some_and(|by| now >= by)
    }

    /// A worker is sent the state of another, or of the driver.
    pub(super) fn sent_state(&mut self, worker: Worker, from: Option<Worker>) {
        self.donors.remove(&worker);
        self.donors.extend(from.map(|donor| (worker, donor)));
    }

    /// A worker goes on from the state it was sent; gives whose that was, if another worker's.
    pub(super) fn went_on(&mut self, worker: Worker) -> Option<Worker> {
        self.unfit.remove(&worker);
        self.donors.get(&worker).copied()
    }

    /// A worker cannot go on from a state, its donor's or the driver's. Whether it is at fault
    /// itself: a worker that refuses the driver's own state, or several, finds none.
    pub(super) fn refused(&mut self, worker: Worker, from: Option<Worker>) -> bool {
        let count = self.unfit.entry(worker).or_insert(0);
        *count += 1;
        let at_fault = from.is_none() || *count >= UNFIT_MAX;
        if at_fault {
            self.unfit.remove(&worker);
        }
        at_fault
    }
}
