//! Events that borrow the aggregator, and settle themselves when they are dropped.

use super::{Aggregator, AggregatorError, AtHand, OwnedEvent, ProvideRequest, Samples};
use crate::gpu::{Gradient, GradientError, GradientMut, Vector, WireBuffer};
use crate::ids::{Step, Task, Units};
use crate::sums::DecodedSum;
use crate::transport::{Cancel, ExitReason, State};
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::Duration;

/// What a worker has to do next.
pub enum Event<'a, V: Vector = Vec<f32>> {
    /// Compute gradients of some samples.
    Compute(ComputeTask<'a, V>),
    /// Apply a decoded gradient: every step comes by this way, in order, also those the worker
    /// missed.
    Apply(CommittedStep<'a, V>),
    /// A step that no worker may apply: none has a finite gradient for some of its samples.
    Skip(SkippedStep<'a, V>),
    /// Another worker needs this one's state.
    Provide(ProvideRequest),
    /// Take over this state: this worker missed too much, or its parameters differ from the
    /// others'.
    Resync(Resync<'a, V>),
}

impl<'a, V: Vector> Event<'a, V> {
    /// The current event; none if the run is over.
    pub(super) fn of(event: OwnedEvent, aggregator: &'a mut Aggregator<V>) -> Option<Self> {
        Some(match event {
            OwnedEvent::Compute(task) => {
                Self::Compute(ComputeTask { aggregator, task, early: EarlySubmits::No })
            }
            OwnedEvent::Apply(step) => {
                let Some(AtHand::Step { decoded, gradient, .. }) = &aggregator.at_hand else {
                    return None;
                };
                let (decoded, gradient) = (Arc::clone(decoded), Arc::clone(gradient));
                let index = step.0;
                Self::Apply(CommittedStep { index, decoded, gradient, digest: None, aggregator })
            }
            OwnedEvent::Skip { step, units } => {
                Self::Skip(SkippedStep { index: step.0, units, aggregator })
            }
            OwnedEvent::Provide(request) => Self::Provide(request),
            OwnedEvent::Resync(state) => {
                Self::Resync(Resync { state, digests: Vec::new(), unfit: None, aggregator })
            }
            OwnedEvent::Over => return None,
        })
    }
}

/// A current task. Dropped while it is wanted, and without [`ComputeTask::submit`], it counts as
/// failed, as what a panic or an error would have ended: the worker's part in the run is over. One
/// that was submitted too early waits for [`Aggregator::next_event`](super::Aggregator::next_event)
/// instead, which gives it once more.
pub struct ComputeTask<'a, V: Vector = Vec<f32>> {
    aggregator: &'a mut Aggregator<V>,
    task: Task,
    early: EarlySubmits,
}

/// How often a task was submitted too early.
enum EarlySubmits {
    No,
    Once,
    Twice,
}

impl<V: Vector> ComputeTask<'_, V> {
    /// Which step the task is a part of.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.aggregator.step_of(self.task).0
    }

    /// Which batch its samples are of: the number of its job, from 0. It is the step's number
    /// unless a step is the sum of several jobs.
    #[must_use]
    pub fn batch(&self) -> u64 {
        self.task.job.0
    }

    /// The next micro-batch; none when all are done or the run wants the task no more.
    pub fn next_part(&mut self) -> Option<Samples> {
        self.aggregator.part(self.task).ok().flatten()
    }

    /// All parts at once, for schemes that mix the data of their parts: there is one buffer for the
    /// whole task. Drop the task when [the run wants it no more](Self::cancel).
    pub fn mixture(&mut self) -> Vec<Samples> {
        self.aggregator.mixture(self.task).unwrap_or_default()
    }

    /// Tells whether the result is still wanted, while its message is written.
    #[must_use]
    pub fn cancel(&self) -> Cancel {
        self.aggregator.cancel()
    }

    /// Where the gradient of the current part goes, already weighted by its coefficient. Every
    /// element must be overwritten: what is in it before is left over from earlier steps, in debug
    /// builds no number (NaN) in memory of the host. What is written while no part is open is of no
    /// samples, and [`ComputeTask::submit`] refuses the task.
    pub fn vector(&mut self) -> &mut V {
        self.aggregator.any_buffer()
    }

    /// Says that some numbers of the gradient of the current part are final, while the others are
    /// still computed: of the last part, they are summed and sent behind the rest of the backward
    /// pass, where the run does that. Else, and where the numbers are not next to those that were
    /// said to be final before, it has no effect.
    ///
    /// # Errors
    /// [`AggregatorError::Beyond`] when a gradient has no such numbers.
    ///
    /// ```
    /// use codedgrad::train::{Coordinator, Event};
    /// let run = Coordinator::builder("uncoded").workers(1).steps(1).length(100);
    /// let (coordinator, mut workers) = run.local()?;
    /// let coordinator = std::thread::spawn(move || coordinator.run(&mut ()));
    /// while let Some(event) = workers[0].next_event()? {
    ///     let Event::Compute(mut task) = event else { continue };
    ///     while let Some(part) = task.next_part() {
    ///         // The last layer's gradient is there first.
    ///         for layer in [60..100, 30..60, 0..30] {
    ///             task.message()[layer.clone()].fill(part.coefficient as f32);
    ///             task.ready(layer)?;
    ///         }
    ///     }
    ///     task.submit(vec![])?;
    /// }
    /// coordinator.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ready(&mut self, numbers: Range<usize>) -> Result<(), AggregatorError> {
        self.aggregator.say_ready(numbers)
    }

    /// Says how long the task was computed: see [`Aggregator::took`].
    pub fn took(&mut self, computed: Duration) {
        let _ = self.aggregator.took(self.task, computed);
    }

    /// Says why the task cannot be computed, and ends the worker's part in the run: see
    /// [`Aggregator::fail`].
    pub fn fail(self, reason: impl AsRef<str>) {
        self.aggregator.fail(reason);
    }

    /// Hands the finished message in, with scalars that are decoded with the same weights.
    ///
    /// A task that the run wants no more is dropped quietly. One that is handed in too early is the
    /// next event once more, and begins again from its first part. The second time it counts as
    /// failed.
    ///
    /// # Errors
    /// [`AggregatorError::Unfinished`] when parts are left although the task is still wanted,
    /// [`AggregatorError::NoPart`] when something was written while no part was open,
    /// [`AggregatorError::Length`] when the buffer of one was made longer or shorter,
    /// [`AggregatorError::Changed`] when numbers were changed that were said to be
    /// [ready](Self::ready).
    pub fn submit(self, aux: Vec<f64>) -> Result<(), AggregatorError> {
        self.submit_altered(aux, |_| {})
    }

    /// [`ComputeTask::submit`] with the message altered first: what a worker does that is wrong on
    /// purpose.
    ///
    /// # Errors
    /// As [`ComputeTask::submit`].
    pub fn submit_altered(
        mut self,
        aux: Vec<f64>,
        alter: impl FnOnce(&mut V),
    ) -> Result<(), AggregatorError> {
        let done = self.aggregator.finish(aux, alter);
        if matches!(done, Err(AggregatorError::Unfinished { .. })) {
            self.early = if self.aggregator.begin_again() {
                EarlySubmits::Once
            } else {
                EarlySubmits::Twice
            };
        }
        done
    }
}

