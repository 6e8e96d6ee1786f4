//! A worker's end: one connection to the coordinator, and one to every other worker where they sum
//! among themselves.

mod again;
mod dialer;
mod kept;
mod link;
mod peers;
mod trainer;
mod uplink;
mod word;

pub use link::TcpLink;

use super::block::Blocks;
use super::node::NodeExchanges;
use super::part::Plan;
use super::pipe::{Frame, Incoming};
use super::states::Arriving;
use super::{DATA_WAITING_MAX, QUIET, TICK, Welcome};
use crate::ids::Worker;
use crate::transport::fabric::{Reported, Told};
use crate::transport::wire::{self, COORDINATOR, Down, Kind, Up};
use crate::transport::{Dismissal, Notice, Order, RunFacts};
use dialer::{Dialer, Dialled};
use kept::{Equipment, Kept};
use peers::Peers;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Instant;
use trainer::{Decision, Trainer};
use uplink::Uplink;

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

/// Between the trainer, the coordinator and the other workers: what one of them says goes to whoever
/// owns what it is about.
struct Hub {
    welcome: Welcome,
    dialer: Dialer,
    uplink: Uplink,
    peers: Peers,
    node: NodeExchanges,
    kept: Kept,
    trainer: Trainer,
    states: Arriving,
    /// States that were sent.
    transfers: u64,
    blocks: Blocks,
}

