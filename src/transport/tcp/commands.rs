//! What a transport and its node tell each other.

use crate::ids::{Step, Worker};
use crate::sums::SumCommand;
use crate::sums::exchange::CoordinatorEvent;
use crate::transport::{ExitReason, Notice, Order, RunFacts};

#[derive(Debug)]
pub(super) enum Command {
    /// For one connection of a worker, which it had when the order was thought of; void on every
    /// other.
    Order(Worker, u32, Order),
    /// The same, about what a worker has of a sum.
    Tell(Worker, u32, SumCommand),
    Sum(CoordinatorEvent),
    Begin(Step, std::sync::mpsc::Sender<()>),
    /// There is no run: all workers are refused.
    Refuse(String),
}

/// What the node tells its transport.
#[derive(Debug)]
pub(super) enum NodeEvent {
    /// The run has begun with these connections, 0 where there is none.
    Began(Vec<u32>),
    /// What came of a worker, and over which of its connections.
    Notice(Worker, u32, Notice),
}

/// What workers came with.
#[derive(Clone, Debug, Default)]
pub(super) struct Offers {
    /// For every number, the first step that is not applied, if its worker is there.
    pub(super) places: Vec<Option<Option<Step>>>,
    /// What all say that they train, if some of them differ before the run begins.
    pub(super) told: Vec<(Worker, RunFacts)>,
    /// Whose script is wrong, before the run begins, and what it said.
    pub(super) misuse: Option<(Worker, ExitReason)>,
}
