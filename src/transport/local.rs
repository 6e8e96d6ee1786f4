//! Workers that are threads of one process: channels, and messages handed over without a copy.
//!
//! Messages lie in the host's memory ([`connect`]), or wherever a [`Vector`] lies ([`connect_at`]):
//! then they are summed there, and what is decoded stays there too.

use super::{
    Cancel, CheckedSum, Closer, Dismissal, ExitReason, Link, Notice, Order, ReceiveOutcome, Say,
    Stage, SumRequest, Transport, UnneededItem,
};
use crate::gpu::{CombineError, Vector};
use crate::ids::{OrderId, Piece, Step, Task, Worker};
use crate::sums::ledger::Ledgers;
use crate::sums::{SumId, SumNotice, lock};
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Message buffers that go round between the workers and the coordinator.
#[derive(Clone, Debug)]
struct Pool<V>(Arc<Mutex<Vec<V>>>);

impl<V: Vector> Pool<V> {
    fn take(&self, place: &V::Place, length: usize) -> V {
        let mut spare = lock(&self.0);
        let found = spare
            .iter()
            .rposition(|buffer| buffer.fits(place, length))
            .map(|at| spare.swap_remove(at));
        drop(spare);
        found.unwrap_or_else(|| V::new(place, length))
    }

    /// Takes back a vector unless a thread still reads it.
    fn give_shared(&self, buffer: Arc<V>) {
        Arc::into_inner(buffer).into_iter().for_each(|buffer| self.give(buffer));
    }

    fn give(&self, buffer: V) {
        lock(&self.0).push(buffer);
    }
}

/// Decoded vectors that stay where they were summed, until all workers have applied them.
#[derive(Clone, Debug)]
struct StayingSums<V>(Arc<Mutex<KeptSums<V>>>);

type KeptSums<V> = BTreeMap<Step, (SumId, Arc<V>)>;

impl<V> StayingSums<V> {
    fn lock(&self) -> MutexGuard<'_, KeptSums<V>> {
        lock(&self.0)
    }

    fn get(&self, sum: SumId) -> Option<Arc<V>> {
        let kept = self.lock();
        let (of, vector) = kept.get(&sum.step)?;
        (*of == sum).then(|| Arc::clone(vector))
    }
}

/// An order, or none to wake a worker whose link was closed.
type PostedOrder = Option<Order>;

/// Where a thread's notices go, until its link is closed or dropped: after that nothing of it may
/// come.
#[derive(Clone, Debug)]
struct Outbox {
    thread: u64,
    notices: Arc<Mutex<Option<Notices>>>,
}

type Notices = Sender<Said>;

/// A notice of a worker, with the number of the thread that says it: nothing of a thread whose
/// place another has taken may come.
type Said = (Worker, u64, Notice);

impl Outbox {
    fn new(thread: u64, notices: Notices) -> Self {
        Self { thread, notices: Arc::new(Mutex::new(Some(notices))) }
    }

    /// Sends it: false if unheard.
    fn send(&self, worker: Worker, notice: Notice) -> bool {
        let said = (worker, self.thread, notice);
        lock(&self.notices).as_ref().is_some_and(|notices| notices.send(said).is_ok())
    }

    /// The last thing that the worker says, if there is something to say.
    fn end(&self, worker: Worker, last: Option<Notice>) {
        if let (Some(notices), Some(last)) = (lock(&self.notices).take(), last) {
            // The receiver may be dropped.
            let _ = notices.send((worker, self.thread, last));
        }
    }
}

/// The thread that is a worker now, as it is reached.
#[derive(Debug)]
struct Thread {
    number: u64,
    orders: Arc<Sender<PostedOrder>>,
    notices: Outbox,
    closer: Closer,
}

/// Has other threads take the places of workers that are lost, in the middle of a run.
#[derive(Debug)]
pub struct Replacer<V: Vector = Vec<f32>> {
    notices: Notices,
    threads: Arc<Mutex<Vec<Thread>>>,
    places: Vec<V::Place>,
    ledgers: Ledgers<V>,
    pool: Pool<V>,
    staying: StayingSums<V>,
}

impl<V: Vector> Replacer<V> {
    /// Ends what a thread is of the run, at once and without a word: the coordinator is to be told
    /// that the worker is lost.
    pub fn end(&self, worker: Worker) {
        let threads = lock(&self.threads);
        let thread = &threads[worker.index()];
        thread.notices.end(worker, None);
        thread.closer.close();
    }

    /// A link for the thread that is this worker from now on; the coordinator is to be told that
    /// it has joined, without a state.
    #[must_use]
    pub fn begin(&self, worker: Worker) -> LocalLink<V> {
        let mut threads = lock(&self.threads);
        let number = threads[worker.index()].number + 1;
        let (thread, link) = self.thread(worker, number);
        threads[worker.index()] = thread;
        link
    }

