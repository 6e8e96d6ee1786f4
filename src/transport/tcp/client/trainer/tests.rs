//! What reaches a trainer, and in which order.

#![cfg(test)]

use super::super::super::mailbox::mailbox;
use super::super::super::pipe::Pipe;
use super::*;
use crate::ids::{Job, OrderId, Worker};
use crate::run::NumberFormat;
use crate::sums::exchange::{Blocks, HostResults, NodeContext, ReassemblyBuffers, Vectors};
use std::time::Duration;

fn of(step: u64) -> Order {
    Order::Skip {
        step: Step(step),
        news: StepNews { saver: Worker(0), late: 0 },
        units: Arc::new([]),
    }
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
        self.trainer.compute(0, OrderId(number), (after, vec![(TASK, Vec::new())]), false);
    }

    /// What the trainer is given now, in brief.
    fn given(&mut self) -> Vec<String> {
        let (uplink, mut states) = (Uplink::new(Pipe::new().0), IncomingStates::default());
        self.trainer.advance(&uplink, &sums(), &mut states);
        let brief = |(_, order)| match order {
            Order::Compute { order, .. } => format!("compute {}", order.0),
            Order::Skip { step: Step(step), .. } => format!("step {step}"),
            Order::Stop { .. } => "stop".to_owned(),
            other => panic!("{other:?}"),
        };
        self.taken.try_iter().map(brief).collect()
    }

    fn misses(&mut self, ms: u64) -> Option<MissingItem> {
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
    scene.trainer.was_sent(&[Step(4)], Numbers { order: OrderId(2), transfer: 0 });
    assert_eq!(scene.given(), [""; 0]);
    assert_eq!(scene.misses(0), Some(MissingItem::Step(Step(3))), "it is asked for at once");
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
        |scene| scene.trainer.was_sent(&[], Numbers { order: OrderId(1), transfer: 0 }),
        |scene| scene.trainer.was_sent(&[], Numbers { order: OrderId(0), transfer: 1 }),
    ] {
        let mut scene = Scene::new(3);
        lose(&mut scene);
        assert_eq!(scene.given(), [""; 0]);
        scene.misses(0);
        assert_eq!(scene.misses(1_000), None);
        assert_eq!(scene.misses(1_001), Some(MissingItem::Order));
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
    assert_eq!(scene.misses(0), Some(MissingItem::Step(Step(3))));
    assert_eq!(scene.misses(9_000), None, "no worker answers another call");
    scene.trainer.enqueue(0, of(3));
    assert_eq!(scene.given(), ["step 3", "stop"]);
}

/// Unwanted tasks are answered in their turn, and hold up nothing.
#[test]
fn tasks_that_are_not_wanted_wait_for_no_step() {
    let mut scene = Scene::new(3);
    scene.trainer.given.push((OrderId(1), 1));
    scene.compute(2, &[7]);
    scene.trainer.take_over(5);
    assert_eq!(scene.given(), ["compute 2"]);
    let QueuedItem::Take(5) = &scene.trainer.queue[0] else { panic!("the state is next") };
}

/// A trainer that still has tasks in hand drops those that wait, when their turn comes.
#[test]
fn tasks_are_answered_though_a_state_takes_their_place() {
    let (orders, _taken, _waker) = mailbox();
    let mut trainer = Trainer::new(orders, Step(0), Word::new(None));
    trainer.given.push((OrderId(7), 1));
    let task = Task { job: Job(3), piece: 0, plan: 0 };
    trainer.enqueue(0, Order::SendState { needy: Worker(1) });
    trainer.compute(0, OrderId(8), (Vec::new(), vec![(task, Vec::new())]), false);
    assert!(trainer.drop_orders(None).is_empty(), "it says itself what it drops");
    trainer.take_over(5);
    let QueuedItem::Order(_, Order::Compute { order: OrderId(8), cancel, .. }) = &trainer.queue[0]
    else {
        panic!("its order waits for an answer");
    };
    assert!(cancel.is_cancelled() && matches!(trainer.queue[1], QueuedItem::Take(5)));
    assert_eq!(trainer.queue.len(), 2);
}

/// One that rests until the next round has no order over the connection that it has come back by.
#[test]
fn a_new_connection_without_an_order_lacks_none() {
    let mut scene = Scene::new(3);
    scene.compute(7, &[2]);
    scene.trainer.reset();
    let mut is_told = |order| {
        let numbers = Numbers { order: OrderId(order), transfer: 0 };
        scene.trainer.was_sent(&[], numbers);
        [0, 9_000].map(|ms| scene.misses(ms))
    };
    assert_eq!(is_told(0), [None, None]);
    assert_eq!(is_told(8), [None, Some(MissingItem::Order)], "that one was lost");
}
