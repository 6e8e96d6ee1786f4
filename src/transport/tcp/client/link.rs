//! A worker's link, as its trainer sees it.

use super::super::block::{Blocks, Vectors};
use super::super::calls::{answer, call, listen};
use super::super::canvas::Canvases;
use super::super::mailbox::{Bell, mailbox};
use super::super::pipe::{Pipe, Shop, Stamp, Traffic, run};
use super::super::security::Security;
use super::super::states::Arriving;
use super::super::summer::Summer;
use super::super::{Network, Sockets, TcpError, Welcome, lock, runtime};
use super::kept::{Equipment, Kept};
use super::{Command, From, Hub};
use crate::gpu::{Gradient, GradientMut, Vector};
use crate::transport::fabric::{Fabric, Shelf};
use crate::transport::ledger::Ledger;
use crate::transport::{Link, Notice, Order, Staged};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{Instrument, info_span};

/// What a worker needs to know to join a run.
#[derive(Clone, Debug)]
pub struct Join {
    /// Where the coordinator listens, `host:port`.
    pub address: String,
    /// How peers know each other.
    pub security: Security,
    /// The number this worker wants, or whichever is free.
    pub worker: Option<u32>,
    /// A name that stays the same when the worker comes back.
    pub identity: String,
    /// Where other workers may connect to this one; if not given, on the interface that reaches the coordinator.
    pub listen: Option<SocketAddr>,
    /// How long the coordinator is called again when it cannot be reached.
    pub patience: Duration,
}

impl Join {
    /// A worker that takes any number, by a name of its own, and calls for half a minute.
    #[must_use]
    pub fn new(address: String, security: Security) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let identity = format!("worker {} of process {}", NEXT.fetch_add(1, Relaxed), std::process::id());
        Self { address, security, worker: None, identity, listen: None, patience: Duration::from_secs(30) }
    }
}

/// A worker's link to its coordinator.
#[derive(Debug)]
pub struct TcpLink {
    orders: std::sync::mpsc::Receiver<(u64, Order)>,
    bell: Bell,
    commands: mpsc::UnboundedSender<Command>,
    ledger: Arc<Mutex<Ledger>>,
    vectors: Vectors,
    traffic: Arc<Traffic>,
    /// The order whose tasks are at hand.
    order: u64,
    /// Whether it is said what there is beside the connections.
    equipped: bool,
    hub: Option<tokio::task::JoinHandle<()>>,
    runtime: Option<Runtime>,
}

impl TcpLink {
    /// Joins a run: calls the coordinator until it answers or patience is over.
    ///
    /// # Errors
    /// [`TcpError`] when nobody answers, or the coordinator refuses.
    pub fn join(join: Join) -> Result<(Self, Welcome), TcpError> {
        let runtime = runtime()?;
        let (mut link, welcome) = runtime.block_on(Self::join_over(Arc::new(Sockets), join))?;
        link.runtime = Some(runtime);
        Ok((link, welcome))
    }

    /// Joins a run over any network, on the caller's runtime. Such a link never waits: [`Link::receive`] gives none
    /// when there is no order yet, and [`TcpLink::bell`] tells when to ask again.
    ///
    /// # Errors
    /// [`TcpError`] when nobody answers, or the coordinator refuses.
    pub async fn join_over(network: Arc<dyn Network>, join: Join) -> Result<(Self, Welcome), TcpError> {
        let (orders_in, orders, bell) = mailbox();
        let (commands, commands_out) = mpsc::unbounded_channel();
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let (vectors, traffic) = (Vectors::default(), Arc::new(Traffic::default()));
        let listener = listen(&*network, &join).await?;
        let address = listener.address().ok().map(|address| address.to_string());
        let (stream, welcome) = call(&*network, &join, address.clone(), None).await?;
        let (events, events_out) = mpsc::channel(64);
        let (dialled, dialled_out) = mpsc::unbounded_channel();
        let (coordinator, queues) = Pipe::new();
        let stamp =
            Stamp { run: welcome.run, epoch: welcome.epoch, worker: welcome.worker.0, layout: welcome.layout, format: welcome.format };
        let (blocks, canvases) = (Blocks::new(welcome.length), Canvases::default());
        let shop = Shop { stamp, blocks, canvases, traffic: Arc::clone(&traffic), of_bits: welcome.weave };
        let (most, (reports, reports_out)) = (welcome.kept(), mpsc::unbounded_channel());
        let hub = Hub {
            summer: Summer::new(&shop, welcome.length, vectors.clone(), most),
            kept: Kept::new(Arc::clone(&ledger), vectors.clone(), most),
            reports,
            next: welcome.first,
            welcome: welcome.clone(),
            network,
            address,
            coordinator,
            connection: 0,
            heard: Instant::now(),
            peers: BTreeMap::new(),
            among: Vec::new(),
            lines: 0,
            early: Vec::new(),
            vectors: vectors.clone(),
            orders: orders_in,
            queue: VecDeque::new(),
            given: Vec::new(),
            live: None,
            states: Arriving::default(),
            transfers: 0,
            stopping: false,
            events,
            dialled,
            shop,
            join,
        };
        let span = info_span!("worker", run = welcome.run, worker = welcome.worker.0);
        tokio::spawn(run(stream, queues, hub.shop.clone(), From::Coordinator(0), hub.events.clone()).instrument(span.clone()));
        let calls = tokio::spawn(answer(listener, hub.join.security.clone(), welcome.run, hub.dialled.clone()));
        let serving = async move {
            hub.serve(commands_out, events_out, dialled_out, reports_out).await;
            calls.abort();
        };
        let hub = tokio::spawn(serving.instrument(span));
        Ok((Self { orders, bell, commands, ledger, vectors, traffic, order: 0, equipped: false, hub: Some(hub), runtime: None }, welcome))
    }

