//! How a run goes on with fewer workers than it was planned for, and takes them in again; and how
//! it goes on under another scheme.
//!
//! When no worker that may return can save the round, the engine begins all undecided steps again
//! under a scheme for the workers that are alive, if they are enough (`min_workers`), and under a
//! wider one when others are back. Tasks carry the number of their plan, so an answer to an earlier
//! plan never counts. A `train::Policy` that chooses another scheme changes the plan at the next
//! step that begins, by the same numbers.

use super::super::events::{Action, EngineError};
use super::{ActiveScheme, Engine};
use crate::codes::SchemeSpec;
use crate::codes::sequential::Scheme;
use crate::ids::WorkerSet;

/// Makes a scheme for so many workers and the run's batches, where there is one; one that the
/// engine's [`Jobs`](crate::run::Jobs) do not fit is not used.
pub type Replan = Box<dyn FnMut(usize) -> Option<Box<dyn Scheme>> + Send>;

/// What an engine needs to plan again.
#[derive(Default)]
pub(super) struct Replanning {
    plan: Option<Replan>,
    /// The scheme that the next step begins with, if it is to be another.
    next: Option<SchemeSpec>,
    /// Plans made so far.
    plans: u32,
}

impl Engine {
    /// Says how the run is planned again for those who are left when the scheme cannot do without
    /// the dead, as long as [`Limits::min_workers`](crate::run::Limits::min_workers) or more are:
    /// all that is not decided begins again under a scheme for them. A worker that comes back takes
    /// part again from the next round on.
    #[must_use]
    pub fn replanning(mut self, plan: Replan) -> Self {
        self.replanning = Replanning { plan: Some(plan), ..Replanning::default() };
        self
    }

    /// Has the next step that begins be computed under another scheme over the same units, and all
    /// that follow; [`Action::Switched`] tells when. A scheme that does not fit the run is passed
    /// over: the run goes on as it is. One that cannot do without workers who are lost waits until
    /// they are back. While jobs overlap, under a scheme whose jobs may take
    /// several rounds, no step begins by itself; and what is owed under one whose late units count
    /// for the next step is lost.
    ///
    /// ```
    /// use codedgrad::codes::SchemeSpec;
    /// use codedgrad::ids::Step;
    /// use codedgrad::run::{RunConfig, Shape};
    /// use codedgrad::schedulers::{Action, Engine, Input};
    /// let uncoded = SchemeSpec::uncoded().scheme(2, 2, 0..1)?;
    /// let mut engine = Engine::new(uncoded, RunConfig::new(Shape::new(2, 2), 1000, 1), 0)?;
    /// engine.switch("groups:s=1".parse()?);
    /// let mut actions = Vec::new();
    /// engine.handle(0.0, Input::Begin, &mut actions).unwrap();
    /// assert!(actions.contains(&Action::Switched { step: Step(0) }));
    /// assert_eq!(engine.facts().tolerance, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn switch(&mut self, scheme: SchemeSpec) {
        self.replanning.next = Some(scheme);
    }

    /// Before a step begins: takes another scheme for it, if there is one to be taken.
    pub(super) fn change(&mut self, out: &mut Vec<Action>) {
        let Some(spec) = self.replanning.next.clone() else { return };
        let units = self.scheme.facts().units;
        let jobs = self.steps.range();
        let jobs = jobs.start.0..jobs.end.0;
        let everybody = WorkerSet::empty(self.scheme.facts().workers).complement();
        let whole = spec.scheme(everybody.len(), units, jobs.clone());
        // A scheme that cannot do without workers who are lost now would begin with a wait for
        // them.
        let bears = |scheme: &dyn Scheme| scheme.facts().tolerance >= self.roster.dead().len();
        let members = self.scheme.members();
        if members.is_none() && whole.as_ref().is_ok_and(|new| !bears(&**new)) {
            return;
        }
        self.replanning.next = None;
        if whole.is_err() {
            return;
        }
        let plan: Replan = Box::new(move |workers| spec.or_uncoded(workers, units, jobs.clone()));
        let members = members.unwrap_or(everybody);
        let before = self.replanning.plan.replace(plan);
        if self.plan_for(&members) {
            self.forget_undecided(out);
            out.push(Action::Switched { step: self.steps.next });
        } else {
            self.replanning.plan = before;
        }
    }

    /// Begins again with those that are alive; false if that may not or cannot be.
    pub(super) fn narrow(&mut self, now: f64, out: &mut Vec<Action>) -> Result<bool, EngineError> {
        let alive = self.roster.alive();
        let narrowed = self.replan_for(&alive, out);
        if narrowed {
            self.begin_again(now, out)?;
        }
        Ok(narrowed)
    }

    /// Before a round opens: plans for those that have come back, too.
    pub(super) fn widen(&mut self, out: &mut Vec<Action>) {
        let members = self.scheme.members();
        let alive = self.roster.alive();
        if members.is_some_and(|members| alive.iter().any(|worker| !members.contains(worker)))
            && self.replan_for(&alive, out)
        {
            self.forget_undecided(out);
        }
    }

    /// Plans for these alone, where that may be.
    fn replan_for(&mut self, members: &WorkerSet, out: &mut Vec<Action>) -> bool {
        let enough =
            self.config.limits.min_workers.is_some_and(|fewest| members.len() >= fewest.max(1));
        let planned = enough && self.plan_for(members);
        if planned {
            out.push(Action::Replanned { members: members.clone() });
        }
        planned
    }

    /// Takes the scheme of the plan for these.
    fn plan_for(&mut self, members: &WorkerSet) -> bool {
        let plan = self.replanning.plan.as_mut();
        let Some(scheme) = plan.and_then(|plan| plan(members.len())) else { return false };
        let (now, then) = (self.scheme.facts(), scheme.facts());
        // What holds Byzantine workers off is not given up for who is lost.
        // Batches are cut into these units at every worker; other ones would be other samples.
        let misfit = then.units != now.units || then.byzantine < now.byzantine;
        if misfit || self.config.jobs.check(then.delay).is_err() {
            return false;
        }
        self.replanning.plans += 1;
        let (format, plan) = (self.config.format, self.replanning.plans);
        self.scheme = ActiveScheme::among(scheme, format, members, plan);
        true
    }
}