/// Gradients in the host's memory.
impl ComputeTask<'_> {
    /// Where the gradient of the current part goes, already weighted by its coefficient: zeros when
    /// it is first asked for in a part, so that a gradient can be added up in it sample by sample.
    /// ([`ComputeTask::vector`] is the same memory with what earlier steps have left in it, for
    /// trainers that overwrite every number anyway.)
    ///
    /// ```
    /// use codedgrad::train::{Coordinator, Event};
    /// let run = Coordinator::builder("uncoded").workers(1).units(2).steps(3).length(1);
    /// let (coordinator, mut workers) = run.unit_samples(4).local()?;
    /// let coordinator = std::thread::spawn(move || coordinator.run(&mut ()));
    /// while let Some(event) = workers[0].next_event()? {
    ///     match event {
    ///         Event::Compute(mut task) => {
    ///             while let Some(part) = task.next_part() {
    ///                 for sample in part.samples {
    ///                     task.message()[0] += part.coefficient as f32 * sample as f32;
    ///                 }
    ///             }
    ///             task.submit(vec![])?;
    ///         }
    ///         // 0 + 1 + .. + 7, in every step
    ///         Event::Apply(step) => assert_eq!(step.gradient(), [28.0]),
    ///         _ => {}
    ///     }
    /// }
    /// coordinator.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn message(&mut self) -> &mut [f32] {
        self.aggregator.clear_unseen();
        self.vector()
    }

    /// Overwrites the message of the current part with `scale` times a gradient, wherever that
    /// lies.
    ///
    /// # Errors
    /// [`GradientError`] when the gradient is shorter than the message, or its device fails.
    pub fn read_message(
        &mut self,
        gradient: &dyn Gradient,
        scale: f32,
    ) -> Result<(), GradientError> {
        gradient.read(0, scale, WireBuffer::F32(self.vector()))
    }
}

