//! Who is waited for to come back, and the states that are handed over to those who need one.

use super::super::events::{Action, EngineError};
use super::super::roster::{Roster, WorkerState};
use crate::ids::Worker;
use crate::run::Limits;
use std::collections::BTreeMap;

/// A worker that finds no state to go on from in so many is at fault itself.
const UNFIT_MAX: u32 = 3;

/// The time, and until when the round may stay open, or the next one would.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) now: f64,
    pub(super) patience_ends: f64,
}

/// The wait for somebody to come back, and what became of the states that were handed over. Who is
/// behind is given another's state ([`Recovery::resync`]); where nobody has one, and somebody may
/// come back who has, that is waited for.
#[derive(Debug)]
pub(super) struct Recovery {
    limits: Limits,
    /// Whether the driver can hand out a state itself.
    pub(super) restores: bool,
    /// Until when somebody must have come back for the run to go on.
    pub(super) returns_by: Option<f64>,
    /// Whose state each worker was sent and has said nothing of.
    donors: BTreeMap<Worker, Worker>,
    /// How many states in a row a worker could not go on from.
    unfit: BTreeMap<Worker, u32>,
}

impl Recovery {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            restores: false,
            returns_by: None,
            donors: BTreeMap::new(),
            unfit: BTreeMap::new(),
        }
    }

    /// Whether it makes sense to wait for somebody to come back.
    pub(super) fn may_return(&self, roster: &Roster) -> bool {
        self.limits.return_seconds > 0.0 && roster.may_return()
    }

    /// Somebody must be back in time for the run to go on, by now or by what was said before.
    pub(super) fn await_returns(&mut self, Moment { now, patience_ends }: Moment) {
        // Never longer than the round itself may stay open.
        let by = (now + self.limits.return_seconds).min(patience_ends);
        self.returns_by.get_or_insert(by);
    }

    /// Has a worker take over a state, if anybody has one.
    pub(super) fn resync(
        &mut self,
        worker: Worker,
        at: Moment,
        roster: &mut Roster,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        let from = roster.provider(worker);
        match from {
            Some(from) => out.push(Action::Resync { worker, from }),
            None if self.restores => out.push(Action::Restore { worker }),
            None if self.may_return(roster) => {
                *roster.doing(worker) = WorkerState::Nothing;
                self.await_returns(at);
                return Ok(());
            }
            None => return Err(EngineError::NoState { worker }),
        }
        *roster.doing(worker) = WorkerState::Syncing { from };
        Ok(())
    }

    /// Has all who are idle and behind take over a state.
    pub(super) fn resync_idle(
        &mut self,
        at: Moment,
        roster: &mut Roster,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        roster.stale_idle().into_iter().try_for_each(|worker| self.resync(worker, at, roster, out))
    }

    /// Nobody takes over this worker's state: those who were about to get another's.
    pub(super) fn resync_those_waiting_for(
        &mut self,
        donor: Worker,
        at: Moment,
        roster: &mut Roster,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        let needy = roster.waiting_for(donor);
        needy.into_iter().try_for_each(|worker| self.resync(worker, at, roster, out))
    }

    /// Whether nobody came back in time.
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
