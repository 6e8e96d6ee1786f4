//! What a data-parallel trainer calls instead of all-reduce.
//!
//! [`Aggregator::next_event`] gives events that borrow the aggregator and settle themselves when
//! they are dropped; [`Aggregator::next_event_within`] gives values of their own, for those who
//! cannot borrow: bindings to other languages. Both are one and the same underneath.

mod borrowed;
mod error;
#[cfg(feature = "tcp")]
mod joining;
mod owned;
mod work;

pub use borrowed::{CommittedStep, ComputeTask, Event, Resync, SkippedStep};
pub use error::AggregatorError;
#[cfg(feature = "tcp")]
pub use joining::{JoinBuilder, JoinError};
pub use owned::{OwnedEvent, ProvideRequest};

use crate::gpu::Vector;
use crate::ids::{OrderId, Part, Step, Task, Worker};
use crate::sums::{DecodedSum, SumNotice, TaskSpent};
use crate::transport::{
    Cancel, Closer, Dismissal, ExitReason, FailedUnit, LET_GO, Link, Notice, Order, ReceiveOutcome,
    RunFacts, StepNews,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use work::{Desk, Work};

/// A worker's handle to a run, for gradients in one kind of memory: the host's, or that of a
/// [`Vector`] of any kind.
///
/// ```
/// # use codedgrad::train::{Aggregator, Event};
/// # use codedgrad::sums::SumId;
/// # use codedgrad::transport::{Notice, Order, Stage, SumRequest, Transport, local};
/// # use codedgrad::ids::{Job, OrderId, Part, Piece, Step, Summand, Task};
/// # use codedgrad::ids::{Units, Worker, WorkerSet};
/// # let (mut coordinator, mut links) = local::connect(1);
/// # let parts = vec![Part { units: Units { start: 2, end: 4 }, coefficient: 1.0 }];
/// # let task = Task { job: Job(0), piece: 0, plan: 0 };
/// # let (tasks, cancel) = (vec![(task, parts)], Default::default());
/// # let (order, after) = (OrderId(1), vec![]);
/// # coordinator.send(Worker(0), Order::Compute { order, after, tasks, cancel, in_parts: false });
/// # let coordinator = std::thread::spawn(move || {
/// #     let Some((worker, Notice::Done { task, .. })) = coordinator.receive(None) else { panic!() };
/// #     coordinator.send(worker, Order::Stop { why: "all is done".into() });
/// #     let piece = Piece { worker, task };
/// #     let summand = Summand { weight: 1.0, holders: vec![piece] };
/// #     let (sum, terms, length) = (SumId::first(Step(0)), &[summand], 1);
/// #     let (counted, stage) = (&WorkerSet::full(1), Stage::Decided);
/// #     let spares_one = false;
/// #     let request = SumRequest { sum, terms, length, spares_one, counted, stage };
/// #     coordinator.make_sum(request).unwrap().unwrap().gradient
/// # });
/// // the loop of a trainer whose "gradient" is the sum of its samples' numbers
/// let mut total = 0.0;
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
///         Event::Apply(step) => total += step.gradient()[0],
///         Event::Skip(_) => {}
///         Event::Provide(request) => request.reply(vec![vec![total]]),
///         Event::Resync(state) => total = state.vectors[0][0],
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
    tasks: VecDeque<(OrderId, Task, Vec<Part>)>,
    cancel: Cancel,
    /// Numbers in a chunk, if parts of their results are of use before the whole is.
    chunk: Option<usize>,
    closer: Closer,
    at_hand: Option<AtHand<V>>,
    /// What is written while no part of a task is current.
    astray: Option<V>,
    /// Why the run is over, once it is.
    over: Option<Arc<str>>,
    membership: Option<Membership>,
    news: Option<StepNews>,
    traffic: Option<Traffic>,
}

/// What a worker says of itself that gives up what is wanted.
const ABANDONED: &str = "it has abandoned its task";

/// Counts the bytes that a worker has sent and received.
type Traffic = Box<dyn Fn() -> (u64, u64) + Send>;

/// Who a worker is in its run.
#[derive(Clone, Debug)]
pub(super) struct Membership {
    pub(super) worker: Worker,
    pub(super) workers: usize,
    pub(super) job: String,
}

