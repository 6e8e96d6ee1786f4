//! The current scheme, told of workers and tasks as the run knows them.
//!
//! A scheme for some of the workers numbers them from 0: the numbers are translated here, and
//! nowhere else.

use crate::codes::sequential::{Outlook, ResultUse, RoundEvent, Scheme, SchemeFacts};
use crate::codes::{Dispute, Gate, GateError, Report, Verifier};
use crate::ids::{Job, Part, Task, WeightedResult, Worker, WorkerSet};
use crate::run::NumberFormat;
use std::ops::Range;

/// For whom a scheme is made: its worker `i` is the `i`-th member.
struct Members {
    all: Vec<Worker>,
    /// Each worker's number within the scheme.
    places: Vec<Option<Worker>>,
}

impl Members {
    fn of(members: &WorkerSet) -> Self {
        let mut places = vec![None; members.capacity()];
        for (member, place) in members.iter().zip(0..) {
            places[member.index()] = Some(Worker(place));
        }
        Self { all: members.iter().collect(), places }
    }
}

/// A scheme, the vote on what it is told of, and its gate.
///
/// This is the edge at which workers and tasks are renumbered: a scheme made for some of the
/// workers counts these from 0, and its tasks belong to plan 0; out here tasks have the number of
/// their plan, so that a late answer to another plan's task is never taken for one of this. A
/// worker that is no member gets no task, and the run does not wait for it.
pub(super) struct ActiveScheme {
    scheme: Box<dyn Scheme>,
    verifier: Option<Verifier>,
    gate: Gate,
    facts: SchemeFacts,
    members: Members,
    plan: u32,
}

impl ActiveScheme {
    /// A scheme for all workers, of the first plan.
    pub(super) fn new(scheme: Box<dyn Scheme>, format: NumberFormat) -> Self {
        let everybody = WorkerSet::full(scheme.facts().workers);
        Self::among(scheme, format, &everybody, 0)
    }

    /// A scheme for these workers; `plan` counts the plans of a run.
    ///
    /// # Panics
    /// When it is not made for as many workers as there are members.
    pub(super) fn among(
        scheme: Box<dyn Scheme>,
        format: NumberFormat,
        members: &WorkerSet,
        plan: u32,
    ) -> Self {
        let facts = scheme.facts();
        assert_eq!(facts.workers, members.len(), "a scheme for its members");
        Self {
            verifier: Verifier::of(facts),
            gate: Gate::of(format, facts.tolerance, facts.error_max),
            facts: SchemeFacts { workers: members.capacity(), ..facts.clone() },
            members: Members::of(members),
            scheme,
            plan,
        }
    }

    /// What is fixed about it, in a run of all workers.
    pub(super) fn facts(&self) -> &SchemeFacts {
        &self.facts
    }

    /// For whom it is made, if not for all.
    pub(super) fn members(&self) -> Option<WorkerSet> {
        let Members { all, places } = &self.members;
        (all.len() < places.len()).then(|| WorkerSet::of(places.len(), all.iter().copied()))
    }

    fn place(&self, worker: Worker) -> Option<Worker> {
        self.members.places[worker.index()]
    }

    fn outside(&self, place: Worker) -> Worker {
        self.members.all[place.index()]
    }

    fn inside(&self, set: &WorkerSet) -> WorkerSet {
        if self.members.all.len() == self.members.places.len() {
            return set.clone();
        }
        WorkerSet::of(self.members.all.len(), set.iter().filter_map(|worker| self.place(worker)))
    }

    /// Whom the scheme must do without if these are missing.
    fn lacking(&self, missing: &WorkerSet) -> WorkerSet {
        let missing = self.inside(missing);
        match &self.verifier {
            Some(verifier) => verifier.lacking(&missing),
            None => missing,
        }
    }

    /// The tasks an idle worker should do now, with what each consists of.
    pub(super) fn assign(&mut self, worker: Worker) -> Vec<(Task, Vec<Part>)> {
        let Some(place) = self.place(worker) else { return Vec::new() };
        let mut tasks = Vec::new();
        self.scheme.assign(place, &mut tasks);
        if let Some(verifier) = &mut self.verifier {
            verifier.given(place, &mut tasks);
        }
        let with_parts = |task: Task| {
            let parts = self.scheme.parts(place, task).to_vec();
            (Task { plan: self.plan, ..task }, parts)
        };
        tasks.into_iter().map(with_parts).collect()
    }

