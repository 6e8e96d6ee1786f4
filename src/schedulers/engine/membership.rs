//! Who takes part in the plan of a run whose workers come and go.
//!
//! A run that may be made by fewer workers than it has seats for
//! ([`Limits::min_workers`](crate::run::Limits::min_workers)) is planned for those who are fit: who
//! is there, has the current state, takes over none and is not about to go. The engine tells a
//! [`PlanMembers`] who is lost and which rounds open, and asks it before each round whether to plan
//! again.

use crate::ids::{Worker, WorkerSet};

/// What the plan is made of, and for whom it could be.
#[derive(Clone, Copy)]
pub(super) struct Seats<'a> {
    /// For whom the current plan is.
    pub(super) members: &'a WorkerSet,
    /// Who could take part.
    pub(super) fit: &'a WorkerSet,
    /// Who is about to leave, or to be taken out.
    pub(super) going: &'a WorkerSet,
    /// With fewer than these the plan stays as it is.
    pub(super) least: usize,
    /// Seconds for which a lost member is kept, since a supervisor may start it again.
    pub(super) settle_seconds: f64,
    /// Rounds that a job of the current plan may take beyond its first: to plan again begins all
    /// of them again.
    pub(super) delay: usize,
}

/// Since when workers are lost, and how old the plan is.
#[derive(Debug)]
pub(super) struct PlanMembers {
    lost_at: Vec<Option<f64>>,
    rounds: usize,
}

impl PlanMembers {
    pub(super) fn new(workers: usize) -> Self {
        Self { lost_at: vec![None; workers], rounds: 0 }
    }

    /// A worker is lost since then.
    pub(super) fn lost(&mut self, worker: Worker, at: f64) {
        // Lost again before it was fit, it stays lost since the first time: one that never gets so
        // far would be kept for ever.
        self.lost_at[worker.index()].get_or_insert(at);
    }

    /// A round opens, for which these are fit.
    pub(super) fn opened(&mut self, fit: &WorkerSet) {
        self.rounds = self.rounds.saturating_add(1);
        for worker in fit.iter() {
            self.lost_at[worker.index()] = None;
        }
    }

    /// There is another plan.
    pub(super) fn planned(&mut self) {
        self.rounds = 0;
    }

    /// Whether to plan the next round for the fit workers: one is new, a member goes, or is lost
    /// for longer than it is kept.
    pub(super) fn changes(&self, now: f64, seats: Seats<'_>) -> bool {
        let Seats { members, fit, going, least, settle_seconds, delay } = seats;
        if fit.len() < least {
            return false;
        }
        // Who goes has little time.
        if members.iter().any(|worker| going.contains(worker)) {
            return true;
        }
        // Jobs that begin again cost the rounds that they had: a worker that comes and goes must
        // not keep them from ever being decided.
        if delay > 0 && self.rounds <= delay {
            return false;
        }
        let overdue = |worker: Worker| {
            let lost_at = self.lost_at[worker.index()];
            !fit.contains(worker) && lost_at.is_some_and(|at| now - at >= settle_seconds)
        };
        fit.iter().any(|worker| !members.contains(worker)) || members.iter().any(overdue)
    }
}

#[cfg(test)]
mod tests;
