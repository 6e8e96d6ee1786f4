//! What a data-parallel trainer calls instead of all-reduce.

use super::sum_tree::SumTree;
use crate::gpu::{Gradient, GradientError, GradientMut, Vector, Wire};
use crate::ids::{Part, Step, Task, Units, Worker};
use crate::transport::{Cancel, Decoded, Dismissal, Link, Notice, Order, RunFacts, State};
use std::collections::VecDeque;
use std::ops::{Deref, Range};
use std::sync::Arc;
use thiserror::Error;

/// Misuse of the aggregator, or a run that ended under it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AggregatorError {
    /// The coordinator is gone before the run was over.
    #[error("the coordinator is gone")]
    Disconnected,
    /// Another process has the worker's number now; the run goes on with that.
    #[error("this worker was replaced: another process has taken its number")]
    Replaced,
    /// The coordinator does not want this worker.
    #[error("the coordinator refuses this worker: {reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// A task was submitted before all its parts were computed.
    #[error("{task:?} was submitted with {left} of its parts not computed")]
    Unfinished {
        /// Which task.
        task: Task,
        /// Parts not yet handed out.
        left: usize,
    },
}

/// A worker's handle to a run, for gradients in one kind of memory: the host's, or that of a
/// [`Vector`] of whatever kind.
///
/// ```
/// # use codedgrad::train::{Aggregator, Event};
/// # use codedgrad::transport::{local, Notice, Order, Piece, Summand, Transport, What};
/// # use codedgrad::ids::{Job, Part, Step, Task, Units, Worker};
/// # let (mut coordinator, mut links) = local::connect(1);
/// # let parts = vec![Part { units: Units { start: 2, end: 4 }, coefficient: 1.0 }];
/// # let task = Task { job: Job(0), piece: 0, plan: 0 };
/// # coordinator.send(Worker(0), Order::Compute { tasks: vec![(task, parts)], cancel: Default::default() });
/// # let coordinator = std::thread::spawn(move || {
/// #     let Some((worker, Notice::Done { task, .. })) = coordinator.receive(None) else { panic!() };
/// #     coordinator.send(worker, Order::Stop);
/// #     let summand = Summand { weight: 1.0, holders: vec![Piece { worker, what: What::Result(task) }] };
/// #     coordinator.fold(Step(0), 0, &[summand], 1).unwrap().unwrap().gradient
/// # });
/// // the loop of a trainer whose "gradient" is the sum of its samples' numbers
/// let mut aggregator = Aggregator::new(Box::new(links.remove(0)), 1, 3);
/// while let Some(event) = aggregator.next_event()? {
///     match event {
///         Event::Compute(mut task) => {
///             while let Some(part) = task.next_part() {
///                 let sum: usize = part.samples.clone().sum();
///                 task.message()[0] = (part.coefficient * sum as f64) as f32;
///             }
///             task.submit(vec![])?;
///         }
///         Event::Apply(step) => println!("step {}: {:?}", step.index, step.gradient()),
///         Event::Skip(_) | Event::Provide(_) | Event::Resync(_) => {}
///     }
/// }
/// # assert_eq!(coordinator.join().unwrap(), [6.0 + 7.0 + 8.0 + 9.0 + 10.0 + 11.0]);
/// # Ok::<(), codedgrad::train::AggregatorError>(())
/// ```
pub struct Aggregator<V: Vector = Vec<f32>> {
    link: Box<dyn Link<V>>,
    length: usize,
    unit_samples: usize,
    micro_steps: u64,
    next: Step,
    /// Tasks of the last order that are not begun.
    tasks: VecDeque<(Task, Vec<Part>)>,
    cancel: Cancel,
}

