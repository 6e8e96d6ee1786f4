//! Workers that are threads of one process: channels, and messages handed over without a copy.

use super::{Cancel, Link, Notice, Order, Transport};
use crate::ids::Worker;
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
    pool: Pool,
}

/// A worker's end. Dropping it before the run is over, by a panic or otherwise, reports the worker lost.
#[derive(Debug)]
pub struct LocalLink {
    worker: Worker,
    orders: Receiver<Order>,
    notices: Sender<(Worker, Notice)>,
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
    let (senders, links) = Worker::all(workers)
        .map(|worker| {
            let (sender, orders) = channel();
            (sender, LocalLink { worker, orders, notices: notice_sender.clone(), pool: pool.clone(), stopped: false })
        })
        .unzip();
    (LocalTransport { workers: senders, running: vec![None; workers], notices, pool }, links)
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

    fn recycle(&mut self, message: Vec<f32>) {
        self.pool.give(message);
    }

    fn buffer(&mut self, length: usize) -> Vec<f32> {
        self.pool.take(length)
    }
}

impl Link for LocalLink {
    fn receive(&mut self) -> Option<Order> {
        let order = self.orders.recv().ok();
        self.stopped |= matches!(order, None | Some(Order::Stop));
        order
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
