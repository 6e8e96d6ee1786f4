//! An item of a queue that costs one worker after the other: it is kept for those that come back,
//! as long as it makes sense to wait for them.

use super::{CONFIG, Config, Driver, assigned, folded};
use codedgrad::ids::{Step, Task, Worker};
use codedgrad::schedulers::{Action, Input};
use std::collections::BTreeMap;

/// Waits long for those that may come back.
const PATIENT: Config = Config { return_seconds: 40.0, ..CONFIG };

/// A queue of one item for each of four workers.
struct Queue {
    driver: Driver,
    at: BTreeMap<u32, Task>,
}

impl Queue {
    fn new(config: Config) -> Self {
        let (driver, actions) = Driver::new("queue:m=1", 4, 3, config);
        let mut queue = Self { driver, at: BTreeMap::new() };
        queue.see(&actions);
        queue
    }

    fn see(&mut self, actions: &[Action]) {
        for action in actions {
            if let Action::Compute { worker, tasks, .. } = action {
                self.at.insert(worker.0, tasks[0].0);
            }
        }
    }

    fn give(&mut self, now: f64, input: Input) -> Vec<Action> {
        let actions = self.driver.at(now).give(input).unwrap();
        self.see(&actions);
        actions
    }

    /// A worker does its item; who is given which then.
    fn done(&mut self, now: f64, worker: u32) -> Vec<Action> {
        let task = self.at.remove(&worker).unwrap();
        let order = self.driver.order(worker);
        let done = Input::Done { worker: Worker(worker), order, task, finite: true, digest: None };
        self.give(now, done)
    }

    fn lost(&mut self, now: f64, worker: u32) -> Vec<Action> {
        self.at.remove(&worker);
        self.give(now, Input::Lost { worker: Worker(worker), kept: true })
    }

    fn back(&mut self, now: f64, worker: u32) -> Vec<Action> {
        self.give(now, Input::Joined { worker: Worker(worker), next: Some(Step(0)) })
    }

    /// Which item a worker is at.
    fn item(&self, worker: u32) -> Option<u32> {
        self.at.get(&worker).map(|task| task.piece)
    }

    /// Item 1 has cost workers 1, 0 and 2, with what they had done, and worker 3 does the rest.
    fn without_all_but_one(config: Config) -> Self {
        let mut queue = Self::new(config);
        queue.lost(1.0, 1);
        queue.done(2.0, 0);
        queue.done(2.0, 2);
        assert_eq!(
            (queue.item(0), queue.item(2)),
            (Some(1), Some(1)),
            "the second helps the first"
        );
        assert!(queue.lost(3.0, 0).is_empty());
        assert!(queue.lost(3.0, 2).is_empty());
        for item in [2, 0] {
            queue.done(4.0, 3);
            assert_eq!(queue.item(3), Some(item));
        }
        queue
    }
}

#[test]
fn it_waits_for_who_comes_back() {
    let mut queue = Queue::without_all_but_one(PATIENT);
    assert_eq!(queue.driver.deadline(), Some(43.0), "since no worker is at it");
    assert!(queue.driver.engine.waits_for().unwrap().needs_return);
    assert!(queue.done(5.0, 3).is_empty(), "it is not given to the one that is left");
    assert_eq!(assigned(&queue.back(6.0, 0)), [0]);
    assert_eq!((queue.item(0), queue.driver.deadline()), (Some(1), Some(50.0)));
    assert!(queue.back(6.5, 2).is_empty() || queue.item(2) == Some(1), "another life may help it");
    assert_eq!(folded(&queue.done(7.0, 0)), Some(vec![3, 0, 3, 3]));
}

#[test]
fn whoever_comes_back_and_is_lost_is_waited_for_again() {
    let mut queue = Queue::without_all_but_one(PATIENT);
    queue.done(5.0, 3);
    for life in 0..3 {
        let now = 6.0 + f64::from(life);
        assert_eq!(assigned(&queue.back(now, 1)), [1]);
        assert!(queue.lost(now + 0.5, 1).is_empty());
        assert_eq!(queue.driver.deadline(), Some(now + 40.5));
    }
    assert_eq!(assigned(&queue.back(20.0, 2)), [2]);
    assert!(folded(&queue.done(21.0, 2)).is_some());
}

