//! Who is there, and what each worker is doing.

use super::order_book::OrderBook;
use crate::ids::{OrderId, Task, Worker, WorkerSet};

/// What a worker is doing, as far as the coordinator knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    /// Waiting for orders.
    Nothing,
    /// Computing the tasks of its last order.
    Tasks,
    /// Told to drop its tasks, not yet heard of since.
    Dropping,
    /// Being brought up to date from a state.
    Syncing {
        /// Who provides it; none = the driver.
        from: Option<Worker>,
    },
    /// Gone, unless it comes back.
    Dead,
}

/// All workers of a run and what they do, as their [engine](super::Engine) knows it; others read
/// it. [`States`](super::States) knows which steps each has applied,
/// [`Departures`](super::Departures) who is to go.
///
/// The engine tells it what workers are given (`give`) and have answered (`answered`), who is lost,
/// who is back (`joined`), who has taken over a state (`synced`), and what is to be dropped
/// (`abandon`, `abandon_all`). What an answer is worth its `orders` tell. A worker marked by `mark_stale` is given no tasks
/// until it is `synced`.
#[derive(Clone, Debug)]
pub struct Roster {
    doing: Vec<Activity>,
    /// Workers that must take over another's state before they compute again.
    stale: WorkerSet,
    pub(crate) orders: OrderBook,
}

impl Roster {
    /// One whose orders have higher numbers than this one.
    pub(super) fn new(workers: usize, last: OrderId) -> Self {
        Self {
            doing: vec![Activity::Nothing; workers],
            stale: WorkerSet::empty(workers),
            orders: OrderBook::new(workers, last),
        }
    }

    /// A worker that waits for orders is given tasks.
    pub(super) fn give(&mut self, worker: Worker, tasks: Vec<Task>) -> OrderId {
        *self.doing(worker) = Activity::Tasks;
        self.orders.give(worker, tasks)
    }

    /// A worker has answered a task; whether it has nothing more to do then.
    pub(super) fn answered(&mut self, worker: Worker, order: OrderId, task: Task) -> bool {
        let all = self.orders.answered(worker, order, task);
        // One that takes over a state is busy with that, whatever it still says of its tasks.
        all && matches!(self.doing(worker), Activity::Tasks | Activity::Dropping)
    }

    /// A worker says that it has dropped the rest of an order; false if it was not to.
    pub(super) fn dropped(&mut self, worker: Worker, order: OrderId) -> bool {
        let was_to =
            *self.doing(worker) == Activity::Dropping && self.orders.is_last(worker, order);
        if was_to {
            *self.doing(worker) = Activity::Nothing;
        }
        was_to
    }

    /// A worker at tasks is told to drop them; `late_counts` if a result that comes all the same
    /// may still count.
    pub(super) fn abandon(&mut self, worker: Worker, late_counts: bool) -> Option<OrderId> {
        let doing @ Activity::Tasks = self.doing(worker) else { return None };
        *doing = Activity::Dropping;
        self.orders.abandon(worker, late_counts)
    }

    pub(super) fn doing(&mut self, worker: Worker) -> &mut Activity {
        &mut self.doing[worker.index()]
    }

    /// Workers of whom something is true, lowest number first.
    fn those(&self, keep: impl Fn(&Activity) -> bool) -> impl Iterator<Item = Worker> {
        Worker::all(self.doing.len())
            .zip(&self.doing)
            .filter(move |(_, doing)| keep(doing))
            .map(|(worker, _)| worker)
    }

    pub(super) fn dead(&self) -> WorkerSet {
        WorkerSet::of(self.doing.len(), self.those(|doing| *doing == Activity::Dead))
    }

    /// Whether a worker is known to be gone.
    #[must_use]
    pub fn is_lost(&self, worker: Worker) -> bool {
        self.doing[worker.index()] == Activity::Dead
    }

    pub(super) fn alive(&self) -> WorkerSet {
        self.dead().complement()
    }

    /// The worker of the lowest number that is there.
    #[must_use]
    pub fn first_alive(&self) -> Option<Worker> {
        self.those(|doing| *doing != Activity::Dead).next()
    }

    /// Those who may still send a result in this round.
    pub(super) fn out(&self) -> WorkerSet {
        WorkerSet::of(
            self.doing.len(),
            self.those(|doing| !matches!(doing, Activity::Dead | Activity::Nothing)),
        )
    }

