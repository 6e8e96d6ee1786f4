//! A scheme for some of a run's workers, when the others are gone.

use super::{Dispute, Fold, Scheme, SchemeFacts};
use crate::codes::Report;
use crate::ids::{Job, Part, Task, Units, Worker, WorkerSet};
use std::ops::Range;

/// Carries out a scheme made for `m` of `n` workers: its worker `i` is the `i`-th member. Whoever
/// is no member gets no task, and nobody waits for it. Its tasks have the number of their plan, so
/// that a late answer to another plan's task is never taken for one of this.
///
/// ```
/// use codedgrad::codes::SchemeSpec;
/// use codedgrad::codes::sequential::{Among, Scheme};
/// use codedgrad::ids::{Worker, WorkerSet};
/// let inner = "groups:s=1".parse::<SchemeSpec>()?.scheme(2, 4, 0..1)?;
/// let mut scheme = Among::new(inner, &WorkerSet::of(4, [Worker(1), Worker(3)]), 1);
/// let mut tasks = Vec::new();
/// scheme.assign(Worker(0), &mut tasks);
/// assert!(tasks.is_empty(), "worker 0 is no member");
/// scheme.assign(Worker(3), &mut tasks);
/// assert_eq!(scheme.units(Worker(3), tasks[0]), 4);
/// assert!(scheme.admits(&WorkerSet::of(4, [Worker(0), Worker(1), Worker(2)])));
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
pub struct Among {
    inner: Box<dyn Scheme>,
    members: Vec<Worker>,
    /// Each worker's number within the scheme.
    places: Vec<Option<Worker>>,
    plan: u32,
    facts: SchemeFacts,
}

impl Among {
    /// The scheme, for these workers; `plan` counts the plans of a run, from 1.
    ///
    /// # Panics
    /// When it is not made for as many workers as there are members.
    #[must_use]
    pub fn new(inner: Box<dyn Scheme>, members: &WorkerSet, plan: u32) -> Self {
        let workers = members.complement().len() + members.len();
        let members: Vec<Worker> = members.iter().collect();
        assert_eq!(inner.facts().workers, members.len(), "a scheme for its members");
        let mut places = vec![None; workers];
        members
            .iter()
            .zip(0..)
            .for_each(|(member, place)| places[member.index()] = Some(Worker(place)));
        let facts = SchemeFacts { workers, ..inner.facts().clone() };
        Self { inner, members, places, plan, facts }
    }

    fn place(&self, worker: Worker) -> Option<Worker> {
        self.places[worker.index()]
    }

    fn inside(&self, set: &WorkerSet) -> WorkerSet {
        WorkerSet::of(self.members.len(), set.iter().filter_map(|worker| self.place(worker)))
    }

    fn outside(&self, worker: Worker) -> Worker {
        self.members[worker.index()]
    }

    fn own(&self, task: Task) -> Option<Task> {
        (task.plan == self.plan).then_some(Task { plan: 0, ..task })
    }

    /// A worker's place and a task, if both belong to this plan.
    fn both(&self, worker: Worker, task: Task) -> Option<(Worker, Task)> {
        self.place(worker).zip(self.own(task))
    }

    fn marked(&self, task: Task) -> Task {
        Task { plan: self.plan, ..task }
    }

    /// Tells folds as they are known outside.
    fn rename(&self, folds: &mut [Fold]) {
        for fold in folds {
            (fold.worker, fold.task) = (self.outside(fold.worker), self.marked(fold.task));
        }
    }
}

impl Scheme for Among {
    fn facts(&self) -> &SchemeFacts {
        &self.facts
    }

    fn open(&mut self) {
        self.inner.open();
    }

    fn assign(&mut self, worker: Worker, out: &mut Vec<Task>) {
        if let Some(place) = self.place(worker) {
            let mut tasks = Vec::new();
            self.inner.assign(place, &mut tasks);
            out.extend(tasks.into_iter().map(|task| self.marked(task)));
        }
    }

