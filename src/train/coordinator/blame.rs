//! Sums that are not finite: whose result it was, and what is forgotten of it.

use super::{Coordinator, Erasure, IncidentKind, Observer};
use crate::gpu::nonfinite_mask;
use crate::ids::{Piece, Step, WeightedResult, Worker};
use crate::schedulers::Input;
use crate::sums::SumId;
use crate::transport::{Transport, UnneededItem};

impl<T: Transport> Coordinator<T> {
    /// Says why a sum that was made here is not finite: the first of its results that is not, if
    /// they are here to be looked at.
    pub(super) fn blame(&mut self, of: SumId, results: &[WeightedResult]) {
        let nonfinite = results.iter().find(|result| {
            let piece = Piece { worker: result.worker, task: result.task };
            self.transport.received(piece).is_some_and(|result| nonfinite_mask(&result) != 0.0)
        });
        let sums = &mut self.gradients.sums;
        match nonfinite {
            Some(result) => sums.result_not_finite(&self.engine, result.worker, of),
            None => sums.not_finite(of),
        }
        self.inbox.add([Input::Tick]);
    }

    /// Forgets the results of a worker that are to go into a step, and says why.
    pub(super) fn erase(
        &mut self,
        worker: Worker,
        step: Step,
        observer: &mut dyn Observer<T::Vector>,
    ) {
        self.tell_of(step, IncidentKind::Erased { worker, why: Erasure::SaidFinite }, observer);
        self.gradients.take(step);
        let jobs = step.jobs(self.config().jobs.micro_steps);
        for task in self.results.erase(worker, &jobs) {
            self.transport.forget(UnneededItem::Result { worker, task });
        }
    }
}