    /// Whether a worker may still send a result in this round.
    pub(super) fn any_busy(&self) -> bool {
        self.doing.iter().any(|doing| !matches!(doing, Activity::Dead | Activity::Nothing))
    }

    /// Workers that were told to drop their tasks and have not been heard of since.
    pub(super) fn dropping(&self) -> impl Iterator<Item = Worker> {
        self.those(|doing| *doing == Activity::Dropping)
    }

    /// Workers who could be given a task.
    pub(super) fn ready(&self) -> Vec<Worker> {
        self.those(|doing| *doing == Activity::Nothing)
            .filter(|worker| !self.is_stale(*worker))
            .collect()
    }

    /// Whether a worker could be given a task.
    pub(super) fn is_ready(&self, worker: Worker) -> bool {
        self.doing[worker.index()] == Activity::Nothing && !self.is_stale(worker)
    }

    /// Workers that are there and take over no state.
    pub(super) fn here(&self) -> impl Iterator<Item = Worker> {
        self.those(|doing| !matches!(doing, Activity::Dead | Activity::Syncing { .. }))
    }

    /// Workers whose state is one of this run's last.
    pub(super) fn fit(&self) -> impl Iterator<Item = Worker> {
        self.here().filter(|worker| !self.is_stale(*worker))
    }

    /// Workers that can come to hold a sum: those that are there and take over no state. Who does
    /// was told nothing of the sum, and would have nothing to apply it to.
    #[must_use]
    pub fn able_to_hold(&self) -> WorkerSet {
        WorkerSet::of(self.doing.len(), self.fit())
    }

    /// Workers with tasks, now told to drop them, with their orders.
    pub(super) fn abandon_all(&mut self, late_counts: bool) -> Vec<(Worker, OrderId)> {
        let busy: Vec<Worker> = self.those(|doing| *doing == Activity::Tasks).collect();
        let abandoned = |worker: Worker| Some((worker, self.abandon(worker, late_counts)?));
        busy.into_iter().filter_map(abandoned).collect()
    }

    pub(super) fn mark_stale(&mut self, worker: Worker) {
        self.stale.insert(worker);
    }

    /// Workers that have nothing to do until they have taken over another's state.
    pub(super) fn stale_idle(&self) -> Vec<Worker> {
        self.stale.iter().filter(|worker| self.doing[worker.index()] == Activity::Nothing).collect()
    }

    /// Whether the worker must take over another's state.
    pub(super) fn is_stale(&self, worker: Worker) -> bool {
        self.stale.contains(worker)
    }

    /// The state of a provider is in: the worker is not behind any more.
    pub(super) fn synced(&mut self, worker: Worker) {
        *self.doing(worker) = Activity::Nothing;
        self.stale.remove(worker);
    }

    /// A worker is lost.
    pub(super) fn lost(&mut self, worker: Worker) {
        *self.doing(worker) = Activity::Dead;
        self.orders.lost(worker);
    }

    /// Whether a worker has tasks of this order that are waited for.
    pub(crate) fn is_at(&self, worker: Worker, order: OrderId) -> bool {
        self.doing[worker.index()] == Activity::Tasks && self.orders.is_last(worker, order)
    }

    /// A worker that was gone is back, with a state that can be gone on from or with none.
    pub(super) fn joined(&mut self, worker: Worker, has_state: bool) {
        *self.doing(worker) = Activity::Nothing;
        // Without a state of this run it must take one over before it computes.
        if has_state {
            self.stale.remove(worker)
        } else {
            self.stale.insert(worker)
        };
    }

    /// Whether a worker waits for orders.
    pub(super) fn is_idle(&self, worker: Worker) -> bool {
        self.doing[worker.index()] == Activity::Nothing
    }

    /// Whether a worker is to take over a state.
    pub(super) fn is_syncing(&self, worker: Worker) -> bool {
        matches!(self.doing[worker.index()], Activity::Syncing { .. })
    }

    /// Workers waiting for a state that `provider` was to hand over.
    pub(super) fn waiting_for(&self, provider: Worker) -> Vec<Worker> {
        self.those(|doing| *doing == Activity::Syncing { from: Some(provider) }).collect()
    }
}
