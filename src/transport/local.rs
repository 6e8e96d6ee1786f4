//! Workers that are threads of one process: channels, and messages handed over without a copy.

use super::ledger::Ledgers;
use super::{Cancel, Link, Notice, Order, Piece, Summand, Summed, Transport, Weighted, What};
use crate::gpu::CombineError;
use crate::ids::{Job, Step, Task, Worker};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Message buffers that go round between the workers and the coordinator.
#[derive(Clone, Debug, Default)]
struct Pool(Arc<Mutex<Vec<Vec<f32>>>>);

impl Pool {
    fn take(&self, length: usize) -> Vec<f32> {
        let spare = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.filter(|buffer| buffer.len() == length).unwrap_or_else(|| vec![0.0; length])
    }

    /// Takes back a vector unless somebody still reads it.
    fn give_shared(&self, buffer: Arc<Vec<f32>>) {
        Arc::into_inner(buffer).into_iter().for_each(|buffer| self.give(buffer));
    }

    fn give(&self, buffer: Vec<f32>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }
}

/// The coordinator's end of the channels to all workers.
#[derive(Debug)]
pub struct LocalTransport {
    workers: Vec<Sender<Order>>,
    running: Vec<Option<Cancel>>,
    notices: Receiver<(Worker, Notice)>,
    ledgers: Ledgers,
    pool: Pool,
}

/// A worker's end. Dropping it before the run is over, by a panic or otherwise, reports the worker lost.
#[derive(Debug)]
pub struct LocalLink {
    worker: Worker,
    orders: Receiver<Order>,
    notices: Sender<(Worker, Notice)>,
    ledgers: Ledgers,
    pool: Pool,
    stopped: bool,
}

/// Connects a coordinator with `workers` workers of the same process.
///
/// ```
/// use codedgrad::ids::Worker;
/// use codedgrad::transport::{local, Link, Notice, Order, Transport};
/// let (mut coordinator, mut links) = local::connect(2);
/// coordinator.send(Worker(1), Order::Stop);
/// assert!(matches!(links[1].receive(), Some(Order::Stop)));
/// drop(links.remove(0));
/// assert!(matches!(coordinator.receive(None), Some((Worker(0), Notice::Lost { .. }))));
/// ```
#[must_use]
pub fn connect(workers: usize) -> (LocalTransport, Vec<LocalLink>) {
    let (notice_sender, notices) = channel();
    let pool = Pool::default();
    let ledgers = Ledgers::new(workers);
    let (senders, links) = Worker::all(workers)
        .map(|worker| {
            let (sender, orders) = channel();
            let (notices, ledgers, pool) = (notice_sender.clone(), ledgers.clone(), pool.clone());
            (sender, LocalLink { worker, orders, notices, ledgers, pool, stopped: false })
        })
        .unzip();
    (LocalTransport { workers: senders, running: vec![None; workers], notices, ledgers, pool }, links)
}

impl LocalTransport {
    /// A view of what the workers hold, for watching how much it is.
    #[must_use]
    pub fn ledgers(&self) -> Ledgers {
        self.ledgers.clone()
    }
}

impl Transport for LocalTransport {
    fn send(&mut self, worker: Worker, order: Order) {
        match &order {
            Order::Compute { cancel, .. } => self.running[worker.index()] = Some(cancel.clone()),
            Order::Abandon | Order::Stop => {
                if let Some(cancel) = self.running[worker.index()].take() {
                    cancel.cancel();
                }
            }
            _ => {}
        }
        if !matches!(order, Order::Abandon) && self.workers[worker.index()].send(order).is_err() {
            tracing::debug!("{worker} is gone; its order is dropped");
        }
    }

    fn receive(&mut self, patience: Option<Duration>) -> Option<(Worker, Notice)> {
        match patience {
            None => self.notices.recv().ok(),
            Some(patience) => self.notices.recv_timeout(patience).ok(),
        }
    }

    fn received(&mut self, piece: Piece) -> Option<Arc<Vec<f32>>> {
        let What::Result(task) = piece.what else { return None };
        self.ledgers.of(piece.worker).result(task).cloned()
    }

    fn reduce(&mut self, step: Step, result: Weighted) -> Result<(), CombineError> {
        let spent = self.ledgers.of(result.worker).reduce(step, result.task, result.weight)?;
        spent.into_iter().for_each(|vector| self.pool.give_shared(vector));
        Ok(())
    }

    fn discard(&mut self, worker: Worker, task: Task) {
        let spent = self.ledgers.of(worker).discard(task);
        spent.into_iter().for_each(|vector| self.pool.give_shared(vector));
    }

    fn fold(&mut self, step: Step, _: u32, summands: &[Summand], length: usize) -> Result<Option<Summed>, CombineError> {
        let mut gradient = self.pool.take(length);
        let folded = self.ledgers.fold(step, summands, &mut gradient)?;
        Ok(Some(Summed { gradient, folded }))
    }

    fn sum(&self, _: Step, _: u32) -> Option<Arc<Vec<f32>>> {
        None
    }

    fn release(&mut self, step: Step, end: Job) {
        self.ledgers.release(step, end).into_iter().for_each(|vector| self.pool.give_shared(vector));
    }

    fn forget(&mut self, worker: Worker) {
        self.ledgers.forget(worker);
    }

    fn recycle(&mut self, vector: Vec<f32>) {
        self.pool.give(vector);
    }
}

impl Link for LocalLink {
    fn receive(&mut self) -> Option<Order> {
        let order = self.orders.recv().ok();
        self.stopped |= matches!(order, None | Some(Order::Stop));
        order
    }

    fn keep(&mut self, task: Task, result: Vec<f32>) {
        self.ledgers.of(self.worker).keep(task, result);
    }

    fn send(&mut self, notice: Notice) {
        if self.notices.send((self.worker, notice)).is_err() {
            self.stopped = true;
        }
    }

    fn buffer(&mut self, length: usize) -> Vec<f32> {
        self.pool.take(length)
    }

    fn recycle(&mut self, buffer: Vec<f32>) {
        self.pool.give(buffer);
    }
}

impl Drop for LocalLink {
    fn drop(&mut self) {
        if !self.stopped {
            let reason = if std::thread::panicking() { "its thread panicked" } else { "its thread ended early" };
            self.send(Notice::Lost { reason: reason.into() });
        }
    }
}
