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
use crate::ids::{Part, Step, Task, Worker};
use crate::sums::exchange::{QUIET, WorkerSums};
use crate::sums::{Decoded, SumId};
use crate::transport::tcp::states::Arriving;
use crate::transport::{Cancel, Dismissal, Order};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::time::Instant;

/// What waits for its turn with the trainer.
enum Queued {
    Order(u64, Order),
    /// Since when its sum is waited for, and whether the coordinator was asked for it.
    Apply {
        decision: Decision,
        since: Instant,
        asked: bool,
    },
    Take(u64),
}

impl Queued {
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
pub(super) enum Missing {
    /// A step that was left out, or its sum: the coordinator is to be told now.
    Step(Step),
    /// An order that was lost on its way: the connection is of no use any more.
    Order,
}

/// Numbers of orders of tasks, and of transfers of states.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    pub(super) order: u64,
    pub(super) transfer: u64,
}

/// A step that the trainer is to apply once its sum is there.
pub(super) struct Decision {
    pub(super) sum: SumId,
    pub(super) digest: u64,
    pub(super) aux: Vec<f64>,
    pub(super) saver: Worker,
}

/// The trainer, as its node sees it.
///
/// Orders wait in one queue; [`Trainer::advance`] hands on those whose turn
/// it is, whenever a sum or a state has come or an order was queued.
pub(super) struct Trainer {
    orders: MailboxSender<(u64, Order)>,
    queue: VecDeque<Queued>,
    /// Orders that the trainer has, and how many of their tasks it has not done.
    given: Vec<(u64, usize)>,
    /// Ends the last order.
    live: Option<Cancel>,
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
        number: u64,
        (after, tasks): (Vec<Step>, Vec<(Task, Vec<Part>)>),
        in_parts: bool,
    ) {
        // Twice on its way, or overtaken by the next one, which the coordinator gives only to who
        // has answered.
        if number <= self.came.order {
            return;
        }
        self.came.order = number;
        let cancel = Cancel::default();
        self.live = Some(cancel.clone());
        self.enqueue(number, Order::Compute { after, tasks, cancel, in_parts });
    }

    pub(super) fn enqueue(&mut self, number: u64, order: Order) {
        self.put(Queued::Order(number, order));
    }

    /// A step for it, once its sum is there.
    pub(super) fn apply(&mut self, decision: Decision) {
        self.put(Queued::Apply { decision, since: Instant::now(), asked: false });
    }

    /// Behind all that waits, unless that waits for it: then it was overtaken on its way.
    fn put(&mut self, queued: Queued) {
        let overtook = queued
            .step()
            .and_then(|step| self.queue.iter().position(|other| self.needs(other) > step));
        self.queue.insert(overtook.unwrap_or(self.queue.len()), queued);
    }

    /// All steps below this one must be applied when its turn comes.
    fn needs(&self, queued: &Queued) -> Step {
        match queued {
            // Nobody computes it any more, but it must be answered.
            Queued::Order(_, Order::Compute { cancel, .. }) if cancel.is_cancelled() => Step(0),
            Queued::Order(_, Order::Compute { after, .. }) => {
                after.iter().max().map_or(Step(0), |last| last.next())
            }
            // Who ends without the last step would have trained something else.
            Queued::Order(_, Order::Stop { .. }) => self.sent.0,
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
            Queued::Order(_, Order::Compute { cancel, .. }) => {
                cancel.cancel();
                true
            }
            queued => matches!(queued, Queued::Order(_, Order::Stop { .. })),
        });
        self.sent.0 = Step(0);
        self.came.transfer = transfer;
        self.queue.push_back(Queued::Take(transfer));
    }

    /// It drops the tasks it is at.
    pub(super) fn cancel(&self) {
        if let Some(cancel) = &self.live {
            cancel.cancel();
        }
    }

    /// Tasks that it has not been given are free at once; gives their orders' numbers.
    pub(super) fn drop_orders(&mut self) -> Vec<u64> {
        // It has the tasks in hand, and says itself what it dropped.
        if !self.given.is_empty() {
            return Vec::new();
        }
        let (tasks, rest) = std::mem::take(&mut self.queue)
            .into_iter()
            .partition(|queued| matches!(queued, Queued::Order(_, Order::Compute { .. })));
        self.queue = rest;
        let tasks: VecDeque<Queued> = tasks;
        let numbers = tasks.into_iter().filter_map(|queued| match queued {
            Queued::Order(number, _) => Some(number),
            _ => None,
        });
        numbers.collect()
    }

    /// Notes what it has done of its orders.
    pub(super) fn done(&mut self, number: u64, all: bool) {
        if let Some(given) = self.given.iter_mut().find(|given| given.0 == number) {
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
    pub(super) fn stop(&mut self, number: u64, why: Arc<str>) {
        self.stopping = true;
        self.cancel();
        self.enqueue(number, Order::Stop { why });
    }

    /// There is nothing more for it to do.
    pub(super) fn end(&mut self) {
        if let Some(cancel) = self.live.take() {
            cancel.cancel();
        }
    }

    /// The same, and it is told why at once.
    pub(super) fn dismiss(&mut self, number: u64, why: Dismissal) {
        self.end();
        self.orders.send((number, Order::Dismiss(why)));
    }

    /// The connection is lost, and all that waited.
    pub(super) fn reset(&mut self) {
        self.end();
        self.queue.clear();
        (self.sent, self.gap_since) = ((Step(0), Numbers::default()), None);
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
    pub(super) fn advance(&mut self, uplink: &Uplink, sums: &WorkerSums, states: &mut Arriving) {
        while let Some(front) = self.queue.front() {
            if front.step().is_some_and(|step| step < self.next) {
                self.queue.pop_front();
                continue;
            }
            let ready = match front {
                front if self.needs(front) > self.next => false,
                Queued::Order(..) => true,
                Queued::Apply { decision: Decision { sum, digest, .. }, .. } => {
                    sums.has(*sum, *digest)
                }
                Queued::Take(transfer) => states.is_whole(*transfer),
            };
            if !ready {
                return;
            }
            let (number, order) = match self.queue.pop_front() {
                Some(Queued::Order(number, order)) => (number, order),
                Some(Queued::Apply { decision, .. }) => {
                    let Decision { sum, digest, aux, saver } = decision;
                    let Some(gradient) = sums.vector(sum) else { return };
                    let decoded = Arc::new(Decoded { gradient, aux, digest });
                    (uplink.name_of(0), Order::Apply { sum, decoded, saver })
                }
                Some(Queued::Take(transfer)) => {
                    let Some(state) = states.take(transfer) else { return };
                    self.next = state.next;
                    // Noted with its connection: an answer that comes after another call is no
                    // answer there.
                    self.taking.push_back((uplink.number(), transfer, state.next));
                    (uplink.name_of(0), Order::LoadState { state: Arc::new(state) })
                }
                None => return,
            };
            if let Order::Apply { sum: SumId { step, .. }, .. } | Order::Skip { step, .. } = &order
            {
                // What is given to the trainer counts as applied: it does its orders one after the
                // other.
                self.next = self.next.max(step.next());
            }
            if let Order::Compute { tasks, .. } = &order {
                self.given.push((number, tasks.len()));
            }
            self.orders.send((number, order));
        }
    }

    /// What is waited for in vain, if that is to be acted on now: a step that was left out, or one
    /// whose sum does not come; sums of which something is open have longer.
    pub(super) fn misses(
        &mut self,
        now: Instant,
        is_open: impl Fn(SumId) -> bool,
    ) -> Option<Missing> {
        let needed = self.queue.front().map_or(self.sent.0, |front| self.needs(front));
        let left_out = needed > self.next;
        let Numbers { order, transfer } = self.sent.1;
        if left_out || order > self.came.order || transfer > self.came.transfer {
            let Some(since) = self.gap_since else {
                self.gap_since = Some(now);
                return left_out.then_some(Missing::Step(self.next));
            };
            // What was overtaken comes soon. At the end nobody answers another call.
            let is_lost = !self.stopping && now.duration_since(since) > OVERDUE;
            return is_lost.then_some(Missing::Order);
        }
        self.gap_since = None;
        let Some(Queued::Apply { decision, since, asked }) = self.queue.front_mut() else {
            return None;
        };
        // Something of it may be on its way; of a sum of which nothing is here, nothing will come.
        let patience = if is_open(decision.sum) { OVERDUE } else { QUIET };
        let waited = now.duration_since(*since);
        if waited <= patience || *asked && waited <= 5 * OVERDUE {
            return None;
        }
        (*asked, *since) = (true, now);
        Some(Missing::Step(decision.sum.step))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::mailbox::mailbox;
    use super::super::super::pipe::Pipe;
    use super::*;
    use crate::ids::Job;
    use crate::run::NumberFormat;
    use crate::sums::exchange::{Blocks, HostResults, NodeContext, ReassemblyBuffers, Vectors};
    use std::time::Duration;

    fn of(step: u64) -> Order {
        Order::Skip { step: Step(step), saver: Worker(0), units: Arc::new([]) }
    }

    fn sums() -> WorkerSums {
        let context = NodeContext {
            me: 0,
            length: 1,
            format: NumberFormat::F32,
            of_bits: false,
            blocks: Blocks::new(1),
            vectors: Vectors::default(),
            buffers: ReassemblyBuffers::default(),
            kept_max: 1,
        };
        let results = HostResults::new(Arc::default(), context.vectors.clone());
        WorkerSums::new(context, Box::new(results))
    }

    const TASK: Task = Task { job: Job(3), piece: 0, plan: 0 };

    /// Steps that are skipped count as applied, so that no sum is needed here.
    struct Scene {
        trainer: Trainer,
        taken: std::sync::mpsc::Receiver<(u64, Order)>,
        begun: Instant,
    }

    impl Scene {
        fn new(next: u64) -> Self {
            let (orders, taken, _waker) = mailbox();
            let trainer = Trainer::new(orders, Step(next), Word::new(None));
            Self { trainer, taken, begun: Instant::now() }
        }

        fn compute(&mut self, number: u64, after: &[u64]) {
            let after = after.iter().map(|step| Step(*step)).collect();
            self.trainer.compute(number, (after, vec![(TASK, Vec::new())]), false);
        }

        /// What the trainer is given now, in brief.
        fn given(&mut self) -> Vec<String> {
            let (uplink, mut states) = (Uplink::new(Pipe::new().0), Arriving::default());
            self.trainer.advance(&uplink, &sums(), &mut states);
            let brief = |(number, order)| match order {
                Order::Compute { .. } => format!("compute {number}"),
                Order::Skip { step: Step(step), .. } => format!("step {step}"),
                Order::Stop { .. } => "stop".to_owned(),
                other => panic!("{other:?}"),
            };
            self.taken.try_iter().map(brief).collect()
        }

        fn misses(&mut self, ms: u64) -> Option<Missing> {
            self.trainer.misses(self.begun + Duration::from_millis(ms), |_| false)
        }
    }

    #[test]
    fn what_overtook_a_step_waits_for_it() {
        let mut scene = Scene::new(3);
        scene.compute(1, &[2]);
        assert_eq!(scene.given(), ["compute 1"]);
        scene.compute(2, &[3]);
        scene.trainer.enqueue(0, of(4));
        scene.trainer.was_sent(&[Step(4)], Numbers { order: 2, transfer: 0 });
        assert_eq!(scene.given(), [""; 0]);
        assert_eq!(scene.misses(0), Some(Missing::Step(Step(3))), "it is asked for at once");
        assert_eq!(scene.misses(900), None, "and comes");
        scene.trainer.enqueue(0, of(3));
        scene.trainer.enqueue(0, of(3));
        assert_eq!(scene.given(), ["step 3", "compute 2", "step 4"]);
        assert_eq!(scene.misses(5_000), None);
        scene.compute(2, &[3]);
        scene.compute(1, &[2]);
        assert_eq!(scene.given(), [""; 0], "what comes twice is done once");
    }

    #[test]
    fn what_does_not_come_costs_the_connection() {
        for lose in [
            (|scene: &mut Scene| scene.compute(1, &[2, 3])) as fn(&mut Scene),
            |scene| scene.trainer.enqueue(0, of(4)),
            // Nothing waits for these.
            |scene| scene.trainer.was_sent(&[Step(3)], Numbers::default()),
            |scene| scene.trainer.was_sent(&[], Numbers { order: 1, transfer: 0 }),
            |scene| scene.trainer.was_sent(&[], Numbers { order: 0, transfer: 1 }),
        ] {
            let mut scene = Scene::new(3);
            lose(&mut scene);
            assert_eq!(scene.given(), [""; 0]);
            scene.misses(0);
            assert_eq!(scene.misses(1_000), None);
            assert_eq!(scene.misses(1_001), Some(Missing::Order));
            scene.trainer.reset();
            assert_eq!([5_000, 9_000].map(|ms| scene.misses(ms)), [None, None], "another begins");
        }
    }

    #[test]
    fn nobody_ends_before_the_last_step() {
        let mut scene = Scene::new(3);
        scene.trainer.was_sent(&[Step(3)], Numbers::default());
        scene.trainer.stop(0, "all is decided".into());
        assert_eq!(scene.given(), [""; 0]);
        assert_eq!(scene.misses(0), Some(Missing::Step(Step(3))));
        assert_eq!(scene.misses(9_000), None, "nobody answers another call");
        scene.trainer.enqueue(0, of(3));
        assert_eq!(scene.given(), ["step 3", "stop"]);
    }

    /// What nobody wants is answered in its turn, and holds up nothing.
    #[test]
    fn tasks_that_are_not_wanted_wait_for_no_step() {
        let mut scene = Scene::new(3);
        scene.trainer.given.push((1, 1));
        scene.compute(2, &[7]);
        scene.trainer.take_over(5);
        assert_eq!(scene.given(), ["compute 2"]);
        let Queued::Take(5) = &scene.trainer.queue[0] else { panic!("the state is next") };
    }

    /// A trainer that still has tasks in hand drops those that wait, when their turn comes.
    #[test]
    fn tasks_are_answered_though_a_state_takes_their_place() {
        let (orders, _taken, _waker) = mailbox();
        let mut trainer = Trainer::new(orders, Step(0), Word::new(None));
        trainer.given.push((7, 1));
        let task = Task { job: Job(3), piece: 0, plan: 0 };
        trainer.enqueue(0, Order::SendState { needy: Worker(1) });
        trainer.compute(8, (Vec::new(), vec![(task, Vec::new())]), false);
        assert!(trainer.drop_orders().is_empty(), "it says itself what it drops");
        trainer.take_over(5);
        let Queued::Order(8, Order::Compute { cancel, .. }) = &trainer.queue[0] else {
            panic!("its order waits for an answer");
        };
        assert!(cancel.is_cancelled() && matches!(trainer.queue[1], Queued::Take(5)));
        assert_eq!(trainer.queue.len(), 2);
    }
}
