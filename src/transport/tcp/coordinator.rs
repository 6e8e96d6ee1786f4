//! What the coordinator's end does: lets workers in, tells them what to exchange, and looks after
//! those that stop.
//!
//! # How it is driven
//! One task runs [`CoordinatorNode::serve`] until the transport is dropped. It takes in, in this
//! order: commands of the transport ([`Command`]), what connections bring ([`PipeItem`], each
//! under the worker and the epoch of its connection), callers that the door has let through, and
//! ticks of the clock. What each of them means for a sum goes to [`CoordinatorSums`] as an event;
//! its effects are carried out at once. After every turn new workers are told of each other
//! (`introduce`), sums that are ready are gone on with (`work`), and the transport's thread gets
//! what it waits for (`NodeOutputs::hand_on`). Nothing of this blocks but letting a caller in.
//!
//! A connection is known by its epoch. What comes from an earlier epoch is dropped, and so is an
//! order that was meant for one: the engine hears `Lost` and `Joined` in that order, and what it
//! said in between is void.
//!
//! # How a late answer comes to an end
//! The engine closes the round and orders `Abandon`; the worker drops its tasks and says `Idle`, or
//! says `Done` if it was faster. Either names the order. The connection drops what its worker does
//! not owe (`Members::answers`); the engine decides what still counts of the rest.
//!
//! # The end
//! When the commands end, sums that were decided may still be handed on among the workers for
//! [`LAST_SUMS`]; then all are told to stop, and the node waits for their connections to end.

mod comparing;
mod joining;
mod watched;

pub(super) use watched::NodeOutputs;

use super::Exchange;
use super::callers::Caller;
use super::commands::{Command, NodeEvent, Offers};
use super::listen::Listen;
use super::members::Members;
use super::pipe::{ConnectionContext, PipeItem, Stamp, Traffic};
use super::sent::{AckStatus, Miss};
use crate::ids::{Step, Task, Worker};
use crate::sums::exchange::TICK;
use crate::sums::exchange::{
    Answer, Blocks, CoordinatorEffect, CoordinatorEvent, CoordinatorSums, EagerReceiver, Frame,
    NodeContext, ReassemblyBuffers, SharedSums, SumSettings, Vectors,
};
use crate::sums::ledger::Ledgers;
use crate::sums::{COORDINATOR, DecodedSum, Kind, SumId, TaskSpent};
use crate::transport::tcp::states::frames as state_frames;
use crate::transport::wire::{self, FromWorker, TaskOrder, ToWorker};
use crate::transport::{Dismissal, Notice, Order, RunFacts, StepNews};
use comparing::Comparison;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Frames taken in before sums are gone on with.
const AT_ONCE: usize = 16;
/// A sum that stands still for so long is shown.
const STALLED_SHOWN: Duration = Duration::from_secs(1);
/// How long the workers may go on handing the last sums to each other.
pub(super) const LAST_SUMS: Duration = Duration::from_secs(5);
/// How often workers are asked whether they are there.
const PING: Duration = Duration::from_secs(1);
/// How long workers may take to hang up after they were told to stop.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Most numbers of a replica's state, in gradients: parameters and moments of several models.
const STATE_FACTOR: usize = 256;
/// The same beside gradients, for trainers that train a small part of what they hand over.
const STATE_BESIDE: usize = 1 << 26;

/// Between the coordinator and its workers: what one of them says goes to the part that owns what
/// it is about.
pub(super) struct CoordinatorNode {
    listen: Listen,
    /// What is known of what is trained.
    facts: RunFacts,
    comparison: Comparison,
    context: ConnectionContext,
    members: Members,
    sums: CoordinatorSums,
    /// Room for what the sums want done.
    spare: Vec<CoordinatorEffect>,
    /// The order to apply that was sent last. It is the same for all whose connection has the same
    /// number.
    apply: Option<((SumId, u32, StepNews), Frame)>,
    /// The last orders to apply and to skip, for those to whom they do not come.
    told: BTreeMap<Step, ToWorker>,
    /// How many states were sent to workers.
    transfers: u64,
    /// How often workers were asked whether they are there, and when last; at first when it began.
    pings: (u64, Instant),
    begun: bool,
    /// Why the run is over for all workers, once it is.
    stops: Option<Arc<str>>,
    watched: NodeOutputs,
    events: mpsc::Sender<((u32, u32), PipeItem)>,
}