/// What a worker has to do next.
pub enum Event<'a, V: Vector = Vec<f32>> {
    /// Compute gradients of some samples.
    Compute(ComputeTask<'a, V>),
    /// Apply a decoded gradient: every step comes by this way, in order, also those the worker
    /// missed.
    Apply(Decided<'a, V>),
    /// A step that no worker may apply: nobody has a finite gradient for some of its samples.
    Skip(Skipped<'a, V>),
    /// Another worker needs this one's state.
    Provide(ProvideRequest<'a, V>),
    /// Take over this state: this worker missed too much, or its parameters differ from the
    /// others'.
    Resync(Resync<'a, V>),
}

impl<V: Vector> Aggregator<V> {
    /// A handle over `link` for gradients of `length` numbers, where each unit of a batch is
    /// `unit_samples` consecutive samples (the micro-batch, the same under every scheme).
    #[must_use]
    pub fn new(mut link: Box<dyn Link<V>>, length: usize, unit_samples: usize) -> Self {
        link.agree(RunFacts { unit_samples: Some(unit_samples), ..RunFacts::default() });
        let next = link.first().unwrap_or(Step(0));
        Self {
            link,
            length,
            unit_samples,
            micro_steps: 1,
            next,
            tasks: VecDeque::new(),
            cancel: Cancel::default(),
        }
    }

    /// The same handle for a run whose steps are sums of so many jobs.
    #[must_use]
    pub fn accumulating(mut self, micro_steps: u64) -> Self {
        self.micro_steps = micro_steps;
        self
    }

    /// The same handle for a replica in which all steps below `step` are already applied.
    #[must_use]
    pub fn resumed_at(mut self, step: u64) -> Self {
        self.next = Step(step);
        self
    }

    /// The next event, none when the run is over. The event must be dropped before the next call.
    ///
    /// # Errors
    /// [`AggregatorError::Disconnected`] when the coordinator is gone.
    pub fn next_event(&mut self) -> Result<Option<Event<'_, V>>, AggregatorError> {
        if self.cancel.is_cancelled() && !self.tasks.is_empty() {
            self.drop_tasks();
        }
        if let Some((task, parts)) = self.tasks.pop_front() {
            return Ok(Some(Event::Compute(ComputeTask::new(self, task, &parts))));
        }
        Ok(match self.link.receive().ok_or(AggregatorError::Disconnected)? {
            Order::Stop => None,
            Order::Compute { tasks, cancel } => {
                (self.tasks, self.cancel) = (tasks.into(), cancel);
                return self.next_event();
            }
            Order::Hold { step, attempt, decoded } => {
                self.link.send(Notice::Held { step, attempt, digest: decoded.digest });
                return self.next_event();
            }
            Order::Apply { step, attempt, decoded } => {
                if step < self.next {
                    return self.next_event();
                }
                let Some(gradient) = V::of_host(Arc::clone(&decoded.gradient))
                    .or_else(|| self.link.decoded(step, attempt))
                else {
                    self.link.send(Notice::Missed);
                    return self.next_event();
                };
                Some(Event::Apply(Decided {
                    index: step.0,
                    decoded,
                    gradient,
                    digest: None,
                    aggregator: self,
                }))
            }
            Order::Skip { step, units } => {
                Some(Event::Skip(Skipped { index: step.0, units, aggregator: self }))
            }
            Order::Provide { needy } => {
                Some(Event::Provide(ProvideRequest { needy, aggregator: self }))
            }
            Order::Take { state } => {
                self.next = state.next;
                Some(Event::Resync(Resync {
                    state,
                    digests: Vec::new(),
                    unfit: None,
                    aggregator: self,
                }))
            }
            Order::Dismiss(Dismissal::Replaced) => return Err(AggregatorError::Replaced),
            Order::Dismiss(Dismissal::Refused { reason }) => {
                return Err(AggregatorError::Refused { reason });
            }
            Order::Abandon => return self.next_event(),
        })
    }

    fn applied(&mut self, step: Step, digest: Option<u64>) {
        self.next = step.next();
        self.link.send(Notice::Applied { step, digest });
    }

    /// Drops all tasks at hand and says so.
    fn drop_tasks(&mut self) {
        self.tasks.clear();
        self.link.send(Notice::Freed);
    }
}

/// Samples to compute and the coefficient to weight their summed loss with.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    /// The unit of the batch these samples are.
    pub unit: u32,
    /// Sample numbers within the step's batch.
    pub samples: Range<usize>,
    /// Weight of their loss sum, an entry of the code matrix.
    pub coefficient: f64,
}

/// A task at hand. Dropped without [`ComputeTask::submit`], it counts as abandoned, and so do those
/// that were ordered with it.
pub struct ComputeTask<'a, V: Vector = Vec<f32>> {
    aggregator: &'a mut Aggregator<V>,
    task: Task,
    parts: Vec<(u32, f64)>,
    handed_out: usize,
    tree: SumTree<V>,
    current: Option<(u32, V)>,
    submitted: bool,
}

impl<'a, V: Vector> ComputeTask<'a, V> {
    fn new(aggregator: &'a mut Aggregator<V>, task: Task, parts: &[Part]) -> Self {
        let parts = parts
            .iter()
            .flat_map(|part| {
                (part.units.start..part.units.end).map(|unit| (unit, part.coefficient))
            })
            .collect();
        Self {
            aggregator,
            task,
            parts,
            handed_out: 0,
            tree: SumTree::new(),
            current: None,
            submitted: false,
        }
    }

    /// Which step the task is a part of.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.task.job.step(self.aggregator.micro_steps).0
    }

    /// Which batch its samples are of: the number of its job, from 0. It is the step's number
    /// unless a step is the sum of several jobs.
    #[must_use]
    pub fn batch(&self) -> u64 {
        self.task.job.0
    }

    /// The next micro-batch; none when all are done or nobody wants the task any more.
    pub fn next_part(&mut self) -> Option<Samples> {
        self.store();
        if self.aggregator.cancel.is_cancelled() {
            return None;
        }
        let &(unit, coefficient) = self.parts.get(self.handed_out)?;
        self.handed_out += 1;
        self.take_buffer(unit);
        let start = unit as usize * self.aggregator.unit_samples;
        Some(Samples { unit, samples: start..start + self.aggregator.unit_samples, coefficient })
    }

    /// All parts at once, for schemes that mix the data of their parts: there is one buffer for the
    /// whole task. Drop the task when [nobody wants it](Self::cancel) any more.
    pub fn mixture(&mut self) -> Vec<Samples> {
        self.handed_out = self.parts.len();
        if let Some(&(unit, _)) = self.parts.first() {
            self.take_buffer(unit);
        }
        let size = self.aggregator.unit_samples;
        let samples = |(unit, coefficient): (u32, f64)| Samples {
            unit,
            samples: unit as usize * size..(unit as usize + 1) * size,
            coefficient,
        };
        self.parts.iter().copied().map(samples).collect()
    }

    /// Tells whether the result is still wanted, while its message is written.
    #[must_use]
    pub fn cancel(&self) -> Cancel {
        self.aggregator.cancel.clone()
    }

    fn take_buffer(&mut self, unit: u32) {
        let mut buffer = self.aggregator.link.buffer(self.aggregator.length);
        buffer.spoil();
        self.current = Some((unit, buffer));
    }

    /// Where the gradient of the part at hand goes, already weighted by its coefficient. Every
    /// element must be overwritten; what is in it before is left over from earlier steps.
    ///
    /// # Panics
    /// When there is no part at hand.
    pub fn vector(&mut self) -> &mut V {
        &mut self.current.as_mut().expect("next_part comes first").1
    }

    /// Hands the finished message in, with scalars that are decoded with the same weights.
    ///
    /// A task that nobody wants any more is dropped quietly.
    ///
    /// # Errors
    /// [`AggregatorError::Unfinished`] when parts are left although the task is still wanted.
    pub fn submit(self, tail: Vec<f64>) -> Result<(), AggregatorError> {
        self.submit_altered(tail, |_| {})
    }

    /// [`ComputeTask::submit`] with the message altered first: what a worker does that is wrong on
    /// purpose.
    ///
    /// # Errors
    /// As [`ComputeTask::submit`].
    pub fn submit_altered(
        mut self,
        tail: Vec<f64>,
        alter: impl FnOnce(&mut V),
    ) -> Result<(), AggregatorError> {
        self.store();
        let left = self.parts.len() - self.handed_out;
        if left > 0 {
            return if self.aggregator.cancel.is_cancelled() {
                Ok(())
            } else {
                Err(AggregatorError::Unfinished { task: self.task, left })
            };
        }
        let link = &mut *self.aggregator.link;
        let sum = std::mem::replace(&mut self.tree, SumTree::new()).finish(link).0;
        let mut message = sum.unwrap_or_else(|| {
            let mut nothing = link.buffer(self.aggregator.length);
            nothing.clear();
            nothing
        });
        alter(&mut message);
        let finite = message.finite() && tail.iter().all(|x| x.is_finite());
        self.submitted = true;
        if finite {
            link.keep(self.task, message);
        } else {
            link.recycle(message);
        }
        link.send(Notice::Done { task: self.task, tail, finite });
        Ok(())
    }

    fn store(&mut self) {
        if let Some((unit, buffer)) = self.current.take() {
            self.tree.push(unit, buffer, &mut *self.aggregator.link);
        }
    }
}

