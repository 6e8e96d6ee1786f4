//! A worker's end: one connection to the coordinator, and one to every other worker where they sum
//! among themselves.

mod again;
mod kept;
mod link;
mod peers;
mod word;

pub use link::TcpLink;

use super::block::Vectors;
use super::exchange::Plan;
use super::join::Join;
use super::mailbox::Inlet;
use super::pipe::{Frame, Incoming, Pipe, Shop};
use super::security::Stream;
use super::states::Arriving;
use super::summer::Summer;
use super::{DATA_WAITING_MAX, Network, OVERDUE, QUIET, TICK, Welcome};
use crate::ids::{Step, Worker};
use crate::transport::fabric::{Reported, Told};
use crate::transport::wire::{self, COORDINATOR, Down, Kind, Up};
use crate::transport::{Cancel, Decoded, Dismissal, Notice, Order, RunFacts};
use kept::{Equipment, Kept};
use peers::Remote;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Instant;
use word::Word;

/// Orders are numbered anew on every connection; above these bits is the number of the connection.
const ORDER_BITS: u32 = 40;
const ORDER_MASK: u64 = (1 << ORDER_BITS) - 1;

/// Names of connections: the coordinator's, and another worker's, by numbers of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Coordinator(u64),
    Peer(u32, u64),
}

impl From {
    fn node(self) -> u32 {
        if let Self::Peer(worker, _) = self { worker } else { COORDINATOR }
    }
}

/// What the trainer says.
enum Command {
    /// Said after an order that came over this connection, while the trainer was at the tasks of
    /// that order.
    Notice {
        connection: u64,
        order: u64,
        notice: Notice,
    },
    Facts(RunFacts),
    Equip(Equipment),
    /// It is gone.
    Leave,
}

/// What waits for its turn with the trainer.
enum Queued {
    Order(u64, Order),
    Apply {
        step: Step,
        attempt: u32,
        digest: u64,
        tail: Vec<f64>,
        saver: Worker,
        since: Instant,
        asked: bool,
    },
    Take(u64),
}

impl Queued {
    /// The step that the trainer is to apply, or to count.
    fn step(&self) -> Option<Step> {
        match self {
            Self::Apply { step, .. } | Self::Order(_, Order::Skip { step, .. }) => Some(*step),
            _ => None,
        }
    }
}

struct Hub {
    network: Arc<dyn Network>,
    join: Join,
    welcome: Welcome,
    address: Option<String>,
    shop: Shop,
    coordinator: Pipe,
    connection: u64,
    /// Whether an order has come over this connection, and over how many in a row before it none
    /// had.
    of_use: bool,
    of_no_use: u32,
    heard: Instant,
    peers: BTreeMap<u32, Remote>,
    /// Connections to other workers that there were.
    lines: u64,
    /// Calls of workers that are not known yet.
    early: Vec<(u32, u32, Stream)>,
    summer: Summer,
    kept: Kept,
    /// Where the fabric reports.
    reports: mpsc::UnboundedSender<Reported>,
    vectors: Vectors,
    orders: Inlet<(u64, Order)>,
    queue: VecDeque<Queued>,
    /// Orders that the trainer has, and how many of their tasks it has not done.
    given: Vec<(u64, usize)>,
    /// Ends the last order.
    live: Option<Cancel>,
    /// First step that the trainer has not been given.
    next: Step,
    /// What the trainer said of steps that it applied.
    word: Word,
    /// What the trainer said of itself.
    facts: RunFacts,
    /// The state that the trainer was given last: over which connection, the number of its
    /// transfer, and its `next`.
    taking: Option<(u64, u64, Step)>,
    /// Since when the next step to be applied is not the one that comes first; told the
    /// coordinator.
    gap_since: Option<Instant>,
    states: Arriving,
    transfers: u64,
    stopping: bool,
    events: mpsc::Sender<(From, Incoming)>,
    dialled: mpsc::UnboundedSender<(u32, u32, Option<Stream>)>,
}

