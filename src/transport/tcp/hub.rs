//! What the coordinator's end does: seats workers, tells them what to exchange, and looks after
//! those that stop.

mod doubts;
mod exchanges;
mod groups;
mod handovers;
mod joining;
mod sums;
mod watched;

pub(super) use watched::Watched;

use super::block::{Blocks, Vectors};
use super::eager::EagerReceiver;
use super::members::Members;
use super::node::NodeExchanges;
use super::pipe::{ConnectionContext, Frame, Incoming, Stamp, Traffic};
use super::reassembly::ReassemblyBuffers;
use super::server::{Caller, Command, Heard, Listen};
use super::{Exchange, TICK};
use crate::ids::{Step, Worker};
use crate::transport::ledger::Ledgers;
use crate::transport::wire::{self, COORDINATOR, Down, Kind, TaskOrder, Up};
use crate::transport::{Notice, Order, RunFacts, Weighted};
use exchanges::{Decisions, Exchanges};
use groups::Groups;
use handovers::Handovers;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Frames taken in before sums are gone on with.
const AT_ONCE: usize = 16;
const PING: Duration = Duration::from_secs(1);
/// How long the workers may go on handing the last sums to each other.
pub(super) const LAST_SUMS: Duration = Duration::from_secs(5);
/// How long workers may take to hang up after they were told to stop.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Most numbers of a replica's state, in gradients: parameters and moments of several models.
const STATE_FACTOR: usize = 256;
/// The same beside gradients, for trainers that train a small part of what they hand over.
const STATE_BESIDE: usize = 1 << 26;

/// When workers were asked last whether they are there.
struct Pings {
    count: u64,
    last: Instant,
}

impl Pings {
    /// The number of another one, if it is due.
    fn due(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.last) < PING {
            return None;
        }
        self.count += 1;
        self.last = now;
        Some(self.count)
    }
}

/// Between the coordinator and its workers: what one of them says goes to whoever owns what it is
/// about.
pub(super) struct Hub {
    listen: Listen,
    /// What is known of what is trained.
    facts: RunFacts,
    context: ConnectionContext,
    members: Members,
    node: NodeExchanges,
    /// Results on their way here, where workers send them at once.
    eager: Option<EagerReceiver>,
    exchanges: Exchanges,
    decisions: Decisions,
    groups: Groups,
    states: Handovers,
    pings: Pings,
    begun: bool,
    /// The run is over for all workers.
    stops: bool,
    watched: Watched,
    events: mpsc::Sender<((u32, u32), Incoming)>,
}

/// Waits until these connections are over.
async fn until_ended(
    left: &mut BTreeSet<(u32, u32)>,
    events: &mut mpsc::Receiver<((u32, u32), Incoming)>,
) {
    while !left.is_empty() {
        let Some((name, incoming)) = events.recv().await else { return };
        if matches!(incoming, Incoming::Ended(_)) {
            left.remove(&name);
        }
    }
}

impl Hub {
    /// Results that workers send at once are kept in `held`, if they do.
    pub(super) fn new(
        listen: Listen,
        watched: Watched,
        held: Option<(Ledgers, Vectors)>,
        events: mpsc::Sender<((u32, u32), Incoming)>,
    ) -> Self {
        let layout = wire::layout(listen.config.length, listen.config.shape.units, &listen.job);
        let stamp = Stamp {
            run: listen.run,
            epoch: 0,
            worker: COORDINATOR,
            layout,
            format: listen.config.format,
        };
        let (blocks, buffers) = (Blocks::new(listen.config.length), ReassemblyBuffers::default());
        let of_bits = listen.exchange == Exchange::Nccl;
        let context = ConnectionContext {
            stamp,
            blocks,
            buffers,
            traffic: Arc::new(Traffic::default()),
            of_bits,
        };
        let kept = listen.config.log_steps as usize + 1;
        let eager = held.map(|(ledgers, vectors)| {
            EagerReceiver::new(
                listen.config.result_length,
                ledgers,
                vectors,
                context.blocks.clone(),
            )
        });
        let facts = listen.all_facts();
        Self {
            facts,
            members: Members::new(listen.config.shape.workers),
            node: NodeExchanges::new(&context, listen.config.length, Vectors::default(), kept),
            eager,
            context,
            exchanges: Exchanges::new(),
            decisions: Decisions::default(),
            groups: Groups::default(),
            states: Handovers::default(),
            pings: Pings { count: 0, last: Instant::now() },
            begun: false,
            stops: false,
            watched,
            events,
            listen,
        }
    }

