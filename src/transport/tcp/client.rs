//! A worker's end: one connection to the coordinator, and one to every other worker where they sum
//! among themselves.
//!
//! # How it is driven
//! One task runs [`WorkerNode::serve`] until the link is dropped or the coordinator dismisses the
//! worker. It takes in what the trainer's thread says ([`Command`], each with the connection its
//! order came over), what a collective reports, what connections bring ([`PipeItem`]), connections
//! that were made ([`DialResult`]), and ticks. Each goes to the one part that it is about:
//! - [`Uplink`]: the connection to the coordinator, and when to call again;
//! - [`Peers`]: the connections to other workers;
//! - [`Trainer`]: orders that wait for their turn;
//! - [`WorkerSums`]: all that is summed. It is told events and gives effects, which are carried out
//!   at once.
//!
//! After any of them that may have completed a sum or a state, `advance` hands the trainer what it
//! can have now. After every turn `work` goes on with sums that are ready.
//!
//! # A connection that is lost
//! Everything that was ordered over it is void: the trainer's queue is emptied, it drops its tasks,
//! and the uplink calls again with what the replica has applied. Results that are finished for an
//! order of an earlier connection are discarded, digests of applied steps are said again
//! ([`word`]).

mod again;
mod dialer;
mod link;
mod peers;
mod trainer;
mod uplink;
mod word;

pub use link::TcpLink;

use super::Welcome;
use super::pipe::PipeItem;
use super::unreadable::UnreadableMessages;
use crate::ids::{OrderId, Worker};
use crate::sums::collective::{Collective, CollectiveEvent, ResultStore};
use crate::sums::exchange::TICK;
use crate::sums::exchange::{
    Blocks, Frame, Warnings, WorkerEffect, WorkerEvent, WorkerSums, name_of,
};
use crate::sums::{CHUNK, COORDINATOR, Kind, PeerMessage, SumCommand, SumNotice, TaskSpent};
use crate::transport::tcp::states::{IncomingStates, frames as state_frames};
use crate::transport::wire::{self, FromWorker, ToWorker};
use crate::transport::{Dismissal, ExitReason, Notice, Order};
use dialer::{DialResult, Dialer};
use peers::Peers;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use trainer::{Decision, MissingItem, Numbers, Trainer};
use uplink::Uplink;

/// Names of connections: the coordinator's, and another worker's, by numbers of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionName {
    Coordinator(u64),
    Peer(u32, u64),
}

impl ConnectionName {
    fn node(self) -> u32 {
        if let Self::Peer(worker, _) = self { worker } else { COORDINATOR }
    }
}

/// A collective and where results lie for it, or why there is none.
type Equipment = Result<(Box<dyn ResultStore>, Box<dyn Collective>), String>;

/// What the trainer says.
enum Command {
    /// Said after an order that came over this connection.
    Notice {
        connection: u64,
        notice: Notice,
    },
    Equip(Equipment),
    /// It ends its part in the run, with a last word if it has one.
    Leave(Option<ExitReason>),
}

/// Between the trainer, the coordinator and the other workers: what one of them says goes to
/// the part that owns what it is about.
struct WorkerNode {
    welcome: Welcome,
    dialer: Dialer,
    uplink: Uplink,
    peers: Peers,
    sums: WorkerSums,
    /// What sums vectors beside the connections, and where that reports.
    collective: Option<Box<dyn Collective>>,
    reports: mpsc::UnboundedSender<CollectiveEvent>,
    trainer: Trainer,
    /// With how much notice it leaves, once it has said so.
    leaving: watch::Receiver<Option<Duration>>,
    states: IncomingStates,
    /// What the coordinator said over any connection that could not be read.
    unreadable: UnreadableMessages,
    /// States that were sent.
    transfers: u64,
    blocks: Blocks,
    warnings: Warnings,
}

