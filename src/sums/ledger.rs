//! What a worker holds between computing a result and its step's commit.
//!
//! A result stays here until its weight is final: at once where that is 1 whatever happens
//! (`ResultUse::Final`), at the close of its round (`Settle::Round`), or when its job is decoded
//! (`Settle::Job`). With `Reduce::Worker` it is then added to one sum per step and forgotten: `T+1`
//! sums and `B` open answers for M-SGC, 1 and `B` where the jobs are those of one step. The order
//! of that summation depends on who did what; so `Reduce::Tree`, which keeps results until their
//! step is folded by one tree, is the default wherever it gives the bits of uncoded training.

use super::{Piece, Summand, TermKind, lock};
use crate::gpu::{CombineError, SumCheck, Vector};
use crate::ids::{Job, Step, Task, Worker};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

/// Results whose weights are not final, and one sum per step of those whose weights are.
///
/// A task that is computed twice has two results: with the same bytes, unless its worker took over
/// a state in between. The ledger forgets first what was computed first, so that it does not take
/// an abandoned result for the next one.
///
/// ```
/// use codedgrad::ids::{Job, Step, Task};
/// use codedgrad::sums::ledger::Ledger;
/// let task = |piece| Task { job: Job(0), piece, plan: 0 };
/// let mut ledger = Ledger::default();
/// ledger.keep(task(0), vec![1.0, 2.0]);
/// ledger.keep(task(1), vec![10.0, 20.0]);
/// assert!(ledger.reduce(Step(0), task(0), 1.0)?.is_none());
/// let spent = ledger.reduce(Step(0), task(1), 0.5)?;
/// assert_eq!(
///     (ledger.sum(Step(0)).map(|sum| &sum[..]), spent),
///     (Some(&[6.0, 12.0][..]), Some(vec![10.0, 20.0].into()))
/// );
/// assert_eq!((ledger.len(), ledger.take_peak()), (1, 2));
/// # Ok::<(), codedgrad::gpu::CombineError>(())
/// ```
#[derive(Debug)]
pub struct Ledger<V = Vec<f32>> {
    results: BTreeMap<Task, VecDeque<Arc<V>>>,
    sums: BTreeMap<Step, Arc<V>>,
    kept: usize,
    peak: usize,
}

impl<V> Default for Ledger<V> {
    fn default() -> Self {
        Self { results: BTreeMap::new(), sums: BTreeMap::new(), kept: 0, peak: 0 }
    }
}

impl<V: Vector> Ledger<V> {
    /// Vectors that are held now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept + self.sums.len()
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

    /// A result or the sum of a step, if it is held.
    pub(crate) fn get(&self, step: Step, what: TermKind) -> Option<&Arc<V>> {
        match what {
            TermKind::Sum => self.sum(step),
            TermKind::Result(task) => self.result(task),
        }
    }

    /// The sum of a step, if there is one.
    #[must_use]
    pub fn sum(&self, step: Step) -> Option<&Arc<V>> {
        self.sums.get(&step)
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

    /// Adds `weight` times a result to the sum of a step; gives back memory that is free then.
    ///
    /// # Errors
    /// [`CombineError::Length`] when the result is not as long as the sum; neither is changed then.
    ///
    /// # Panics
    /// When there is no such result: a sum without it would be wrong.
    pub fn reduce(
        &mut self,
        step: Step,
        task: Task,
        weight: f64,
    ) -> Result<Option<Arc<V>>, CombineError> {
        let lengths = self
            .results
            .get(&task)
            .and_then(VecDeque::front)
            .map(|x| x.length())
            .zip(self.sum(step).map(|x| x.length()));
        if let Some((found, expected)) = lengths.filter(|(found, expected)| found != expected) {
            return Err(CombineError::Length { term: 0, expected, found });
        }
        let mut result = self.discard(task).expect("what counts is held");
        if let Some(sum) = self.sums.get_mut(&step) {
            Arc::make_mut(sum).add(weight as f32, &result);
            return Ok(Some(result));
        }
        // The vector itself becomes the sum: most weights are 1, and nothing is copied then.
        if weight != 1.0 {
            Arc::make_mut(&mut result).scale(weight as f32);
        }
        self.sums.insert(step, result);
        Ok(None)
    }

    /// Forgets the sum of a step and all results of jobs below `end`; gives their memory back.
    pub fn release(&mut self, step: Step, end: Job) -> Vec<Arc<V>> {
        // Tasks are in the order of their jobs.
        let later = self.results.split_off(&Task { job: end, piece: 0, plan: 0 });
        let mut free: Vec<Arc<V>> =
            std::mem::replace(&mut self.results, later).into_values().flatten().collect();
        self.kept -= free.len();
        free.extend(self.sums.remove(&step));
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
    pub(crate) fn vector(&self, step: Step, piece: Piece) -> Option<Arc<V>> {
        let ledger = self.of(piece.worker);
        ledger.get(step, piece.what).cloned()
    }

    /// Overwrites `out` with the sum of the first holders' vectors.
    pub(crate) fn fold(
        &self,
        step: Step,
        summands: &[Summand],
        out: &mut V,
    ) -> Result<SumCheck, CombineError> {
        let term = |summand: &Summand| {
            let vector = self.vector(step, summand.holders[0]);
            (summand.weight as f32, vector.expect("what counts is held by its worker"))
        };
        let terms: Vec<(f32, Arc<V>)> = summands.iter().map(term).collect();
        V::fold(&terms, out)
    }

    /// Forgets the sums of a step and all results of jobs below `end`; gives their memory back.
    pub(crate) fn release(&self, step: Step, end: Job) -> Vec<Arc<V>> {
        self.all().iter_mut().flat_map(|ledger| ledger.release(step, end)).collect()
    }

    /// A worker is lost, and what it held.
    pub(crate) fn forget(&self, worker: Worker) {
        *self.of(worker) = Ledger::default();
    }
}

#[cfg(test)]
mod tests;
