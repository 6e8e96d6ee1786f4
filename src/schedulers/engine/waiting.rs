//! For whom an open round waits, or a sum that is decoded and not held.

use super::Engine;
use crate::ids::{Round, Step, Worker, WorkerSet};

/// With more workers missing it is not looked who of them would do.
const LOOKED_AT_MOST: usize = 64;

/// A round that is open, or closed and its sum not held.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenRound {
    /// The current step.
    pub step: Step,
    /// Number of the round.
    pub round: Round,
    /// When it opened.
    pub opened_at: f64,
    /// Whether all is there that the scheme needs, and the sum of it is made and held.
    pub summing: bool,
    /// Who has not answered: still computing, erased or gone; of a sum, who is there
    /// ([`StepSums::waits_for`](crate::sums::StepSums::waits_for) leaves out who holds it).
    pub missing: WorkerSet,
    /// Those of them without each of whom the round cannot close, even if all others answer.
    pub needed: WorkerSet,
    /// Those of them whose answer alone would let it close.
    pub enough: WorkerSet,
    /// Whether it cannot close unless a lost worker comes back.
    pub needs_return: bool,
    /// Until when the run waits for a worker to come back, if it ends then.
    pub returns_by: Option<f64>,
}

impl Engine {
    /// The round that waits for answers or for its sum, if one does. Where workers take tasks one
    /// by one, and where many are missing, it is not told who is needed and who is enough.
    #[must_use]
    pub fn waits_for(&self) -> Option<OpenRound> {
        let summing = self.round.phase().is_summing() && self.open_steps.summing().next().is_some();
        if !summing && !self.round.phase().is_open() {
            return None;
        }
        let missing = if summing { self.roster.alive() } else { self.round.missing(&self.roster) };
        let workers = missing.capacity();
        let told = !summing && !self.plan.facts().partial && missing.len() <= LOOKED_AT_MOST;
        let those = |which: &dyn Fn(Worker) -> bool| {
            WorkerSet::of(workers, missing.iter().filter(|worker| told && which(*worker)))
        };
        let needed = those(&|worker| !self.plan.scheme.admits(&WorkerSet::of(workers, [worker])));
        let enough = those(&|worker| {
            let mut others = missing.clone();
            others.remove(worker);
            self.plan.scheme.admits(&others)
        });
        Some(OpenRound {
            step: self.steps.next,
            round: self.round.number(),
            opened_at: self.round.opened_at(),
            summing,
            missing,
            needed,
            enough,
            needs_return: !summing && !self.plan.can_close(&self.roster.dead(), &self.roster),
            returns_by: self.states.returns_by,
        })
    }
}

#[cfg(test)]
mod tests;