/// The event that was given last, until it is settled.
enum AtHand<V> {
    Task(Box<Work<V>>),
    Step { step: Step, decoded: Arc<DecodedSum>, gradient: Arc<V> },
    Skipped(Step),
    State,
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

impl<V: Vector> Aggregator<V> {
    /// A handle over `link` for gradients of `length` numbers, where each unit of a batch is
    /// `unit_samples` consecutive samples (the micro-batch, the same under every scheme).
    #[must_use]
    pub fn new(mut link: Box<dyn Link<V>>, length: usize, unit_samples: usize) -> Self {
        let facts = RunFacts { unit_samples: Some(unit_samples), ..RunFacts::default() };
        link.send(Notice::Facts(facts));
        let (next, closer) = (link.place().first.unwrap_or(Step(0)), link.closer());
        Self {
            link,
            length,
            unit_samples,
            micro_steps: 1,
            next,
            tasks: VecDeque::new(),
            cancel: Cancel::default(),
            chunk: None,
            closer,
            at_hand: None,
            astray: None,
            over: None,
            membership: None,
            news: None,
            traffic: None,
        }
    }

    /// The same handle for a run whose steps are sums of so many jobs; of 0 it is as of 1.
    #[must_use]
    pub fn accumulating(mut self, micro_steps: u64) -> Self {
        self.micro_steps = micro_steps.max(1);
        self
    }

    /// The same handle for a replica in which all steps below `step` are already applied.
    #[must_use]
    pub fn resumed_at(mut self, step: u64) -> Self {
        self.next = Step(step);
        self
    }

    #[cfg(feature = "tcp")]
    fn counting(mut self, traffic: Traffic) -> Self {
        self.traffic = Some(traffic);
        self
    }

    pub(super) fn with_membership(mut self, membership: Membership) -> Self {
        self.membership = Some(membership);
        self
    }

    /// Numbers of a gradient.
    ///
    /// ```
    /// # use codedgrad::{train::Aggregator, transport::local};
    /// let link = local::connect(1).1.remove(0);
    /// assert_eq!(Aggregator::new(Box::new(link), 12, 8).length(), 12);
    /// ```
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Samples of each unit of a batch.
    ///
    /// ```
    /// # use codedgrad::{train::Aggregator, transport::local};
    /// let link = local::connect(1).1.remove(0);
    /// assert_eq!(Aggregator::new(Box::new(link), 12, 8).unit_samples(), 8);
    /// ```
    #[must_use]
    pub fn unit_samples(&self) -> usize {
        self.unit_samples
    }

    /// The first step that is not applied: with which the worker begins, or goes on.
    ///
    /// ```
    /// # use codedgrad::{ids::Step, train::Aggregator, transport::local};
    /// let link = local::connect(1).1.remove(0);
    /// assert_eq!(Aggregator::new(Box::new(link), 12, 8).resumed_at(5).next_step(), Step(5));
    /// ```
    #[must_use]
    pub fn next_step(&self) -> Step {
        self.next
    }

    /// The worker's number, if it is known here: by `Aggregator::join` or a
    /// [`Builder`](super::Builder).
    ///
    /// ```
    /// # use codedgrad::{ids::Worker, train::Coordinator};
    /// let (_, workers) = Coordinator::builder("uncoded").workers(3).steps(1).length(1).local()?;
    /// assert_eq!(workers[1].worker(), Some(Worker(1)));
    /// # Ok::<(), codedgrad::train::BuildError>(())
    /// ```
    #[must_use]
    pub fn worker(&self) -> Option<Worker> {
        self.membership.as_ref().map(|membership| membership.worker)
    }

    /// How many workers the run has, if that is known here.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let (_, workers) = Coordinator::builder("uncoded").workers(3).steps(1).length(1).local()?;
    /// assert_eq!(workers[1].workers(), Some(3));
    /// # Ok::<(), codedgrad::train::BuildError>(())
    /// ```
    #[must_use]
    pub fn workers(&self) -> Option<usize> {
        self.membership.as_ref().map(|membership| membership.workers)
    }

    /// What is trained, in the words of who began the run; empty if it said nothing.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let (_, workers) = Coordinator::builder("uncoded").workers(3).steps(1).length(1).local()?;
    /// assert_eq!(workers[1].job(), "");
    /// # Ok::<(), codedgrad::train::BuildError>(())
    /// ```
    #[must_use]
    pub fn job(&self) -> &str {
        self.membership.as_ref().map_or("", |membership| &membership.job)
    }

