//! A worker's link, as its trainer sees it.

use super::super::calls::{answer, call, listen};
use super::super::door::Door;
use super::super::join::Join;
use super::super::mailbox::{Waker, mailbox};
use super::super::pipe::{ConnectionContext, Pipe, PipeItem, Queues, Stamp, Traffic};
use super::super::security::Stream;
use super::super::{Listener, Network, Sockets, TcpError, Welcome, runtime, wait};
use super::dialer::{DialResult, Dialer};
use super::peers::Peers;
use super::trainer::Trainer;
use super::uplink::Uplink;
use super::word::Word;
use super::{Command, ConnectionName, Equipment, WorkerNode};
use crate::gpu::{Gradient, GradientMut, Vector};
use crate::ids::{Step, Task, Worker};
use crate::sums::collective::{Collective, CollectiveEvent, DeviceResults};
use crate::sums::exchange::{
    Blocks, HostResults, NodeContext, ReassemblyBuffers, Vectors, WorkerSums,
};
use crate::sums::ledger::Ledger;
use crate::sums::{CHUNK, lock};
use crate::transport::tcp::states::IncomingStates;
use crate::transport::{Closer, Link, LinkPlace, Notice, Order, ReceiveOutcome, Say, StagedLink};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tracing::{Instrument, info_span};

/// How long a worker that leaves may take to say so.
const LAST_WORD: Duration = Duration::from_secs(1);

/// A worker's link to its coordinator.
#[derive(Debug)]
pub struct TcpLink {
    orders: std::sync::mpsc::Receiver<(u64, Order)>,
    waker: Waker,
    commands: mpsc::UnboundedSender<Command>,
    ledger: Arc<Mutex<Ledger>>,
    vectors: Vectors,
    traffic: Arc<Traffic>,
    blocks: Blocks,
    closer: Closer,
    /// First step not applied in the replica that the worker has joined with.
    first: Step,
    /// Over which connection the last order came.
    connection: u64,
    /// Whether it is said what there is beside the connections.
    equipped: bool,
    node: Option<JoinHandle<()>>,
    runtime: Option<Runtime>,
}

/// What comes to a worker's node.
struct Outlets {
    commands: mpsc::UnboundedReceiver<Command>,
    events: mpsc::Receiver<(ConnectionName, PipeItem)>,
    dialled: mpsc::UnboundedReceiver<DialResult>,
    reports: mpsc::UnboundedReceiver<CollectiveEvent>,
    closed: Arc<Notify>,
}

/// What the connections of a worker have in common.
fn context_of(welcome: &Welcome, traffic: &Arc<Traffic>) -> ConnectionContext {
    let Welcome { run, epoch, worker: Worker(worker), layout, format, .. } = *welcome;
    ConnectionContext {
        stamp: Stamp { run, epoch, worker, layout, format },
        blocks: Blocks::new(welcome.length),
        buffers: ReassemblyBuffers::default(),
        traffic: Arc::clone(traffic),
    }
}

/// Starts a worker's tasks: its connection, its port, and the node between them.
fn launch(
    node: WorkerNode,
    (stream, queues): (Stream, Queues),
    listener: Box<dyn Listener>,
    outlets: Outlets,
) -> JoinHandle<()> {
    let Welcome { run: id, worker: Worker(worker), workers, .. } = node.welcome;
    let span = info_span!("worker", run = %format_args!("{id:016x}"), worker);
    tokio::spawn(node.dialer.carry(stream, queues, node.uplink.name()).instrument(span.clone()));
    // Workers call each other by the same rules as they call the coordinator.
    let door = Door::new(node.dialer.join.security.clone(), workers, None);
    let run = (id, Arc::clone(&node.dialer.seats));
    let calls = tokio::spawn(answer(listener, door, run, node.dialer.dialled.clone()));
    let serving = async move {
        // What waits on connections is still sent when the node is dropped in the middle of
        // something.
        let Outlets { commands, events, dialled, reports, closed } = outlets;
        let serve = node.serve(commands, events, dialled, reports);
        tokio::pin!(serve);
        tokio::select! {
            biased;
            // The node knows, but may be in the middle of a call that no process answers.
            () = closed.notified() => {
                let _ = tokio::time::timeout(LAST_WORD, &mut serve).await;
            }
            () = &mut serve => {}
        }
        // No node is left that could take a caller.
        calls.abort();
    };
    tokio::spawn(serving.instrument(span))
}

