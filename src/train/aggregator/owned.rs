//! Events as values of their own, and what is done with them by their tokens.

use super::{ABANDONED, Aggregator, AggregatorError, AtHand, Samples, Work};
use crate::gpu::Vector;
use crate::ids::{Step, Task, Units, Worker};
use crate::transport::{Cancel, ExitReason, Notice, Say, State};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// What a worker has to do next, as a value that borrows nothing: see
/// [`Aggregator::next_event_within`].
#[derive(Debug)]
pub enum OwnedEvent {
    /// Compute gradients of some samples: [`Aggregator::part`], [`Aggregator::submit`].
    Compute(Task),
    /// Apply a decoded gradient: [`Aggregator::gradient`], [`Aggregator::applied`].
    Apply(Step),
    /// A step that no worker may apply: [`Aggregator::applied`] counts it.
    Skip {
        /// Which.
        step: Step,
        /// Units of the batch that no worker had a finite gradient for.
        units: Arc<[Units]>,
    },
    /// Another worker needs this one's state.
    Provide(ProvideRequest),
    /// Take over this state: [`Aggregator::taken`], or [`Aggregator::refuse`].
    Resync(Arc<State>),
    /// The run is over.
    Over,
}

/// A request for this worker's parameters and optimizer state, as they are now. It may be answered
/// from any thread, and later: a trainer that copies what it hands over can go on meanwhile. The
/// worker that needs the state waits until it is answered, and takes over another one if by then
/// more steps are committed than workers keep (`log_steps`).
#[must_use = "another worker waits for the answer"]
pub struct ProvideRequest {
    needy: Worker,
    next: Step,
    say: Say,
}

impl ProvideRequest {
    pub(super) fn new(needy: Worker, next: Step, say: Say) -> Self {
        Self { needy, next, say }
    }

    /// The first step that is not applied in the state asked for: what is applied later must
    /// not be in it.
    #[must_use]
    pub fn next_step(&self) -> Step {
        self.next
    }

    /// Hands over the vectors of which [`Event::Resync`](super::Event::Resync) will hold a copy.
    pub fn reply(self, vectors: Vec<Vec<f32>>) {
        let state = State { next: self.next, vectors };
        self.give(state);
    }

    /// Hands over byte strings of any lengths, which [`State::bytes`] gives back: a trainer's own
    /// files. All workers of a run do the same. Over TCP at most 256 MiB and 1 KiB for every number
    /// of a gradient are taken; who sends more is lost.
    ///
    /// ```
    /// use codedgrad::train::{Aggregator, OwnedEvent};
    /// use codedgrad::transport::{Notice, Order, Transport, local};
    /// use codedgrad::ids::Worker;
    /// use std::{thread, time::Duration};
    /// let (mut coordinator, mut links) = local::connect(2);
    /// coordinator.send(Worker(0), Order::SendState { needy: Worker(1) });
    /// let mut aggregator = Aggregator::new(Box::new(links.remove(0)), 3, 1);
    /// let Some(OwnedEvent::Provide(request)) = aggregator.next_event_within(Duration::MAX)? else {
    ///     panic!("that was asked for");
    /// };
    /// // Off the trainer's thread.
    /// thread::spawn(move || request.reply_bytes(&[b"a checkpoint".to_vec()]));
    /// let Some((_, Notice::State { state, .. })) = coordinator.receive(None) else { panic!() };
    /// assert_eq!(state.bytes().unwrap(), [b"a checkpoint"]);
    /// # Ok::<(), codedgrad::train::AggregatorError>(())
    /// ```
    pub fn reply_bytes(self, bytes: &[Vec<u8>]) {
        let state = State::of_bytes(self.next, bytes);
        self.give(state);
    }

    fn give(self, state: State) {
        (self.say)(Notice::State { needy: self.needy, state });
    }
}

impl fmt::Debug for ProvideRequest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needy, next, .. } = self;
        out.debug_struct("ProvideRequest")
            .field("needy", needy)
            .field("next", next)
            .finish_non_exhaustive()
    }
}