#[test]
fn it_is_anybodys_once_nobody_is_waited_for() {
    let mut queue = Queue::without_all_but_one(PATIENT);
    queue.done(5.0, 3);
    assert!(queue.give(42.0, Input::Tick).is_empty());
    assert_eq!(assigned(&queue.give(43.0, Input::Tick)), [3]);
    assert_eq!(queue.item(3), Some(1));
    assert_eq!(queue.driver.deadline(), Some(93.0), "it has as long as in a new round");
    assert_eq!(folded(&queue.done(90.0, 3)), Some(vec![3; 4]));

    let mut queue = Queue::new(CONFIG);
    queue.lost(1.0, 1);
    queue.done(2.0, 0);
    queue.lost(3.0, 0);
    queue.done(4.0, 2);
    queue.done(4.0, 3);
    let at = [queue.item(2), queue.item(3)];
    assert_eq!(at, [Some(0), Some(1)], "who is lost does not come back in this run");
}

#[test]
fn who_has_left_is_not_waited_for() {
    let mut queue = Queue::new(PATIENT);
    for worker in [1, 0] {
        queue.give(2.0, Input::Left { worker: Worker(worker), told: false });
        queue.lost(2.0, worker);
        queue.done(3.0, if worker == 1 { 0 } else { 2 });
    }
    queue.done(3.0, 3);
    assert_eq!([queue.item(2), queue.item(3)], [Some(0), Some(1)]);
}

#[test]
fn an_item_that_cost_one_worker_goes_to_the_next_at_once() {
    let mut queue = Queue::new(PATIENT);
    queue.lost(1.0, 1);
    queue.done(2.0, 0);
    assert_eq!((queue.item(0), queue.driver.deadline()), (Some(1), Some(50.0)));
    queue.done(2.0, 2);
    queue.done(2.0, 3);
    assert!(folded(&queue.done(3.0, 0)).is_some());
    for worker in [0, 3] {
        let held = queue.driver.at(4.0).held(worker, 0, 0);
        queue.see(&held);
    }
    // In the next step it is another item.
    assert_eq!([queue.item(0), queue.item(3)], [Some(0), Some(1)]);
    queue.at.remove(&2);
    queue.lost(5.0, 3);
    queue.give(6.0, queue.driver.idle(2));
    assert_eq!(queue.item(2), Some(1));
}

/// Where a step of several jobs begins again for a loss, what the loss was at is known still.
#[test]
fn a_step_that_begins_again_knows_what_it_cost() {
    let config = Config { micro_steps: 2, ..PATIENT };
    let mut queue = Queue::new(config);
    for worker in 0..4 {
        queue.done(1.0, worker);
    }
    for lost in 0..2 {
        // Item 2 of the second job.
        for worker in 0..4 {
            queue.give(2.0, queue.driver.idle(worker));
        }
        let holder = |queue: &Queue| {
            let mut at = queue.at.iter();
            at.find(|(_, task)| task.job.0 == 1 && task.piece == 2).map(|(worker, _)| *worker)
        };
        while holder(&queue).is_none() {
            let (worker, _) = queue.at.first_key_value().map(|(w, t)| (*w, *t)).unwrap();
            queue.done(3.0, worker);
        }
        let holder = holder(&queue).unwrap();
        queue.at.clear();
        queue.lost(4.0 + f64::from(lost), holder);
    }
    for worker in 0..4 {
        queue.give(6.0, queue.driver.idle(worker));
    }
    while let Some((worker, task)) = queue.at.first_key_value().map(|(w, t)| (*w, *t)) {
        assert!((task.job.0, task.piece) != (1, 2), "it is kept");
        queue.done(7.0, worker);
    }
    assert!(queue.driver.engine.waits_for().unwrap().needs_return);
}