    /// A result is in, with its digest where one was taken. One of another plan is unwanted; one
    /// that is voted on is wanted until it is known to be wrong.
    pub(super) fn returned(
        &mut self,
        worker: Worker,
        task: Task,
        digest: Option<u128>,
    ) -> ResultUse {
        let place = self.place(worker).filter(|_| task.plan == self.plan);
        let Some(place) = place else { return ResultUse::Unwanted };
        let task = Task { plan: 0, ..task };
        let Some(verifier) = &mut self.verifier else { return self.scheme.returned(place, task) };
        let mut right = Vec::new();
        if !verifier.heard(place, task, digest.unwrap_or(0), &mut right) {
            return ResultUse::Unwanted;
        }
        for (worker, task) in right {
            self.scheme.returned(worker, task);
        }
        ResultUse::Wanted
    }

    /// Something has happened; see [`Scheme::on`].
    pub(super) fn on(&mut self, event: RoundEvent<'_>) -> bool {
        let inside;
        let of = |worker: Worker| self.place(worker);
        let event = match event {
            RoundEvent::Opened { dead } => {
                inside = self.inside(dead);
                Some(RoundEvent::Opened { dead: &inside })
            }
            RoundEvent::Gone(worker) => of(worker).map(RoundEvent::Gone),
            RoundEvent::Back(worker) => of(worker).map(RoundEvent::Back),
            RoundEvent::Dropped(worker) => of(worker).map(RoundEvent::Dropped),
            // Of what is open again the engine asks for the jobs alone.
            RoundEvent::Lost { worker, from, reopened } => {
                of(worker).map(|worker| RoundEvent::Lost { worker, from, reopened })
            }
            RoundEvent::GivenUp(job) => Some(RoundEvent::GivenUp(job)),
            RoundEvent::NoReturns => Some(RoundEvent::NoReturns),
        };
        let Some(event) = event else { return true };
        self.verifier.iter_mut().for_each(|verifier| verifier.on(&event));
        self.scheme.on(event)
    }

    /// Whether the round may close without these workers.
    pub(super) fn admits(&self, missing: &WorkerSet) -> bool {
        self.scheme.admits(&self.lacking(missing))
    }

    /// What the round can still come to if no worker of `gone` ever answers in it.
    pub(super) fn outlook(&self, gone: &WorkerSet) -> Outlook {
        self.scheme.outlook(&self.lacking(gone))
    }

    /// Whether a decode would pass the gate if the round closed now. A defect of the code is an
    /// error: more answers do not mend it.
    pub(super) fn is_sound(&mut self) -> Result<bool, GateError> {
        let report = self.scheme.quality();
        match self.check(&report) {
            Err(defect @ GateError::Defect(_)) => Err(defect),
            gate => Ok(gate.is_ok()),
        }
    }

    /// Whether the last decode passes the gate.
    pub(super) fn check(&self, report: &Report) -> Result<(), GateError> {
        match self.scheme.facts().defect {
            Some(defect) => Err(GateError::Defect(defect)),
            None => self.gate.check(report),
        }
    }

    /// Ends the round and names the jobs that can be decoded now.
    pub(super) fn close(&mut self, missing: &WorkerSet, late: &[Option<f64>]) -> Vec<Job> {
        let members = self.members.all.iter();
        let late: Vec<_> = members.filter_map(|member| late.get(member.index()).copied()).collect();
        let mut decoded = Vec::new();
        self.scheme.close(&self.inside(missing), &late, &mut decoded);
        decoded
    }

    /// The weights of all results of a job that can be decoded, and how good the decode is.
    pub(super) fn settle(&mut self, job: Job) -> (Vec<WeightedResult>, Report) {
        let mut results = Vec::new();
        let report = self.scheme.settle(job, &mut results);
        for result in &mut results {
            let holder = self.verifier.as_ref().and_then(|verifier| verifier.holder(result.worker));
            if let Some((worker, task)) = holder {
                result.worker = worker;
                result.task = task;
            }
            result.worker = self.outside(result.worker);
            result.task.plan = self.plan;
        }
        (results, report)
    }

    /// Goes on with other jobs, or with the current ones from the beginning.
    pub(super) fn restart(&mut self, jobs: Range<Job>) {
        self.scheme.restart(jobs);
    }

    /// Workers whose results of this round are known to be wrong.
    pub(super) fn wrong(&self) -> Vec<Worker> {
        let wrong = self.verifier.as_ref().map(Verifier::wrong).unwrap_or_default();
        wrong.into_iter().map(|place| self.outside(place)).collect()
    }

    /// Where results differ and none of them can be accepted any more.
    pub(super) fn dispute(&self) -> Option<Dispute> {
        let dispute = self.verifier.as_ref()?.dispute()?;
        let members = dispute.members.iter().map(|place| self.outside(place));
        Some(Dispute { members: WorkerSet::of(self.facts.workers, members), ..dispute })
    }
}