    pub(super) async fn serve(
        mut self,
        mut commands: mpsc::UnboundedReceiver<Vec<Command>>,
        mut events: mpsc::Receiver<((u32, u32), Incoming)>,
        mut callers: mpsc::Receiver<Caller>,
    ) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut ends_by, mut unheld) = (None, Vec::new());
        loop {
            if let Some(by) = ends_by {
                unheld.retain(|(step, attempt)| !self.all_hold(*step, *attempt));
                if unheld.is_empty() || Instant::now() > by {
                    break;
                }
            }
            tokio::select! {
                biased;
                command = commands.recv(), if ends_by.is_none() => match command {
                    Some(commands) => commands.into_iter().for_each(|command| self.command(command)),
                    None => {
                        ends_by = Some(Instant::now() + LAST_SUMS);
                        unheld = self.decisions.iter().collect();
                    }
                },
                Some(((worker, epoch), incoming)) = events.recv() => {
                    self.incoming(worker, epoch, incoming);
                    for _ in 1..AT_ONCE {
                        let Ok(((worker, epoch), incoming)) = events.try_recv() else { break };
                        self.incoming(worker, epoch, incoming);
                    }
                }
                Some(caller) = callers.recv() => self.call(caller).await,
                _ = tick.tick() => self.tick(),
            }
            self.introduce();
            self.work();
            self.watched.hand_on();
        }
        let mut left: BTreeSet<(u32, u32)> =
            self.members.connected().map(|(worker, seat)| (worker, seat.epoch)).collect();
        if self.stops {
            self.members.tell_all(&Down::Stop {});
            // Workers hang up when they have said what they still had to say.
            let _ = tokio::time::timeout(LAST_WORDS, until_ended(&mut left, &mut events)).await;
        }
        // The writers send what waits before they end.
        let Self { members, events: own, .. } = self;
        drop((members, own));
        until_ended(&mut left, &mut events).await;
    }

    fn notify(&mut self, worker: Worker, notice: Notice) {
        self.watched.notice(Heard::Notice(worker, self.members.epoch(worker.0), notice));
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Order(_, _, Order::Stop) => self.stops = true,
            // It was meant for a connection that is over; the coordinator does not know yet that
            // there is another.
            Command::Order(worker, epoch, _)
            | Command::Reduce(epoch, _, Weighted { worker, .. })
            | Command::Discard(worker, epoch, _)
                if !self.members.is_current(worker.0, epoch) =>
            {
                tracing::debug!("an order for connection {epoch} of {worker} is void");
            }
            Command::Order(worker, epoch, order) => self.order(worker, epoch, order),
            Command::Reduce(_, step, Weighted { worker, task, weight }) => {
                self.members.tell(worker.0, &Down::Reduce { step, task, weight });
            }
            Command::Discard(worker, _, task) => {
                self.members.tell(worker.0, &Down::Discard { task });
            }
            Command::StateOf(worker) => self.order(
                worker,
                self.members.epoch(worker.0),
                Order::Provide { needy: Worker(COORDINATOR) },
            ),
            Command::Fold(step, attempt, summands) => self.fold(step, attempt, summands),
            Command::Release(step, end) => {
                self.members.tell_all(&Down::Release { step, end });
                let oldest = Step(step.0.saturating_sub(self.listen.config.log_steps + 1));
                self.exchanges.release(step, oldest);
                self.decisions.release(oldest);
            }
            Command::MayLose(one) => self.exchanges.may_lose(one),
            Command::Begin(start, done) => {
                self.begin(start);
                self.watched.hand_on();
                drop(done);
            }
        }
    }

    /// The run begins: who is missing or in another state counts as lost, and the latter as come
    /// back. All losses come first, so that nobody takes over the state of one who is just as
    /// wrong.
    fn begin(&mut self, start: Step) {
        self.begun = true;
        self.node.moved(start);
        self.watched.notice(Heard::Began(self.members.epochs()));
        let offers: Vec<_> =
            Worker::all(self.listen.config.shape.workers).zip(self.members.offers()).collect();
        for (worker, offer) in &offers {
            match offer {
                None => self.notify(*worker, Notice::Lost { reason: "it has not come".into() }),
                Some(next) if *next == Some(start) => {}
                Some(_) => self.notify(
                    *worker,
                    Notice::Lost { reason: format!("it begins without the state of {start}") },
                ),
            }
        }
        for (worker, offer) in offers {
            if let Some(next) = offer.filter(|next| *next != Some(start)) {
                self.notify(worker, Notice::Joined { next });
            }
        }
    }

    /// An order for the connection that a worker has now.
    fn order(&mut self, worker: Worker, epoch: u32, order: Order) {
        let down = match order {
            Order::Compute { tasks, .. } => {
                let Some(order) = self.members.next_order(worker.0) else { return };
                if let Some(eager) = &mut self.eager {
                    eager.ordered(worker.0, order, tasks.iter().map(|(task, _)| *task));
                }
                let tasks =
                    tasks.into_iter().map(|(task, parts)| TaskOrder { task, parts }).collect();
                Down::Compute { epoch, order, tasks }
            }
            Order::Abandon => Down::Abandon {},
            Order::Apply { step, attempt, decoded, saver } => {
                self.decide(step, attempt, decoded.digest);
                self.node.applied(step.next());
                self.members.sent(worker.0, step);
                self.complete(worker.0, step, attempt, &decoded);
                let frame = self.decisions.order((step, attempt), epoch, saver, &decoded);
                self.members.tell_frame(worker.0, frame);
                return;
            }
            Order::Skip { step, saver, units } => {
                self.members.sent(worker.0, step);
                Down::Skip { epoch, step, saver: saver.0, units: units.to_vec() }
            }
            Order::Provide { needy } => {
                self.members
                    .seat_of(worker.0)
                    .into_iter()
                    .for_each(|seat| seat.provides.push(needy.0));
                Down::Provide { epoch, needy: needy.0 }
            }
            Order::Take { state } => {
                let transfer = self.states.send();
                self.members.seat_of(worker.0).into_iter().for_each(|seat| {
                    seat.unapplied.clear();
                    seat.taking = Some(transfer);
                    seat.misses.takes(state.next);
                });
                let lengths = state.vectors.iter().map(Vec::len).collect();
                self.members
                    .tell(worker.0, &Down::Take { epoch, transfer, next: state.next, lengths });
                for frame in super::states::frames(&state, transfer) {
                    self.send(worker.0, frame, usize::MAX);
                }
                self.offer_sums(worker.0, Some(state.next));
                return;
            }
            Order::Stop => return,
            Order::Dismiss(why) => return self.dismiss(worker.0, &why),
            Order::Hold { step, attempt, decoded } => {
                return self.hold(worker.0, step, attempt, &decoded);
            }
        };
        self.members.tell(worker.0, &down);
    }

    fn send(&self, to: u32, frame: Frame, most: usize) {
        if !self.members.pipe(to).is_some_and(|pipe| pipe.send(frame, most)) {
            tracing::debug!("a chunk for {} is dropped", Worker(to));
        }
    }

    fn incoming(&mut self, worker: u32, epoch: u32, incoming: Incoming) {
        if !self.members.heard(worker, epoch) {
            return;
        }
        match incoming {
            Incoming::Control(body) => match wire::decode::<Up>(&body) {
                Ok(message) => self.up(Worker(worker), message),
                Err(reason) => self.lose(worker, &reason),
            },
            Incoming::Chunk(header, _) | Incoming::Placed(header, _) if header.worker != worker => {
                self.lose(worker, &format!("it sends a chunk of {}", Worker(header.worker)));
            }
            Incoming::Chunk(header, block) if header.kind == Kind::State => {
                let state = self.states.chunk(Worker(worker), &header, &block);
                self.context.blocks.give(block);
                if let Some((needy, state)) = state {
                    self.notify(Worker(worker), Notice::State { needy: Worker(needy), state });
                }
            }
            Incoming::Chunk(header, block) if header.kind == Kind::Result => {
                let landed = match &mut self.eager {
                    Some(eager) => eager.chunk(worker, &header, block),
                    None => Err("it sends a result, which is not asked for here".to_owned()),
                };
                match landed {
                    Ok(notice) => {
                        notice.into_iter().for_each(|notice| self.notify(Worker(worker), notice));
                    }
                    Err(reason) => self.lose(worker, &reason),
                }
            }
            Incoming::Chunk(header, block)
                if self.exchanges.get(Step(header.number), header.attempt).is_none() =>
            {
                tracing::debug!("{}: a chunk of an exchange that is not under way", Worker(worker));
                self.context.blocks.give(block);
            }
            Incoming::Chunk(header, block) => {
                if let Err(reason) = self.node.chunk(&header, worker, block, Instant::now()) {
                    self.lose(worker, &reason);
                }
            }
            Incoming::Placed(header, slot) => {
                if let Err(reason) = self.node.placed(&header, worker, &slot, Instant::now()) {
                    self.lose(worker, &reason);
                }
            }
            Incoming::Ended(reason) => self.lose(worker, &reason),
        }
    }

    fn up(&mut self, worker: Worker, message: Up) {
        match message {
            Up::Done { order, task, tail, finite } if self.members.is_order(worker.0, order) => {
                let notice = match &mut self.eager {
                    Some(eager) if finite => eager.done(worker.0, order, task, tail),
                    eager => {
                        eager.iter_mut().for_each(|eager| eager.refused(worker.0, order, task));
                        Some(Notice::Done { task, tail, finite })
                    }
                };
                notice.into_iter().for_each(|notice| self.notify(worker, notice));
            }
            Up::Freed { order } if self.members.is_order(worker.0, order) => {
                self.eager.iter_mut().for_each(|eager| eager.freed(worker.0, order));
                self.notify(worker, Notice::Freed);
            }
            Up::Done { .. } | Up::Freed { .. } | Up::Pong { .. } => {}
            Up::Held { step, attempt, digest } => self.held(worker, step, attempt, digest),
            Up::Overflowed { step, attempt } => self.overflowed(worker, step, attempt),
            // Said before it had taken over the state that it was sent.
            Up::Applied { .. }
                if self.members.seat_of(worker.0).is_some_and(|seat| seat.taking.is_some()) => {}
            Up::Applied { step, digest } => {
                let Some(seat) = self.members.seat_of(worker.0) else { return };
                if seat.unapplied.remove(&step) {
                    self.notify(worker, Notice::Applied { step, digest });
                } else if step < seat.offered.0 && seat.offered.1 > 0 {
                    seat.offered.1 -= 1;
                    self.notify(worker, Notice::AppliedBefore { step, digest });
                } else {
                    self.lose(
                        worker.0,
                        &format!("it says it has applied {step}, which it was not sent"),
                    );
                }
            }
            Up::State { needy, transfer, next, lengths } => {
                let seat = self.members.seat_of(worker.0);
                let asked = seat.and_then(|seat| {
                    seat.provides
                        .iter()
                        .position(|other| *other == needy)
                        .map(|at| seat.provides.remove(at))
                });
                let most = STATE_FACTOR * self.listen.config.length + STATE_BESIDE;
                let fits = self.states.expect(worker, (transfer, needy), (next, lengths), most);
                if asked.is_none() || !fits {
                    self.lose(
                        worker.0,
                        "it sends a state that nobody asked for, or that is too large",
                    );
                }
            }
            Up::Facts { facts } => self.agree(worker, &facts),
            Up::Taken { transfer, digests, unfit } => {
                // A later one may be on its way.
                if self
                    .members
                    .seat_of(worker.0)
                    .is_some_and(|seat| seat.taking.take_if(|taking| *taking == transfer).is_some())
                {
                    self.notify(worker, Notice::Taken { digests, unfit });
                }
            }
            Up::Finish { after } => self.notify(worker, Notice::Finish { after }),
            Up::Missing { step } => self.missing(worker, step),
            Up::Waiting { step, attempt, on } => {
                let monitor = self.exchanges.get_mut(step, attempt);
                let first =
                    monitor.is_some_and(|monitor| monitor.waits(worker.0, on, Instant::now()));
                if first && self.listen.exchange.is_sharded() {
                    self.give(step, attempt, worker.0);
                }
            }
            Up::Named { group, id } => self.named(worker, group, &id),
            Up::Together { group } => self.together(worker, group),
            Up::Apart { group, reason } => self.apart(worker, group, &reason, Instant::now()),
            Up::Hello { .. } => self.lose(worker.0, "it says hello twice"),
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        if let Some(number) = self.pings.due(now) {
            self.members.tell_all(&Down::Ping { number });
        }
        for worker in self.members.silent(now, self.listen.silence) {
            self.lose(
                worker,
                &format!("nothing was heard of it for {:.0} s", self.listen.silence.as_secs_f64()),
            );
        }
        self.look_after_exchanges(now);
        self.look_after_groups(now);
        let mut status = self.watched.status();
        for (worker, seat) in self.members.connected() {
            status.workers[worker as usize].silent_seconds =
                now.saturating_duration_since(seat.heard).as_secs_f64();
        }
        let traffic = &self.context.traffic;
        (status.sent, status.received) =
            (traffic.sent.load(Relaxed), traffic.received.load(Relaxed));
        let kept = self.exchanges.len() + self.decisions.len() + self.node.len();
        status.kept = (kept + self.states.len()) as u64;
    }

    /// A connection is given up, and the worker with it.
    fn lose(&mut self, worker: u32, reason: &str) {
        self.part_with(worker, reason, None);
    }

    /// The same, with a last word to it.
    fn part_with(&mut self, worker: u32, reason: &str, word: Option<&Down>) {
        if !self.members.leave(worker, word) {
            return;
        }
        self.eager.iter_mut().for_each(|eager| eager.forget(worker));
        self.watched.status().workers[worker as usize].connected = false;
        self.states.forget(Worker(worker));
        self.exchanges.doubts.forget(worker);
        self.announce();
        if self.begun {
            self.notify(Worker(worker), Notice::Lost { reason: reason.into() });
        } else {
            tracing::warn!("{}: {reason}", Worker(worker));
        }
        let is_whole = |(step, attempt)| self.node.sum(step, attempt).is_some();
        for (step, attempt) in self.exchanges.forget(worker, is_whole) {
            self.notify(Worker(worker), Notice::Unmade { step, attempt });
        }
        self.part_from(worker);
        // What it would still have sent of a sum that others have comes from them.
        let open: Vec<_> = self.exchanges.undecided().map(|(key, _)| key).collect();
        open.into_iter().for_each(|(step, attempt)| self.spread(step, attempt));
    }

    fn announce(&mut self) {
        self.watched.offer(self.members.offers());
    }

    /// Tells workers that sum among themselves who is there, once the run has begun.
    fn introduce(&mut self) {
        if self.begun && self.listen.exchange.is_sharded() && self.members.have_changed() {
            self.regroup();
            self.members.tell_all(&Down::Peers { peers: self.members.peers() });
        }
    }
}
