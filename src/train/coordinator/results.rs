//! What came with results, and of what they were made.

use crate::ids::{Job, Part, Step, Task, WeightedResult, Worker};
use crate::scalars;
use crate::sums::{Piece, TermKind};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64;

/// What is known of results beside their vectors, until their step is decided.
///
/// A task is [`Results::assigned`] before its result [`Results::came`]; that may be added to its
/// worker's sum, [`Results::reduced`], before its step is [`Results::decoded`].
#[derive(Debug, Default)]
pub(super) struct Results {
    /// The scalars that came with results which are in no sum; twice where a task was computed
    /// twice.
    aux: BTreeMap<(Worker, Task), Vec<Vec<f64>>>,
    sums: BTreeMap<Step, BTreeMap<Worker, Sum>>,
    /// What each task was made of, as a hash: equal ones have equal results.
    parts: BTreeMap<(Worker, Task), u64>,
}

/// What is known of the results a worker has added up for a step.
#[derive(Debug, Default)]
struct Sum {
    aux: Vec<f64>,
    parts: Vec<WeightedResult>,
}

impl Results {
    /// How much is kept.
    pub(super) fn len(&self) -> usize {
        self.aux.len() + self.parts.len() + self.sums.len()
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

    /// A result was added to its worker's sum of a step.
    pub(super) fn reduced(&mut self, step: Step, result: WeightedResult) {
        let WeightedResult { worker, task, weight } = result;
        let aux = self.take_aux(worker, task).unwrap_or_default();
        let sum = self.sums.entry(step).or_default().entry(worker).or_default();
        scalars::add(&mut sum.aux, weight, &aux);
        sum.parts.push(result);
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
                alike
                    .entry((task.job, *parts))
                    .or_default()
                    .push(Piece { worker, what: TermKind::Result(task) });
            }
        }
        let equivalents = |result: &WeightedResult| {
            let own = Piece { worker: result.worker, what: TermKind::Result(result.task) };
            let parts = self.parts.get(&(result.worker, result.task));
            let alike = parts.and_then(|parts| alike.get(&(result.task.job, *parts)));
            let others = alike.into_iter().flatten().filter(|piece| **piece != own);
            std::iter::once(own).chain(others.copied()).collect()
        };
        results.iter().map(equivalents).collect()
    }

    /// The scalars of a step that is decoded from sums and these results, and all that is in it.
    pub(super) fn decoded(
        &self,
        step: Step,
        sums: &[Worker],
        results: Vec<WeightedResult>,
    ) -> (Vec<f64>, Vec<WeightedResult>) {
        let (mut aux, mut parts) = (Vec::new(), Vec::new());
        let held = self.sums.get(&step);
        for sum in sums.iter().filter_map(|worker| held?.get(worker)) {
            scalars::add(&mut aux, 1.0, &sum.aux);
            parts.extend(&sum.parts);
        }
        for result in &results {
            let last = self.aux.get(&(result.worker, result.task)).and_then(|aux| aux.last());
            scalars::add(&mut aux, result.weight, last.map_or(&[], Vec::as_slice));
        }
        parts.extend(results);
        (aux, parts)
    }

    /// A worker is lost, and its results with it.
    pub(super) fn lost(&mut self, worker: Worker) {
        self.aux.retain(|(of, _), _| *of != worker);
        self.sums.values_mut().for_each(|sums| drop(sums.remove(&worker)));
    }

    /// Forgets what a worker has for a step of these jobs; gives back the task of every result that
    /// is in no sum.
    pub(super) fn erase(&mut self, worker: Worker, step: Step, jobs: &Range<Job>) -> Vec<Task> {
        self.sums.entry(step).or_default().remove(&worker);
        let of_it = |(of, task): &&(Worker, Task)| *of == worker && jobs.contains(&task.job);
        let tasks: Vec<Task> = self.aux.keys().filter(of_it).map(|(_, task)| *task).collect();
        let results = tasks.into_iter().flat_map(|task| {
            let tails = self.aux.remove(&(worker, task)).unwrap_or_default();
            std::iter::repeat_n(task, tails.len())
        });
        results.collect()
    }

    /// A step is begun again: gives back every result that is in no sum, all of which are
    /// forgotten.
    pub(super) fn begin_again(
        &mut self,
        step: Step,
    ) -> impl Iterator<Item = (Worker, Task)> + use<> {
        self.sums.remove(&step);
        std::mem::take(&mut self.aux)
            .into_iter()
            .flat_map(|(result, tails)| std::iter::repeat_n(result, tails.len()))
    }

    /// A step is decided, and all jobs before `end` with it.
    pub(super) fn release(&mut self, step: Step, end: Job) {
        self.aux.retain(|(_, task), _| task.job >= end);
        self.parts.retain(|(_, task), _| task.job >= end);
        self.sums.remove(&step);
    }
}

fn hash_of(parts: &[Part]) -> u64 {
    let numbers = parts.iter().flat_map(|part| {
        [u64::from(part.units.start), u64::from(part.units.end), part.coefficient.to_bits()]
    });
    xxh3_64(bytemuck::cast_slice(&numbers.collect::<Vec<u64>>()))
}
