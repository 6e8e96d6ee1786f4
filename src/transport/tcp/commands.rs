//! What a transport and its node tell each other.

use crate::ids::{Job, Step, Task, Worker};
use crate::transport::{Notice, Order, Summand, Weighted};
use std::collections::BTreeSet;

#[derive(Debug)]
pub(super) enum Command {
    /// For one connection of a worker, which it had when the order was thought of; void on every
    /// other.
    Order(Worker, u32, Order),
    Reduce(u32, Step, Weighted),
    Discard(Worker, u32, Task),
    /// The state of a worker, whichever connection it has, for the coordinator.
    StateOf(Worker),
    /// A step that is computed from now on will be made of these terms.
    Expect {
        step: Step,
        terms: Vec<Summand>,
    },
    Fold {
        step: Step,
        attempt: u32,
        terms: Vec<Summand>,
        spares_one: bool,
        counted: BTreeSet<u32>,
    },
    Release(Step, Job),
    Begin(Step, std::sync::mpsc::Sender<()>),
}

/// What the node tells its transport.
#[derive(Debug)]
pub(super) enum Heard {
    /// The run has begun with these connections, 0 where there is none.
    Began(Vec<u32>),
    /// What came of a worker, and over which of its connections.
    Notice(Worker, u32, Notice),
}

/// For every number, what its worker came with, if it is there.
pub(super) type Offers = Vec<Option<Option<Step>>>;
