//! The gradients of the steps: those on their way to their holders, and those decided last.

use crate::codes::Report;
use crate::ids::{Step, Units, WeightedResult, Worker, WorkerSet};
use crate::schedulers::Engine;
use crate::sums::{DecodedSum, StepSums, SumId, SumNotice};
use crate::transport::{Order, StepNews};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A vector on its way to its holders.
pub(super) struct PendingSum {
    pub(super) sum: SumId,
    /// The vector, if it was made here.
    pub(super) decoded: Option<Arc<DecodedSum>>,
    pub(super) aux: Vec<f64>,
    pub(super) parts: Vec<WeightedResult>,
    pub(super) decode: Report,
    /// Workers that were sent the vector to hold.
    pub(super) sent: WorkerSet,
}

/// What there is of a step.
pub(super) enum StepGradient {
    /// Its sum was asked for.
    Pending(PendingSum),
    /// It is decided by this sum.
    Decided { sum: SumId, decoded: Arc<DecodedSum> },
    /// It is refused: of these units no finite results suffice, or the sum of all is not finite.
    Refused(Arc<[Units]>),
}

impl StepGradient {
    fn pending(&self) -> Option<&PendingSum> {
        if let Self::Pending(pending) = self { Some(pending) } else { None }
    }

    fn pending_mut(&mut self) -> Option<&mut PendingSum> {
        if let Self::Pending(pending) = self { Some(pending) } else { None }
    }
}

/// The sums that were asked for, with what is made of them, until they are decided; and the
/// decisions that a worker may still need.
pub(super) struct Gradients {
    pub(super) sums: StepSums,
    /// The decided ones first, without a gap: steps are decided in order.
    steps: BTreeMap<Step, StepGradient>,
}

impl Gradients {
    pub(super) fn new(max_wait_seconds: f64) -> Self {
        Self { sums: StepSums::new(max_wait_seconds), steps: BTreeMap::new() }
    }

    /// Vectors and decisions that are kept.
    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Something is said of a sum, which is looked at with the next event.
    pub(super) fn said(&mut self, engine: &Engine, worker: Worker, notice: SumNotice) {
        match notice {
            SumNotice::Held { sum, digest } => self.sums.held(worker, sum, digest),
            SumNotice::ResultNotFinite { sum } => {
                self.sums.result_not_finite(engine, worker, sum);
            }
            SumNotice::NotFinite { sum } => self.sums.not_finite(sum),
            SumNotice::Failed { sum } => self.sums.failed(sum),
            // Of a result, not of a sum: the coordinator itself sees to it.
            SumNotice::Changed { .. } => {}
        }
    }

    /// A step's sum is under way, or made.
    pub(super) fn made(&mut self, step: Step, pending: PendingSum) {
        self.steps.insert(step, StepGradient::Pending(pending));
    }

    /// What was made of a step is not wanted, or is to be written down.
    pub(super) fn take(&mut self, step: Step) -> Option<PendingSum> {
        self.steps.get(&step)?.pending()?;
        match self.steps.remove(&step)? {
            StepGradient::Pending(pending) => Some(pending),
            _ => None,
        }
    }

    /// Whether all vectors on their way are here, or where it is looked for them.
    pub(super) fn are_kept(&self, elsewhere: impl Fn(SumId) -> bool) -> bool {
        let is_kept = |pending: &PendingSum| pending.decoded.is_some() || elsewhere(pending.sum);
        self.steps.values().filter_map(StepGradient::pending).all(is_kept)
    }

    /// A worker is there again, and has nothing of what it was sent.
    pub(super) fn back(&mut self, worker: Worker) {
        for pending in self.steps.values_mut().filter_map(StepGradient::pending_mut) {
            pending.sent.remove(worker);
        }
    }

    /// Sends the vectors that were made here to a worker, those that it was not sent.
    pub(super) fn send(&mut self, worker: Worker, mut send: impl FnMut(Order)) {
        for pending in self.steps.values_mut().filter_map(StepGradient::pending_mut) {
            if let Some(decoded) = &pending.decoded
                && pending.sent.insert(worker)
            {
                send(Order::Store { sum: pending.sum, decoded: Arc::clone(decoded) });
            }
        }
    }

    /// Writes down what came of a step; gives back the memory of what is not needed any more where
    /// so many later ones are kept.
    pub(super) fn remember(
        &mut self,
        step: Step,
        decision: StepGradient,
        log_steps: u64,
    ) -> Vec<Vec<f32>> {
        self.steps.insert(step, decision);
        let oldest = Step(step.0.saturating_sub(log_steps));
        let mut spent = Vec::new();
        while let Some(first) = self.steps.first_entry().filter(|first| *first.key() < oldest) {
            if let StepGradient::Decided { decoded, .. } = first.remove() {
                let old = Arc::into_inner(decoded);
                spent.extend(old.and_then(|old| Arc::into_inner(old.gradient)));
            }
        }
        spent
    }

    /// What a worker is told to do with a step.
    ///
    /// # Panics
    /// When the step is not in the log, which holds all that a worker may still need.
    pub(super) fn order(&self, step: Step, news: StepNews) -> Order {
        match self.steps.get(&step) {
            Some(StepGradient::Decided { sum, decoded }) => {
                Order::Apply { sum: *sum, decoded: Arc::clone(decoded), news }
            }
            Some(StepGradient::Refused(units)) => {
                Order::Skip { step, news, units: Arc::clone(units) }
            }
            _ => panic!("the log holds all that a worker may still need"),
        }
    }
}
