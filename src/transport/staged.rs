//! Workers whose vectors lie elsewhere than in the host's memory, over a link that carries vectors
//! of the host.

use super::{Closer, Link, LinkPlace, Notice, Order, ReceiveOutcome, Say};
use crate::gpu::{Gradient, GradientError, GradientMut, Vector, WireBuffer};
use crate::ids::Task;
use crate::sums::SumId;
use crate::sums::collective::DeviceResults;
use std::sync::Arc;
use std::time::Duration;

/// A link over another: what a worker adds up lies where it is computed, and goes through the host
/// once, when a task is done; what is decoded goes back once.
///
/// ```
/// use codedgrad::transport::{Link, Order, ReceiveOutcome, StagedLink, Transport, local};
/// use codedgrad::ids::Worker;
/// let (mut coordinator, mut links) = local::connect(1);
/// let mut link: StagedLink<Vec<f32>> = StagedLink::new(Box::new(links.remove(0)), ());
/// assert_eq!(link.buffer(3).len(), 3);
/// coordinator.send(Worker(0), Order::Stop { why: "all is done".into() });
/// assert!(matches!(link.receive(None), ReceiveOutcome::Order(Order::Stop { .. })));
/// ```
pub struct StagedLink<V: Vector + Gradient + GradientMut> {
    link: Box<dyn Link>,
    place: V::Place,
    spare: Vec<V>,
    /// The step that was decided last.
    decided: Option<(SumId, Arc<V>)>,
    /// Where results stay if a collective sums them.
    results: Option<DeviceResults<V>>,
    /// The place has failed: the worker must not go on.
    failed: bool,
}

impl<V: Vector + Gradient + GradientMut> StagedLink<V> {
    /// A link for vectors at a place.
    #[must_use]
    pub fn new(link: Box<dyn Link>, place: V::Place) -> Self {
        Self { link, place, spare: Vec::new(), decided: None, results: None, failed: false }
    }

    /// A link whose results stay at the place, where a collective sums them; its
    /// sums stay there too, and only others go through the host.
    #[must_use]
    pub fn with_collective(
        link: Box<dyn Link>,
        place: V::Place,
        results: DeviceResults<V>,
    ) -> Self {
        Self { results: Some(results), ..Self::new(link, place) }
    }

    /// Brings a decoded vector to the place, in the memory of the last one if no thread reads that
    /// any more. One that is not in its order was summed there.
    fn bring(&mut self, sum: SumId, gradient: &[f32]) {
        let last = self.decided.take().and_then(|(_, vector)| Arc::into_inner(vector));
        if let Some(results) = self.results.as_ref().filter(|_| gradient.is_empty()) {
            self.decided = results.sum(sum).map(|vector| (sum, vector));
            if self.decided.is_none() {
                self.fail(&GradientError::Device {
                    reason: format!("the sum of {} is lost", sum.step),
                });
            }
            return;
        }
        self.spare.extend(last.filter(|_| self.results.is_none()));
        let mut vector = self.buffer(gradient.len());
        match vector.write(0, gradient) {
            Ok(()) => self.decided = Some((sum, Arc::new(vector))),
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&mut self, error: &dyn std::error::Error) {
        tracing::error!("the worker ends, since its vectors cannot be had: {error}");
        self.failed = true;
    }
}

impl<V: Vector + Gradient + GradientMut> Link<V> for StagedLink<V> {
    fn receive(&mut self, patience: Option<Duration>) -> ReceiveOutcome {
        // A worker that has not answered gets no order.
        if self.failed {
            return ReceiveOutcome::Gone;
        }
        let received = self.link.receive(patience);
        let ReceiveOutcome::Order(order) = &received else { return received };
        if let Order::Apply { sum, decoded, .. } = order {
            self.bring(*sum, &decoded.gradient);
        }
        let next = match order {
            Order::Apply { sum: SumId { step, .. }, .. } | Order::Skip { step, .. } => {
                Some(step.next())
            }
            Order::LoadState { state } => Some(state.next),
            _ => None,
        };
        if let Some((results, next)) = self.results.as_ref().zip(next) {
            results.passed(next);
        }
        if self.failed { ReceiveOutcome::Gone } else { received }
    }

    fn closer(&self) -> Closer {
        self.link.closer()
    }

    fn later(&self) -> Say {
        if self.failed {
            return Box::new(drop);
        }
        self.link.later()
    }

    fn place(&self) -> LinkPlace {
        // Parts of a result lie where it does until it is whole.
        LinkPlace { chunk: None, ..self.link.place() }
    }

    fn keep(&mut self, task: Task, result: V) {
        if let Some(results) = &self.results {
            return results.keep(task, result);
        }
        let mut numbers = self.link.buffer(Vector::length(&result));
        match result.read(0, 1.0, WireBuffer::F32(&mut numbers)) {
            Ok(()) => self.link.keep(task, numbers),
            Err(error) => self.fail(&error),
        }
        self.recycle(result);
    }

    fn send(&mut self, notice: Notice) {
        // What a worker says that has failed must not count.
        if !self.failed {
            self.link.send(notice);
        }
    }

    fn buffer(&mut self, length: usize) -> V {
        let found = self
            .spare
            .iter()
            .rposition(|vector| vector.fits(&self.place, length))
            .map(|at| self.spare.swap_remove(at));
        let found = found.or_else(|| self.results.as_ref()?.spare(&self.place, length));
        found.unwrap_or_else(|| V::new(&self.place, length))
    }

    fn recycle(&mut self, buffer: V) {
        self.spare.push(buffer);
    }

    fn decoded(&mut self, sum: SumId) -> Option<Arc<V>> {
        let decided = self.decided.as_ref().filter(|(of, _)| *of == sum);
        decided.map(|(_, vector)| Arc::clone(vector))
    }
}

#[cfg(test)]
mod tests;
