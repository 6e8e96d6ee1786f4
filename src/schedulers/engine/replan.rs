//! How a run goes on with fewer workers than it was planned for, and takes them in again.

use super::super::events::{Action, EngineError};
use super::Engine;
use crate::codes::sequential::{Among, Scheme, SchemeFacts};
use crate::codes::{Facts, Gate, Wire};
use crate::ids::WorkerSet;

/// Makes a scheme for so many workers and the run's batches, where there is one; one that the
/// engine's [`Config`](crate::schedulers::Config) does not fit is not used.
pub type Replan = Box<dyn FnMut(usize) -> Option<Box<dyn Scheme>> + Send>;

/// What an engine needs to plan anew.
pub(super) struct Replanning {
    fewest: usize,
    plan: Replan,
    /// For whom the scheme at hand is made, if not for all.
    members: Option<WorkerSet>,
    /// Plans made so far.
    plans: u32,
}

pub(super) fn gate_of(wire: Wire, facts: &SchemeFacts) -> Gate {
    let facts = Facts {
        workers: facts.workers,
        share_weights: vec![1.0 / f64::from(facts.units); facts.units as usize],
        tolerance: facts.tolerance,
        load: facts.load,
        error_max: facts.error_max,
    };
    Gate::new(wire, &facts)
}

impl Engine {
    /// Lets the run go on with whoever is left when the scheme cannot do without the dead, as long
    /// as `fewest` or more are: all that is not decided begins anew under a scheme for them.
    /// Whoever comes back takes part again from the next round on.
    #[must_use]
    pub fn replanning(mut self, fewest: usize, plan: Replan) -> Self {
        self.replanning = Some(Replanning { fewest: fewest.max(1), plan, members: None, plans: 0 });
        self
    }

    /// Begins anew with those that are alive; false if that may not or cannot be.
    pub(super) fn narrow(&mut self, now: f64, out: &mut Vec<Action>) -> Result<bool, EngineError> {
        let alive = self.roster.alive();
        let narrowed = self.plan_for(&alive, out);
        if narrowed {
            self.begin_again(now, out)?;
        }
        Ok(narrowed)
    }

    /// Before a round opens: plans for those that have come back, too.
    pub(super) fn widen(&mut self, out: &mut Vec<Action>) {
        let members = self.replanning.as_ref().and_then(|replanning| replanning.members.as_ref());
        let alive = self.roster.alive();
        if members.is_some_and(|members| alive.iter().any(|worker| !members.contains(worker)))
            && self.plan_for(&alive, out)
        {
            self.forget_undecided(out);
        }
    }

    fn plan_for(&mut self, members: &WorkerSet, out: &mut Vec<Action>) -> bool {
        let Some(replanning) =
            self.replanning.as_mut().filter(|replanning| members.len() >= replanning.fewest)
        else {
            return false;
        };
        let Some(scheme) = (replanning.plan)(members.len()) else { return false };
        let (now, then) = (self.scheme.facts(), scheme.facts());
        // What holds wrong workers off is not given up for who is lost.
        let misfit = then.units != now.units || then.wrong < now.wrong;
        if misfit || self.config.check(then).is_err() {
            return false;
        }
        let everybody = members.complement().is_empty();
        replanning.members = (!everybody).then(|| members.clone());
        replanning.plans += 1;
        self.scheme = Box::new(Among::new(scheme, members, replanning.plans));
        self.gate = gate_of(self.config.wire, self.scheme.facts());
        out.push(Action::Replanned { members: members.clone() });
        true
    }
}