    fn thread(&self, worker: Worker, number: u64) -> (Thread, LocalLink<V>) {
        let (sender, orders) = channel();
        let sender = Arc::new(sender);
        let notices = Outbox::new(number, self.notices.clone());
        let closer = closer_of(worker, &sender, &notices);
        let link = LocalLink {
            worker,
            orders,
            notices: notices.clone(),
            closer: closer.clone(),
            ledgers: self.ledgers.clone(),
            pool: self.pool.clone(),
            place: self.places[worker.index()].clone(),
            staying: self.staying.clone(),
            stopped: false,
        };
        (Thread { number, orders: sender, notices, closer }, link)
    }
}

/// The coordinator's end of the channels to all workers.
#[derive(Debug)]
pub struct LocalTransport<V: Vector = Vec<f32>> {
    threads: Arc<Mutex<Vec<Thread>>>,
    running: Vec<Option<(OrderId, Cancel)>>,
    notices: Receiver<Said>,
    ledgers: Ledgers<V>,
    pool: Pool<V>,
    /// Where sums are made.
    place: V::Place,
    staying: StayingSums<V>,
    /// The first step that each worker has not applied, and whether it is done without; none for
    /// those that are lost, or let in again and without a state yet.
    next: Vec<Option<(Step, bool)>>,
    /// What is said on behalf of the workers: that vectors which stay are held, or that one is
    /// there again.
    held: VecDeque<(Worker, Notice)>,
}

/// A worker's end. Dropping it before the run is over, by a panic or otherwise, reports the worker
/// lost.
#[derive(Debug)]
pub struct LocalLink<V: Vector = Vec<f32>> {
    worker: Worker,
    orders: Receiver<PostedOrder>,
    notices: Outbox,
    closer: Closer,
    ledgers: Ledgers<V>,
    pool: Pool<V>,
    place: V::Place,
    staying: StayingSums<V>,
    stopped: bool,
}

/// Connects a coordinator with `workers` workers of the same process.
///
/// ```
/// use codedgrad::ids::Worker;
/// use codedgrad::transport::{local, Link, Notice, Order, ReceiveOutcome, Transport};
/// let (mut coordinator, mut links) = local::connect(2);
/// coordinator.send(Worker(1), Order::Stop { why: "all is done".into() });
/// assert!(matches!(links[1].receive(None), ReceiveOutcome::Order(Order::Stop { .. })));
/// drop(links.remove(0));
/// assert!(matches!(coordinator.receive(None), Some((Worker(0), Notice::Lost { .. }))));
/// ```
#[must_use]
pub fn connect(workers: usize) -> (LocalTransport, Vec<LocalLink>) {
    connect_at((), vec![(); workers])
}

/// The same for vectors that lie elsewhere, such as `gpu::cuda::DeviceVector`s: the results of
/// every worker in a place of its own, which may be the same, and sums where they are `summed`.
/// Nothing goes through the host, so observers see gradients where they lie, and schemes that judge
/// results cannot be used.
#[must_use]
pub fn connect_at<V: Vector>(
    summed: V::Place,
    workers: Vec<V::Place>,
) -> (LocalTransport<V>, Vec<LocalLink<V>>) {
    let (transport, links, _) = connect_replacing(summed, workers);
    (transport, links)
}

/// The same where other threads may take the places of workers that are lost. A run whose workers
/// are all lost does not end by itself while another thread could take a place.
///
/// ```
/// use codedgrad::ids::Worker;
/// use codedgrad::transport::{Link, Order, ReceiveOutcome, Transport, local};
/// let (mut coordinator, mut links, replacing) =
///     local::connect_replacing::<Vec<f32>>((), vec![(); 2]);
/// replacing.end(Worker(1));
/// assert!(matches!(links[1].receive(None), ReceiveOutcome::Gone));
/// let mut other = replacing.begin(Worker(1));
/// coordinator.send(Worker(1), Order::Stop { why: "all is done".into() });
/// assert!(matches!(other.receive(None), ReceiveOutcome::Order(Order::Stop { .. })));
/// ```
#[must_use]
pub fn connect_replacing<V: Vector>(
    summed: V::Place,
    workers: Vec<V::Place>,
) -> (LocalTransport<V>, Vec<LocalLink<V>>, Replacer<V>) {
    let (notice_sender, notices) = channel();
    let (running, next) = (vec![None; workers.len()], vec![Some((Step(0), false)); workers.len()]);
    let replacing = Replacer {
        notices: notice_sender,
        threads: Arc::default(),
        ledgers: Ledgers::new(workers.len()),
        pool: Pool(Arc::default()),
        staying: StayingSums(Arc::default()),
        places: workers,
    };
    let all = Worker::all(replacing.places.len());
    let (threads, links) = all.map(|worker| replacing.thread(worker, 0)).unzip();
    *lock(&replacing.threads) = threads;
    let transport = LocalTransport {
        threads: Arc::clone(&replacing.threads),
        running,
        notices,
        ledgers: replacing.ledgers.clone(),
        pool: replacing.pool.clone(),
        place: summed,
        staying: replacing.staying.clone(),
        next,
        held: VecDeque::new(),
    };
    (transport, links, replacing)
}