/// What is done with an [`OwnedEvent`] by its token.
impl<V: Vector> Aggregator<V> {
    fn task(&mut self, task: Task) -> Result<(), AggregatorError> {
        match &self.at_hand {
            Some(AtHand::Task(work)) if work.task == task => Ok(()),
            _ => Err(AggregatorError::NotAtHand { what: task.to_string() }),
        }
    }

    /// Which step a task is a part of.
    ///
    /// ```
    /// use codedgrad::ids::{Job, Step, Task};
    /// use codedgrad::{train::Aggregator, transport::local};
    /// let link = local::connect(1).1.remove(0);
    /// let worker = Aggregator::new(Box::new(link), 12, 8).accumulating(4);
    /// assert_eq!(worker.step_of(Task { job: Job(9), piece: 0, plan: 0 }), Step(2));
    /// ```
    #[must_use]
    pub fn step_of(&self, task: Task) -> Step {
        task.job.step(self.micro_steps)
    }

    /// The next micro-batch of the current task; none when all are done or the run wants the task
    /// no more. Its gradient goes to [`Aggregator::buffer`].
    ///
    /// # Errors
    /// [`AggregatorError::NotAtHand`] when the task is not current.
    pub fn part(&mut self, task: Task) -> Result<Option<Samples>, AggregatorError> {
        self.task(task)?;
        let wanted = !self.is_cancelled();
        Ok(self.work().and_then(|(work, mut desk)| work.part(wanted, &mut desk)))
    }

