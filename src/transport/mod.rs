//! How a coordinator and its workers talk: orders down, notices up. No code, no schedule, no clock.

mod closer;
mod differences;
mod facts;
pub mod local;
#[cfg(feature = "nccl")]
pub mod nccl;
mod parting;
mod staged;
mod state;
#[cfg(feature = "tcp")]
pub mod tcp;
#[cfg(feature = "tcp")]
pub mod wire;

pub use closer::Closer;
pub use differences::Differences;
pub use facts::{Disagreement, RunFacts, Start};
pub use parting::{ExitReason, FailedUnit, both_ends};
pub use staged::StagedLink;
pub use state::{ByteVector, NotBytes, State};

use crate::gpu::{CombineError, SumCheck, Vector};
use crate::ids::{Job, OrderId, Part, Piece, Step, Summand, Task, Units, Worker, WorkerSet};
use crate::sums::{DecodedSum, SumId, SumNotice, TaskSpent};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Whether the run still wants a task; set once, seen by the worker between parts.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Tells the worker to drop the task.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the task should be dropped.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What a worker is told beside a decided step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepNews {
    /// Who saves what is trained, now that this step is decided.
    #[serde(default = "first")]
    pub saver: Worker,
    /// Workers that were there and had not finished their tasks, or had none, when the last round
    /// closed of the step that the run has committed last: not of an older step that is sent again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub late: u32,
}

fn first() -> Worker {
    Worker(0)
}

/// Whether a field need not be written.
fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

/// What a coordinator tells a worker. Orders to one worker arrive in order, except that
/// [`Order::Abandon`] takes effect at once.
#[derive(Clone, Debug)]
pub enum Order {
    /// Compute tasks, one after the other.
    Compute {
        /// Which order: what is said of its tasks names it.
        order: OrderId,
        /// The last step of each model that is trained, which must be applied before; none of one
        /// that has none yet.
        after: Vec<Step>,
        /// Which, and what each consists of.
        tasks: Vec<(Task, Vec<Part>)>,
        /// Tells when the run wants them no more.
        cancel: Cancel,
        /// Whether parts of the results are of use before the whole is: [`Notice::Announced`].
        in_parts: bool,
    },
    /// Drop what is left of the tasks of an order.
    Abandon {
        /// Of which order.
        order: OrderId,
    },
    /// Keep a decoded vector and say so.
    Store {
        /// Which sum.
        sum: SumId,
        /// The vector.
        decoded: Arc<DecodedSum>,
    },
    /// Apply a committed step.
    Apply {
        /// By which sum.
        sum: SumId,
        /// The vector.
        decoded: Arc<DecodedSum>,
        /// What else is known now.
        news: StepNews,
    },
    /// A step that is refused everywhere: count it, apply nothing.
    Skip {
        /// Which.
        step: Step,
        /// What else is known now.
        news: StepNews,
        /// Units no worker had a finite gradient for.
        units: Arc<[Units]>,
    },
    /// Hand over the state for another worker.
    SendState {
        /// Who needs it.
        needy: Worker,
    },
    /// Take over a state, and say [`Notice::StateLoaded`].
    LoadState {
        /// The state.
        state: Arc<State>,
    },
    /// The run is over.
    Stop {
        /// Why, in words.
        why: Arc<str>,
    },
    /// The worker is no member of the run any more.
    Dismiss(Dismissal),
    /// The worker is not [done without](Dismissal::Drained) any more: [`Notice::Joined`] follows
    /// when it is there.
    LetIn,
}

/// Why a worker must leave a run that goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dismissal {
    /// Another process has its number now.
    Replaced,
    /// The coordinator does not want it.
    Refused {
        /// Why.
        reason: String,
    },
    /// It counts as lost. Over a network it may call again; a thread cannot.
    GivenUp {
        /// Why.
        reason: String,
    },
    /// It has said that it leaves, and is not needed any more: once it has done its orders it may
    /// end.
    LetGo,
    /// It is done without until [`Order::LetIn`], whether it is there or not. Over a network it is
    /// told to call later; a thread waits.
    Drained,
}

/// Why a run is over for a worker that was [let go](Dismissal::LetGo).
pub(crate) const LET_GO: &str = "this worker left the run after giving notice";

