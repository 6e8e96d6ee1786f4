//! What a worker holds between computing a result and its step's commit.
//!
//! A result stays here until its step is folded by one tree: added up sooner, the bits would depend
//! on who did what.

use super::lock;
use crate::gpu::{CombineError, SumCheck, Vector};
use crate::ids::{Job, Piece, Summand, Task, Worker};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

/// Results whose steps are not decided.
///
/// A task that is computed twice has two results: with the same bytes, unless its worker took over
/// a state in between. The ledger forgets first what was computed first, so that it does not take
/// an abandoned result for the next one.
///
/// ```
/// use codedgrad::ids::{Job, Task};
/// use codedgrad::sums::ledger::Ledger;
/// let task = |piece| Task { job: Job(0), piece, plan: 0 };
/// let mut ledger = Ledger::default();
/// ledger.keep(task(0), vec![1.0, 2.0]);
/// ledger.keep(task(1), vec![10.0, 20.0]);
/// assert_eq!(ledger.result(task(1)), Some(&vec![10.0, 20.0].into()));
/// assert_eq!(ledger.discard(task(0)), Some(vec![1.0, 2.0].into()));
/// assert_eq!((ledger.len(), ledger.take_peak()), (1, 2));
/// assert_eq!(ledger.release(Job(1)), [vec![10.0, 20.0].into()]);
/// ```
#[derive(Debug)]
pub struct Ledger<V = Vec<f32>> {
    results: BTreeMap<Task, VecDeque<Arc<V>>>,
    kept: usize,
    peak: usize,
}

impl<V> Default for Ledger<V> {
    fn default() -> Self {
        Self { results: BTreeMap::new(), kept: 0, peak: 0 }
    }
}

impl<V: Vector> Ledger<V> {
    /// Vectors that are held now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Most vectors held at once since this was asked last.
    pub fn take_peak(&mut self) -> usize {
        let now = self.len();
        std::mem::replace(&mut self.peak, now).max(now)
    }

    /// Keeps the result of a task.
    pub fn keep(&mut self, task: Task, result: V) {
        self.results.entry(task).or_default().push_back(Arc::new(result));
        self.kept += 1;
        self.peak = self.peak.max(self.len());
    }

    /// The last result of a task, if it is held.
    #[must_use]
    pub fn result(&self, task: Task) -> Option<&Arc<V>> {
        self.results.get(&task)?.back()
    }

    /// Forgets the first result of a task and gives its memory back, which another thread may still
    /// be reading.
    pub fn discard(&mut self, task: Task) -> Option<Arc<V>> {
        let results = self.results.get_mut(&task)?;
        let result = results.pop_front();
        if results.is_empty() {
            self.results.remove(&task);
        }
        // Counted, and not looked up, since it is asked for at every turn.
        self.kept -= usize::from(result.is_some());
        result
    }

    /// Forgets all results of jobs below `end`; gives their memory back.
    pub fn release(&mut self, end: Job) -> Vec<Arc<V>> {
        // Tasks are in the order of their jobs.
        let later = self.results.split_off(&Task { job: end, piece: 0, plan: 0 });
        let free: Vec<Arc<V>> =
            std::mem::replace(&mut self.results, later).into_values().flatten().collect();
        self.kept -= free.len();
        free
    }
}

/// What every worker holds, where the coordinator can reach it: the memory of workers of its own
/// process, or what it has received of others.
#[derive(Clone, Debug)]
pub struct Ledgers<V = Vec<f32>>(Arc<[Mutex<Ledger<V>>]>);

impl<V: Vector> Ledgers<V> {
    pub(crate) fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Mutex::default()).collect())
    }

    pub(crate) fn of(&self, worker: Worker) -> MutexGuard<'_, Ledger<V>> {
        lock(&self.0[worker.index()])
    }

    fn all(&self) -> Vec<MutexGuard<'_, Ledger<V>>> {
        Worker::all(self.0.len()).map(|worker| self.of(worker)).collect()
    }

    /// Most vectors of gradient length that each worker held at once since this was asked last.
    #[must_use]
    pub fn take_peaks(&self) -> Vec<usize> {
        self.all().iter_mut().map(|ledger| ledger.take_peak()).collect()
    }

    /// The vector of a piece, if it is here.
    pub(crate) fn vector(&self, piece: Piece) -> Option<Arc<V>> {
        self.of(piece.worker).result(piece.task).cloned()
    }

    /// Overwrites `out` with the sum of the first holders' vectors.
    pub(crate) fn fold(&self, summands: &[Summand], out: &mut V) -> Result<SumCheck, CombineError> {
        let term = |summand: &Summand| {
            let vector = self.vector(summand.holders[0]);
            (summand.weight as f32, vector.expect("what counts is held by its worker"))
        };
        let terms: Vec<(f32, Arc<V>)> = summands.iter().map(term).collect();
        V::fold(&terms, out)
    }

    /// Forgets all results of jobs below `end`; gives their memory back.
    pub(crate) fn release(&self, end: Job) -> Vec<Arc<V>> {
        self.all().iter_mut().flat_map(|ledger| ledger.release(end)).collect()
    }

    /// A worker is lost, and what it held.
    pub(crate) fn forget(&self, worker: Worker) {
        *self.of(worker) = Ledger::default();
    }
}

#[cfg(test)]
mod tests;
