//! What came with results, and of what they were made.

use crate::ids::{Job, Part, Piece, Task, WeightedResult, Worker};
use crate::scalars;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64;

/// What is known of results beside their vectors, until their step is decided.
///
/// A task is [`Results::assigned`] before its result [`Results::came`], and that is there before its
/// step is [`Results::decoded`].
#[derive(Debug, Default)]
pub(super) struct Results {
    /// The scalars that came with results; twice where a task was computed twice.
    aux: BTreeMap<(Worker, Task), Vec<Vec<f64>>>,
    /// What each task was made of, as a hash: equal ones have equal results.
    parts: BTreeMap<(Worker, Task), u64>,
}

impl Results {
    /// How much is kept.
    pub(super) fn len(&self) -> usize {
        self.aux.len() + self.parts.len()
    }

    /// A worker is given tasks.
    pub(super) fn assigned(&mut self, worker: Worker, tasks: &[(Task, Vec<Part>)]) {
        let hashes = tasks.iter().map(|(task, parts)| ((worker, *task), hash_of(parts)));
        self.parts.extend(hashes);
    }

    /// A result is there, with its scalars.
    pub(super) fn came(&mut self, worker: Worker, task: Task, aux: Vec<f64>) {
        self.aux.entry((worker, task)).or_default().push(aux);
    }

    /// The scalars of one result of a task, which are forgotten with it.
    pub(super) fn take_aux(&mut self, worker: Worker, task: Task) -> Option<Vec<f64>> {
        self.aux.get_mut(&(worker, task)).and_then(Vec::pop)
    }

    /// For every result, all holders of one of the same parts, its worker first; no others where
    /// workers are not trusted.
    pub(super) fn equivalents(&self, results: &[WeightedResult], trusted: bool) -> Vec<Vec<Piece>> {
        let mut alike: HashMap<(Job, u64), Vec<Piece>> = HashMap::new();
        let held = self.aux.iter().filter(|(_, aux)| !aux.is_empty() && trusted);
        let mut held: Vec<(Worker, Task)> = held.map(|(key, _)| *key).collect();
        held.sort_by_key(|(worker, task)| (*worker, task.job, task.piece));
        for (worker, task) in held {
            if let Some(parts) = self.parts.get(&(worker, task)) {
                alike.entry((task.job, *parts)).or_default().push(Piece { worker, task });
            }
        }
        let equivalents = |result: &WeightedResult| {
            let own = Piece { worker: result.worker, task: result.task };
            let parts = self.parts.get(&(result.worker, result.task));
            let alike = parts.and_then(|parts| alike.get(&(result.task.job, *parts)));
            let others = alike.into_iter().flatten().filter(|piece| **piece != own);
            std::iter::once(own).chain(others.copied()).collect()
        };
        results.iter().map(equivalents).collect()
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
        self.parts.retain(|(_, task), _| task.job >= end);
    }
}

fn hash_of(parts: &[Part]) -> u64 {
    let numbers = parts.iter().flat_map(|part| {
        [u64::from(part.units.start), u64::from(part.units.end), part.coefficient.to_bits()]
    });
    xxh3_64(bytemuck::cast_slice(&numbers.collect::<Vec<u64>>()))
}