/// Waits until these connections are over.
async fn until_ended(
    left: &mut BTreeSet<(u32, u32)>,
    events: &mut mpsc::Receiver<((u32, u32), PipeItem)>,
) {
    while !left.is_empty() {
        let Some((name, incoming)) = events.recv().await else { return };
        if matches!(incoming, PipeItem::Ended(_)) {
            left.remove(&name);
        }
    }
}

impl CoordinatorNode {
    /// Results that workers send at once are kept in `held`, if they do.
    pub(super) fn new(
        listen: Listen,
        watched: NodeOutputs,
        held: Option<(Ledgers, Vectors)>,
        events: mpsc::Sender<((u32, u32), PipeItem)>,
    ) -> Self {
        let layout = wire::layout(listen.config.length, listen.config.shape.units, &listen.job);
        let stamp = Stamp {
            run: listen.run,
            epoch: 0,
            worker: COORDINATOR,
            layout,
            format: listen.config.format,
        };
        let context = ConnectionContext {
            stamp,
            blocks: Blocks::new(listen.config.length),
            buffers: ReassemblyBuffers::default(),
            traffic: Arc::new(Traffic::default()),
        };
        let eager = held.map(|(ledgers, vectors)| {
            let (length, blocks) = (listen.config.result_length, context.blocks.clone());
            EagerReceiver::new(length, ledgers, vectors, blocks)
        });
        let of_node = NodeContext {
            me: COORDINATOR,
            length: listen.config.length,
            format: listen.config.format,
            of_bits: listen.exchange == Exchange::Nccl,
            blocks: context.blocks.clone(),
            vectors: Vectors::default(),
            buffers: context.buffers.clone(),
            kept_max: listen.config.log_steps as usize + 1,
        };
        let settings = SumSettings {
            exchange: listen.exchange,
            beside: listen.keeps.then_some(COORDINATOR),
            log_steps: listen.config.log_steps,
            stall: listen.stall,
            spare: listen.spare,
        };
        Self {
            facts: listen.all_facts(),
            comparison: Comparison::with(listen.sure.clone()),
            members: Members::new(listen.config.shape.workers),
            sums: CoordinatorSums::new(settings, of_node, eager),
            spare: Vec::new(),
            apply: None,
            told: BTreeMap::new(),
            context,
            transfers: 0,
            pings: (0, Instant::now()),
            begun: false,
            stops: None,
            watched,
            events,
            listen,
        }
    }

    /// The sums that are here.
    pub(super) fn sums_here(&self) -> SharedSums {
        self.sums.sums()
    }

