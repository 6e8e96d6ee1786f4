//! Who is waited for to come back, and the states that are handed over to those who need one.

use crate::ids::Worker;
use std::collections::BTreeMap;

/// A worker that finds no state to go on from in so many is at fault itself.
const UNFIT_MAX: u32 = 3;

/// The wait for somebody to come back, and what became of the states that were handed over.
#[derive(Debug, Default)]
pub(super) struct Recovery {
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
    /// Somebody must be back by a time, or by the one that was said before.
    pub(super) fn wait_until(&mut self, by: f64) {
        self.returns_by.get_or_insert(by);
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