fn closer_of(worker: Worker, orders: &Arc<Sender<PostedOrder>>, notices: &Outbox) -> Closer {
    // A closer that is kept must not keep the channel open when the coordinator is lost.
    let (orders, notices) = (Arc::downgrade(orders), notices.clone());
    let told = notices.clone();
    let leave = move |notice: Duration| {
        told.send(worker, Notice::Leaving { seconds: notice.as_secs_f64() });
    };
    let end = move |word: Option<ExitReason>| {
        if let Some(word) = &word {
            notices.send(worker, Notice::Parting(word.clone()));
        }
        let reason = word.map_or_else(|| "its link was closed".into(), |word| word.to_string());
        notices.end(worker, Some(Notice::Lost { reason }));
        if let Some(orders) = orders.upgrade() {
            // The worker may be gone.
            let _ = orders.send(None);
        }
    };
    Closer::new(end, leave)
}

impl<V: Vector> LocalTransport<V> {
    /// A view of what the workers hold, for watching how much it is.
    #[must_use]
    pub fn ledgers(&self) -> Ledgers<V> {
        self.ledgers.clone()
    }

    /// Keeps a decoded vector where it is, for all workers.
    fn stay(&mut self, sum: SumId, vector: V, digest: u64) {
        let before = self.staying.lock().insert(sum.step, (sum, Arc::new(vector)));
        before.into_iter().for_each(|(_, vector)| self.pool.give_shared(vector));
        let takes_part = |worker: &Worker| matches!(self.next[worker.index()], Some((_, false)));
        let held = |worker| (worker, Notice::Sum(SumNotice::Held { sum, digest }));
        let holders = Worker::all(self.next.len()).filter(takes_part);
        self.held.extend(holders.map(held));
    }

    /// Frees what no worker will apply any more.
    fn free(&mut self) {
        let taking_part = self.next.iter().flatten().filter(|(_, done_without)| !done_without);
        let least = taking_part.map(|(next, _)| next).min();
        let mut staying = self.staying.lock();
        // Without workers, no vector is needed any more.
        let later = least.map_or_else(BTreeMap::new, |least| staying.split_off(least));
        for (_, vector) in std::mem::replace(&mut *staying, later).into_values() {
            self.pool.give_shared(vector);
        }
    }
}

impl<V: Vector> Transport for LocalTransport<V> {
    type Vector = V;

    fn send(&mut self, worker: Worker, order: Order) {
        match &order {
            // Kept here too, since `Abandon` must reach a worker that is in the middle of its tasks
            // and reads no orders.
            Order::Compute { order, cancel, .. } => {
                self.running[worker.index()] = Some((*order, cancel.clone()));
            }
            Order::Abandon { order } => {
                let running = &mut self.running[worker.index()];
                if let Some((_, cancel)) = running.take_if(|(of, _)| of == order) {
                    cancel.cancel();
                }
            }
            Order::Stop { .. } => {
                if let Some((_, cancel)) = self.running[worker.index()].take() {
                    cancel.cancel();
                }
            }
            Order::LoadState { state } => {
                self.next[worker.index()] = Some((state.next, false));
                self.free();
            }
            _ => {}
        }
        // A thread that is done without waits, with the state that it has.
        if matches!(order, Order::Dismiss(Dismissal::Drained)) {
            if let Some((_, done_without)) = &mut self.next[worker.index()] {
                *done_without = true;
            }
            return;
        }
        if matches!(order, Order::LetIn) {
            let waits = self.next[worker.index()].take_if(|(_, done_without)| *done_without);
            let joined = waits.map(|(next, _)| (worker, Notice::Joined { next: Some(next) }));
            return self.held.extend(joined);
        }
        // The flag has done it: an order that comes when all is over would end the next tasks.
        let posted = Some(order).filter(|order| !matches!(order, Order::Abandon { .. }));
        let lost = |posted| lock(&self.threads)[worker.index()].orders.send(posted).is_err();
        if posted.is_some() && lost(posted) {
            tracing::debug!("{worker} is lost; its order is dropped");
        }
    }