impl Hub {
    async fn serve(
        mut self,
        mut commands: mpsc::UnboundedReceiver<Command>,
        mut events: mpsc::Receiver<(From, Incoming)>,
        mut dialled: mpsc::UnboundedReceiver<Dialled>,
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
                        let _ = self.dialer.facts.agree(&facts);
                        self.uplink.tell(&Up::Facts { facts: Box::new(facts) });
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
                Some(connection) = dialled.recv() => self.connected(connection),
                _ = tick.tick() => {
                    self.tick();
                    if self.uplink.is_silent(self.welcome.silence) && !self.silent().await {
                        break;
                    }
                }
            }
            self.work();
        }
        self.trainer.end();
        // The writers send what waits before they end.
        let Self { uplink, peers, dialer, .. } = self;
        drop((uplink, peers, dialer));
        while let Some((from, incoming)) = events.recv().await {
            if matches!((from, incoming), (From::Coordinator(_), Incoming::Ended(_))) {
                break;
            }
        }
    }

    /// What the trainer says.
    fn notice(&mut self, from: u64, order: u64, notice: Notice) {
        match &notice {
            Notice::Done { .. } => self.trainer.done(order, false),
            Notice::Freed => self.trainer.done(order, true),
            _ => {}
        }
        let (connection, order) = (order >> ORDER_BITS, order & ORDER_MASK);
        let current = self.uplink.is_current(connection);
        match notice {
            Notice::Done { task, finite: true, .. } if !current => self.kept.discard(task),
            Notice::Done { .. } if !current => {}
            Notice::Done { task, tail, finite } => {
                let tail = if finite { tail } else { Vec::new() };
                if finite && self.welcome.hold {
                    let vector = self.kept.take(task);
                    if let Some(vector) = vector {
                        super::eager::frames(&vector, task, order)
                            .for_each(|frame| self.send(COORDINATOR, frame));
                        self.kept.spend([vector]);
                    }
                }
                self.uplink.tell(&Up::Done { order, task, tail, finite });
            }
            Notice::Freed if current => self.uplink.tell(&Up::Freed { order }),
            Notice::Applied { step, digest } => {
                self.trainer.word.applied(step, digest);
                // The offer over this connection has told that it would be applied, but not the
                // digest.
                if self.uplink.is_current(from)
                    || self.trainer.word.is_due(step) && digest.is_some()
                {
                    self.uplink.tell(&Up::Applied { step, digest });
                }
            }
            Notice::Taken { digests, unfit } => {
                let Some((connection, transfer)) = self.trainer.taken(&digests) else { return };
                if self.uplink.is_current(connection) {
                    self.uplink.tell(&Up::Taken { transfer, digests, unfit });
                }
            }
            Notice::Finish { after } => self.uplink.tell(&Up::Finish { after }),
            // Nobody waits for it over this connection.
            Notice::State { .. } if !self.uplink.is_current(from) => {}
            Notice::State { needy, state } => {
                self.transfers += 1;
                let lengths = state.vectors.iter().map(Vec::len).collect();
                self.uplink.tell(&Up::State {
                    needy: needy.0,
                    transfer: self.transfers,
                    next: state.next,
                    lengths,
                });
                for frame in super::states::frames(&Arc::new(state), self.transfers) {
                    self.uplink.send(frame, usize::MAX);
                }
            }
            _ => {}
        }
    }

    async fn incoming(&mut self, from: From, incoming: Incoming) -> bool {
        if from == self.uplink.name() {
            self.uplink.heard();
        }
        match (from, incoming) {
            (From::Coordinator(number), _) if !self.uplink.is_current(number) => {}
            (From::Coordinator(_), Incoming::Control(body)) => match wire::decode::<Down>(&body) {
                Ok(message) => return self.down(message),
                Err(reason) => {
                    tracing::error!("from the coordinator: {reason}");
                    return false;
                }
            },
            (From::Coordinator(_), Incoming::Ended(reason)) => {
                if self.trainer.is_stopping() {
                    return false;
                }
                tracing::warn!("the coordinator is gone: {reason}");
                return self.call_again().await;
            }
            (from, Incoming::Chunk(header, _) | Incoming::Placed(header, _))
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
                    self.node.moved(state.next);
                }
                self.blocks.give(block);
                self.advance();
            }
            (from, Incoming::Chunk(header, block)) => {
                let taken = self.node.chunk(&header, from.node(), block, Instant::now());
                self.came(from, taken);
            }
            (from, Incoming::Placed(header, slot)) => {
                let taken = self.node.placed(&header, from.node(), &slot, Instant::now());
                self.came(from, taken);
            }
            (From::Peer(worker, line), Incoming::Ended(reason)) => {
                self.peers.disconnected(worker, line, &reason, &self.dialer);
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
            self.peers.heard_of(worker, line);
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
                self.uplink.used();
                let tasks = tasks.into_iter().map(|order| (order.task, order.parts)).collect();
                self.trainer.compute(self.uplink.name_of(order), tasks);
            }
            Down::Abandon {} => {
                self.trainer.cancel();
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
                self.uplink.used();
                self.node.decided(step, Some(attempt));
                let saver = Worker(saver);
                self.trainer.apply(Decision { step, attempt, digest, tail, saver });
            }
            Down::Skip { step, saver, units, .. } => {
                self.node.decided(step, None);
                let saver = Worker(saver);
                self.enqueue(Order::Skip { step, saver, units: units.into() });
            }
            Down::Give { step, attempt, to } => self.give(step, attempt, to),
            Down::Provide { needy, .. } => self.enqueue(Order::Provide { needy: Worker(needy) }),
            Down::Take { transfer, next, lengths, .. } => {
                self.drop_orders();
                self.states.expect(transfer, next, lengths, usize::MAX);
                self.trainer.take_over(transfer);
            }
            Down::Peers { peers } => {
                let again = self.peers.meet(peers, &self.dialer);
                again.into_iter().for_each(|worker| self.send_again(worker));
            }
            Down::Ping { number } => self.uplink.tell(&Up::Pong { number }),
            Down::Stop {} => self.trainer.stop(self.uplink.name_of(0)),
            Down::Replaced {} => return self.leave(Dismissal::Replaced),
            Down::Refused { reason, .. } => return self.leave(Dismissal::Refused { reason }),
            Down::Welcome(_) => tracing::warn!("a welcome came twice"),
        }
        self.advance();
        true
    }

    fn enqueue(&mut self, order: Order) {
        self.trainer.enqueue(self.uplink.name_of(0), order);
    }

    /// The coordinator has shown this worker the door: the trainer is told why, and nobody is
    /// called again.
    fn leave(&mut self, why: Dismissal) -> bool {
        self.trainer.dismiss(self.uplink.name_of(0), why);
        false
    }

    /// Tasks that the trainer has not been given are free at once.
    fn drop_orders(&mut self) {
        for number in self.trainer.drop_orders() {
            self.uplink.tell(&Up::Freed { order: number & ORDER_MASK });
        }
    }

    fn exchange(&mut self, plan: Plan) {
        let (step, attempt) = (plan.step, plan.attempt);
        let mut sends = Vec::new();
        let held = |what| self.kept.read(step, what);
        for reason in self.node.begin(plan, held, Instant::now(), &mut sends) {
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
        let sent = match to {
            COORDINATOR => self.uplink.send(frame, most),
            to => self.peers.pipe(to).is_some_and(|pipe| pipe.send(frame, most)),
        };
        if !sent {
            tracing::debug!("a chunk for {} is dropped", name_of(to));
        }
    }

    /// Sums chunks while nothing else is to be done.
    fn work(&mut self) {
        let mut out = Vec::new();
        while self.node.work(&mut out) {
            std::mem::take(&mut out).into_iter().for_each(|(to, frame)| self.send(to, frame));
        }
        for sum in self.node.finished() {
            let (step, attempt) = (sum.step, sum.attempt);
            if sum.finite {
                self.uplink.tell(&Up::Held { step, attempt, digest: Some(sum.digest) });
            } else {
                self.uplink.tell(&Up::Overflowed { step, attempt });
            }
            self.advance();
        }
    }

    /// Hands on what the trainer can have now.
    fn advance(&mut self) {
        let Self { trainer, uplink, kept, node, states, .. } = self;
        trainer.advance(uplink, kept, node, states);
    }

    fn tick(&mut self) {
        let now = Instant::now();
        for (step, attempt, on) in self.node.stalled(now, QUIET) {
            self.uplink.tell(&Up::Waiting { step, attempt, on });
        }
        let owing = self.node.stalled(now, QUIET).into_iter().flat_map(|(_, _, on)| on).collect();
        self.peers.renew(owing, now, &self.dialer);
        let is_open =
            |step, attempt| self.node.is_open(step, attempt) || self.kept.is_open(step, attempt);
        if let Some(step) = self.trainer.misses(now, is_open) {
            self.uplink.tell(&Up::Missing { step });
        }
    }

    /// A connection to another worker is there, or could not be made.
    fn connected(&mut self, dialled: Dialled) {
        if let Some(worker) = self.peers.connected(dialled, &self.dialer) {
            self.send_again(worker);
        }
    }

    /// Sends a worker what it is owed of sums under way: with the old connection it may have been
    /// lost.
    fn send_again(&self, worker: u32) {
        let held = |step, what| self.kept.read(step, what);
        self.node.owed_to(worker, held).into_iter().for_each(|frame| self.send(worker, frame));
    }
}

fn name_of(node: u32) -> String {
    if node == COORDINATOR { "the coordinator".into() } else { Worker(node).to_string() }
}