    /// [`Aggregator::part`] for a trainer that adds a task's gradients up itself, such as where they
    /// are computed, and for all parts of the task. The last part alone has a buffer: for the sum
    /// of all, by the tree of [`Combine`](crate::gpu::Combine) over the numbers of the units.
    ///
    /// # Errors
    /// As [`Aggregator::part`].
    ///
    /// ```
    /// use codedgrad::train::{Coordinator, OwnedEvent};
    /// use std::{thread, time::Duration};
    /// let run = Coordinator::builder("uncoded").workers(1).steps(1).length(1).units(3);
    /// let (coordinator, mut workers) = run.local()?;
    /// let mut worker = workers.remove(0);
    /// let coordinator = thread::spawn(move || coordinator.run(&mut ()));
    /// loop {
    ///     match worker.next_event_within(Duration::MAX)?.ok_or("nothing came")? {
    ///         OwnedEvent::Compute(task) => {
    ///             let mut sum = 0.0;
    ///             while let Some(part) = worker.summed_part(task)? {
    ///                 sum += (part.coefficient * f64::from(part.unit)) as f32;
    ///             }
    ///             worker.buffer(task)?[0] = sum;
    ///             worker.submit(task, vec![])?;
    ///         }
    ///         OwnedEvent::Apply(step) => {
    ///             assert_eq!(worker.gradient(step)?, &[0.0 + 1.0 + 2.0]);
    ///             worker.applied(step, None)?;
    ///         }
    ///         OwnedEvent::Over => break,
    ///         _ => {}
    ///     }
    /// }
    /// # drop(worker);
    /// # coordinator.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn summed_part(&mut self, task: Task) -> Result<Option<Samples>, AggregatorError> {
        self.task(task)?;
        let wanted = !self.is_cancelled();
        Ok(self.work().and_then(|(work, mut desk)| work.summed_part(wanted, &mut desk)))
    }

    /// All micro-batches of the current task in the order in which [`Aggregator::part`] hands them
    /// out, handed out or not: a trainer which hands gradients over from another thread knows by it
    /// what to compute next while those of the part before are still on their way.
    ///
    /// # Errors
    /// [`AggregatorError::NotAtHand`] when the task is not current.
    pub fn parts(&mut self, task: Task) -> Result<Vec<Samples>, AggregatorError> {
        self.task(task)?;
        Ok(self.work().map(|(work, desk)| work.all(&desk)).unwrap_or_default())
    }

    /// All parts of the current task at once, for schemes that mix the data of their parts: there
    /// is one buffer for the whole task.
    ///
    /// # Errors
    /// [`AggregatorError::NotAtHand`] when the task is not current.
    pub fn mixture(&mut self, task: Task) -> Result<Vec<Samples>, AggregatorError> {
        self.task(task)?;
        Ok(self.work().map(|(work, mut desk)| work.mixture(&mut desk)).unwrap_or_default())
    }

    /// Tells whether the result of the current task is still wanted, while it is written.
    #[must_use]
    pub fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Where the gradient of the current part goes, already weighted by its coefficient. Every
    /// element must be overwritten: what is in it before is left over from earlier steps, in debug
    /// builds no number (NaN) in memory of the host.
    ///
    /// # Errors
    /// [`AggregatorError::NotAtHand`] when the task is not current, [`AggregatorError::NoPart`]
    /// when no part of it is.
    pub fn buffer(&mut self, task: Task) -> Result<&mut V, AggregatorError> {
        self.task(task)?;
        let buffer = match &mut self.at_hand {
            Some(AtHand::Task(work)) => Work::buffer(work),
            _ => None,
        };
        buffer.ok_or(AggregatorError::NoPart { task })
    }

    /// Whether it is of any use to say that numbers of the task's last part are
    /// [ready](Aggregator::ready): the run sums while it computes.
    ///
    /// # Errors
    /// [`AggregatorError::NotAtHand`] when the task is not current.
    pub fn in_parts(&mut self, task: Task) -> Result<bool, AggregatorError> {
        self.task(task)?;
        Ok(self.chunk.is_some())
    }

    /// Says that some numbers of the gradient of the current part are final, while the others are
    /// still computed: of a task's last part they can be summed and sent behind the rest of the
    /// backward pass, where the run does that. Of other parts, and where the numbers are not next
    /// to those that were said to be final before, it has no effect.
    ///
    /// # Errors
    /// [`AggregatorError::NotAtHand`] when the task is not current, [`AggregatorError::Beyond`]
    /// when a gradient has no such numbers. That one was changed afterwards is found out when the
    /// task is submitted: [`AggregatorError::Changed`].
    pub fn ready(&mut self, task: Task, numbers: Range<usize>) -> Result<(), AggregatorError> {
        self.task(task)?;
        self.say_ready(numbers)
    }

    pub(super) fn say_ready(&mut self, numbers: Range<usize>) -> Result<(), AggregatorError> {
        match self.work() {
            Some((work, mut desk)) => work.ready(numbers, &mut desk),
            None => Ok(()),
        }
    }

    /// Hands the finished message of the current task in, with scalars that are decoded with the
    /// same weights. A task that the run wants no more is dropped quietly.
    ///
    /// # Errors
    /// [`AggregatorError::NotAtHand`] when the task is not current; [`AggregatorError::Unfinished`]
    /// when parts are left although it is still wanted, [`AggregatorError::Length`] when the buffer
    /// of one was made longer or shorter: it stays current then.
    pub fn submit(&mut self, task: Task, aux: Vec<f64>) -> Result<(), AggregatorError> {
        self.task(task)?;
        self.finish(aux, |_| {})
    }

    /// Says whether all numbers of the current task's result are finite, where the trainer has
    /// found that while it made them: [`Aggregator::submit`] does not search for others then.
    ///
    /// # Errors
    /// As [`Aggregator::part`].
    pub fn looked(&mut self, task: Task, finite: bool) -> Result<(), AggregatorError> {
        self.task(task)?;
        if let Some((work, _)) = self.work() {
            work.looked(finite);
        }
        Ok(())
    }

    /// Gives the memory of the current task up for good, if there is one: a device may write to it
    /// after this worker has left.
    pub fn forget_task(&mut self) {
        if self.work().is_some() {
            std::mem::forget(self.at_hand.take());
        }
    }

    /// Says how long the current task was computed, where the trainer knows that better than the
    /// clock by which it is measured from when the task was taken up: on a device that works on its
    /// own, by the device's.
    ///
    /// # Errors
    /// [`AggregatorError::NotAtHand`] when the task is not current.
    pub fn took(&mut self, task: Task, computed: Duration) -> Result<(), AggregatorError> {
        self.task(task)?;
        if let Some((work, _)) = self.work() {
            work.took(computed);
        }
        Ok(())
    }

    /// Leaves the run: the current task is another worker's, and the coordinator hears that this
    /// one does not come back. A task that the run wants no more is dropped quietly, and the worker
    /// stays.
    ///
    /// # Errors
    /// [`AggregatorError::NotAtHand`] when the task is not current.
    pub fn abandon(&mut self, task: Task) -> Result<(), AggregatorError> {
        self.task(task)?;
        self.give_up(|_| ExitReason::for_good(ABANDONED));
        Ok(())
    }

    fn decided(&self, step: Step) -> Result<(&Arc<V>, &[f64]), AggregatorError> {
        match &self.at_hand {
            Some(AtHand::Step { step: at, decoded, gradient }) if *at == step => {
                Ok((gradient, &decoded.aux))
            }
            _ => Err(AggregatorError::NotAtHand { what: step.to_string() }),
        }
    }

    /// [`Aggregator::gradient`] for readers that may take longer than the step is current.
    ///
    /// # Errors
    /// As [`Aggregator::gradient`].
    pub fn shared_gradient(&self, step: Step) -> Result<Arc<V>, AggregatorError> {
        self.decided(step).map(|(gradient, _)| Arc::clone(gradient))
    }

    /// The decoded gradient of the current step, the same bytes for every worker.
    ///
    /// # Errors
    /// [`AggregatorError::NotAtHand`] when the step is not current, or has none.
    pub fn gradient(&self, step: Step) -> Result<&V, AggregatorError> {
        self.decided(step).map(|(gradient, _)| &**gradient)
    }

    /// The decoded auxiliary scalars of the current step: what workers submitted beside their
    /// messages.
    ///
    /// # Errors
    /// [`AggregatorError::NotAtHand`] when the step is not current, or has none.
    pub fn aux(&self, step: Step) -> Result<&[f64], AggregatorError> {
        self.decided(step).map(|(_, aux)| aux)
    }

    /// Reports the current step as applied, or as counted if no worker may apply it, with a digest
    /// of the parameters after it if one was taken: replicas whose digest differs from the others'
    /// are named and resynchronised.
    ///
    /// # Errors
    /// [`AggregatorError::NotAtHand`] when the step is not current.
    pub fn applied(&mut self, step: Step, digest: Option<u64>) -> Result<(), AggregatorError> {
        match self.report(step, digest) {
            true => Ok(()),
            false => Err(AggregatorError::NotAtHand { what: step.to_string() }),
        }
    }

    /// Ends the run for all workers: after the current step, or the one that is under way. The
    /// trainer has had enough, or no more data. The worker goes on until it is told that the run is
    /// over.
    pub fn end_run(&mut self) {
        let after = match &self.at_hand {
            Some(AtHand::Step { step, .. } | AtHand::Skipped(step)) => *step,
            _ => Step(self.next.0.saturating_sub(1)),
        };
        self.link.send(Notice::Finish { after });
    }

    /// Says that the current state was taken over, with the digests that the trainer would have
    /// reported after the last steps before [`State::next`], one per model and the last step's
    /// last; none where none are taken.
    ///
    /// # Errors
    /// [`AggregatorError::NotAtHand`] when no state is current.
    pub fn taken(&mut self, digests: Vec<u64>) -> Result<(), AggregatorError> {
        self.answered(digests, None)
    }

    /// Says that the trainer cannot go on from the current state, since it does not fit its model:
    /// another worker's is fetched.
    ///
    /// # Errors
    /// [`AggregatorError::NotAtHand`] when no state is current.
    pub fn refuse(&mut self, reason: impl Into<String>) -> Result<(), AggregatorError> {
        self.answered(Vec::new(), Some(reason.into()))
    }

    fn answered(
        &mut self,
        digests: Vec<u64>,
        unfit: Option<String>,
    ) -> Result<(), AggregatorError> {
        match self.answer(digests, unfit) {
            true => Ok(()),
            false => Err(AggregatorError::NotAtHand { what: "a state".into() }),
        }
    }
}