impl WorkerNode {
    async fn serve(
        mut self,
        mut commands: mpsc::UnboundedReceiver<Command>,
        mut events: mpsc::Receiver<(ConnectionName, PipeItem)>,
        mut dialled: mpsc::UnboundedReceiver<DialResult>,
        mut reports: mpsc::UnboundedReceiver<CollectiveEvent>,
    ) {
        let mut tick = tokio::time::interval(TICK);
        // A process that was stopped and goes on heard nothing in between: it must not take its
        // missed ticks for time without an answer.
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(Command::Notice { connection, notice }) => self.notice(connection, notice),
                    Some(Command::Equip(equipment)) => self.equip(equipment),
                    Some(Command::Leave(word)) => {
                        let word = word.map(FromWorker::Parting);
                        word.iter().for_each(|word| self.uplink.tell(word));
                        break;
                    }
                    None => break,
                },
                Ok(()) = self.leaving.changed() => {
                    if let Some(notice) = *self.leaving.borrow() {
                        self.uplink.tell(&FromWorker::Leave { seconds: notice.as_secs_f64() });
                    }
                }
                Some(reported) = reports.recv() => {
                    self.sums(WorkerEvent::Collective(reported));
                    self.advance();
                }
                Some((from, incoming)) = events.recv() => {
                    if !self.incoming(from, incoming).await {
                        break;
                    }
                }
                Some(connection) = dialled.recv() => self.connected(connection),
                _ = tick.tick() => {
                    if !self.tick().await {
                        break;
                    }
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
            if matches!((from, incoming), (ConnectionName::Coordinator(_), PipeItem::Ended(_))) {
                break;
            }
        }
    }

    /// What the trainer says.
    fn notice(&mut self, from: u64, notice: Notice) {
        match &notice {
            // Noted before anything is sent: the queue goes on while connections are slow.
            Notice::Done { order, .. } => self.trainer.done(*order, false),
            Notice::Idle { order, .. } => self.trainer.done(*order, true),
            _ => {}
        }
        let current = |order| self.uplink.is_current(from) && self.uplink.brought(order);
        match notice {
            Notice::Facts(facts) => {
                // The coordinator compares; a difference to what this worker said before is one to
                // the run's.
                let _ = self.dialer.facts.agree(&facts);
                self.uplink.tell(&FromWorker::Facts { facts: Box::new(facts) });
            }
            // Over another connection the task is void, and its parts are of no use.
            Notice::Announced { .. } if !self.uplink.is_current(from) => {}
            Notice::Announced { task, start, numbers } => {
                // Parts begin at chunks; only the last one of a vector may end within one.
                let chunks = start / CHUNK..(start + numbers.len()).div_ceil(CHUNK);
                self.sums(WorkerEvent::Announced { task, chunks, numbers: Arc::new(numbers) });
            }
            Notice::Done { order, task, finite: true, .. } if !current(order) => {
                self.sums(WorkerEvent::Told(SumCommand::Discard { task }));
            }
            // Its numbers are not kept, so that there is nothing to throw away.
            Notice::Done { order, .. } if !current(order) => {}
            Notice::Done { order, task, aux, finite, spent } => {
                // Scalars beside a gradient that is not finite are none to be summed.
                let aux = if finite { aux } else { Vec::new() };
                // Either the coordinator sums and gets it now, or it stays here until a process
                // asks.
                if finite && self.welcome.eager {
                    self.sums(WorkerEvent::SendEagerly { task, order });
                } else if finite {
                    self.sums(WorkerEvent::Computed { task });
                }
                let (computed, units) = said(spent);
                self.uplink.tell(&FromWorker::Done { order, task, aux, finite, computed, units });
            }
            Notice::Sum(SumNotice::Changed { order, task }) if current(order) => {
                self.uplink.tell(&FromWorker::Changed { order, task });
            }
            Notice::Idle { order, spent } if current(order) => {
                let (computed, units) = said(spent);
                self.uplink.tell(&FromWorker::Idle { order, computed, units });
            }
            Notice::Applied { step, digest } => {
                self.trainer.word.applied(step, digest);
                // The offer over this connection has told that it would be applied, but not the
                // digest.
                if self.uplink.is_current(from)
                    || self.trainer.word.is_due(step) && digest.is_some()
                {
                    self.uplink.tell(&FromWorker::Applied { step, digest });
                }
            }
            Notice::StateLoaded { next, digests, unfit } => {
                let Some((connection, transfer)) = self.trainer.taken(next, &digests) else {
                    return;
                };
                if self.uplink.is_current(connection) {
                    self.uplink.tell(&FromWorker::StateLoaded { transfer, digests, unfit });
                }
            }
            Notice::Finish { after } => self.uplink.tell(&FromWorker::Finish { after }),
            // No process waits for it over this connection.
            Notice::State { .. } if !self.uplink.is_current(from) => {}
            Notice::State { needy, state } => {
                self.transfers += 1;
                let lengths = state.vectors.iter().map(Vec::len).collect();
                self.uplink.tell(&FromWorker::State {
                    needy: needy.0,
                    transfer: self.transfers,
                    next: state.next,
                    lengths,
                });
                for frame in state_frames(&Arc::new(state), self.transfers) {
                    self.uplink.send(frame, usize::MAX);
                }
            }
            _ => {}
        }
    }

    async fn incoming(&mut self, from: ConnectionName, incoming: PipeItem) -> bool {
        // Any word of it shows that it is alive.
        if from == self.uplink.name() {
            self.uplink.heard();
        }
        match (from, incoming) {
            (ConnectionName::Coordinator(number), _) if !self.uplink.is_current(number) => {}
            (ConnectionName::Coordinator(_), PipeItem::Control(body)) => {
                match body.and_then(|body| wire::decode::<ToWorker>(&body)) {
                    Ok(message) => return self.down(message),
                    Err(reason) => return self.cannot_read(&reason).await,
                }
            }
            (ConnectionName::Coordinator(_), PipeItem::Ended(reason)) => {
                // The run is over, and the coordinator was the first to hang up.
                if self.trainer.is_stopping() {
                    return false;
                }
                if self.uplink.is_to_wait() {
                    let let_in = self.call_again().await;
                    tracing::warn!(
                        "{}",
                        if let_in { "in the run again" } else { "the run is over" }
                    );
                    return let_in;
                }
                tracing::warn!("the coordinator is lost: {reason}");
                return self.call_again().await;
            }
            (from, PipeItem::Chunk(header, _) | PipeItem::Placed(header, _))
                if header.worker != from.node() =>
            {
                let reason = format!("it sends a chunk of {}", name_of(header.worker));
                self.warnings.warn(from.node(), &reason);
            }
            (ConnectionName::Coordinator(_), PipeItem::Chunk(header, block))
                if header.kind == Kind::State =>
            {
                if let Some(next) = self.states.chunk(&header, &block).map(|state| state.next) {
                    // Sums of steps that the state has behind it would never be asked for.
                    self.sums(WorkerEvent::Moved { next });
                }
                self.blocks.give(block);
                self.advance();
            }
            (from, PipeItem::Chunk(header, block)) => {
                self.heard_of(from);
                self.sums(WorkerEvent::Chunk { from: from.node(), header, block });
            }
            (from, PipeItem::Placed(header, slot)) => {
                self.heard_of(from);
                self.sums(WorkerEvent::Placed { from: from.node(), header, slot });
            }
            (
                ConnectionName::Peer(worker, line),
                PipeItem::Ended(reason) | PipeItem::Control(Err(reason)),
            ) => {
                // The end of an earlier connection says nothing of the one that took its place.
                if self.peers.disconnected(worker, line, &reason, &self.dialer) {
                    self.sums(WorkerEvent::Disconnected { worker });
                }
            }
            (ConnectionName::Peer(worker, line), PipeItem::Control(Ok(body))) => {
                match wire::decode::<PeerMessage>(&body) {
                    Ok(message) => {
                        self.peers.heard_of(worker, line);
                        self.sums(WorkerEvent::Peer { from: worker, message });
                    }
                    Err(reason) => self.warnings.warn(from.node(), &reason),
                }
            }
        }
        true
    }

    /// Notes that a chunk of a term or a sum has come.
    fn heard_of(&mut self, from: ConnectionName) {
        if let ConnectionName::Peer(worker, line) = from {
            self.peers.heard_of(worker, line);
        }
    }

    /// Tells the machine that makes the sums what happened, and does what follows from it.
    fn sums(&mut self, event: WorkerEvent) {
        let mut effects = Vec::new();
        self.sums.handle(now(), event, &mut effects);
        self.carry_out(effects);
    }

    fn carry_out(&mut self, effects: Vec<WorkerEffect>) {
        for effect in effects {
            tracing::trace!(?effect, "exchange");
            match effect {
                WorkerEffect::Send { to, frame, most } => self.send(to, frame, most),
                WorkerEffect::TellPeers { to, message } => {
                    let frame = Frame::control(&message);
                    let pipes = to.into_iter().filter_map(|worker| self.peers.pipe(worker));
                    pipes.for_each(|pipe| pipe.tell_frame(frame.clone()));
                }
                WorkerEffect::Tell(report) => self.uplink.tell(&FromWorker::Sum(report)),
                WorkerEffect::Collective(told) => {
                    if let Some(collective) = &mut self.collective {
                        collective.tell(told);
                    }
                }
                WorkerEffect::Owing(owing) => {
                    self.peers.renew(owing, Instant::now(), &self.dialer);
                }
            }
        }
    }

    /// The trainer has said what there is beside the connections.
    fn equip(&mut self, equipment: Equipment) {
        let results = equipment.map(|(results, mut collective)| {
            let reports = self.reports.clone();
            collective.begin(Box::new(move |reported| {
                let _ = reports.send(reported);
            }));
            self.collective = Some(collective);
            results
        });
        self.sums(WorkerEvent::Equipped(results));
    }

    /// Whether an order was meant for an earlier connection of this worker.
    fn is_void(&self, message: &ToWorker) -> bool {
        let (ToWorker::Compute { epoch, .. }
        | ToWorker::Apply { epoch, .. }
        | ToWorker::Skip { epoch, .. }
        | ToWorker::SendState { epoch, .. }
        | ToWorker::LoadState { epoch, .. }) = message
        else {
            return false;
        };
        *epoch != self.welcome.epoch
    }

    /// False if there is nothing more to be done here.
    fn down(&mut self, message: ToWorker) -> bool {
        if self.is_void(&message) {
            tracing::warn!("an order for another connection than {} is void", self.welcome.epoch);
            return true;
        }
        match message {
            ToWorker::Compute { order, after, tasks, .. } => {
                self.uplink.used();
                self.uplink.brings(order);
                // Parts that no sum expects would be copied for nothing.
                let in_parts = tasks.iter().all(|ordered| self.sums.expects(ordered.task));
                let tasks =
                    tasks.into_iter().map(|ordered| (ordered.task, ordered.parts)).collect();
                self.trainer.compute(self.uplink.number(), order, (after, tasks), in_parts);
            }
            ToWorker::Abandon { order } => {
                // First the trainer, which may be in the middle of a unit; then what it has not
                // begun.
                self.trainer.abandon(order);
                self.drop_orders(Some(order));
            }
            ToWorker::Sum(command) => self.sums(WorkerEvent::Told(command)),
            ToWorker::Apply { sum, digest, aux, news, .. } => {
                self.uplink.used();
                self.sums(WorkerEvent::Decided { step: sum.step, sum: Some(sum) });
                self.trainer.apply(Decision { sum, digest, aux, news });
            }
            ToWorker::Skip { step, news, units, .. } => {
                self.sums(WorkerEvent::Decided { step, sum: None });
                self.enqueue(Order::Skip { step, news, units: units.into() });
            }
            ToWorker::SendState { needy, .. } => {
                self.enqueue(Order::SendState { needy: Worker(needy) });
            }
            ToWorker::LoadState { transfer, next, lengths, .. } => {
                self.drop_orders(None);
                self.states.expect(transfer, next, lengths, usize::MAX);
                self.trainer.take_over(transfer);
            }
            ToWorker::Peers { peers } => {
                // Who has another address or process may lack what was sent to it before.
                let again = self.peers.meet(peers, &self.dialer);
                for worker in again {
                    self.sums(WorkerEvent::ConnectedAgain { worker });
                }
            }
            ToWorker::Ping { number, order, transfer, after } => {
                self.trainer.was_sent(&after, Numbers { order, transfer });
                self.uplink.tell(&FromWorker::Pong { number });
            }
            ToWorker::Stop { why, after } => {
                self.trainer.was_sent(&after, Numbers::default());
                self.trainer.stop(self.uplink.number(), why.into());
            }
            ToWorker::Replaced {} => return self.leave(Dismissal::Replaced),
            // It hangs up next, and is called again.
            ToWorker::Refused { again: true, wait, reason } => {
                tracing::warn!("out of the run: {reason}; it is asked for every {wait} s");
                self.uplink.waits(Duration::from_secs(wait.into()));
            }
            ToWorker::Refused { reason, .. } => return self.leave(Dismissal::Refused { reason }),
            ToWorker::Welcome(_) => tracing::warn!("a welcome came twice"),
        }
        self.advance();
        true
    }

    fn enqueue(&mut self, order: Order) {
        self.trainer.enqueue(self.uplink.number(), order);
    }

    /// The coordinator has sent this worker away: its trainer learns why, and it calls no process
    /// again.
    fn leave(&mut self, why: Dismissal) -> bool {
        self.trainer.dismiss(self.uplink.number(), why);
        false
    }

    /// Tasks of an order, or of all, that the trainer has not been given are free at once.
    fn drop_orders(&mut self, of: Option<OrderId>) {
        for order in self.trainer.drop_orders(of) {
            self.uplink.tell(&FromWorker::Idle { order, computed: None, units: None });
        }
    }

    /// Sends a frame unless so many bytes wait already.
    fn send(&self, to: u32, frame: Frame, most: usize) {
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
        let mut effects = Vec::new();
        while self.sums.work(&mut effects) {
            self.carry_out(std::mem::take(&mut effects));
        }
        let is_whole = self.sums.finish(&mut effects);
        self.carry_out(effects);
        if is_whole {
            self.advance();
        }
    }

    /// Hands on what the trainer can have now.
    fn advance(&mut self) {
        let before = self.trainer.next();
        let Self { trainer, uplink, sums, states, .. } = self;
        trainer.advance(uplink, sums, states);
        // Sums below it are not taken in any more; told once, since it drops what is under way.
        let next = self.trainer.next();
        if next != before {
            self.sums(WorkerEvent::Applied { next });
        }
    }

    /// False if the connection is to be given up, and there is no other.
    async fn tick(&mut self) -> bool {
        self.sums(WorkerEvent::Tick);
        let is_open = |sum| self.sums.is_open(sum);
        match self.trainer.misses(Instant::now(), is_open) {
            None => {}
            Some(MissingItem::Step(step)) => {
                self.uplink.tell(&FromWorker::StepUnavailable { step });
            }
            Some(MissingItem::Order) => {
                return self.lost_on_the_way("something that it has sent has not come").await;
            }
        }
        true
    }

    /// A connection to another worker is there, or could not be made.
    fn connected(&mut self, dialled: DialResult) {
        if let Some(worker) = self.peers.connected(dialled, &self.dialer) {
            self.sums(WorkerEvent::ConnectedAgain { worker });
        }
    }
}

/// What was spent on a task, as it stands in messages.
fn said(spent: Option<TaskSpent>) -> (Option<f64>, Option<u32>) {
    spent.map(|TaskSpent { computed, units }| (computed, units)).unzip()
}

/// The time, as machines without a clock are told it.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}
