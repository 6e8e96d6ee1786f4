//! How a run goes on with fewer workers than it was planned for, and takes them in again; and how
//! it goes on under another scheme.
//!
//! When a round cannot close, the engine begins all undecided steps again under a scheme for the
//! workers that are fit, if they are enough (`min_workers`). Before a round opens it plans for
//! those who are new, and without those who are lost for too long
//! ([`PlanMembers`](super::membership)). Tasks carry the number of their plan, so an answer to an
//! earlier plan never counts. A `train::Policy` that chooses another scheme changes the plan at the
//! next step that begins, by the same numbers.

use super::super::events::{Action, EngineError};
use super::super::open_steps::OpenSteps;
use super::super::roster::Roster;
use super::leaving::Departures;
use super::membership::{PlanMembers, Seats};
use super::steps::Steps;
use super::{ActiveScheme, Engine};
use crate::codes::sequential::{Outlook, Scheme, SchemeFacts};
use crate::codes::{Report, SchemeSpec};
use crate::ids::{Job, Step, WeightedResult, Worker, WorkerSet};
use crate::run::RunConfig;
use std::collections::BTreeSet;
use std::ops::Range;

/// Makes a scheme for so many workers and the run's batches, where there is one; one that the
/// engine's [`Jobs`](crate::run::Jobs) do not fit is not used.
pub type Replan = Box<dyn FnMut(usize) -> Option<PlannedScheme> + Send>;

/// A scheme for some of a run's workers.
pub struct PlannedScheme {
    /// The scheme.
    pub scheme: Box<dyn Scheme>,
    /// What it is called.
    pub text: String,
    /// The scheme that was asked for, where that does not fit so few workers.
    pub misfit: Option<String>,
}

impl PlannedScheme {
    /// How a run is planned again that was begun under this scheme: by it, or uncoded where it does
    /// not fit so few workers.
    #[must_use]
    pub fn by(spec: SchemeSpec, units: u32, jobs: Range<u64>) -> Replan {
        Box::new(move |workers| {
            if let Ok(scheme) = spec.scheme(workers, units, jobs.clone()) {
                return Some(Self { scheme, text: spec.to_string(), misfit: None });
            }
            let scheme = SchemeSpec::uncoded().scheme(workers, units, jobs.clone()).ok()?;
            let text = SchemeSpec::uncoded().to_string();
            Some(Self { scheme, text, misfit: Some(spec.to_string()) })
        })
    }
}

/// The scheme that the run goes by, for whom it is made, and how it is planned again. Its
/// [engine](super::Engine) asks it before a round opens (`look_at_members`) and a step begins
/// (`change`), and where a round cannot close (`narrow`); after a new plan all that is not decided
/// is to be begun again.
pub struct RunPlan {
    pub(super) scheme: ActiveScheme,
    config: RunConfig,
    membership: PlanMembers,
    again: Option<Replan>,
    /// What the current scheme is called.
    text: String,
    /// Which other one was asked for.
    misfit: Option<String>,
    /// Of which numbers of workers it was told that they have another than was asked for.
    told: BTreeSet<(String, usize)>,
    /// The scheme that the next step begins with, if it is to be another.
    next: Option<SchemeSpec>,
    /// Plans made so far.
    plans: u32,
}

impl RunPlan {
    pub(super) fn new(
        scheme: Box<dyn Scheme>,
        config: RunConfig,
        mut again: Option<Replan>,
    ) -> Self {
        let all = again.as_mut().and_then(|plan| plan(scheme.facts().workers));
        let membership = PlanMembers::new(scheme.facts().workers);
        Self {
            scheme: ActiveScheme::new(scheme, config.format),
            config,
            membership,
            again,
            text: all.map(|all| all.text).unwrap_or_default(),
            misfit: None,
            told: BTreeSet::new(),
            next: None,
            plans: 0,
        }
    }

