//! What can go wrong between a trainer and its aggregator.

use crate::ids::Task;
use thiserror::Error;

/// Misuse of the aggregator, or a run that ended under it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AggregatorError {
    /// The coordinator is lost before the run was over.
    #[error("the coordinator is lost")]
    Disconnected,
    /// [`Closer::close`](crate::transport::Closer::close) was called: the worker has left a run
    /// that goes on.
    #[error("this worker's connection was closed from within its process")]
    Closed,
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
    #[error(
        "{task} was submitted with {left} of its parts not computed: take one after the other \
         until none is left"
    )]
    Unfinished {
        /// Which task.
        task: Task,
        /// Parts not yet handed out.
        left: usize,
    },
    /// A gradient was written while no part of the task was current, so that it is of no samples.
    #[error(
        "a gradient of {task} was written while none of its parts was current: ask for a part \
         first"
    )]
    NoPart {
        /// Which task.
        task: Task,
    },
    /// The buffer of a part was made longer or shorter.
    #[error("a gradient of {task} has {found} numbers, where the run's have {expected}")]
    Length {
        /// Which task.
        task: Task,
        /// Numbers of the run's gradients.
        expected: usize,
        /// Numbers found.
        found: usize,
    },
    /// Numbers of a gradient that does not have so many were said to be final.
    #[error(
        "numbers {start} to {end} of {task} are said to be final, and the run's gradients have \
         {length}"
    )]
    Beyond {
        /// Which task.
        task: Task,
        /// The first.
        start: usize,
        /// One past the last.
        end: usize,
        /// Numbers of the run's gradients.
        length: usize,
    },
    /// Numbers that were said to be final were changed afterwards: others may have summed them as
    /// they were.
    #[error(
        "numbers {start} to {end} of the gradient of micro-batch {unit} of batch {} were changed \
         after they were said to be final: say so of a parameter when nothing adds to its gradient \
         any more",
        .task.job.0
    )]
    Changed {
        /// Which task.
        task: Task,
        /// Which unit of its batch: the last one of the task.
        unit: u32,
        /// The first of some of which one was.
        start: usize,
        /// One past the last of them.
        end: usize,
    },
    /// The token of an event that is over, or of another one than the current one.
    #[error("{what} is not current: it is done with, or another event was asked for since")]
    NotAtHand {
        /// What is not.
        what: String,
    },
    /// An event was asked for before it was said what became of the last one.
    #[error("{what} is still open: say that it is {due} before the next event is asked for")]
    Unsettled {
        /// What is current.
        what: String,
        /// What is to be said of it.
        due: &'static str,
    },
}