    fn parts(&self, worker: Worker, task: Task) -> &[Part] {
        self.both(worker, task).map_or(&[], |(place, task)| self.inner.parts(place, task))
    }

    fn units(&self, worker: Worker, task: Task) -> u32 {
        self.both(worker, task).map_or(0, |(place, task)| self.inner.units(place, task))
    }

    fn label(&self, task: Task, age: usize) -> String {
        self.inner.label(self.own(task).unwrap_or(task), age)
    }

    fn returned(&mut self, worker: Worker, task: Task) -> bool {
        self.both(worker, task).is_some_and(|(place, task)| self.inner.returned(place, task))
    }

    fn returned_as(&mut self, worker: Worker, task: Task, digest: u128) -> bool {
        self.both(worker, task)
            .is_some_and(|(place, task)| self.inner.returned_as(place, task, digest))
    }

    fn wrong(&self) -> Vec<Worker> {
        self.inner.wrong().into_iter().map(|place| self.outside(place)).collect()
    }

    fn dispute(&self) -> Option<Dispute> {
        let dispute = self.inner.dispute()?;
        let members = WorkerSet::of(
            self.places.len(),
            dispute.members.iter().map(|place| self.outside(place)),
        );
        Some(Dispute { members, ..dispute })
    }

    fn admits(&self, missing: &WorkerSet) -> bool {
        self.inner.admits(&self.inside(missing))
    }

    fn hopes(&self, gone: &WorkerSet) -> bool {
        self.inner.hopes(&self.inside(gone))
    }

    fn gone(&mut self, worker: Worker) {
        if let Some(place) = self.place(worker) {
            self.inner.gone(place);
        }
    }

    fn back(&mut self, worker: Worker) -> bool {
        self.place(worker).is_none_or(|place| self.inner.back(place))
    }

    fn dropped(&mut self, worker: Worker) {
        if let Some(place) = self.place(worker) {
            self.inner.dropped(place);
        }
    }

    fn salvages(&self, missing: &WorkerSet) -> bool {
        self.inner.salvages(&self.inside(missing))
    }

    fn quality(&mut self) -> Report {
        self.inner.quality()
    }

    fn observe(&mut self, worker: Worker, ratio: Option<f64>) {
        if let Some(place) = self.place(worker) {
            self.inner.observe(place, ratio);
        }
    }

    fn close(&mut self, missing: &WorkerSet, decoded: &mut Vec<Job>) {
        self.inner.close(&self.inside(missing), decoded);
    }

    fn is_final(&self, task: Task) -> bool {
        self.own(task).is_some_and(|task| self.inner.is_final(task))
    }

    fn finals(&mut self, folds: &mut Vec<Fold>) -> Report {
        let before = folds.len();
        let report = self.inner.finals(folds);
        self.rename(&mut folds[before..]);
        report
    }

    fn settle(&mut self, job: Job, folds: &mut Vec<Fold>) -> Report {
        let before = folds.len();
        let report = self.inner.settle(job, folds);
        self.rename(&mut folds[before..]);
        report
    }

    fn lost(&mut self, worker: Worker, from: Option<Job>, reopened: &mut Vec<Task>) {
        if let Some(place) = self.place(worker) {
            let mut open = Vec::new();
            self.inner.lost(place, from, &mut open);
            reopened.extend(open.into_iter().map(|task| self.marked(task)));
        }
    }

    fn undoes(&self) -> bool {
        self.inner.undoes()
    }

    fn blocked(&self, gone: &WorkerSet) -> Vec<Job> {
        self.inner.blocked(&self.inside(gone))
    }

    fn give_up(&mut self, job: Job) {
        self.inner.give_up(job);
    }

    fn restart(&mut self, jobs: Range<Job>) {
        self.inner.restart(jobs);
    }

    fn uncovered(&self, missing: &WorkerSet) -> Vec<Units> {
        self.inner.uncovered(&self.inside(missing))
    }
}