/// What a worker tells its coordinator.
#[derive(Debug)]
pub enum Notice {
    /// What the trainer says of itself, to be compared with the run; a difference ends the link
    /// with [`Order::Dismiss`]. Nothing to compare where both ends are of one program.
    Facts(RunFacts),
    /// Some chunks of the result of a task are final and finite while the rest is computed. All
    /// that is announced of a task is one range. Of use where the link's [place](Link::place) has
    /// chunks.
    Announced {
        /// Which task.
        task: Task,
        /// The first of these numbers within the result; a chunk begins there.
        start: usize,
        /// All numbers of these chunks.
        numbers: Vec<f32>,
    },
    /// A task is done; its result, the coefficient-weighted sum of its parts' gradients, was kept
    /// before if it is finite.
    Done {
        /// Of which order.
        order: OrderId,
        /// Which.
        task: Task,
        /// Scalars to decode with the same weights; NaN for one that is not finite.
        aux: Vec<f64>,
        /// Whether all entries of the result are finite.
        finite: bool,
        /// What it took, if the worker says so.
        spent: Option<TaskSpent>,
    },
    /// The worker dropped the rest of an order: the run wants it no more. A worker that drops one
    /// unasked is given up.
    Idle {
        /// Of which order.
        order: OrderId,
        /// What the one took that was begun, if the worker says so.
        spent: Option<TaskSpent>,
    },
    /// Something was found out about the sum of a step.
    Sum(SumNotice),
    /// A step is applied (or, if it was refused, skipped).
    Applied {
        /// Which.
        step: Step,
        /// Digest of the parameters afterwards, if one was taken.
        digest: Option<u64>,
    },
    /// What a worker that is there again says of a step that it had applied before.
    AppliedBefore {
        /// Which.
        step: Step,
        /// Digest of the parameters afterwards, if one was taken.
        digest: Option<u64>,
    },
    /// The state another worker needs.
    State {
        /// Who needs it.
        needy: Worker,
        /// The state.
        state: State,
    },
    /// A state that was handed over is loaded, or does not fit.
    StateLoaded {
        /// First step that is not applied in it. Another may have been sent meanwhile.
        next: Step,
        /// Digests of the parameters after the last steps before the state's `next`, one per model,
        /// the last one's last; none if none are taken.
        digests: Vec<u64>,
        /// Why the worker cannot go on from that state; none if it does.
        unfit: Option<String>,
    },
    /// A worker wants the run to end, for all workers, after a step.
    Finish {
        /// Which; the next that is decided, if that is later.
        after: Step,
    },
    /// A worker that was lost is there again, or one that had not come.
    Joined {
        /// First step that is not applied in the state it has; none if it has none.
        next: Option<Step>,
    },
    /// A step that the worker was sent cannot be had any more.
    StepUnavailable,
    /// A worker leaves as soon as it is not needed any more ([`Dismissal::LetGo`]).
    Leaving {
        /// After so many seconds it ends in any case.
        seconds: f64,
    },
    /// Why a worker ends its part in the run: that it is lost follows.
    Parting(ExitReason),
    /// The worker is lost.
    Lost {
        /// Why, as far as is known.
        reason: String,
    },
}

/// A sum that was made at once, and what is known of it.
#[derive(Debug)]
pub struct CheckedSum {
    /// The sum.
    pub gradient: Vec<f32>,
    /// Its digest, and whether it is finite.
    pub folded: SumCheck,
}

/// What is known of a sum when it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its step is computed from now on, and will be made of these terms, each of any of its
    /// holders with weight 1: nodes that can sum results while they are computed begin. Nothing is
    /// reported before the sum is asked for as it is decided.
    Expected,
    /// Its terms are there.
    Decided,
}

/// A sum that is to be made.
#[derive(Clone, Copy, Debug)]
pub struct SumRequest<'a> {
    /// Which sum.
    pub sum: SumId,
    /// What is summed, in this order.
    pub terms: &'a [Summand],
    /// Numbers in the sum.
    pub length: usize,
    /// Whether any one worker may be lost from now on: then a worker that holds up a sum is given
    /// up sooner.
    pub spares_one: bool,
    /// Of these two must come to hold it, or the one that there is.
    pub counted: &'a WorkerSet,
    /// What is known of it.
    pub stage: Stage,
}

