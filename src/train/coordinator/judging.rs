//! Where workers are not trusted: what they sent is looked at as it was received.
//!
//! Over threads and where results are sent eagerly, `Transport::received` is a result as it came.
//! Votes take its digest with every `Done`; mixtures are folded by a `Judge` beside the
//! coordinator, which replaces the weights. Results that are not trusted never stand in for each
//! other.

use super::{Coordinator, Erasure, IncidentKind, Observer, RunError};
use crate::codes::Report;
use crate::codes::sequential::worst;
use crate::gpu::{SumCheck, add_into, digest, nonfinite_mask};
use crate::ids::{Job, Piece, Task, WeightedResult, Worker, WorkerSet};
use crate::passes::{self, PassPlace};
use crate::schedulers::Input;
use crate::transport::{CheckedSum, Transport};
use std::collections::BTreeMap;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// A gradient decoded from results that were looked at first.
#[derive(Clone, Debug)]
pub struct JudgedGradient {
    /// The gradient, summed over the whole batch of its job.
    pub gradient: Vec<f32>,
    /// Whose results are in it, with the weights that scalars are decoded with.
    pub weights: Vec<(Worker, f64)>,
    /// Whose results are wrong and were left out.
    pub wrong: Vec<Worker>,
    /// How good the decode is.
    pub report: Report,
}

/// Decodes jobs whose results are no plain summands: it sees all of them as they were received.
pub trait Judge: Send {
    /// The gradient of a job from the results that are there, in order of workers.
    ///
    /// # Errors
    /// What makes them undecodable.
    fn judge(
        &mut self,
        job: Job,
        received: &[(Worker, Arc<Vec<f32>>)],
    ) -> Result<JudgedGradient, Box<dyn std::error::Error + Send + Sync>>;
}

/// Who is found to be wrong, and the judge who finds it where results are mixtures.
pub(super) struct JudgeState {
    judge: Option<Box<dyn Judge>>,
    /// Workers found to be wrong since the last commit, and ever.
    wrong: Vec<Worker>,
    named: WorkerSet,
}

impl JudgeState {
    pub(super) fn new(workers: usize) -> Self {
        Self { judge: None, wrong: Vec::new(), named: WorkerSet::empty(workers) }
    }

    /// Results of these workers are wrong.
    pub(super) fn found(&mut self, wrong: &[Worker]) {
        self.wrong.extend(wrong);
    }

    /// The workers that are wrong for the first time.
    fn newly_wrong(&mut self) -> Vec<Worker> {
        self.wrong.sort_unstable();
        self.wrong.dedup();
        self.wrong.iter().copied().filter(|worker| self.named.insert(*worker)).collect()
    }

    /// All of the step that is decided now, for its record.
    pub(super) fn take_wrong(&mut self) -> Vec<Worker> {
        std::mem::take(&mut self.wrong)
    }

    /// Decodes a step of mixtures; of the results, those that are used are left, with their
    /// weights.
    pub(super) fn decode(
        &mut self,
        results: &mut Vec<WeightedResult>,
        mut received: impl FnMut(Piece) -> Option<Arc<Vec<f32>>>,
    ) -> Result<(CheckedSum, Report), RunError> {
        let judge = self.judge.as_mut().ok_or(RunError::NoJudge)?;
        let mut jobs: BTreeMap<Job, Vec<WeightedResult>> = BTreeMap::new();
        results.drain(..).for_each(|result| jobs.entry(result.task.job).or_default().push(result));
        let (mut gradient, mut reports) = (Vec::new(), Vec::new());
        for (job, mut answers) in jobs {
            answers.sort_by_key(|result| result.worker);
            let mut vectors = Vec::with_capacity(answers.len());
            for WeightedResult { worker, task, .. } in &answers {
                let piece = Piece { worker: *worker, task: *task };
                let vector = received(piece).ok_or(RunError::NotReceived { worker: *worker })?;
                vectors.push((*worker, vector));
            }
            let judged = judge.judge(job, &vectors).map_err(RunError::Judge)?;
            let weight = |result: WeightedResult| {
                let used = judged.weights.iter().find(|(worker, _)| *worker == result.worker)?;
                Some(WeightedResult { weight: used.1, ..result })
            };
            results.extend(answers.into_iter().filter_map(weight));
            self.wrong.extend(judged.wrong);
            reports.push(judged.report);
            if gradient.is_empty() {
                gradient = judged.gradient;
            } else {
                add_into(&mut gradient, 1.0, &judged.gradient);
            }
        }
        let folded =
            SumCheck { digest: digest(&gradient), finite: nonfinite_mask(&gradient) == 0.0 };
        Ok((CheckedSum { gradient, folded }, worst(reports.into_iter())))
    }
}

impl<T: Transport> Coordinator<T> {
    /// The same coordinator, made by [`Coordinator::new`], for a scheme of mixtures, whose results
    /// a judge decodes. [`Builder::judged_by`](crate::train::Builder::judged_by) does that for runs
    /// that are told.
    #[must_use]
    pub fn judged_by(mut self, judge: Box<dyn Judge>) -> Self {
        self.judging.judge = Some(judge);
        self
    }

    /// Whether a result counts, and its digest (with its scalars) where results are told apart.
    pub(super) fn look_at(
        &mut self,
        worker: Worker,
        task: Task,
        aux: &[f64],
        observer: &mut dyn Observer<T::Vector>,
    ) -> (bool, Option<u128>) {
        let facts = self.engine.plan().facts();
        if facts.byzantine == 0 || facts.mixture {
            return (true, None);
        }
        let Some(result) = self.transport.received(Piece { worker, task }) else {
            self.tell(IncidentKind::Erased { worker, why: Erasure::NotReceived }, observer);
            return (false, None);
        };
        passes::count(PassPlace::Judge, size_of_val(&result[..]));
        let mut hash = Xxh3::new();
        hash.update(bytemuck::cast_slice(&result));
        hash.update(bytemuck::cast_slice(aux));
        (true, Some(hash.digest128()))
    }

    /// A worker has changed numbers of a result after it had announced them: a step that is decided
    /// may be made of them.
    pub(super) fn changed(
        &mut self,
        worker: Worker,
        task: Task,
        observer: &mut dyn Observer<T::Vector>,
    ) -> Input {
        let step = task.job.step(self.config().jobs.micro_steps);
        let is_decided = step < self.journal.step;
        if is_decided {
            self.journal.changed.insert(worker);
        }
        self.tell_of(step, IncidentKind::Changed { worker, is_decided }, observer);
        Input::Tick
    }

    /// Names the workers that are wrong for the first time.
    pub(super) fn name_wrong(&mut self, observer: &mut dyn Observer<T::Vector>) {
        for worker in self.judging.newly_wrong() {
            self.tell(IncidentKind::Erased { worker, why: Erasure::Wrong }, observer);
        }
    }
}