impl TcpLink {
    /// Joins a run: calls the coordinator until it answers or patience is over.
    ///
    /// # Errors
    /// [`TcpError`] when the coordinator does not answer, or refuses.
    pub fn join(join: Join) -> Result<(Self, Welcome), TcpError> {
        let runtime = runtime()?;
        let (mut link, welcome) = wait(&runtime, Self::join_over(Arc::new(Sockets), join))?;
        link.runtime = Some(runtime);
        Ok((link, welcome))
    }

    /// Joins a run over any network, on the caller's runtime. Such a link never waits:
    /// [`Link::receive`] gives none when there is no order yet, and [`TcpLink::waker`] tells when
    /// to ask again.
    ///
    /// # Errors
    /// [`TcpError`] when the coordinator does not answer, or refuses.
    pub async fn join_over(
        network: Arc<dyn Network>,
        join: Join,
    ) -> Result<(Self, Welcome), TcpError> {
        let (orders_in, orders, waker) = mailbox();
        let (commands, commands_out) = mpsc::unbounded_channel();
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let (vectors, traffic) = (Vectors::default(), Arc::new(Traffic::default()));
        // The port is opened before the call: the coordinator tells others of it at once.
        let listener = listen(&*network, &join).await?;
        let address = listener.address().ok().map(|address| address.to_string());
        let (stream, welcome) =
            call(&*network, &join, address.clone(), (None, &join.facts)).await?;
        // Bounded: connections wait to read when the node has too much to do, and the peers feel
        // it.
        let (events, events_out) = mpsc::channel(64);
        let (dialled, dialled_out) = mpsc::unbounded_channel();
        let (coordinator, queues) = Pipe::new();
        let context = context_of(&welcome, &traffic);
        let blocks = context.blocks.clone();
        let (reports, reports_out) = mpsc::unbounded_channel();
        // A worker without a replica is sent a state before anything is to be applied.
        let first = join.has.next(Some(welcome.first)).unwrap_or(welcome.first);
        let word = Word::new(welcome.facts.models);
        let of_node = NodeContext {
            me: welcome.worker.0,
            length: welcome.length,
            format: welcome.format,
            of_bits: welcome.collective,
            blocks: context.blocks.clone(),
            vectors: vectors.clone(),
            buffers: context.buffers.clone(),
            kept_max: welcome.kept(),
        };
        let results = HostResults::new(Arc::clone(&ledger), vectors.clone());
        let (leave, leaving) = watch::channel(None);
        let node = WorkerNode {
            sums: WorkerSums::new(of_node, Box::new(results)),
            collective: None,
            reports,
            trainer: Trainer::new(orders_in, first, word),
            leaving,
            welcome: welcome.clone(),
            uplink: Uplink::new(coordinator),
            peers: Peers::default(),
            states: IncomingStates::default(),
            unreadable: Default::default(),
            transfers: 0,
            blocks: context.blocks.clone(),
            warnings: Default::default(),
            dialer: Dialer {
                network,
                facts: join.facts.clone(),
                join,
                address,
                context,
                seats: Arc::new(AtomicUsize::new(welcome.workers)),
                events,
                dialled,
            },
        };
        let (closed, parting) = (Arc::new(Notify::new()), commands.clone());
        let outlets = Outlets {
            commands: commands_out,
            events: events_out,
            dialled: dialled_out,
            reports: reports_out,
            closed: Arc::clone(&closed),
        };
        let node = launch(node, (stream, queues), listener, outlets);
        let end = move |word| {
            let _ = parting.send(Command::Leave(word));
            closed.notify_one();
        };
        let leave = move |notice| {
            leave.send_replace(Some(notice));
        };
        Ok((
            Self {
                orders,
                waker,
                commands,
                ledger,
                vectors,
                traffic,
                blocks,
                closer: Closer::new(end, leave),
                first,
                connection: 0,
                equipped: false,
                node: Some(node),
                runtime: None,
            },
            welcome,
        ))
    }

