//! What goes into the engine and what comes out of it.

use crate::codes::sequential::Fold;
use crate::codes::{GateError, Report};
use crate::ids::{Job, Part, Round, Task, Units, Worker, WorkerSet};
use thiserror::Error;

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Input {
    /// The run starts.
    Begin,
    /// A worker has finished a task; `finite` is false when its message has NaN or infinite entries.
    Done {
        /// Who.
        worker: Worker,
        /// Which task.
        task: Task,
        /// Whether all entries of the message are finite.
        finite: bool,
    },
    /// A worker has dropped its tasks; if nobody told it to, it counts as missing in this round.
    Freed {
        /// Who.
        worker: Worker,
    },
    /// A worker is gone; `kept` tells whether the results it handed in are held elsewhere.
    Lost {
        /// Who.
        worker: Worker,
        /// Whether its results survive it.
        kept: bool,
    },
    /// A worker holds the whole decoded vector of a job.
    Held {
        /// Who.
        worker: Worker,
        /// Which job.
        job: Job,
        /// Which attempt at folding it.
        attempt: u32,
        /// Digest of the vector.
        digest: u64,
    },
    /// The messages of a job are finite, their weighted sum is not.
    Overflowed {
        /// Which job.
        job: Job,
        /// Which attempt at folding it.
        attempt: u32,
    },
    /// A worker has applied a step.
    Applied {
        /// Who.
        worker: Worker,
        /// Which step.
        job: Job,
        /// Digest of its parameters afterwards, if it took one.
        digest: Option<u64>,
    },
    /// A worker has taken over a state in which everything below `next` is applied.
    Synced {
        /// Who.
        worker: Worker,
        /// First job it has not applied.
        next: Job,
    },
    /// Time has passed: the deadline of [`Engine::deadline`](super::Engine::deadline) may be due.
    Tick,
}

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Give a worker a task.
    Assign {
        /// To whom.
        worker: Worker,
        /// Which task.
        task: Task,
        /// What it consists of.
        parts: Vec<Part>,
    },
    /// Tell a worker that nobody wants its tasks any more.
    Abandon {
        /// Whom.
        worker: Worker,
    },
    /// Fold results into the gradient of a job and let workers hold it.
    Fold {
        /// Which job.
        job: Job,
        /// Which attempt.
        attempt: u32,
        /// Results and weights, in the order of summation.
        folds: Vec<Fold>,
        /// How the round went.
        report: RoundReport,
    },
    /// The job's gradient is decided: write it down.
    Commit {
        /// Which job.
        job: Job,
        /// Which attempt was held.
        attempt: u32,
        /// Digest of the decoded vector.
        digest: u64,
    },
    /// Send a committed step to a worker.
    Apply {
        /// To whom.
        worker: Worker,
        /// Which step.
        job: Job,
    },
    /// The step is refused everywhere alike: nobody has a finite gradient for these units.
    Refuse {
        /// Which job.
        job: Job,
        /// Units of the batch that no finite message covers.
        units: Vec<Units>,
        /// How the round went.
        report: RoundReport,
    },
    /// A worker's parameters differ from the others' after a step.
    Diverged {
        /// Who.
        worker: Worker,
        /// After which step.
        job: Job,
    },
    /// Let a worker take over the state of another.
    Resync {
        /// Who needs it.
        worker: Worker,
        /// Who provides it.
        from: Worker,
    },
    /// All jobs are decided.
    Finish,
}

/// How a round went, times in seconds since it was opened.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundReport {
    /// Which round.
    pub round: Round,
    /// When it was opened, in the driver's time.
    pub opened_at: f64,
    /// When it was closed, in the driver's time.
    pub closed_at: f64,
    /// When each worker had finished all its tasks; none if it had not by the close.
    pub arrivals: Vec<Option<f64>>,
    /// Workers whose messages had entries that are not finite, or who dropped a task that was wanted:
    /// treated as missing.
    pub erased: Vec<Worker>,
    /// Load assigned in this round, in batches.
    pub work: f64,
    /// The decode's numbers; for a refused step, those of nothing decoded.
    pub decode: Report,
}

/// Why a run cannot go on.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// Too many workers are gone for the scheme.
    #[error("{job} cannot be decoded without the dead workers {{{dead}}}: the scheme tolerates any {tolerance} stragglers")]
    TooManyLost {
        /// The job at hand.
        job: Job,
        /// Who is dead.
        dead: WorkerSet,
        /// What the scheme tolerates.
        tolerance: usize,
    },
    /// Workers never answered.
    #[error("{job}: waited {waited_seconds:.1} s (max_wait) and workers {{{silent}}} never came; the scheme cannot decode without them")]
    MaxWait {
        /// The job at hand.
        job: Job,
        /// How long.
        waited_seconds: f64,
        /// Who never came.
        silent: WorkerSet,
    },
    /// The decode must not be applied.
    #[error("{job} must not be applied")]
    Gate {
        /// The job at hand.
        job: Job,
        /// The numbers.
        source: GateError,
    },
    /// Workers hold different bytes for one decoded vector.
    #[error("{job}: {worker} holds other bytes of the decoded gradient than the others")]
    DifferentBytes {
        /// The job at hand.
        job: Job,
        /// Whose bytes differ from the first holder's.
        worker: Worker,
    },
    /// A worker must be brought up to date and nobody can.
    #[error("{worker} missed too many steps and no live worker can hand over its state")]
    NoState {
        /// Who is behind.
        worker: Worker,
    },
}