    /// Who of the workers saves what is trained, as of the last step that was decided: the one of
    /// those alive that has the lowest number. None before this worker has heard of any step.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let (_, workers) = Coordinator::builder("uncoded").workers(3).steps(1).length(1).local()?;
    /// assert_eq!(workers[1].saver(), None);
    /// # Ok::<(), codedgrad::train::BuildError>(())
    /// ```
    #[must_use]
    pub fn saver(&self) -> Option<Worker> {
        self.news.map(|news| news.saver)
    }

    /// How many workers were late at the last step that this worker has heard of:
    /// [`StepNews::late`]. None before.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let (_, workers) = Coordinator::builder("uncoded").workers(3).steps(1).length(1).local()?;
    /// assert_eq!(workers[1].late_workers(), None);
    /// # Ok::<(), codedgrad::train::BuildError>(())
    /// ```
    #[must_use]
    pub fn late_workers(&self) -> Option<u32> {
        self.news.map(|news| news.late)
    }

    /// Why the run is over, in the coordinator's words, once [`Aggregator::next_event`] has said
    /// that it is.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let (coordinator, mut workers) =
    ///     Coordinator::builder("uncoded").workers(1).steps(9).length(1).local()?;
    /// coordinator.stopper().stop();
    /// coordinator.run(&mut ())?;
    /// assert_eq!(workers[0].why_over(), None);
    /// assert!(workers[0].next_event()?.is_none());
    /// assert_eq!(workers[0].why_over(), Some("it was told to stop"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn why_over(&self) -> Option<&str> {
        self.over.as_deref()
    }

