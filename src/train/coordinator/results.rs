//! What came with results.

use crate::ids::{Job, Task, WeightedResult, Worker};
use crate::scalars;
use std::collections::BTreeMap;
use std::ops::Range;

/// What is known of results beside their vectors, until their step is decided.
///
/// A result [`Results::came`] before its step is [`Results::decoded`].
#[derive(Debug, Default)]
pub(super) struct Results {
    /// The scalars that came with results; twice where a task was computed twice.
    aux: BTreeMap<(Worker, Task), Vec<Vec<f64>>>,
}

impl Results {
    /// How much is kept.
    pub(super) fn len(&self) -> usize {
        self.aux.len()
    }

    /// A result is there, with its scalars.
    pub(super) fn came(&mut self, worker: Worker, task: Task, aux: Vec<f64>) {
        self.aux.entry((worker, task)).or_default().push(aux);
    }

    /// The scalars of one result of a task, which are forgotten with it.
    pub(super) fn take_aux(&mut self, worker: Worker, task: Task) -> Option<Vec<f64>> {
        self.aux.get_mut(&(worker, task)).and_then(Vec::pop)
    }

    /// The scalars of a step that is decoded from these results.
    pub(super) fn decoded(&self, results: &[WeightedResult]) -> Vec<f64> {
        let mut aux = Vec::new();
        for result in results {
            let last = self.aux.get(&(result.worker, result.task)).and_then(|aux| aux.last());
            scalars::add(&mut aux, result.weight, last.map_or(&[], Vec::as_slice));
        }
        aux
    }

    /// A worker is lost, and its results with it.
    pub(super) fn lost(&mut self, worker: Worker) {
        self.aux.retain(|(of, _), _| *of != worker);
    }

    /// Forgets what a worker has for a step of these jobs; gives back the task of every result.
    pub(super) fn erase(&mut self, worker: Worker, jobs: &Range<Job>) -> Vec<Task> {
        let of_it = |(of, task): &&(Worker, Task)| *of == worker && jobs.contains(&task.job);
        let tasks: Vec<Task> = self.aux.keys().filter(of_it).map(|(_, task)| *task).collect();
        let results = tasks.into_iter().flat_map(|task| {
            let tails = self.aux.remove(&(worker, task)).unwrap_or_default();
            std::iter::repeat_n(task, tails.len())
        });
        results.collect()
    }

    /// All begins again: gives back every result, all of which are forgotten.
    pub(super) fn begin_again(&mut self) -> impl Iterator<Item = (Worker, Task)> + use<> {
        std::mem::take(&mut self.aux)
            .into_iter()
            .flat_map(|(result, tails)| std::iter::repeat_n(result, tails.len()))
    }

    /// All jobs before `end` are decided.
    pub(super) fn release(&mut self, end: Job) {
        self.aux.retain(|(_, task), _| task.job >= end);
    }
}