    fn receive(&mut self, patience: Option<Duration>) -> Option<(Worker, Notice)> {
        // They hold it by then, though none of them has said so: memory is shared.
        if let Some(held) = self.held.pop_front() {
            return Some(held);
        }
        let (worker, thread, notice) = match patience {
            None => self.notices.recv().ok(),
            Some(patience) => self.notices.recv_timeout(patience).ok(),
        }?;
        // Of a thread whose place another has taken.
        if lock(&self.threads)[worker.index()].number != thread {
            return self.receive(patience);
        }
        let received = Some((worker, notice));
        match &received {
            Some((worker, Notice::Applied { step, .. })) => {
                let place = &mut self.next[worker.index()];
                *place = Some((step.next(), matches!(place, Some((_, true)))));
                self.free();
            }
            Some((worker, Notice::Lost { .. })) => {
                self.next[worker.index()].take_if(|(_, done_without)| *done_without);
            }
            _ => {}
        }
        received
    }

    fn received(&mut self, piece: Piece) -> Option<Arc<Vec<f32>>> {
        V::host(&self.ledgers.vector(piece)?).cloned()
    }

    fn make_sum(&mut self, request: SumRequest<'_>) -> Result<Option<CheckedSum>, CombineError> {
        let SumRequest { sum, terms, length, stage, .. } = request;
        if stage == Stage::Expected {
            return Ok(None);
        }
        let mut gradient = self.pool.take(&self.place, length);
        let folded = self.ledgers.fold(terms, &mut gradient)?;
        let gradient = match gradient.into_host() {
            Ok(gradient) => gradient,
            // It stays where it was summed, and workers read it there.
            Err(vector) if folded.finite => {
                self.stay(sum, vector, folded.digest);
                return Ok(None);
            }
            Err(vector) => {
                self.pool.give(vector);
                Vec::new()
            }
        };
        Ok(Some(CheckedSum { gradient, folded }))
    }

    fn sum(&self, sum: SumId) -> Option<Arc<V>> {
        self.staying.get(sum)
    }

    fn forget(&mut self, what: UnneededItem) {
        let spent = match what {
            UnneededItem::Result { worker, task } => {
                self.ledgers.of(worker).discard(task).into_iter().collect()
            }
            UnneededItem::Step { end, .. } => self.ledgers.release(end),
            UnneededItem::Worker(worker) => {
                self.ledgers.forget(worker);
                // One that is done without has the state with which it waits.
                self.next[worker.index()].take_if(|(_, done_without)| !*done_without);
                self.free();
                self.held.retain(|(of, _)| *of != worker);
                Vec::new()
            }
            UnneededItem::Vector(vector) => V::of_host(Arc::new(vector)).into_iter().collect(),
        };
        spent.into_iter().for_each(|vector| self.pool.give_shared(vector));
    }
}

impl<V: Vector> Link<V> for LocalLink<V> {
    fn receive(&mut self, patience: Option<Duration>) -> ReceiveOutcome {
        let posted = match patience {
            _ if self.closer.is_closed() => None,
            None => self.orders.recv().ok().flatten(),
            Some(patience) => match self.orders.recv_timeout(patience) {
                Err(RecvTimeoutError::Timeout) => return ReceiveOutcome::Nothing,
                posted => posted.ok().flatten(),
            },
        };
        // It may have been closed while it waited, and an order that was there already is void.
        let order = posted.filter(|_| !self.closer.is_closed());
        let is_last =
            |order: &Order| matches!(order, Order::Stop { .. } | Order::Dismiss(Dismissal::LetGo));
        self.stopped |= order.as_ref().is_none_or(is_last);
        order.map_or(ReceiveOutcome::Gone, ReceiveOutcome::Order)
    }

    fn closer(&self) -> Closer {
        self.closer.clone()
    }

    fn later(&self) -> Say {
        let (worker, notices) = (self.worker, self.notices.clone());
        Box::new(move |notice| {
            notices.send(worker, notice);
        })
    }

    fn keep(&mut self, task: Task, result: V) {
        self.ledgers.of(self.worker).keep(task, result);
    }

    fn send(&mut self, notice: Notice) {
        // Both ends are of one program, and sums are made when all results are there.
        if !matches!(notice, Notice::Facts(_) | Notice::Announced { .. }) {
            self.stopped |= !self.notices.send(self.worker, notice);
        }
    }

    fn buffer(&mut self, length: usize) -> V {
        self.pool.take(&self.place, length)
    }

    fn recycle(&mut self, buffer: V) {
        self.pool.give(buffer);
    }

    fn decoded(&mut self, sum: SumId) -> Option<Arc<V>> {
        self.staying.get(sum)
    }
}

impl<V: Vector> Drop for LocalLink<V> {
    fn drop(&mut self) {
        let reason =
            if std::thread::panicking() { "its thread panicked" } else { "its thread ended early" };
        let lost = Notice::Lost { reason: reason.into() };
        self.notices.end(self.worker, Some(lost).filter(|_| !self.stopped));
    }
}

#[cfg(test)]
mod tests;
