//! Which orders workers were given, and what is still open of each.

use crate::ids::{Job, OrderId, Task, Worker};
use std::collections::VecDeque;

/// Whether an order still counts, and so what an answer to it is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderState {
    /// Its worker is at it.
    Wanted,
    /// The worker was told to drop it; a result that comes all the same may still count.
    Late,
    /// Nothing: the worker was not given it, or has answered it, or it was dropped for good.
    Void,
}

/// An order, until nothing can come of it any more.
#[derive(Clone, Debug)]
struct GivenOrder {
    id: OrderId,
    /// Its tasks that are not answered.
    open: Vec<Task>,
    state: OrderState,
}

/// The orders of a run. The one place that knows whether an answer names an order that its worker
/// has: the same task may be ordered again, and only the order tells the two answers apart.
///
/// Whoever keeps it tells of every order that is given ([`OrderBook::give`]) and taken back
/// ([`OrderBook::abandon`]), asks of every answer what it is worth ([`OrderBook::state`]) and
/// then notes it ([`OrderBook::answered`]). Orders are forgotten with their worker
/// ([`OrderBook::lost`]) or their jobs ([`OrderBook::release`]).
#[derive(Clone, Debug)]
pub(crate) struct OrderBook {
    last: OrderId,
    /// Of each worker, the oldest first.
    given: Vec<VecDeque<GivenOrder>>,
}

impl OrderBook {
    /// One whose orders have higher numbers than this one.
    pub(super) fn new(workers: usize, last: OrderId) -> Self {
        Self { last, given: vec![VecDeque::new(); workers] }
    }

    /// A worker is given tasks.
    pub(super) fn give(&mut self, worker: Worker, tasks: Vec<Task>) -> OrderId {
        // One count for all workers: an order of another is never taken for one's own.
        self.last = self.last.next();
        let order = GivenOrder { id: self.last, open: tasks, state: OrderState::Wanted };
        self.given[worker.index()].push_back(order);
        self.last
    }

    /// What is left of the last order of a worker is not waited for any more; `late_counts` if a
    /// result that comes all the same may still count. None if it has no order.
    pub(super) fn abandon(&mut self, worker: Worker, late_counts: bool) -> Option<OrderId> {
        // Those before are dropped, or answered: a worker has one order at a time.
        let order = self.given[worker.index()].back_mut()?;
        order.state = if late_counts { OrderState::Late } else { OrderState::Void };
        Some(order.id)
    }

    /// What an answer is worth.
    pub(crate) fn state(&self, worker: Worker, order: OrderId, task: Task) -> OrderState {
        let given = self.given[worker.index()].iter().find(|given| given.id == order);
        given.filter(|given| given.open.contains(&task)).map_or(OrderState::Void, |it| it.state)
    }

    /// A worker has answered a task; whether that was the last one of its last order.
    pub(super) fn answered(&mut self, worker: Worker, order: OrderId, task: Task) -> bool {
        let given = &mut self.given[worker.index()];
        let Some(at) = given.iter().position(|given| given.id == order) else { return false };
        // An answer that comes twice leaves nothing open that was not before.
        let open = &mut given[at].open;
        let before = open.len();
        open.retain(|other| *other != task);
        open.is_empty() && before > 0 && at + 1 == given.len()
    }

    /// Whether this is the last order of a worker.
    pub(super) fn is_last(&self, worker: Worker, order: OrderId) -> bool {
        self.given[worker.index()].back().is_some_and(|last| last.id == order)
    }

    /// A worker is lost, and nothing of its orders comes any more.
    pub(super) fn lost(&mut self, worker: Worker) {
        self.given[worker.index()].clear();
    }

    /// Jobs below `end` are decided. The last order of a worker is kept: it may still be dropped.
    pub(super) fn release(&mut self, end: Job) {
        // Late answers to jobs that are decided are as good as unknown.
        for given in &mut self.given {
            let last = given.back().map(|last| last.id);
            given.retain(|order| {
                Some(order.id) == last || order.open.iter().any(|task| task.job >= end)
            });
        }
    }
}

#[cfg(test)]
mod tests;