    /// Tells when there are orders; ends with the connection.
    #[must_use]
    pub fn bell(&self) -> Bell {
        self.bell.clone()
    }

    /// The same link for a worker whose vectors lie elsewhere: they stay there, on a shelf, and a fabric sums them; what it cannot
    /// sum is copied to the host's memory when it is asked for. Without a fabric, and for a run that wants none, as [`Staged::new`].
    /// Why there is none is told the coordinator.
    #[must_use]
    pub fn woven<V: Vector + Gradient + GradientMut>(
        mut self,
        place: V::Place,
        welcome: &Welcome,
        fabric: impl FnOnce(Shelf<V>) -> Result<Box<dyn Fabric>, String>,
    ) -> Staged<V> {
        if !welcome.weave {
            return Staged::new(Box::new(self), place);
        }
        let shelf = Shelf::new(welcome.kept());
        let made = fabric(shelf.clone());
        let there = made.is_ok();
        self.equip(made.map(|fabric| (Box::new(shelf.clone()) as _, fabric)));
        match there {
            true => Staged::woven(Box::new(self), place, shelf),
            false => Staged::new(Box::new(self), place),
        }
    }

    /// Says why no fabric sums this worker's vectors, for a run that would have it so.
    pub fn unwoven(&mut self, reason: &str) {
        self.equip(Err(reason.to_owned()));
    }

    fn equip(&mut self, equipment: Equipment) {
        self.equipped = true;
        let _ = self.commands.send(Command::Equip(equipment));
    }

    /// Tells, whenever it is called, how many vectors are held for the coordinator.
    pub fn held(&self) -> impl Fn() -> usize + use<> {
        let ledger = Arc::clone(&self.ledger);
        move || lock(&ledger).len()
    }
}

impl TcpLink {
    /// Tells, whenever it is called, how many bytes were sent and received.
    pub fn traffic(&self) -> impl Fn() -> (u64, u64) + use<> {
        let traffic = Arc::clone(&self.traffic);
        move || (traffic.sent.load(Relaxed), traffic.received.load(Relaxed))
    }
}

impl Link for TcpLink {
    fn receive(&mut self) -> Option<Order> {
        if !self.equipped {
            self.unwoven("its trainer keeps its vectors in the host's memory");
        }
        let next = if self.runtime.is_some() { self.orders.recv().ok() } else { self.orders.try_recv().ok() };
        let (number, order) = next?;
        if matches!(order, Order::Compute { .. }) {
            self.order = number;
        }
        Some(order)
    }

    fn keep(&mut self, task: crate::ids::Task, result: Vec<f32>) {
        lock(&self.ledger).keep(task, result);
    }

    fn send(&mut self, notice: Notice) {
        let _ = self.commands.send(Command::Notice(self.order, notice));
    }

    fn buffer(&mut self, length: usize) -> Vec<f32> {
        self.vectors.take(length)
    }

    fn recycle(&mut self, buffer: Vec<f32>) {
        self.vectors.give(Arc::new(buffer));
    }
}

impl Drop for TcpLink {
    fn drop(&mut self) {
        let (closed, _) = mpsc::unbounded_channel();
        self.commands = closed;
        if let (Some(runtime), Some(hub)) = (self.runtime.take(), self.hub.take()) {
            // What was said last is still to be sent.
            let _ = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(2), hub).await });
            runtime.shutdown_background();
        }
    }
}