impl<V: Vector> Drop for ComputeTask<'_, V> {
    fn drop(&mut self) {
        let reason = match self.early {
            EarlySubmits::Once if !std::thread::panicking() => return,
            EarlySubmits::Once => "its thread panicked",
            EarlySubmits::Twice => "it submitted a task twice before that was done",
            EarlySubmits::No if std::thread::panicking() => "its thread panicked",
            EarlySubmits::No => "it dropped its task before that was done",
        };
        self.aggregator.give_up(|unit| ExitReason::failed(unit, reason));
    }
}

/// A committed step. Dropping it reports it as applied.
pub struct CommittedStep<'a, V: Vector = Vec<f32>> {
    /// Number of the step, from 0.
    pub index: u64,
    decoded: Arc<DecodedSum>,
    gradient: Arc<V>,
    digest: Option<u64>,
    aggregator: &'a mut Aggregator<V>,
}

impl CommittedStep<'_> {
    /// The decoded gradient, the same bytes for every worker.
    #[must_use]
    pub fn gradient(&self) -> &[f32] {
        &self.gradient
    }

    /// Writes the decoded gradient to where the optimizer wants it.
    ///
    /// # Errors
    /// [`GradientError`] when there is no room for it, or the device fails.
    pub fn write_gradient(&self, to: &mut dyn GradientMut) -> Result<(), GradientError> {
        to.write(0, self.gradient())
    }
}

impl<V: Vector> CommittedStep<'_, V> {
    /// The decoded gradient where it lies.
    #[must_use]
    pub fn vector(&self) -> &V {
        &self.gradient
    }

    /// The decoded auxiliary scalars.
    #[must_use]
    pub fn aux(&self) -> &[f64] {
        &self.decoded.aux
    }

    /// Ends the run for all workers: after this step, or after the one that is already under way.
    /// The trainer has had enough, or no more data.
    pub fn end_run(&mut self) {
        self.aggregator.end_run();
    }

    /// Reports the step as applied, with a digest of the parameters after it: replicas whose digest
    /// differs from the others' are named and resynchronised.
    pub fn applied_with(mut self, digest: u64) {
        self.digest = Some(digest);
    }
}

impl<V: Vector> Drop for CommittedStep<'_, V> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.aggregator.report(Step(self.index), self.digest);
        }
    }
}

/// A refused step. Dropping it reports it as skipped.
pub struct SkippedStep<'a, V: Vector = Vec<f32>> {
    /// Number of the step, from 0.
    pub index: u64,
    /// Units of the batch that no worker had a finite gradient for.
    pub units: Arc<[Units]>,
    aggregator: &'a mut Aggregator<V>,
}

impl<V: Vector> Drop for SkippedStep<'_, V> {
    fn drop(&mut self) {
        self.aggregator.report(Step(self.index), None);
    }
}

/// A state to be taken over: the vectors that another worker's trainer handed over. Dropping it
/// says that it was.
pub struct Resync<'a, V: Vector = Vec<f32>> {
    state: Arc<State>,
    digests: Vec<u64>,
    unfit: Option<String>,
    aggregator: &'a mut Aggregator<V>,
}

impl<V: Vector> Resync<'_, V> {
    /// The state.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Says that the state was taken over, with the digests that the trainer would have reported
    /// after the last steps before [`State::next`], one per model and the last step's last: if they
    /// are not those of the others, the state was not right, and another worker's is fetched.
    pub fn taken_with(mut self, digests: Vec<u64>) {
        self.digests = digests;
    }

    /// Says that the trainer cannot go on from this state, since it does not fit its model: another
    /// worker's is fetched.
    pub fn refuse(mut self, reason: impl Into<String>) {
        self.unfit = Some(reason.into());
    }
}

impl<V: Vector> Deref for Resync<'_, V> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl<V: Vector> Drop for Resync<'_, V> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let (digests, unfit) = (std::mem::take(&mut self.digests), self.unfit.take());
            self.aggregator.answer(digests, unfit);
        }
    }
}