    /// Whether the run, which goes on, has let this worker go: it had said that it leaves
    /// ([`Closer::leave`]).
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// use std::time::Duration;
    /// let (coordinator, mut workers) =
    ///     Coordinator::builder("groups:s=1").workers(2).steps(9).length(1).local()?;
    /// workers[0].closer().leave(Duration::from_secs(20));
    /// let coordinator = std::thread::spawn(move || coordinator.run(&mut ()));
    /// while let Some(event) = workers[0].next_event()? {
    ///     drop(event);
    /// }
    /// assert!(workers[0].was_let_go());
    /// # drop(workers);
    /// # assert!(coordinator.join().unwrap().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn was_let_go(&self) -> bool {
        self.why_over() == Some(LET_GO)
    }

    /// Bytes that this worker has sent and received so far, where its link crosses a network.
    ///
    /// ```
    /// # use codedgrad::train::Coordinator;
    /// let (_, workers) = Coordinator::builder("uncoded").workers(3).steps(1).length(1).local()?;
    /// assert_eq!(workers[1].traffic(), (0, 0), "threads share their memory");
    /// # Ok::<(), codedgrad::train::BuildError>(())
    /// ```
    #[must_use]
    pub fn traffic(&self) -> (u64, u64) {
        self.traffic.as_ref().map_or((0, 0), |counted| counted())
    }

    /// Ends this worker's part in the run from any thread, also while it waits or computes: the
    /// next wait for an event is [`AggregatorError::Closed`] at once, and the coordinator takes the
    /// worker for lost, or learns by [`Closer::part`] that it does not come back.
    ///
    /// ```
    /// use codedgrad::train::{AggregatorError, Coordinator};
    /// use std::thread;
    /// let run = Coordinator::builder("uncoded").workers(1).steps(1).length(1);
    /// let (_coordinator, mut workers) = run.local()?;
    /// let closer = workers[0].closer();
    /// // The coordinator does not run: it would wait for ever.
    /// let waiting = thread::spawn(move || workers[0].next_event().map(|_| ()).unwrap_err());
    /// closer.close();
    /// assert_eq!(waiting.join().unwrap(), AggregatorError::Closed);
    /// # Ok::<(), codedgrad::train::BuildError>(())
    /// ```
    #[must_use]
    pub fn closer(&self) -> Closer {
        self.closer.clone()
    }

    /// The next event, none when the run is over. The event must be dropped before the next call.
    ///
    /// # Errors
    /// [`AggregatorError::Disconnected`] when the coordinator is lost, and what else ends a
    /// worker's part in a run.
    pub fn next_event(&mut self) -> Result<Option<Event<'_, V>>, AggregatorError> {
        // Where a link never waits, there is none yet.
        let event = self.advance(None)?.ok_or(AggregatorError::Disconnected)?;
        Ok(Event::of(event, self))
    }

    /// The next event as a value of its own, and what to do with it by its token (a [`Task`] or a
    /// [`Step`]): [`Aggregator::part`], [`Aggregator::buffer`] and [`Aggregator::submit`];
    /// [`Aggregator::gradient`] and [`Aggregator::applied`]; [`Aggregator::taken`]. None if nothing
    /// comes within `patience`.
    ///
    /// One event is current at a time. A task that is still wanted and not submitted is
    /// [abandoned](Aggregator::abandon) when the next event is asked for; of a step and a state it
    /// must be said first what became of them.
    ///
    /// # Errors
    /// [`AggregatorError::Disconnected`] when the coordinator is lost, [`AggregatorError::Closed`]
    /// when this side has left, [`AggregatorError::Unsettled`] when a step or a state is current,
    /// and what else ends a worker's part in a run.
    ///
    /// ```
    /// use codedgrad::train::{Coordinator, OwnedEvent};
    /// use std::{thread, time::Duration};
    /// let run = Coordinator::builder("uncoded").workers(1).steps(3).length(2);
    /// let (coordinator, mut workers) = run.local()?;
    /// let mut worker = workers.remove(0);
    /// assert!(worker.next_event_within(Duration::ZERO)?.is_none(), "nothing has begun");
    /// let coordinator = thread::spawn(move || coordinator.run(&mut ()));
    /// let mut sum = 0.0;
    /// loop {
    ///     match worker.next_event_within(Duration::from_secs(60))?.ok_or("too slow")? {
    ///         OwnedEvent::Compute(task) => {
    ///             while let Some(part) = worker.part(task)? {
    ///                 worker.buffer(task)?.fill(part.coefficient as f32);
    ///             }
    ///             worker.submit(task, vec![])?;
    ///         }
    ///         OwnedEvent::Apply(step) => {
    ///             sum += worker.gradient(step)?[1];
    ///             worker.applied(step, None)?;
    ///         }
    ///         OwnedEvent::Skip { step, .. } => worker.applied(step, None)?,
    ///         OwnedEvent::Provide(request) => request.reply(vec![vec![sum]]),
    ///         OwnedEvent::Resync(_) => worker.taken(vec![])?,
    ///         OwnedEvent::Over => break,
    ///     }
    /// }
    /// assert_eq!(sum, 3.0);
    /// coordinator.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn next_event_within(
        &mut self,
        patience: Duration,
    ) -> Result<Option<OwnedEvent>, AggregatorError> {
        self.advance(Some(patience))
    }

    /// The next event, for which it is waited at most so long.
    fn advance(
        &mut self,
        patience: Option<Duration>,
    ) -> Result<Option<OwnedEvent>, AggregatorError> {
        if let Some(task) = self.once_more() {
            return Ok(Some(OwnedEvent::Compute(task)));
        }
        self.end_event()?;
        self.astray = None;
        // Beyond what a clock can say, it is for ever.
        let deadline = patience.and_then(|patience| now().checked_add(patience));
        loop {
            if self.over.is_some() {
                return Ok(Some(OwnedEvent::Over));
            }
            if self.closer.is_closed() {
                return Err(AggregatorError::Closed);
            }
            if let Some((order, ..)) = self.tasks.front().filter(|_| self.cancel.is_cancelled()) {
                self.drop_tasks(*order, None);
            }
            if let Some((order, task, parts)) = self.tasks.pop_front() {
                self.at_hand = Some(AtHand::Task(Box::new(Work::new(order, task, &parts, now()))));
                return Ok(Some(OwnedEvent::Compute(task)));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now()));
            match self.link.receive(left) {
                ReceiveOutcome::Nothing => return Ok(None),
                ReceiveOutcome::Gone if self.closer.is_closed() => {
                    return Err(AggregatorError::Closed);
                }
                ReceiveOutcome::Gone => return Err(AggregatorError::Disconnected),
                ReceiveOutcome::Order(order) => {
                    if let Some(event) = self.take(order)? {
                        return Ok(Some(event));
                    }
                }
            }
        }
    }

    /// The event that an order is, unless the trainer need not know of it.
    fn take(&mut self, order: Order) -> Result<Option<OwnedEvent>, AggregatorError> {
        Ok(match order {
            Order::Stop { why } => {
                self.over = Some(why);
                Some(OwnedEvent::Over)
            }
            Order::Compute { order, tasks, cancel, in_parts, .. } => {
                self.tasks = tasks.into_iter().map(|(task, parts)| (order, task, parts)).collect();
                self.cancel = cancel;
                self.chunk = self.link.place().chunk.filter(|_| in_parts);
                None
            }
            Order::Store { sum, decoded } => {
                self.link.send(Notice::Sum(SumNotice::Held { sum, digest: decoded.digest }));
                None
            }
            Order::Apply { sum, .. } if sum.step < self.next => None,
            Order::Apply { sum, decoded, news } => {
                self.news = Some(news);
                let host = V::of_host(Arc::clone(&decoded.gradient));
                let Some(gradient) = host.or_else(|| self.link.decoded(sum)) else {
                    self.link.send(Notice::StepUnavailable);
                    return Ok(None);
                };
                self.at_hand = Some(AtHand::Step { step: sum.step, decoded, gradient });
                Some(OwnedEvent::Apply(sum.step))
            }
            Order::Skip { step, news, units } => {
                self.news = Some(news);
                self.at_hand = Some(AtHand::Skipped(step));
                Some(OwnedEvent::Skip { step, units })
            }
            Order::SendState { needy } => {
                let (next, say) = (self.next, self.link.later());
                Some(OwnedEvent::Provide(ProvideRequest::new(needy, next, say)))
            }
            Order::LoadState { state } => {
                self.next = state.next;
                self.at_hand = Some(AtHand::State);
                Some(OwnedEvent::Resync(state))
            }
            Order::Dismiss(Dismissal::LetGo) => {
                self.over = Some(LET_GO.into());
                Some(OwnedEvent::Over)
            }
            Order::Dismiss(Dismissal::Drained) | Order::LetIn | Order::Abandon { .. } => None,
            Order::Dismiss(Dismissal::Replaced) => return Err(AggregatorError::Replaced),
            Order::Dismiss(Dismissal::Refused { reason } | Dismissal::GivenUp { reason }) => {
                return Err(AggregatorError::Refused { reason });
            }
        })
    }

    /// The current task, if it begins again and is still wanted.
    fn once_more(&mut self) -> Option<Task> {
        let cancelled = self.is_cancelled();
        let (work, _) = self.work()?;
        work.comes_again().then_some(work.task).filter(|_| !cancelled)
    }

    /// Has a task that was submitted too early begin again, unless it has before.
    fn begin_again(&mut self) -> bool {
        self.work().is_some_and(|(work, desk)| work.begin_again(now(), desk.link))
    }

    /// Ends the current event, where that needs no word of the trainer's.
    fn end_event(&mut self) -> Result<(), AggregatorError> {
        let (what, due) = match &self.at_hand {
            None => return Ok(()),
            Some(AtHand::Task(_)) => {
                self.give_up(|_| ExitReason::for_good(ABANDONED));
                return Ok(());
            }
            Some(AtHand::Step { step, .. } | AtHand::Skipped(step)) => {
                (step.to_string(), "applied")
            }
            Some(AtHand::State) => ("a state".to_owned(), "taken"),
        };
        Err(AggregatorError::Unsettled { what, due })
    }

    /// Drops the current task, and those that were ordered with it. A worker that drops a wanted
    /// one ends its part in the run: another has to compute it.
    fn give_up(&mut self, word: impl FnOnce(Option<FailedUnit>) -> ExitReason) {
        let cancelled = self.is_cancelled();
        let is_task = |at_hand: &mut AtHand<V>| matches!(at_hand, AtHand::Task(_));
        let Some(AtHand::Task(work)) = self.at_hand.take_if(is_task) else { return };
        let (spent, unit) = (work.spent(now()), work.unit(self.unit_samples));
        let order = work.order;
        work.discard(&mut *self.link);
        // A thread that panics says nothing of what it would do next.
        if cancelled && !std::thread::panicking() {
            return self.drop_tasks(order, Some(spent));
        }
        self.tasks.clear();
        self.closer.part(word(unit));
    }

    /// Ends this worker's part in the run because something went wrong: the coordinator is told the
    /// reason, and the unit that is being computed if one is. It counts as lost: what it had is
    /// computed by others, or waits for its return. An error that is passed on out of the loop does
    /// the same, without the reason.
    ///
    /// ```
    /// use codedgrad::train::{AggregatorError, Coordinator, Event};
    /// let (coordinator, mut workers) =
    ///     Coordinator::builder("uncoded").workers(1).steps(1).length(1).local()?;
    /// let coordinator = std::thread::spawn(move || coordinator.run(&mut ()));
    /// let Some(Event::Compute(mut task)) = workers[0].next_event()? else { panic!() };
    /// let part = task.next_part().ok_or("no part")?;
    /// task.fail(format!("sample {} is damaged", part.samples.start));
    /// assert!(matches!(workers[0].next_event(), Err(AggregatorError::Closed)));
    /// assert!(coordinator.join().unwrap().is_err(), "nobody else is there");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fail(&mut self, reason: impl AsRef<str>) {
        self.give_up(|unit| ExitReason::failed(unit, &reason));
        // Where no task is current, or it is unwanted.
        self.closer.part(ExitReason::failed(None, reason));
    }

    /// Whether the run wants the current tasks no more.
    fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled() || self.closer.is_closed()
    }

    /// Drops what is left of an order and says so, and what was spent on the task that was begun.
    fn drop_tasks(&mut self, order: OrderId, spent: Option<TaskSpent>) {
        self.tasks.clear();
        self.link.send(Notice::Idle { order, spent });
    }

    /// Reports the current step as applied or counted, if it is the one meant.
    fn report(&mut self, step: Step, digest: Option<u64>) -> bool {
        let meant = |at_hand: &mut AtHand<V>| match at_hand {
            AtHand::Step { step: at, .. } | AtHand::Skipped(at) => *at == step,
            AtHand::Task(_) | AtHand::State => false,
        };
        let there = self.at_hand.take_if(meant).is_some();
        if there {
            self.next = step.next();
            self.link.send(Notice::Applied { step, digest });
        }
        there
    }

    /// Reports what became of the current state, if there is one.
    fn answer(&mut self, digests: Vec<u64>, unfit: Option<String>) -> bool {
        let there = self.at_hand.take_if(|at_hand| matches!(at_hand, AtHand::State)).is_some();
        if there {
            self.link.send(Notice::StateLoaded { next: self.next, digests, unfit });
        }
        there
    }

    /// The current task, and where it gets its buffers.
    fn work(&mut self) -> Option<(&mut Work<V>, Desk<'_, V>)> {
        let Some(AtHand::Task(work)) = &mut self.at_hand else { return None };
        let desk = Desk {
            link: &mut *self.link,
            length: self.length,
            unit_samples: self.unit_samples,
            chunk: self.chunk,
        };
        Some((work, desk))
    }

    /// Zeros the buffer of the current part, if the trainer has not seen it yet.
    fn clear_unseen(&mut self) {
        if let Some(AtHand::Task(work)) = &mut self.at_hand {
            work.clear_unseen();
        }
    }

    /// The buffer of the current part, or one that is of no part if none is.
    fn any_buffer(&mut self) -> &mut V {
        if let Some(AtHand::Task(work)) = &mut self.at_hand
            && let Some(buffer) = work.buffer()
        {
            return buffer;
        }
        let mut desk = Desk {
            link: &mut *self.link,
            length: self.length,
            unit_samples: self.unit_samples,
            chunk: None,
        };
        self.astray.get_or_insert_with(|| desk.buffer())
    }

    /// Hands the current task in; one that the run wants no more is dropped quietly, one that
    /// cannot be handed in stays open.
    fn finish(&mut self, aux: Vec<f64>, alter: impl FnOnce(&mut V)) -> Result<(), AggregatorError> {
        let cancelled = self.is_cancelled();
        let astray = self.astray.is_some();
        let now = now();
        let Some((work, mut desk)) = self.work() else { return Ok(()) };
        if cancelled && work.left() > 0 {
            self.give_up(|_| ExitReason::for_good(ABANDONED));
            return Ok(());
        }
        if astray {
            return Err(AggregatorError::NoPart { task: work.task });
        }
        work.check(&mut desk)?;
        if let Some(AtHand::Task(work)) = self.at_hand.take() {
            let mut desk = Desk {
                link: &mut *self.link,
                length: self.length,
                unit_samples: self.unit_samples,
                chunk: None,
            };
            let spent = work.spent(now);
            work.submit(aux, alter, spent, &mut desk);
        }
        Ok(())
    }
}

/// The time, by which it is told how long an event was waited for.
#[expect(clippy::disallowed_methods, reason = "a trainer waits by the wall's clock")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests;