impl Hub {
    async fn serve(
        mut self,
        mut commands: mpsc::UnboundedReceiver<Command>,
        mut events: mpsc::Receiver<(From, Incoming)>,
        mut dialled: mpsc::UnboundedReceiver<(u32, u32, Option<Stream>)>,
        mut reports: mpsc::UnboundedReceiver<Reported>,
    ) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(Command::Notice { connection, order, notice }) => self.notice(connection, order, notice),
                    Some(Command::Facts(facts)) => {
                        // The coordinator compares; a difference to what this worker said before is
                        // one to the run's.
                        let _ = self.facts.agree(&facts);
                        self.coordinator.tell(&Up::Facts { facts: Box::new(facts) });
                    }
                    Some(Command::Equip(equipment)) => self.equip(equipment),
                    Some(Command::Leave) | None => break,
                },
                Some(reported) = reports.recv() => self.reported(reported),
                Some((from, incoming)) = events.recv() => {
                    if !self.incoming(from, incoming).await {
                        break;
                    }
                }
                Some((worker, epoch, stream)) = dialled.recv() => self.connected(worker, epoch, stream),
                _ = tick.tick() => {
                    self.tick();
                    if self.heard.elapsed() > self.welcome.silence && !self.silent().await {
                        break;
                    }
                }
            }
            self.work();
        }
        if let Some(cancel) = self.live.take() {
            cancel.cancel();
        }
        // The writers send what waits before they end.
        let Self { coordinator, peers, events: own, .. } = self;
        drop((coordinator, peers, own));
        while let Some((from, incoming)) = events.recv().await {
            if matches!((from, incoming), (From::Coordinator(_), Incoming::Ended(_))) {
                break;
            }
        }
    }

    /// What the trainer says.
    fn notice(&mut self, from: u64, order: u64, notice: Notice) {
        match &notice {
            Notice::Done { .. } => self.done(order, false),
            Notice::Freed => self.done(order, true),
            _ => {}
        }
        let (connection, order) = (order >> ORDER_BITS, order & ORDER_MASK);
        let current = connection == self.connection;
        match notice {
            Notice::Done { task, finite: true, .. } if !current => self.kept.discard(task),
            Notice::Done { .. } if !current => {}
            Notice::Done { task, tail, finite } => {
                let tail = if finite { tail } else { Vec::new() };
                if finite && self.welcome.hold {
                    let vector = self.kept.take(task);
                    if let Some(vector) = vector {
                        super::landing::frames(&vector, task, order)
                            .for_each(|frame| self.send(COORDINATOR, frame));
                        self.vectors.give(vector);
                    }
                }
                self.coordinator.tell(&Up::Done { order, task, tail, finite });
            }
            Notice::Freed if current => self.coordinator.tell(&Up::Freed { order }),
            Notice::Applied { step, digest } => {
                self.word.applied(step, digest);
                // The offer over this connection has told that it would be applied, but not the
                // digest.
                if from == self.connection || self.word.is_due(step) && digest.is_some() {
                    self.coordinator.tell(&Up::Applied { step, digest });
                }
            }
            Notice::Taken { digests, unfit } => {
                let Some((connection, transfer, next)) = self.taking.take() else { return };
                self.word.taken(next, &digests);
                if connection == self.connection {
                    self.coordinator.tell(&Up::Taken { transfer, digests, unfit });
                }
            }
            Notice::Finish { after } => self.coordinator.tell(&Up::Finish { after }),
            // Nobody waits for it over this connection.
            Notice::State { .. } if from != self.connection => {}
            Notice::State { needy, state } => {
                self.transfers += 1;
                let lengths = state.vectors.iter().map(Vec::len).collect();
                self.coordinator.tell(&Up::State {
                    needy: needy.0,
                    transfer: self.transfers,
                    next: state.next,
                    lengths,
                });
                for frame in super::states::frames(&Arc::new(state), self.transfers) {
                    self.coordinator.send(frame, usize::MAX);
                }
            }
            _ => {}
        }
    }

    async fn incoming(&mut self, from: From, incoming: Incoming) -> bool {
        if from == From::Coordinator(self.connection) {
            self.heard = Instant::now();
        }
        match (from, incoming) {
            (From::Coordinator(connection), _) if connection != self.connection => {}
            (From::Coordinator(_), Incoming::Control(body)) => match wire::decode::<Down>(&body) {
                Ok(message) => return self.down(message),
                Err(reason) => {
                    tracing::error!("from the coordinator: {reason}");
                    return false;
                }
            },
            (From::Coordinator(_), Incoming::Ended(reason)) => {
                if self.stopping {
                    return false;
                }
                tracing::warn!("the coordinator is gone: {reason}");
                return self.call_again().await;
            }
            (from, Incoming::Chunk(header, _) | Incoming::Landed(header, _))
                if header.worker != from.node() =>
            {
                tracing::warn!(
                    "{} sends a chunk of {}",
                    name_of(from.node()),
                    name_of(header.worker)
                );
            }
            (From::Coordinator(_), Incoming::Chunk(header, block))
                if header.kind == Kind::State =>
            {
                if let Some(state) = self.states.chunk(&header, &block) {
                    self.summer.moved(state.next);
                }
                self.shop.blocks.give(block);
                self.advance();
            }
            (from, Incoming::Chunk(header, block)) => {
                let taken = self.summer.chunk(&header, from.node(), block, Instant::now());
                self.came(from, taken);
            }
            (from, Incoming::Landed(header, claim)) => {
                let taken = self.summer.landed(&header, from.node(), &claim, Instant::now());
                self.came(from, taken);
            }
            (From::Peer(worker, line), Incoming::Ended(reason)) => {
                self.disconnected(worker, line, &reason);
            }
            (From::Peer(worker, _), Incoming::Control(_)) => {
                tracing::warn!("worker {worker} sends what is no chunk");
            }
        }
        true
    }

    /// A chunk of a term or a sum has come from somebody.
    fn came(&mut self, from: From, taken: Result<(), String>) {
        if let From::Peer(worker, line) = from {
            self.heard_of(worker, line);
        }
        if let Err(reason) = taken {
            tracing::warn!("from {}: {reason}", name_of(from.node()));
        }
    }

    /// Whether an order was meant for an earlier connection of this worker.
    fn is_void(&self, message: &Down) -> bool {
        let (Down::Compute { epoch, .. }
        | Down::Apply { epoch, .. }
        | Down::Skip { epoch, .. }
        | Down::Provide { epoch, .. }
        | Down::Take { epoch, .. }) = message
        else {
            return false;
        };
        *epoch != self.welcome.epoch
    }

    /// False if there is nothing more to be done here.
    fn down(&mut self, message: Down) -> bool {
        if self.is_void(&message) {
            tracing::warn!("an order for another connection than {} is void", self.welcome.epoch);
            return true;
        }
        match message {
            Down::Compute { order, tasks, .. } => {
                self.of_use = true;
                let cancel = Cancel::default();
                self.live = Some(cancel.clone());
                let tasks = tasks.into_iter().map(|order| (order.task, order.parts)).collect();
                self.queue.push_back(Queued::Order(
                    self.connection << ORDER_BITS | order,
                    Order::Compute { tasks, cancel },
                ));
            }
            Down::Abandon {} => {
                if let Some(cancel) = &self.live {
                    cancel.cancel();
                }
                self.drop_orders();
            }
            Down::Reduce { step, task, weight } => {
                if let Err(error) = self.kept.reduce(step, task, weight) {
                    tracing::error!("{step}: {error}");
                }
            }
            Down::Discard { task } => self.kept.discard(task),
            Down::Release { step, end } => self.kept.release(step, end),
            Down::Exchange { step, attempt, places, terms, owners, receivers, group } => {
                let plan = Plan { step, attempt, places, terms, owners, receivers };
                match group {
                    Some(group) => self.weave(group, plan),
                    None => self.exchange(plan),
                }
            }
            Down::Name { group } => self.told(Told::Name { group }),
            Down::Join { group, id, members } => self.join_group(group, id, &members),
            Down::Leave { group } => self.told(Told::Leave { group }),
            Down::Apply { step, attempt, digest, tail, saver, .. } => {
                self.of_use = true;
                self.summer.decided(step, Some(attempt));
                self.queue.push_back(Queued::Apply {
                    step,
                    attempt,
                    digest,
                    tail,
                    saver: Worker(saver),
                    since: Instant::now(),
                    asked: false,
                });
            }
            Down::Skip { step, saver, units, .. } => {
                self.summer.decided(step, None);
                let saver = Worker(saver);
                self.enqueue(Order::Skip { step, saver, units: units.into() });
            }
            Down::Give { step, attempt, to } => self.give(step, attempt, to),
            Down::Provide { needy, .. } => self.enqueue(Order::Provide { needy: Worker(needy) }),
            Down::Take { transfer, next, lengths, .. } => {
                // Whatever was to be applied before is in the state.
                self.drop_orders();
                self.queue.retain(|queued| matches!(queued, Queued::Order(_, Order::Stop)));
                self.states.expect(transfer, next, lengths, usize::MAX);
                self.queue.push_back(Queued::Take(transfer));
            }
            Down::Peers { peers } => self.meet(peers),
            Down::Ping { number } => self.coordinator.tell(&Up::Pong { number }),
            Down::Stop {} => self.stop(),
            Down::Replaced {} => return self.leave(Dismissal::Replaced),
            Down::Refused { reason, .. } => return self.leave(Dismissal::Refused { reason }),
            Down::Welcome { .. } => tracing::warn!("a welcome came twice"),
        }
        self.advance();
        true
    }

    /// The run is over, once what was ordered before is done.
    fn stop(&mut self) {
        self.stopping = true;
        if let Some(cancel) = &self.live {
            cancel.cancel();
        }
        self.enqueue(Order::Stop);
    }

    fn enqueue(&mut self, order: Order) {
        self.queue.push_back(Queued::Order(self.connection << ORDER_BITS, order));
    }

    /// The coordinator has shown this worker the door: the trainer is told why, and nobody is
    /// called again.
    fn leave(&mut self, why: Dismissal) -> bool {
        if let Some(cancel) = self.live.take() {
            cancel.cancel();
        }
        self.orders.send((self.connection << ORDER_BITS, Order::Dismiss(why)));
        false
    }

    /// Tasks that the trainer has not been given are free at once.
    fn drop_orders(&mut self) {
        if !self.given.is_empty() {
            return;
        }
        let (tasks, rest) = std::mem::take(&mut self.queue)
            .into_iter()
            .partition(|queued| matches!(queued, Queued::Order(_, Order::Compute { .. })));
        self.queue = rest;
        let tasks: VecDeque<Queued> = tasks;
        for queued in tasks {
            if let Queued::Order(number, _) = queued {
                self.coordinator.tell(&Up::Freed { order: number & ORDER_MASK });
            }
        }
    }

    /// Notes what the trainer has done of its orders.
    fn done(&mut self, number: u64, all: bool) {
        if let Some(given) = self.given.iter_mut().find(|given| given.0 == number) {
            given.1 = if all { 0 } else { given.1.saturating_sub(1) };
        }
        self.given.retain(|given| given.1 > 0);
    }

    fn exchange(&mut self, plan: Plan) {
        let (step, attempt) = (plan.step, plan.attempt);
        let mut sends = Vec::new();
        let held = |what| self.kept.read(step, what);
        for reason in self.summer.begin(plan, held, Instant::now(), &mut sends) {
            tracing::warn!("{step}, attempt {attempt}: {reason}");
        }
        sends.into_iter().for_each(|(to, frame)| self.send(to, frame));
    }

    fn send(&self, to: u32, frame: Frame) {
        let whole = matches!(frame.header.kind, Kind::Term | Kind::Result);
        self.send_at_most(to, frame, if whole { usize::MAX } else { DATA_WAITING_MAX });
    }

    /// Sends a frame unless so many bytes wait already.
    fn send_at_most(&self, to: u32, frame: Frame, most: usize) {
        let pipe = if to == COORDINATOR {
            Some(&self.coordinator)
        } else {
            self.peers.get(&to).map(|remote| &remote.pipe)
        };
        if !pipe.is_some_and(|pipe| pipe.send(frame, most)) {
            tracing::debug!("a chunk for {} is dropped", name_of(to));
        }
    }

    /// Sums chunks while nothing else is to be done.
    fn work(&mut self) {
        let mut out = Vec::new();
        while self.summer.work(&mut out) {
            std::mem::take(&mut out).into_iter().for_each(|(to, frame)| self.send(to, frame));
        }
        for sum in self.summer.finished() {
            let (step, attempt) = (sum.step, sum.attempt);
            if sum.finite {
                self.coordinator.tell(&Up::Held { step, attempt, digest: Some(sum.digest) });
            } else {
                self.coordinator.tell(&Up::Overflowed { step, attempt });
            }
            self.advance();
        }
    }

    /// Hands on what the trainer can have now.
    ///
    /// Steps are applied one after the other: one that is already applied is left out, and where
    /// one was left out on the way, all that comes after it waits until the worker has taken over a
    /// state.
    fn advance(&mut self) {
        while let Some(front) = self.queue.front() {
            if front.step().is_some_and(|step| step < self.next) {
                self.queue.pop_front();
                continue;
            }
            let ready = match front {
                front if front.step().is_some_and(|step| step > self.next) => false,
                Queued::Order(..) => true,
                Queued::Apply { step, attempt, digest, .. } => {
                    self.kept.has(*step, *attempt, *digest)
                        || self.summer.has(*step, *attempt, *digest)
                }
                Queued::Take(transfer) => self.states.is_whole(*transfer),
            };
            if !ready {
                return;
            }
            let (number, order) = match self.queue.pop_front() {
                Some(Queued::Order(number, order)) => (number, order),
                Some(Queued::Apply { step, attempt, digest, tail, saver, .. }) => {
                    let own = self.kept.has(step, attempt, digest).then(Arc::default);
                    let sum = || self.summer.sum(step, attempt).map(|sum| Arc::clone(&sum.vector));
                    let Some(gradient) = own.or_else(sum) else { return };
                    let decoded = Arc::new(Decoded { gradient, tail, digest });
                    let order = Order::Apply { step, attempt, decoded, saver };
                    (self.connection << ORDER_BITS, order)
                }
                Some(Queued::Take(transfer)) => {
                    let Some(state) = self.states.take(transfer) else { return };
                    self.next = state.next;
                    self.taking = Some((self.connection, transfer, state.next));
                    (self.connection << ORDER_BITS, Order::Take { state: Arc::new(state) })
                }
                None => return,
            };
            if let Order::Apply { step, .. } | Order::Skip { step, .. } = &order {
                self.next = self.next.max(step.next());
                self.summer.applied(self.next);
            }
            if let Order::Compute { tasks, .. } = &order {
                self.given.push((number, tasks.len()));
            }
            self.orders.send((number, order));
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        for (step, attempt, on) in self.summer.stalled(now, QUIET) {
            self.coordinator.tell(&Up::Waiting { step, attempt, on });
        }
        self.renew(now);
        let left_out =
            self.queue.front().and_then(Queued::step).is_some_and(|step| step > self.next);
        if !left_out {
            self.gap_since = None;
        } else if self.gap_since.is_none_or(|since| now.duration_since(since) > 5 * OVERDUE) {
            self.gap_since = Some(now);
            self.coordinator.tell(&Up::Missing { step: self.next });
        }
        if left_out {
            return;
        }
        if let Some(Queued::Apply { step, attempt, since, asked, .. }) = self.queue.front_mut() {
            let open = self.summer.is_open(*step, *attempt) || self.kept.is_open(*step, *attempt);
            let patience = if open { OVERDUE } else { QUIET };
            if now.duration_since(*since) > patience
                && (!*asked || now.duration_since(*since) > 5 * OVERDUE)
            {
                (*asked, *since) = (true, now);
                self.coordinator.tell(&Up::Missing { step: *step });
            }
        }
    }
}

fn name_of(node: u32) -> String {
    if node == COORDINATOR { "the coordinator".into() } else { Worker(node).to_string() }
}