    pub(super) async fn serve(
        mut self,
        mut commands: mpsc::UnboundedReceiver<Vec<Command>>,
        mut events: mpsc::Receiver<((u32, u32), PipeItem)>,
        mut callers: mpsc::Receiver<Caller>,
    ) {
        let mut tick = tokio::time::interval(TICK);
        // A machine that was stopped must not get all its missed ticks at once: no worker would
        // have had time to answer between them.
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut ends_by = None;
        loop {
            if ends_by.is_some_and(|by| self.sums.all_hold() || Instant::now() > by) {
                break;
            }
            tokio::select! {
                // What the engine decided comes first: it ends work that connections would only add
                // to.
                biased;
                command = commands.recv(), if ends_by.is_none() => match command {
                    Some(commands) => {
                        commands.into_iter().for_each(|command| self.command(command));
                    }
                    None => ends_by = Some(Instant::now() + LAST_SUMS),
                },
                Some(((worker, epoch), incoming)) = events.recv() => {
                    self.incoming(worker, epoch, incoming);
                    // Chunks come faster than they are looked at one by one, and every turn of the
                    // loop has a price; a bound, so that commands and ticks are not kept waiting.
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
        // The last word to who was sent away a moment ago may still wait.
        let mut left = self.members.parting();
        left.extend(self.members.connected().map(|(worker, member)| (worker, member.epoch)));
        if let Some(why) = &self.stops {
            self.members.connected().for_each(|(_, member)| member.stop(why));
            // Workers hang up when they have said what they still had to say.
            let _ = tokio::time::timeout(LAST_WORDS, until_ended(&mut left, &mut events)).await;
        }
        // The writers send what waits before they end.
        let Self { members, events: own, comparison, .. } = self;
        drop((members, own));
        comparison.end().await;
        until_ended(&mut left, &mut events).await;
    }

    fn notify(&mut self, worker: Worker, notice: Notice) {
        self.watched.notice(NodeEvent::Notice(worker, self.members.epoch(worker.0), notice));
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Order(_, _, Order::Stop { why }) => self.stops = Some(why),
            // These are about the place, also if no worker is there.
            Command::Order(Worker(worker), _, Order::LetIn) => {
                self.members.set_drained(worker, false);
            }
            Command::Order(Worker(worker), epoch, Order::Dismiss(why @ Dismissal::Drained)) => {
                self.members.set_drained(worker, true);
                if self.members.is_current(worker, epoch) {
                    self.dismiss(worker, &why);
                }
            }
            // It was meant for a connection that is over; the coordinator does not know yet that
            // there is another.
            Command::Order(worker, epoch, _) | Command::Tell(worker, epoch, _)
                if !self.members.is_current(worker.0, epoch) =>
            {
                tracing::debug!("an order for connection {epoch} of {worker} is void");
            }
            Command::Order(worker, epoch, order) => self.order(worker, epoch, order),
            Command::Tell(worker, _, command) => {
                self.members.tell(worker.0, &ToWorker::Sum(command));
            }
            Command::Sum(event) => self.sums(event),
            Command::Begin(start, done) => {
                self.begin(start);
                self.watched.hand_on();
                drop(done);
            }
            Command::Refuse(reason) => self.refuse_all(&reason),
        }
    }

    /// The run begins: a worker that is missing or in another state counts as lost, and the latter
    /// as come back. All losses come first, so that none takes over a state that is just as wrong.
    fn begin(&mut self, start: Step) {
        self.refuse_who_differs();
        self.begun = true;
        let offers: Vec<_> =
            Worker::all(self.listen.config.shape.workers).zip(self.members.offers()).collect();
        let is_behind = |offer: Option<Option<Step>>| offer.is_some_and(|next| next != Some(start));
        let behind = offers.iter().filter(|(_, offer)| is_behind(*offer));
        let behind = behind.map(|(worker, _)| worker.0).collect();
        self.sums(CoordinatorEvent::Begun { start, behind });
        // The engine must know the connections before it hears of them: its orders name them.
        self.watched.notice(NodeEvent::Began(self.members.epochs()));
        for (worker, offer) in &offers {
            match offer {
                None => self.notify(*worker, Notice::Lost { reason: "it has not come".into() }),
                Some(next) if *next == Some(start) => {}
                Some(_) => self.notify(
                    *worker,
                    Notice::Lost {
                        reason: format!(
                            "it joined with stale parameters (the next step is {})",
                            start.0
                        ),
                    },
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
            Order::Compute { order, after, tasks, .. } => {
                // Of a worker that is lost the engine hears so, and orders again.
                let ordered: Vec<Task> = tasks.iter().map(|(task, _)| *task).collect();
                if !self.members.gave(worker.0, order, ordered.clone()) {
                    return;
                }
                self.sums(CoordinatorEvent::Ordered { worker: worker.0, order, tasks: ordered });
                let tasks =
                    tasks.into_iter().map(|(task, parts)| TaskOrder { task, parts }).collect();
                ToWorker::Compute { epoch, order, after, tasks }
            }
            Order::Abandon { order } => ToWorker::Abandon { order },
            Order::Apply { sum, decoded, news } => {
                self.members.sent(worker.0, sum.step);
                let worker = worker.0;
                let frame = self.apply_frame((sum, epoch, news), &decoded);
                self.sums(CoordinatorEvent::Decided { worker, sum, decoded });
                self.members.tell_frame(worker, frame);
                return;
            }
            Order::Skip { step, news, units } => {
                self.members.sent(worker.0, step);
                let skip = ToWorker::Skip { epoch, step, news, units: units.to_vec() };
                self.remember(step, skip.clone());
                skip
            }
            Order::SendState { needy } => {
                let member = self.members.member_mut(worker.0).into_iter();
                member.for_each(|member| member.asked.push((needy.0, None)));
                ToWorker::SendState { epoch, needy: needy.0 }
            }
            Order::LoadState { state } => {
                self.transfers += 1;
                let transfer = self.transfers;
                let member = self.members.member_mut(worker.0).into_iter();
                member.for_each(|member| member.sent.state(transfer, state.next));
                let lengths = state.vectors.iter().map(Vec::len).collect();
                self.members.tell(
                    worker.0,
                    &ToWorker::LoadState { epoch, transfer, next: state.next, lengths },
                );
                for frame in state_frames(&state, transfer) {
                    self.send(worker.0, frame, usize::MAX);
                }
                let next = Some(state.next);
                self.sums(CoordinatorEvent::HasState { worker: worker.0, next });
                return;
            }
            // All are told at once, when the last sums are handed on.
            Order::Stop { .. } | Order::LetIn => return,
            Order::Dismiss(why) => return self.dismiss(worker.0, &why),
            Order::Store { sum, decoded } => {
                let worker = worker.0;
                return self.sums(CoordinatorEvent::Store { worker, sum, decoded });
            }
        };
        self.members.tell(worker.0, &down);
    }

    /// The order to apply a step, over connections of this number.
    fn apply_frame(&mut self, which: (SumId, u32, StepNews), decoded: &DecodedSum) -> Frame {
        if let Some((_, frame)) = self.apply.as_ref().filter(|(of, _)| *of == which) {
            return frame.clone();
        }
        let (sum, epoch, news) = which;
        let DecodedSum { digest, aux, .. } = decoded;
        let (digest, aux) = (*digest, aux.clone());
        let apply = ToWorker::Apply { epoch, sum, digest, aux, news };
        let frame = Frame::control(&apply);
        self.apply = Some((which, frame.clone()));
        self.remember(sum.step, apply);
        frame
    }

    fn remember(&mut self, step: Step, order: ToWorker) {
        self.told.insert(step, order);
        // Those beyond come as a state.
        if self.told.len() as u64 > self.listen.config.log_steps + 1 {
            self.told.pop_first();
        }
    }

    /// Sends a worker the order to apply or to skip a step once more, and its sum if it has one;
    /// false if that is nowhere any more.
    fn give_again(&mut self, Worker(worker): Worker, step: Step) -> bool {
        let Some(mut order) = self.told.get(&step).cloned() else { return false };
        if let ToWorker::Apply { epoch, .. } | ToWorker::Skip { epoch, .. } = &mut order {
            *epoch = self.members.epoch(worker);
        }
        let mut effects = Vec::new();
        let now = Instant::now().into_std();
        let given = matches!(order, ToWorker::Skip { .. })
            || self.sums.give(now, step, worker, &mut effects);
        self.carry_out(effects);
        if given {
            // It may lack either.
            self.members.tell(worker, &order);
        }
        given
    }

    /// Tells the machine that makes the sums what happened, and does what follows from it.
    fn sums(&mut self, event: CoordinatorEvent) {
        // What is done for an effect may be told as an event again, so the room is taken out.
        let mut effects = std::mem::take(&mut self.spare);
        self.sums.handle(Instant::now().into_std(), event, &mut effects);
        self.carry_out(effects);
    }

    fn carry_out(&mut self, mut effects: Vec<CoordinatorEffect>) {
        for effect in effects.drain(..) {
            tracing::trace!(?effect, "exchange");
            match effect {
                CoordinatorEffect::Send { to, frame, most } => self.send(to, frame, most),
                CoordinatorEffect::Tell { to, command } => {
                    let frame = Frame::control(&ToWorker::Sum(*command));
                    to.into_iter().for_each(|to| self.members.tell_frame(to, frame.clone()));
                }
                CoordinatorEffect::Report { worker, notice } => {
                    self.notify(worker, Notice::Sum(notice));
                }
                CoordinatorEffect::Answered { worker, answer } => {
                    let notice = match answer {
                        Answer::Done { order, task, aux, finite, spent } => {
                            Notice::Done { order, task, aux, finite, spent }
                        }
                        Answer::Dropped { order, spent } => Notice::Idle { order, spent },
                    };
                    self.notify(worker, notice);
                }
                CoordinatorEffect::GiveUp { worker, reason } => self.lose(worker, &reason),
            }
        }
        self.spare = effects;
        self.watched.count(self.sums.counts());
    }

    /// Sums chunks while nothing else is to be done.
    fn work(&mut self) {
        let mut effects = std::mem::take(&mut self.spare);
        while self.sums.work(&mut effects) {
            self.carry_out(effects);
            effects = std::mem::take(&mut self.spare);
        }
        self.sums.finish(Instant::now().into_std(), &mut effects);
        self.carry_out(effects);
    }

    /// A worker is to apply a step whose sum it does not have.
    fn missing(&mut self, worker: Worker, step: Step) {
        let Some(member) = self.members.member_mut(worker.0) else { return };
        let due = match member.sent.missed(step, Instant::now()) {
            Miss::Wait => return,
            Miss::NeverSent => {
                return self
                    .lose(worker.0, &format!("it says it misses {step}, which it was not sent"));
            }
            Miss::Endless => {
                return self.lose(worker.0, &format!("it misses {step} after all that it is sent"));
            }
            Miss::Answer { due } => due,
        };
        if !(due && self.give_again(worker, step)) {
            self.members
                .member_mut(worker.0)
                .into_iter()
                // It was not answered after all: the same question may come again, once there is a
                // state.
                .for_each(|member| member.sent.recall(step));
            self.notify(worker, Notice::StepUnavailable);
        }
    }

    fn send(&self, to: u32, frame: Frame, most: usize) {
        if !self.members.pipe(to).is_some_and(|pipe| pipe.send(frame, most)) {
            tracing::debug!("a chunk for {} is dropped", Worker(to));
        }
    }

    fn incoming(&mut self, worker: u32, epoch: u32, incoming: PipeItem) {
        if matches!(incoming, PipeItem::Ended(_)) {
            self.members.ended(worker, epoch);
        }
        // What was still on its way when its connection was given up belongs to a worker that the
        // engine has been told is lost.
        if !self.members.heard(worker, epoch) {
            return;
        }
        match incoming {
            PipeItem::Control(body) => {
                match body.and_then(|body| wire::decode::<FromWorker>(&body)) {
                    Ok(message) => self.up(Worker(worker), message),
                    Err(reason) => self.cannot_read(worker, &reason),
                }
            }
            PipeItem::Chunk(header, _) | PipeItem::Placed(header, _) if header.worker != worker => {
                self.lose(worker, &format!("it sends a chunk of {}", Worker(header.worker)));
            }
            PipeItem::Chunk(header, block) if header.kind == Kind::State => {
                let member = self.members.member_mut(worker);
                let given = member.and_then(|member| member.state_chunk(&header, &block));
                self.context.blocks.give(block);
                if let Some((needy, state)) = given {
                    self.notify(Worker(worker), Notice::State { needy: Worker(needy), state });
                }
            }
            PipeItem::Chunk(header, block) => {
                self.sums(CoordinatorEvent::Chunk { from: worker, header, block });
            }
            PipeItem::Placed(header, slot) => {
                self.sums(CoordinatorEvent::Placed { from: worker, header, slot });
            }
            PipeItem::Ended(reason) => self.lose(worker, &reason),
        }
    }

    fn up(&mut self, worker: Worker, message: FromWorker) {
        match message {
            FromWorker::Done { order, task, aux, finite, computed, units }
                if self.members.answers(worker.0, order, Some(task)) =>
            {
                let spent = spent(computed, units);
                let answer = Answer::Done { order, task, aux, finite, spent };
                self.sums(CoordinatorEvent::Answered { worker: worker.0, answer });
            }
            FromWorker::Idle { order, computed, units }
                if self.members.answers(worker.0, order, None) =>
            {
                let answer = Answer::Dropped { order, spent: spent(computed, units) };
                self.sums(CoordinatorEvent::Answered { worker: worker.0, answer });
            }
            FromWorker::Changed { order, task } if self.members.owes(worker.0, order) => {
                self.sums(CoordinatorEvent::Changed { worker, order, task });
            }
            // A pong is a sign of life, which was noted when it came. What a worker does not owe is
            // of an order that it was given over another connection, or of none of its own.
            FromWorker::Done { .. }
            | FromWorker::Changed { .. }
            | FromWorker::Idle { .. }
            | FromWorker::Pong { .. } => {}
            FromWorker::Sum(report) => {
                self.sums(CoordinatorEvent::Said { worker: worker.0, report });
            }
            FromWorker::Applied { step, digest } => {
                let Some(member) = self.members.member_mut(worker.0) else { return };
                match member.sent.applied(step) {
                    AckStatus::Now => self.notify(worker, Notice::Applied { step, digest }),
                    AckStatus::Before => {
                        self.notify(worker, Notice::AppliedBefore { step, digest });
                    }
                    AckStatus::Void => {}
                    AckStatus::NeverSent => self.lose(
                        worker.0,
                        &format!("it says it has applied {step}, which it was not sent"),
                    ),
                }
            }
            FromWorker::State { needy, transfer, next, lengths } => {
                // Memory is taken for what it announces, so there must be a bound that no honest
                // state reaches.
                let most = STATE_FACTOR * self.listen.config.length + STATE_BESIDE;
                let member = self.members.member_mut(worker.0);
                let gives = member
                    .is_some_and(|member| member.gives((needy, transfer), (next, lengths), most));
                if !gives {
                    self.lose(
                        worker.0,
                        "it sends a state that no worker asked for, or that is too large",
                    );
                }
            }
            FromWorker::Facts { facts } => self.agree(worker, &facts),
            FromWorker::StateLoaded { transfer, digests, unfit } => {
                let member = self.members.member_mut(worker.0);
                if let Some(next) = member.and_then(|member| member.sent.loaded(transfer)) {
                    self.notify(worker, Notice::StateLoaded { next, digests, unfit });
                }
            }
            FromWorker::Finish { after } => self.notify(worker, Notice::Finish { after }),
            FromWorker::Leave { seconds } if self.begun => {
                self.notify(worker, Notice::Leaving { seconds });
            }
            // A run that has not begun can spare it.
            FromWorker::Leave { .. } => self.dismiss(worker.0, &Dismissal::LetGo),
            FromWorker::Parting(word) => {
                let word = word.checked();
                let reason = word.to_string();
                // Before the run begins, who leaves is only one that has not come.
                if self.begun {
                    self.notify(worker, Notice::Parting(word));
                } else if word.misuse {
                    self.comparison.misuse = Some((worker, word));
                }
                self.lose(worker.0, &reason);
            }
            FromWorker::StepUnavailable { step } => self.missing(worker, step),
            FromWorker::Hello { .. } => self.lose(worker.0, "it says hello twice"),
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        let (asked, last) = self.pings;
        if now.duration_since(last) >= PING {
            self.pings = (asked + 1, now);
            self.members.connected().for_each(|(_, member)| member.ping(asked + 1));
        }
        for worker in self.members.silent(now, self.listen.silence) {
            self.lose(
                worker,
                &format!("nothing was heard of it for {:.0} s", self.listen.silence.as_secs_f64()),
            );
        }
        self.sums(CoordinatorEvent::Tick);
        let stalled = self.sums.stalled(now.into_std(), STALLED_SHOWN);
        let mut status = self.watched.status();
        status.stalled = stalled;
        for (worker, member) in self.members.connected() {
            status.workers[worker as usize].silent_seconds =
                now.saturating_duration_since(member.heard).as_secs_f64();
        }
        let traffic = &self.context.traffic;
        (status.sent, status.received) =
            (traffic.sent.load(Relaxed), traffic.received.load(Relaxed));
        let arriving = self.members.connected().map(|(_, member)| member.arriving.len());
        status.kept = (self.sums.len() + arriving.sum::<usize>()) as u64;
    }

    /// A message of a worker cannot be read: it calls again, or is told that it need not.
    fn cannot_read(&mut self, worker: u32, reason: &str) {
        match self.members.cannot_read(worker, reason) {
            None => self.lose(worker, reason),
            Some(why) => self.part_with(worker, &why, Some(&ToWorker::refused(why.clone()))),
        }
    }

    /// A connection is given up, and the worker with it.
    fn lose(&mut self, worker: u32, reason: &str) {
        self.part_with(worker, reason, None);
    }

    /// The same, with a last word to it.
    fn part_with(&mut self, worker: u32, reason: &str, word: Option<&ToWorker>) {
        // Two may find at the same time that it is lost, such as a reader and a writer.
        if !self.members.leave(worker, word) {
            return;
        }
        self.watched.status().workers[worker as usize].connected = false;
        self.announce();
        if self.begun {
            self.notify(Worker(worker), Notice::Lost { reason: reason.into() });
        } else {
            tracing::warn!("{}: {reason}", Worker(worker));
        }
        self.sums(CoordinatorEvent::Lost { worker });
    }

    fn announce(&mut self) {
        let (places, told) = (self.members.offers(), self.comparison.told());
        self.watched.offer(Offers { places, told, misuse: self.comparison.misuse.clone() });
    }

    /// Tells workers that sum among themselves who is there, once the run has begun.
    fn introduce(&mut self) {
        if self.begun && self.listen.exchange.is_by_workers() && self.members.have_changed() {
            self.sums(CoordinatorEvent::MembersChanged);
            self.members.tell_all(&ToWorker::Peers { peers: self.members.peers() });
        }
    }
}

/// What a worker says that it has spent on a task.
fn spent(computed: Option<f64>, units: Option<u32>) -> Option<TaskSpent> {
    computed.zip(units).map(|(computed, units)| TaskSpent { computed, units })
}