/// What the run needs no more.
#[derive(Debug)]
pub enum UnneededItem {
    /// A worker's result of a task.
    Result {
        /// Whose.
        worker: Worker,
        /// Of which task.
        task: Task,
    },
    /// What workers hold of the jobs below `end`, and of the sums of a step.
    Step {
        /// Which step.
        step: Step,
        /// The first job that is still needed.
        end: Job,
    },
    /// What a worker held that is lost.
    Worker(Worker),
    /// A vector, whose memory may be used again.
    Vector(Vec<f32>),
}

/// The coordinator's side. Results stay with their workers until they are folded.
pub trait Transport {
    /// Where sums lie that are here.
    type Vector: Vector;
    /// Sends an order, at the latest with the next [`Transport::flush`]; to a worker that is lost,
    /// it is dropped.
    fn send(&mut self, worker: Worker, order: Order);
    /// Sends what was to be sent and waits for more of its kind.
    fn flush(&mut self) {}
    /// The next notice, or none when `patience` is over first (none = wait for ever). Flushes
    /// before it waits.
    fn receive(&mut self, patience: Option<Duration>) -> Option<(Worker, Notice)>;
    /// A result as it was received, if it is here: what is judged must not be what a worker says of
    /// itself.
    fn received(&mut self, piece: Piece) -> Option<Arc<Vec<f32>>>;
    /// Makes a sum, or begins it where it is only [expected](Stage::Expected), by the tree of
    /// [`crate::gpu::Combine`] over its terms. If workers do that among themselves, nothing is
    /// given back. They say [`SumNotice::Held`] when done, or the summing node finds whose vector
    /// is not finite: [`SumNotice::ResultNotFinite`], or [`SumNotice::NotFinite`] if no worker's.
    ///
    /// # Errors
    /// [`CombineError`] when a vector is not of gradient length.
    fn make_sum(&mut self, sum: SumRequest<'_>) -> Result<Option<CheckedSum>, CombineError>;
    /// The sum of a step that [`Transport::make_sum`] did not give back, if it is here or has come
    /// by here.
    fn sum(&self, sum: SumId) -> Option<Arc<Self::Vector>>;
    /// Has its holders forget what the run needs no more.
    fn forget(&mut self, what: UnneededItem);
}

/// What a link knows of the run that its worker has joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkPlace {
    /// First step that is not applied in the replica with which the worker has joined, where that
    /// was said.
    pub first: Option<Step>,
    /// Numbers in a chunk of a result, in which parts of it are [announced](Notice::Announced);
    /// none where that is of no use.
    pub chunk: Option<usize>,
}

/// What comes of a wait for an order.
#[derive(Clone, Debug)]
pub enum ReceiveOutcome {
    /// An order.
    Order(Order),
    /// None in that time, or none yet where a link never waits.
    Nothing,
    /// None any more: the coordinator is lost, or the link was closed.
    Gone,
}

/// Says one thing, whenever it is called, from any thread.
pub type Say = Box<dyn FnOnce(Notice) + Send>;

/// A worker's side, for results of one kind of memory.
pub trait Link<V = Vec<f32>>: Send {
    /// The next order, for which it is waited at most so long (none = for ever).
    fn receive(&mut self, patience: Option<Duration>) -> ReceiveOutcome;
    /// Ends the link from outside, also while it waits.
    fn closer(&self) -> Closer;
    /// A way to send one notice later as if it were sent now: what an earlier connection was asked
    /// for means nothing to a later one.
    fn later(&self) -> Say;
    /// What is known of the run and of the worker's place in it.
    fn place(&self) -> LinkPlace {
        LinkPlace::default()
    }
    /// Keeps the result of a task until it is asked for.
    fn keep(&mut self, task: Task, result: V);
    /// Sends a notice; if the coordinator is lost, it is dropped.
    fn send(&mut self, notice: Notice);
    /// A vector of gradient length to overwrite, recycled if possible.
    fn buffer(&mut self, length: usize) -> V;
    /// Takes back the memory of such a vector.
    fn recycle(&mut self, buffer: V);
    /// A decoded vector that stays where it was summed, and so is not in its order.
    fn decoded(&mut self, _sum: SumId) -> Option<Arc<V>> {
        None
    }
}