/// Gradients in the host's memory.
impl ComputeTask<'_> {
    /// [`ComputeTask::vector`] as the numbers it is.
    ///
    /// # Panics
    /// When there is no part at hand.
    pub fn message(&mut self) -> &mut [f32] {
        self.vector()
    }

    /// Overwrites the message of the part at hand with `scale` times a gradient, wherever that
    /// lies.
    ///
    /// # Errors
    /// [`GradientError`] when the gradient is shorter than the message, or its device fails.
    ///
    /// # Panics
    /// When there is no part at hand.
    pub fn read_message(
        &mut self,
        gradient: &dyn Gradient,
        scale: f32,
    ) -> Result<(), GradientError> {
        gradient.read(0, scale, Wire::F32(self.message()))
    }
}

impl<V: Vector> Drop for ComputeTask<'_, V> {
    fn drop(&mut self) {
        if !self.submitted {
            self.tree.discard(&mut *self.aggregator.link);
            if !std::thread::panicking() {
                self.aggregator.drop_tasks();
            }
        }
    }
}

/// A committed step. Dropping it reports it as applied.
pub struct Decided<'a, V: Vector = Vec<f32>> {
    /// Number of the step, from 0.
    pub index: u64,
    decoded: Arc<Decoded>,
    gradient: Arc<V>,
    digest: Option<u64>,
    aggregator: &'a mut Aggregator<V>,
}

