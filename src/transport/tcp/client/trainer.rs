//! What waits for its turn with the trainer, and what the trainer was given.
//!
//! # How to drive it
//! Orders of the coordinator are queued as they come: [`Trainer::compute`] for tasks,
//! [`Trainer::apply`] for a step, [`Trainer::take_over`] for a state, [`Trainer::enqueue`] for the
//! rest. [`Trainer::advance`] must be called after each of them and whenever a sum or a state has
//! come: it hands on, in order, what need not wait any more. What the trainer answers is noted by
//! [`Trainer::done`] and [`Trainer::taken`].
//!
//! [`Trainer::was_sent`] with what the coordinator says that it has sent. [`Trainer::misses`] is
//! asked at every tick, and tells what of that, and of what waits, does not come. Where a
//! connection ends, [`Trainer::reset`] forgets what waits; where there is another,
//! [`Trainer::say_again`] gives what must be said over it first.

use super::super::OVERDUE;
use super::super::mailbox::MailboxSender;
use super::uplink::Uplink;
use super::word::Word;
use crate::ids::{OrderId, Part, Step, Task};
use crate::sums::exchange::{QUIET, WorkerSums};
use crate::sums::{DecodedSum, SumId};
use crate::transport::tcp::states::IncomingStates;
use crate::transport::{Cancel, Dismissal, Order, StepNews};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::time::Instant;

/// What waits for its turn with the trainer.
enum QueuedItem {
    Order(u64, Order),
    /// Since when its sum is waited for, and whether the coordinator was asked for it.
    Apply {
        decision: Decision,
        since: Instant,
        asked: bool,
    },
    Take(u64),
}

impl QueuedItem {
    /// The step that the trainer is to apply, or to count.
    fn step(&self) -> Option<Step> {
        match self {
            Self::Apply { decision, .. } => Some(decision.sum.step),
            Self::Order(_, Order::Skip { step, .. }) => Some(*step),
            _ => None,
        }
    }
}

/// What does not come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MissingItem {
    /// A step that was left out, or its sum: the coordinator is to be told now.
    Step(Step),
    /// An order that was lost on its way: the connection is of no use any more.
    Order,
}

/// Numbers of orders of tasks, and of transfers of states.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    pub(super) order: OrderId,
    pub(super) transfer: u64,
}

/// A step that the trainer is to apply once its sum is there.
pub(super) struct Decision {
    pub(super) sum: SumId,
    pub(super) digest: u64,
    pub(super) aux: Vec<f64>,
    pub(super) news: StepNews,
}

/// The trainer, as its node sees it.
///
/// Orders wait in one queue; [`Trainer::advance`] hands on those whose turn
/// it is, whenever a sum or a state has come or an order was queued.
pub(super) struct Trainer {
    /// With the connection over which each came.
    orders: MailboxSender<(u64, Order)>,
    queue: VecDeque<QueuedItem>,
    /// Orders that the trainer has, and how many of their tasks it has not done.
    given: Vec<(OrderId, usize)>,
    /// The last order, and what ends it.
    live: Option<(OrderId, Cancel)>,
    /// First step that the trainer has not been given.
    next: Step,
    /// What the trainer said of steps that it applied.
    pub(super) word: Word,
    /// The states that the trainer was given and has said nothing of: over which connection each
    /// came, the number of its transfer, and its `next`.
    taking: VecDeque<(u64, u64, Step)>,
    /// The last that came of orders of tasks and of states.
    came: Numbers,
    /// What the coordinator has sent, as it says: all steps below this one, and the last of these.
    sent: (Step, Numbers),
    /// Since when something of that, or before what waits, has not come.
    gap_since: Option<Instant>,
    /// It was told to stop, or will be when its turn comes.
    stopping: bool,
}

impl Trainer {
    /// A trainer with a replica in which everything below `next` is applied.
    pub(super) fn new(orders: MailboxSender<(u64, Order)>, next: Step, word: Word) -> Self {
        Self {
            orders,
            queue: VecDeque::new(),
            given: Vec::new(),
            live: None,
            next,
            word,
            taking: VecDeque::new(),
            came: Numbers::default(),
            sent: (Step(0), Numbers::default()),
            gap_since: None,
            stopping: false,
        }
    }