    /// Tells when there are orders; ends with the connection.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// The same link for a worker whose vectors lie elsewhere: they stay there, and a
    /// collective sums them; what it cannot sum is copied to the host's memory when it is asked
    /// for. Without a collective, and for a run that wants none, as [`StagedLink::new`]. Why there
    /// is none is told the coordinator.
    #[must_use]
    pub fn with_collective<V: Vector + Gradient + GradientMut>(
        mut self,
        place: V::Place,
        welcome: &Welcome,
        collective: impl FnOnce(DeviceResults<V>) -> Result<Box<dyn Collective>, String>,
    ) -> StagedLink<V> {
        if !welcome.collective {
            return StagedLink::new(Box::new(self), place);
        }
        let results = DeviceResults::new(welcome.kept());
        let made = collective(results.clone());
        let there = made.is_ok();
        self.equip(made.map(|collective| (Box::new(results.clone()) as _, collective)));
        match there {
            true => StagedLink::with_collective(Box::new(self), place, results),
            false => StagedLink::new(Box::new(self), place),
        }
    }

    /// Says why no collective sums this worker's vectors, for a run that would have it so.
    pub fn without_collective(&mut self, reason: &str) {
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

    /// Tells, whenever it is called, how many bytes the connections and the exchange held at a
    /// time, at most: terms that waited for others, and what was not written yet. The worker's own
    /// results and the sums that are kept are not among them.
    pub fn most_buffered(&self) -> impl Fn() -> usize + use<> {
        let blocks = self.blocks.clone();
        move || blocks.most_in_use()
    }
}

impl Link for TcpLink {
    fn receive(&mut self, patience: Option<Duration>) -> ReceiveOutcome {
        // The node waits for one word or the other before it answers what a group is asked.
        if !self.equipped {
            self.without_collective("its trainer keeps its vectors in the host's memory");
        }
        let next = match patience {
            _ if self.closer.is_closed() => return ReceiveOutcome::Gone,
            _ if self.runtime.is_none() => self.orders.try_recv().map_err(|gone| match gone {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            }),
            None => self.orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(patience) => self.orders.recv_timeout(patience),
        };
        let (connection, order) = match next {
            Ok(next) => next,
            Err(RecvTimeoutError::Timeout) => return ReceiveOutcome::Nothing,
            Err(RecvTimeoutError::Disconnected) => return ReceiveOutcome::Gone,
        };
        // What the trainer says from now on is said of this connection.
        self.connection = connection;
        ReceiveOutcome::Order(order)
    }

    fn closer(&self) -> Closer {
        self.closer.clone()
    }

    fn later(&self) -> Say {
        let commands = self.commands.clone();
        let connection = self.connection;
        Box::new(move |notice| {
            // The link may be gone.
            let _ = commands.send(Command::Notice { connection, notice });
        })
    }

    fn keep(&mut self, task: Task, result: Vec<f32>) {
        lock(&self.ledger).keep(task, result);
    }

    fn send(&mut self, notice: Notice) {
        let _ = self.commands.send(Command::Notice { connection: self.connection, notice });
    }

    fn place(&self) -> LinkPlace {
        LinkPlace { first: Some(self.first), chunk: Some(CHUNK) }
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
        // A thread that may still say something later must not hold up the end.
        let _ = self.commands.send(Command::Leave(None));
        if let (Some(runtime), Some(node)) = (self.runtime.take(), self.node.take()) {
            // What was said last is still to be sent.
            let last = Duration::from_secs(2);
            let _ = wait(&runtime, async { tokio::time::timeout(last, node).await });
            runtime.shutdown_background();
        }
    }
}