impl Decided<'_> {
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

impl<V: Vector> Decided<'_, V> {
    /// The decoded gradient where it lies.
    #[must_use]
    pub fn vector(&self) -> &V {
        &self.gradient
    }

    /// The decoded tail.
    #[must_use]
    pub fn tail(&self) -> &[f64] {
        &self.decoded.tail
    }

    /// Ends the run for everybody: after this step, or after the one that is already under way. The
    /// trainer has had enough, or no more data.
    pub fn end_run(&mut self) {
        self.aggregator.link.send(Notice::Finish { after: Step(self.index) });
    }

    /// Reports the step as applied, with a digest of the parameters after it: replicas whose digest
    /// differs from the others' are named and resynchronised.
    pub fn applied_with(mut self, digest: u64) {
        self.digest = Some(digest);
    }
}

impl<V: Vector> Drop for Decided<'_, V> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.aggregator.applied(Step(self.index), self.digest);
        }
    }
}

/// A refused step. Dropping it reports it as skipped.
pub struct Skipped<'a, V: Vector = Vec<f32>> {
    /// Number of the step, from 0.
    pub index: u64,
    /// Units of the batch that nobody had a finite gradient for.
    pub units: Arc<[Units]>,
    aggregator: &'a mut Aggregator<V>,
}

impl<V: Vector> Drop for Skipped<'_, V> {
    fn drop(&mut self) {
        self.aggregator.applied(Step(self.index), None);
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
            self.aggregator.link.send(Notice::Taken { digests, unfit });
        }
    }
}

/// A request for this worker's parameters and optimizer state.
pub struct ProvideRequest<'a, V: Vector = Vec<f32>> {
    needy: Worker,
    aggregator: &'a mut Aggregator<V>,
}

impl<V: Vector> ProvideRequest<'_, V> {
    /// Hands over the vectors of which [`Event::Resync`] will hold a copy.
    pub fn reply(self, vectors: Vec<Vec<f32>>) {
        let state = State { next: self.aggregator.next, vectors };
        self.aggregator.link.send(Notice::State { needy: self.needy, state });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Job;
    use crate::transport::{Transport, local};

    /// A gradient goes out and a decoded one comes in through the two traits, whatever memory they
    /// stand for.
    #[test]
    fn gradients_pass_by_their_door() {
        let (mut coordinator, mut links) = local::connect(1);
        let task = Task { job: Job(0), piece: 0, plan: 0 };
        let parts = vec![Part { units: Units { start: 0, end: 1 }, coefficient: 0.5 }];
        coordinator.send(
            Worker(0),
            Order::Compute { tasks: vec![(task, parts)], cancel: Cancel::default() },
        );
        let decoded = Decoded { gradient: Arc::new(vec![3.0, 4.0]), tail: vec![], digest: 0 };
        coordinator.send(
            Worker(0),
            Order::Apply { step: Step(0), attempt: 0, decoded: Arc::new(decoded) },
        );
        let mut aggregator = Aggregator::new(Box::new(links.remove(0)), 2, 1);
        let Ok(Some(Event::Compute(mut task))) = aggregator.next_event() else {
            panic!("a task comes first")
        };
        let coefficient = task.next_part().unwrap().coefficient as f32;
        assert_eq!(
            task.read_message(&vec![1.0], coefficient),
            Err(GradientError::Range { start: 0, end: 2, length: 1 })
        );
        task.read_message(&vec![1.0, -2.0], coefficient).unwrap();
        assert_eq!(task.message(), [0.5, -1.0]);
        drop(task);
        let Ok(Some(Event::Apply(step))) = aggregator.next_event() else { panic!("then a step") };
        let mut to = vec![0.0; 2];
        step.write_gradient(&mut to).unwrap();
        assert_eq!(to, [3.0, 4.0]);
    }
}