    /// First step that it has not been given.
    pub(super) fn next(&self) -> Step {
        self.next
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Tasks for it, once these steps are applied.
    pub(super) fn compute(
        &mut self,
        connection: u64,
        order: OrderId,
        (after, tasks): (Vec<Step>, Vec<(Task, Vec<Part>)>),
        in_parts: bool,
    ) {
        // Twice on its way, or overtaken by the next one, which the coordinator gives only to who
        // has answered.
        if order <= self.came.order {
            return;
        }
        self.came.order = order;
        let cancel = Cancel::default();
        self.live = Some((order, cancel.clone()));
        self.enqueue(connection, Order::Compute { order, after, tasks, cancel, in_parts });
    }

    pub(super) fn enqueue(&mut self, connection: u64, order: Order) {
        self.put(QueuedItem::Order(connection, order));
    }

    /// A step for it, once its sum is there.
    pub(super) fn apply(&mut self, decision: Decision) {
        self.put(QueuedItem::Apply { decision, since: Instant::now(), asked: false });
    }

    /// Behind all that waits, unless that waits for it: then it was overtaken on its way.
    fn put(&mut self, queued: QueuedItem) {
        let overtook = queued
            .step()
            .and_then(|step| self.queue.iter().position(|other| self.needs(other) > step));
        self.queue.insert(overtook.unwrap_or(self.queue.len()), queued);
    }

    /// All steps below this one must be applied when its turn comes.
    fn needs(&self, queued: &QueuedItem) -> Step {
        match queued {
            // The trainer need not compute it, but must answer it.
            QueuedItem::Order(_, Order::Compute { cancel, .. }) if cancel.is_cancelled() => Step(0),
            QueuedItem::Order(_, Order::Compute { after, .. }) => {
                after.iter().max().map_or(Step(0), |last| last.next())
            }
            // Who ends without the last step would have trained something else.
            QueuedItem::Order(_, Order::Stop { .. }) => self.sent.0,
            queued => queued.step().unwrap_or(Step(0)),
        }
    }

    /// The coordinator says that it has sent these steps, and orders and states up to these.
    pub(super) fn was_sent(&mut self, steps: &[Step], numbers: Numbers) {
        let below = steps.iter().max().map_or(Step(0), |last| last.next());
        self.sent = (below, numbers);
    }

    /// A state for it, once that is there; what was to be applied before is in the state.
    pub(super) fn take_over(&mut self, transfer: u64) {
        // Only the end of the run holds for any state. Tasks are dropped when their turn comes, so
        // that every order is answered, one after the other.
        self.queue.retain(|queued| match queued {
            QueuedItem::Order(_, Order::Compute { cancel, .. }) => {
                cancel.cancel();
                true
            }
            queued => matches!(queued, QueuedItem::Order(_, Order::Stop { .. })),
        });
        self.sent.0 = Step(0);
        self.came.transfer = transfer;
        self.queue.push_back(QueuedItem::Take(transfer));
    }

    /// It drops what is left of an order. One before the last is answered: the next is only given
    /// to who has answered.
    pub(super) fn abandon(&self, order: OrderId) {
        self.live.iter().filter(|(live, _)| *live == order).for_each(|(_, cancel)| cancel.cancel());
    }

    /// Tasks of an order, or of all, that it was not given are free at once; gives their orders.
    pub(super) fn drop_orders(&mut self, of: Option<OrderId>) -> Vec<OrderId> {
        // It has the tasks in hand, and says itself what it dropped.
        if !self.given.is_empty() {
            return Vec::new();
        }
        let mut dropped = Vec::new();
        self.queue.retain(|queued| {
            let QueuedItem::Order(_, Order::Compute { order, .. }) = queued else { return true };
            let is_it = of.is_none_or(|of| of == *order);
            dropped.extend(is_it.then_some(*order));
            !is_it
        });
        dropped
    }

    /// Notes what it has done of its orders.
    pub(super) fn done(&mut self, order: OrderId, all: bool) {
        if let Some(given) = self.given.iter_mut().find(|given| given.0 == order) {
            given.1 = if all { 0 } else { given.1.saturating_sub(1) };
        }
        self.given.retain(|given| given.1 > 0);
    }

    /// It has taken over the state in which all before `next` is applied, or cannot: over which
    /// connection that came, and the number of its transfer.
    pub(super) fn taken(&mut self, next: Step, digests: &[u64]) -> Option<(u64, u64)> {
        let place = self.taking.iter().position(|(_, _, given)| *given == next)?;
        // It answers one after the other; those before have no answer.
        let (connection, transfer, _) = self.taking.drain(..=place).next_back()?;
        self.word.taken(next, digests);
        Some((connection, transfer))
    }

    /// The run is over, once what was ordered before is done.
    pub(super) fn stop(&mut self, connection: u64, why: Arc<str>) {
        self.stopping = true;
        self.live.iter().for_each(|(_, cancel)| cancel.cancel());
        self.enqueue(connection, Order::Stop { why });
    }

    /// There is nothing more for it to do.
    pub(super) fn end(&mut self) {
        if let Some((_, cancel)) = self.live.take() {
            cancel.cancel();
        }
    }

    /// The same, and it is told why at once.
    pub(super) fn dismiss(&mut self, connection: u64, why: Dismissal) {
        self.end();
        self.orders.send((connection, Order::Dismiss(why)));
    }

    /// The connection is lost, and all that waited.
    pub(super) fn reset(&mut self) {
        self.end();
        self.queue.clear();
        (self.sent, self.gap_since) = ((Step(0), Numbers::default()), None);
        // A coordinator that was started again counts transfers from 1.
        self.came = Numbers::default();
    }

    /// There is another connection: what is to be said over it of steps that were applied.
    pub(super) fn say_again(&mut self) -> Vec<(Step, u64)> {
        self.word.again(self.next)
    }

    /// Hands on what the trainer can have now.
    ///
    /// Steps are applied one after the other, and nothing is computed before those that it needs:
    /// one that is already applied is left out, and where one was left out on the way, all that
    /// comes after it waits until the worker has taken over a state.
    pub(super) fn advance(
        &mut self,
        uplink: &Uplink,
        sums: &WorkerSums,
        states: &mut IncomingStates,
    ) {
        while let Some(front) = self.queue.front() {
            if front.step().is_some_and(|step| step < self.next) {
                self.queue.pop_front();
                continue;
            }
            let ready = match front {
                front if self.needs(front) > self.next => false,
                QueuedItem::Order(..) => true,
                QueuedItem::Apply { decision: Decision { sum, digest, .. }, .. } => {
                    sums.has(*sum, *digest)
                }
                QueuedItem::Take(transfer) => states.is_whole(*transfer),
            };
            if !ready {
                return;
            }
            let (connection, order) = match self.queue.pop_front() {
                Some(QueuedItem::Order(connection, order)) => (connection, order),
                Some(QueuedItem::Apply { decision, .. }) => {
                    let Decision { sum, digest, aux, news } = decision;
                    let Some(gradient) = sums.vector(sum) else { return };
                    let decoded = Arc::new(DecodedSum { gradient, aux, digest });
                    (uplink.number(), Order::Apply { sum, decoded, news })
                }
                Some(QueuedItem::Take(transfer)) => {
                    let Some(state) = states.take(transfer) else { return };
                    self.next = state.next;
                    // Noted with its connection: an answer that comes after another call is no
                    // answer there.
                    self.taking.push_back((uplink.number(), transfer, state.next));
                    (uplink.number(), Order::LoadState { state: Arc::new(state) })
                }
                None => return,
            };
            if let Order::Apply { sum: SumId { step, .. }, .. } | Order::Skip { step, .. } = &order
            {
                // What is given to the trainer counts as applied: it does its orders one after the
                // other.
                self.next = self.next.max(step.next());
            }
            if let Order::Compute { order, tasks, .. } = &order {
                self.given.push((*order, tasks.len()));
            }
            self.orders.send((connection, order));
        }
    }

    /// What is waited for in vain, if that is to be acted on now: a step that was left out, or one
    /// whose sum does not come; sums of which something is open have longer.
    pub(super) fn misses(
        &mut self,
        now: Instant,
        is_open: impl Fn(SumId) -> bool,
    ) -> Option<MissingItem> {
        let needed = self.queue.front().map_or(self.sent.0, |front| self.needs(front));
        let left_out = needed > self.next;
        let Numbers { order, transfer } = self.sent.1;
        if left_out || order > self.came.order || transfer > self.came.transfer {
            let Some(since) = self.gap_since else {
                self.gap_since = Some(now);
                return left_out.then_some(MissingItem::Step(self.next));
            };
            // What was overtaken comes soon. At the end no process answers a call.
            let is_lost = !self.stopping && now.duration_since(since) > OVERDUE;
            return is_lost.then_some(MissingItem::Order);
        }
        self.gap_since = None;
        let Some(QueuedItem::Apply { decision, since, asked }) = self.queue.front_mut() else {
            return None;
        };
        // Something of it may be on its way; of a sum of which nothing is here, nothing will come.
        let patience = if is_open(decision.sum) { OVERDUE } else { QUIET };
        let waited = now.duration_since(*since);
        if waited <= patience || *asked && waited <= 5 * OVERDUE {
            return None;
        }
        (*asked, *since) = (true, now);
        Some(MissingItem::Step(decision.sum.step))
    }
}

#[cfg(test)]
mod tests;
