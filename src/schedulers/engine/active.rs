//! The scheme at hand, told of workers and tasks as the run knows them.

use crate::codes::sequential::{Fold, Outlook, Returned, RoundEvent, Scheme, SchemeFacts, Settle};
use crate::codes::{Dispute, Facts, Gate, GateError, Report, Verifier};
use crate::ids::{Job, Part, Task, Worker, WorkerSet};
use crate::run::NumberFormat;
use std::borrow::Cow;
use std::ops::Range;

/// For whom a scheme is made, where that is not everybody: its worker `i` is the `i`-th member.
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
/// their plan, so that a late answer to another plan's task is never taken for one of this. Whoever
/// is no member gets no task, and nobody waits for it.
pub(super) struct ActiveScheme {
    scheme: Box<dyn Scheme>,
    verifier: Option<Verifier>,
    gate: Gate,
    facts: SchemeFacts,
    members: Option<Members>,
    plan: u32,
}

impl ActiveScheme {
    /// A scheme for everybody, of the first plan.
    pub(super) fn new(scheme: Box<dyn Scheme>, format: NumberFormat) -> Self {
        let facts = scheme.facts().clone();
        Self {
            verifier: Verifier::of(&facts),
            gate: gate_of(format, &facts),
            scheme,
            facts,
            members: None,
            plan: 0,
        }
    }

    /// A scheme for these workers; `plan` counts the plans of a run, from 1.
    ///
    /// # Panics
    /// When it is not made for as many workers as there are members.
    pub(super) fn among(
        scheme: Box<dyn Scheme>,
        format: NumberFormat,
        members: &WorkerSet,
        plan: u32,
    ) -> Self {
        assert_eq!(scheme.facts().workers, members.len(), "a scheme for its members");
        let all = members.len() == members.capacity();
        let mut active = Self::new(scheme, format);
        active.facts.workers = members.capacity();
        active.members = (!all).then(|| Members::of(members));
        active.plan = plan;
        active
    }

    /// What is fixed about it, in a run of all workers.
    pub(super) fn facts(&self) -> &SchemeFacts {
        &self.facts
    }

    /// For whom it is made, if not for all.
    pub(super) fn members(&self) -> Option<WorkerSet> {
        let members = self.members.as_ref()?;
        Some(WorkerSet::of(members.places.len(), members.all.iter().copied()))
    }

    fn place(&self, worker: Worker) -> Option<Worker> {
        self.members.as_ref().map_or(Some(worker), |members| members.places[worker.index()])
    }

    fn outside(&self, place: Worker) -> Worker {
        self.members.as_ref().map_or(place, |members| members.all[place.index()])
    }

    fn inside<'a>(&self, set: &'a WorkerSet) -> Cow<'a, WorkerSet> {
        let Some(members) = &self.members else { return Cow::Borrowed(set) };
        let places = set.iter().filter_map(|worker| members.places[worker.index()]);
        Cow::Owned(WorkerSet::of(members.all.len(), places))
    }

    /// Whom the scheme must do without if these are missing.
    fn lacking<'a>(&self, missing: &'a WorkerSet) -> Cow<'a, WorkerSet> {
        let missing = self.inside(missing);
        match &self.verifier {
            Some(verifier) => Cow::Owned(verifier.lacking(&missing)),
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
    ) -> Returned {
        let place = self.place(worker).filter(|_| task.plan == self.plan);
        let Some(place) = place else { return Returned::Unwanted };
        let task = Task { plan: 0, ..task };
        let Some(verifier) = &mut self.verifier else { return self.scheme.returned(place, task) };
        let mut right = Vec::new();
        if !verifier.heard(place, task, digest.unwrap_or(0), &mut right) {
            return Returned::Unwanted;
        }
        for (worker, task) in right {
            self.scheme.returned(worker, task);
        }
        Returned::Wanted
    }

    /// Something has happened; see [`Scheme::on`].
    pub(super) fn on(&mut self, event: RoundEvent<'_>) -> bool {
        match event {
            RoundEvent::Opened { dead } => {
                let dead = self.inside(dead);
                self.tell(RoundEvent::Opened { dead: &dead })
            }
            RoundEvent::Gone(worker) => self.of_member(worker, RoundEvent::Gone),
            RoundEvent::Back(worker) => self.of_member(worker, RoundEvent::Back),
            RoundEvent::Dropped(worker) => self.of_member(worker, RoundEvent::Dropped),
            RoundEvent::Lost { worker, from, reopened } => {
                let before = reopened.len();
                let answer = self.place(worker).is_none_or(|worker| {
                    self.tell(RoundEvent::Lost { worker, from, reopened: &mut *reopened })
                });
                for task in &mut reopened[before..] {
                    task.plan = self.plan;
                }
                answer
            }
            RoundEvent::GivenUp(job) => self.tell(RoundEvent::GivenUp(job)),
        }
    }

    fn of_member(&mut self, worker: Worker, event: impl Fn(Worker) -> RoundEvent<'static>) -> bool {
        self.place(worker).is_none_or(|place| self.tell(event(place)))
    }

    fn tell(&mut self, event: RoundEvent<'_>) -> bool {
        if let Some(verifier) = &mut self.verifier {
            verifier.on(&event);
        }
        self.scheme.on(event)
    }

    /// Whether the round may close without these workers.
    pub(super) fn admits(&self, missing: &WorkerSet) -> bool {
        self.scheme.admits(&self.lacking(missing))
    }

    /// What the round can still come to if nobody of `gone` ever answers in it.
    pub(super) fn outlook(&self, gone: &WorkerSet) -> Outlook {
        self.scheme.outlook(&self.lacking(gone))
    }

    /// Whether a decode would pass the gate if the round closed now.
    pub(super) fn is_sound(&mut self) -> bool {
        self.gate.check(&self.scheme.quality()).is_ok()
    }

    /// Whether a decode passes the gate.
    pub(super) fn check(&self, report: &Report) -> Result<(), GateError> {
        self.gate.check(report)
    }

    /// Ends the round and names the jobs that can be decoded now.
    pub(super) fn close(&mut self, missing: &WorkerSet, late: &[Option<f64>]) -> Vec<Job> {
        let missing = self.inside(missing);
        let late = match &self.members {
            Some(members) if !late.is_empty() => {
                Cow::Owned(members.all.iter().map(|member| late[member.index()]).collect())
            }
            _ => Cow::Borrowed(late),
        };
        let mut decoded = Vec::new();
        self.scheme.close(&missing, &late, &mut decoded);
        decoded
    }

    /// Weights that are final, and how good the decodes are that they are of.
    pub(super) fn settle(&mut self, what: Settle) -> (Vec<Fold>, Report) {
        let mut folds = Vec::new();
        let report = self.scheme.settle(what, &mut folds);
        for fold in &mut folds {
            let holder = self.verifier.as_ref().and_then(|verifier| verifier.holder(fold.worker));
            if let Some((worker, task)) = holder {
                fold.worker = worker;
                fold.task = task;
            }
            fold.worker = self.outside(fold.worker);
            fold.task.plan = self.plan;
        }
        (folds, report)
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

fn gate_of(format: NumberFormat, facts: &SchemeFacts) -> Gate {
    let facts = Facts {
        workers: facts.workers,
        share_weights: vec![1.0 / f64::from(facts.units); facts.units as usize],
        tolerance: facts.tolerance,
        load: facts.load,
        error_max: facts.error_max,
    };
    Gate::new(format, &facts)
}