    /// What is fixed about the scheme.
    #[must_use]
    pub fn facts(&self) -> &SchemeFacts {
        self.scheme.facts()
    }

    /// For whom the run is planned, and what the scheme for them is called; none where it is
    /// always made by all.
    #[must_use]
    pub fn current(&self) -> Option<(WorkerSet, &str)> {
        let may_change = self.least()? < self.facts().workers;
        may_change.then(|| (self.members(), self.text.as_str()))
    }

    /// All that is not decided begins again from its first job, by the current scheme.
    pub(super) fn restart(&mut self, steps: &mut Steps, open_steps: &mut OpenSteps) -> Vec<Action> {
        let restarted = open_steps.restart(steps.next).into_iter();
        self.scheme.restart(steps.begin());
        restarted.map(|step| Action::Restart { step }).collect()
    }

    /// Whether any one worker more may be lost and the steps still be decoded.
    #[must_use]
    pub fn spares_one(&self, roster: &Roster) -> bool {
        roster.dead().len() < self.facts().tolerance
    }

    /// A worker is lost.
    pub(super) fn lost(&mut self, worker: Worker, at: f64) {
        self.membership.lost(worker, at);
    }

    /// For whom the run is planned.
    pub(super) fn members(&self) -> WorkerSet {
        let workers = self.facts().workers;
        self.scheme.members().unwrap_or_else(|| WorkerSet::full(workers))
    }

    /// With how few workers the run may be planned, if not always with all.
    pub(super) fn least(&self) -> Option<usize> {
        self.config.limits.min_workers.map(|least| least.max(1))
    }

    /// Whether the run may be planned for so many.
    pub(super) fn are_enough(&self, workers: &WorkerSet) -> bool {
        self.least().is_some_and(|least| workers.len() >= least)
    }

    /// Whether there will be enough, once those who are there have got the state that they lack.
    pub(super) fn gets_enough(&self, roster: &Roster) -> bool {
        // For a worker that is idle and lacks it no other has a state.
        let without = roster.stale_idle().len();
        let (fit, coming) = (roster.able_to_hold().len(), roster.alive().len() - without);
        coming > fit && self.least().is_some_and(|least| coming >= least)
    }

    /// What a job that can be decoded is made of.
    pub(super) fn decode(
        &mut self,
        job: Job,
    ) -> Result<(Vec<WeightedResult>, Report), EngineError> {
        let (results, report) = self.scheme.settle(job);
        self.check(job.step(self.config.jobs.micro_steps), &report)?;
        Ok((results, report))
    }

    /// Whether a decode of a step passes the gate.
    pub(super) fn check(&self, step: Step, report: &Report) -> Result<(), EngineError> {
        self.scheme.check(report).map_err(|source| EngineError::Gate { step, source })
    }

    /// Whether a decoded step can be opened again by itself.
    pub(super) fn opens_again(&self) -> bool {
        let facts = self.facts();
        self.config.jobs.micro_steps == 1 && facts.delay == 0 && facts.reopens
    }

    /// Whether the round may still come to something if no worker of `gone` answers any more.
    pub(super) fn can_close(&self, gone: &WorkerSet, roster: &Roster) -> bool {
        roster.first_alive().is_some()
            && !matches!(self.scheme.outlook(gone), Outlook::Blocked { .. })
    }

    /// Whether the current step cannot be computed without workers that have left.
    pub(super) fn is_blocked_by_leaving(&self, roster: &Roster, leaving: &Departures) -> bool {
        let left = leaving.gone_for_good(roster);
        !left.is_empty() && matches!(self.scheme.outlook(&left), Outlook::Blocked { .. })
    }

    /// Why the run cannot go on without those who are gone.
    pub(super) fn too_many_lost(
        &self,
        step: Step,
        roster: &Roster,
        leaving: &Departures,
    ) -> EngineError {
        let (left, tolerance) = (leaving.gone_for_good(roster), self.facts().tolerance);
        if self.is_blocked_by_leaving(roster, leaving)
            || !left.is_empty() && !leaving.may_return(roster)
        {
            return EngineError::Left { step, left, tolerance };
        }
        EngineError::TooManyLost { step, dead: roster.dead(), tolerance }
    }

