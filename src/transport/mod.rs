//! How a coordinator and its workers talk: orders down, notices up. No code, no schedule, no clock.

pub mod local;

use crate::ids::{Job, Part, Task, Units, Worker};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A decoded gradient and the scalars decoded with the same weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The gradient, summed over the whole batch.
    pub gradient: Vec<f32>,
    /// The tail: what workers submitted beside their messages (loss sum, token count, ...).
    pub tail: Vec<f64>,
    /// Digest of the gradient's bytes.
    pub digest: u64,
}

/// Everything a replica needs to go on from a step: the vectors its trainer handed over.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// First job that is not applied in it.
    pub next: Job,
    /// Parameters and optimizer state, in the trainer's own order.
    pub vectors: Vec<Vec<f32>>,
}

/// Whether anybody still wants a task; set once, seen by the worker between parts.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Nobody wants the task any more.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the task should be dropped.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What a coordinator tells a worker. Orders to one worker arrive in order, except that
/// [`Order::Abandon`] takes effect at once.
#[derive(Clone, Debug)]
pub enum Order {
    /// Compute a task.
    Compute {
        /// Which.
        task: Task,
        /// What it consists of.
        parts: Vec<Part>,
        /// Tells when nobody wants it any more.
        cancel: Cancel,
    },
    /// Drop whatever is being computed.
    Abandon,
    /// Keep a decoded vector and say so.
    Hold {
        /// Of which job.
        job: Job,
        /// Which attempt at it.
        attempt: u32,
        /// The vector.
        decoded: Arc<Decoded>,
    },
    /// Apply a committed step.
    Apply {
        /// Which.
        job: Job,
        /// The vector.
        decoded: Arc<Decoded>,
    },
    /// A step that is refused everywhere: count it, apply nothing.
    Skip {
        /// Which.
        job: Job,
        /// Units nobody had a finite gradient for.
        units: Arc<[Units]>,
    },
    /// Hand over the state for another worker.
    Provide {
        /// Who needs it.
        needy: Worker,
    },
    /// Take over a state.
    Take {
        /// The state.
        state: Arc<State>,
    },
    /// The run is over.
    Stop,
}

/// What a worker tells its coordinator.
#[derive(Debug)]
pub enum Notice {
    /// A task is done.
    Done {
        /// Which.
        task: Task,
        /// Its message: the coefficient-weighted sum of its parts' gradients.
        message: Vec<f32>,
        /// Scalars to decode with the same weights.
        tail: Vec<f64>,
        /// Whether all entries of the message and the tail are finite.
        finite: bool,
    },
    /// A task was dropped because nobody wants it.
    Freed,
    /// A decoded vector is held.
    Held {
        /// Of which job.
        job: Job,
        /// Which attempt at it.
        attempt: u32,
        /// Its digest.
        digest: u64,
    },
    /// A step is applied (or, if it was refused, skipped).
    Applied {
        /// Which.
        job: Job,
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
    /// The worker is gone.
    Lost {
        /// Why, as far as is known.
        reason: String,
    },
}

/// The coordinator's side.
pub trait Transport {
    /// Sends an order; to a worker that is gone, it is dropped.
    fn send(&mut self, worker: Worker, order: Order);
    /// The next notice, or none when `patience` is over first (none = wait for ever).
    fn receive(&mut self, patience: Option<Duration>) -> Option<(Worker, Notice)>;
    /// Takes back the memory of a message that is no longer needed.
    fn recycle(&mut self, message: Vec<f32>);
    /// A vector of gradient length to overwrite, recycled if possible.
    fn buffer(&mut self, length: usize) -> Vec<f32>;
}

/// A worker's side.
pub trait Link: Send {
    /// The next order; none when the coordinator is gone.
    fn receive(&mut self) -> Option<Order>;
    /// Sends a notice; if the coordinator is gone, it is dropped.
    fn send(&mut self, notice: Notice);
    /// A vector of gradient length to overwrite, recycled if possible.
    fn buffer(&mut self, length: usize) -> Vec<f32>;
    /// Takes back the memory of such a vector.
    fn recycle(&mut self, buffer: Vec<f32>);
}