    /// Whether steps that begin can be computed without these.
    fn tolerates(&self, missing: &WorkerSet) -> bool {
        let facts = self.facts();
        // Of what is under way over several rounds it depends who is missing when.
        let admitted = facts.delay == 0
            && missing.len() < missing.capacity()
            && !matches!(self.scheme.outlook(missing), Outlook::Blocked { .. });
        missing.len() <= facts.tolerance || admitted
    }

    /// Whether the run goes on without these, and those that are lost or about to leave.
    pub(super) fn bears(&self, drained: &WorkerSet, roster: &Roster, leaving: &Departures) -> bool {
        if self.least().is_some() {
            let fit = roster.able_to_hold();
            let stays =
                |worker: &Worker| !drained.contains(*worker) && !leaving.is_leaving(*worker);
            return self.are_enough(&WorkerSet::of(fit.capacity(), fit.iter().filter(stays)));
        }
        let mut missing = roster.dead();
        missing.unite(&leaving.going(roster));
        missing.unite(drained);
        self.tolerates(&missing)
    }

    /// Between two steps of a run that is always made by all: who is about to leave, and who is to
    /// be taken out and can be spared.
    pub(super) fn parting(&self, roster: &Roster, leaving: &Departures) -> WorkerSet {
        let going = leaving.going(roster);
        if self.least().is_some() || going.is_empty() {
            return WorkerSet::empty(going.capacity());
        }
        let leaves = |worker: &Worker| leaving.is_leaving(*worker);
        let mut parting = WorkerSet::of(going.capacity(), going.iter().filter(leaves));
        let mut missing = roster.dead();
        missing.unite(&parting);
        for worker in going.iter().filter(|worker| !leaves(worker)) {
            // A worker may have been lost since it was asked for.
            let mut without = missing.clone();
            without.insert(worker);
            if self.tolerates(&without) {
                missing = without;
                parting.insert(worker);
            }
        }
        // A worker that takes over its state has no other.
        let is_free = |worker: &Worker| roster.waiting_for(*worker).is_empty();
        WorkerSet::of(going.capacity(), parting.iter().filter(is_free))
    }

    /// Who is about to leave or to be taken out, and has no part in the plan and nothing to do.
    pub(super) fn unneeded(&self, roster: &Roster, leaving: &Departures) -> Vec<Worker> {
        if !leaving.any_goes() || !self.are_enough(&leaving.staying(roster)) {
            return Vec::new();
        }
        let members = self.members();
        let is_unneeded = |worker: &Worker| {
            !members.contains(*worker)
                && roster.is_idle(*worker)
                && roster.waiting_for(*worker).is_empty()
        };
        leaving.going(roster).iter().filter(is_unneeded).collect()
    }

    /// Before a step begins: takes another scheme for it, if there is one to be taken. Whether it
    /// has.
    pub(super) fn change(&mut self, steps: &Steps, roster: &Roster) -> bool {
        let Some(spec) = self.next.clone() else { return false };
        let units = self.facts().units;
        let jobs = steps.range();
        let jobs = jobs.start.0..jobs.end.0;
        let everybody = WorkerSet::full(self.facts().workers);
        let whole = spec.scheme(everybody.len(), units, jobs.clone());
        // A scheme that cannot do without workers who are lost now would begin with a wait for
        // them.
        let bears = |scheme: &dyn Scheme| scheme.facts().tolerance >= roster.dead().len();
        let members = self.scheme.members();
        if members.is_none() && whole.as_ref().is_ok_and(|new| !bears(&**new)) {
            return false;
        }
        self.next = None;
        if whole.is_err() {
            return false;
        }
        let members = members.unwrap_or(everybody);
        let before = self.again.replace(PlannedScheme::by(spec, units, jobs));
        let is_planned = self.plan_for(&members);
        if !is_planned {
            self.again = before;
        }
        is_planned
    }

    /// Plans for those that are fit; none if that may not or cannot be. `again` tells whether a
    /// round is open.
    pub(super) fn narrow(
        &mut self,
        again: bool,
        roster: &Roster,
        leaving: &Departures,
    ) -> Option<Action> {
        let staying = leaving.staying(roster);
        // Who goes helps to the end where it must.
        let members = if self.are_enough(&staying) { staying } else { roster.able_to_hold() };
        if self.are_enough(&members) { self.replan(members, again) } else { None }
    }

    /// Before a round opens: plans for those that are new, too, and without those that go or are
    /// lost for long.
    pub(super) fn look_at_members(
        &mut self,
        now: f64,
        roster: &Roster,
        leaving: &Departures,
    ) -> Option<Action> {
        let least = self.least()?;
        let fit = leaving.staying(roster);
        let seats = Seats {
            members: &self.members(),
            fit: &fit,
            going: &leaving.going(roster),
            least,
            settle_seconds: self.config.limits.settle_seconds,
            delay: self.facts().delay,
        };
        let changes = self.membership.changes(now, seats);
        let replanned = if changes { self.replan(fit, false) } else { None };
        self.membership.opened(&roster.able_to_hold());
        replanned
    }

    /// Plans for these, if there is a plan for them.
    fn replan(&mut self, members: WorkerSet, again: bool) -> Option<Action> {
        if !self.plan_for(&members) {
            return None;
        }
        let is_new = |asked: &String| self.told.insert((asked.clone(), members.len()));
        let misfit = self.misfit.clone().filter(is_new);
        Some(Action::Replanned { members, scheme: self.text.clone(), misfit, again })
    }

    /// Takes the scheme of the plan for these, where that may be.
    fn plan_for(&mut self, members: &WorkerSet) -> bool {
        let planned = self.again.as_mut().and_then(|plan| plan(members.len()));
        let Some(PlannedScheme { scheme, text, misfit }) = planned else { return false };
        let (now, then) = (self.facts(), scheme.facts());
        // What holds Byzantine workers off is not given up for who is lost.
        // Batches are cut into these units at every worker; other ones would be other samples.
        let is_unfit = then.units != now.units || then.byzantine < now.byzantine;
        if is_unfit || self.config.jobs.check(then.delay).is_err() {
            return false;
        }
        self.plans += 1;
        (self.text, self.misfit) = (text, misfit);
        self.membership.planned();
        self.scheme = ActiveScheme::among(scheme, self.config.format, members, self.plans);
        true
    }
}

impl Engine {
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
    /// use codedgrad::schedulers::{Action, Engine, Input, Settings};
    /// let uncoded = SchemeSpec::uncoded().scheme(2, 2, 0..1)?;
    /// let run = RunConfig::new(Shape::new(2, 2), 1000, 1);
    /// let mut engine = Engine::new(uncoded, run, Settings::default())?;
    /// engine.switch("groups:s=1".parse()?);
    /// let mut actions = Vec::new();
    /// engine.handle(0.0, Input::Begin, &mut actions).unwrap();
    /// assert!(actions.contains(&Action::Switched { step: Step(0) }));
    /// assert_eq!(engine.plan().facts().tolerance, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn switch(&mut self, scheme: SchemeSpec) {
        self.plan.next = Some(scheme);
    }

    /// Begins again with those that are fit; false if that may not or cannot be.
    pub(super) fn narrow(&mut self, now: f64, out: &mut Vec<Action>) -> Result<bool, EngineError> {
        // The round that is open is closed then.
        let again = self.round.phase().is_open();
        let Some(replanned) = self.plan.narrow(again, &self.roster, &self.leaving) else {
            return Ok(false);
        };
        out.push(replanned);
        self.begin_again(now, out)?;
        Ok(true)
    }
}
