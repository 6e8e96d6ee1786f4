//! A queue of micro-batches: workers pull, the last ones are duplicated.
//!
//! # Construction
//! A job is `n m` items. Every worker pulls the lowest number not yet handed out; when none is left
//! it duplicates an item that somebody else still computes, at most two holders each.
//!
//! # Guarantee
//! Exact no matter who straggles, as long as one worker lives: the round ends when every item has
//! one finisher.
//!
//! # Cost
//! A pull is O(1), a duplicate O(n). In a real run every pull is a message there and back.
//!
//! # Numerics
//! All weights are 1.
//!
//! # Source
//! Own arrangement of what is common knowledge (work queues with backup tasks, Dean, Ghemawat, OSDI
//! 2004).

use super::claims::Claims;
use crate::codes::family::{Family, Recipe, Space, Traits, doublings, keyed};
use crate::codes::sequential::{
    FastForward, Fold, Horizon, Outlook, Returned, RoundEvent, Scheme, SchemeFacts, Settle, UNCODED,
};
use crate::codes::{ParameterError, Report};
use crate::ids::{Job, Part, Run, Task, Worker, WorkerSet};
use std::ops::Range;

/// A queue of tasks.
pub(in crate::codes) const FAMILY: Family = Family {
    name: "queue",
    examples: &["queue:m=4"],
    summary: "m tasks per worker in one queue: who is fast does more, what is still out is done \
        twice",
    traits: Traits { feedback: true, pulls: true, ..Traits::NONE },
    spaces: Some(|limits| {
        let most = limits.cut.saturating_mul(limits.accumulate);
        vec![Space::of([keyed("m", doublings(most))])]
    }),
    ..Family::new(|fields| {
        let items = fields.need("m")?;
        Ok(Recipe::scheme(move |horizon| Queue::new(items, horizon)))
    })
};

/// Workers that may compute the same item at once.
const HOLDERS_MAX: u8 = 2;

/// The work queue of one job per round; the piece of a task is the number of its item.
///
/// # Formula
/// ```text
/// items = n m     load of an item = 1/(n m)
/// ```
///
/// ```
/// use codedgrad::codes::{
///     feedback::Queue,
///     sequential::{Accept, Horizon, Returned, Scheme},
/// };
/// use codedgrad::ids::{Job, Worker, WorkerSet};
/// let horizon =
///     Horizon { workers: 2, units: None, jobs: Job(0)..Job(1), accept: Accept::Lookahead };
/// let mut queue = Queue::new(1, horizon)?;
/// let mut tasks = Vec::new();
/// queue.assign(Worker(0), &mut tasks);
/// queue.assign(Worker(1), &mut tasks);
/// assert_eq!(queue.returned(Worker(1), tasks[1]), Returned::Final);
/// queue.assign(Worker(1), &mut tasks);
/// assert_eq!(tasks[2], tasks[0], "nothing is left: the slow worker's item is duplicated");
/// assert_eq!(queue.returned(Worker(1), tasks[2]), Returned::Final);
/// assert!(queue.admits(&WorkerSet::of(2, [Worker(0)])));
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
pub struct Queue {
    facts: SchemeFacts,
    claims: Claims,
    /// First item that nobody was given.
    next: usize,
    /// Items to be given out again.
    again: Vec<u32>,
    /// Workers at each item now.
    holders: Vec<u8>,
}

impl Queue {
    /// A queue of `items_per_worker` items for every worker.
    ///
    /// # Errors
    /// [`ParameterError::NoWorkers`], [`ParameterError::Conditions`] for no items,
    /// [`ParameterError::Cut`] when the batch has fewer units than items.
    ///
    /// ```
    /// use codedgrad::codes::{
    ///     feedback::Queue,
    ///     sequential::{Accept, Horizon},
    /// };
    /// use codedgrad::ids::Job;
    /// let horizon =
    ///     Horizon { workers: 4, units: Some(8), jobs: Job(0)..Job(1), accept: Accept::Lookahead };
    /// assert!(Queue::new(2, horizon.clone()).is_ok() && Queue::new(3, horizon).is_err());
    /// ```
    pub fn new(items_per_worker: usize, horizon: Horizon) -> Result<Self, ParameterError> {
        let Horizon { workers, units, jobs, .. } = horizon;
        if items_per_worker == 0 {
            return Err(ParameterError::Conditions {
                scheme: "queue",
                problem: "m=0 items per worker: m must be 1 or more".into(),
            });
        }
        let items = super::pieces("queue", workers, items_per_worker)?;
        let parts = super::equal_parts(workers, items, units)?;
        Ok(Self {
            facts: super::facts(workers, units.unwrap_or(items as u32), 0, 1.0 / items as f64),
            claims: Claims::new(workers, parts, jobs),
            holders: vec![0; items],
            next: 0,
            again: Vec::new(),
        })
    }

    fn refill(&mut self) {
        self.next = 0;
        self.again.clear();
        self.holders.fill(0);
    }

    /// The lowest item that one worker holds and nobody has finished.
    fn duplicate(&self) -> Option<u32> {
        let open = |item: &u32| {
            self.claims.winner[*item as usize].is_none()
                && self.holders[*item as usize] < HOLDERS_MAX
        };
        self.claims.busy.iter().filter_map(|item| *item).filter(open).min()
    }

    /// The next item of an idle worker, as long as there is one.
    fn pull(&mut self, worker: Worker) -> Option<Task> {
        if !self.claims.is_free(worker) {
            return None;
        }
        let piece = if let Some(item) = self.again.pop() {
            Some(item)
        } else if self.next < self.holders.len() {
            self.next += 1;
            Some(self.next as u32 - 1)
        } else {
            self.duplicate()
        }?;
        self.holders[piece as usize] += 1;
        Some(self.claims.give(worker, piece))
    }

    /// A worker leaves the item it is at: somebody else has to do it, unless it is done or two
    /// were at it.
    fn leave(&mut self, worker: Worker) {
        let Some(piece) = self.claims.busy[worker.index()].take() else { return };
        let holders = &mut self.holders[piece as usize];
        *holders -= 1;
        if *holders == 0 && self.claims.winner[piece as usize].is_none() {
            self.again.push(piece);
        }
    }

    fn lost(&mut self, worker: Worker, from: Option<Job>, reopened: &mut Vec<Task>) {
        self.leave(worker);
        let open = self.claims.reopen(worker, from);
        let idle = open
            .iter()
            .rev()
            .map(|task| task.piece)
            .filter(|piece| self.holders[*piece as usize] == 0);
        self.again.extend(idle);
        reopened.extend(open);
    }
}

impl Scheme for Queue {
    fn facts(&self) -> &SchemeFacts {
        &self.facts
    }

    fn assign(&mut self, worker: Worker, out: &mut Vec<Task>) {
        out.extend(self.pull(worker));
    }

    fn parts(&self, _: Worker, task: Task) -> &[Part] {
        self.claims.parts(task)
    }

    fn returned(&mut self, worker: Worker, task: Task) -> Returned {
        let first = self.claims.returned(worker, task);
        if first.is_some() {
            self.holders[task.piece as usize] -= 1;
        }
        if first == Some(true) { Returned::Final } else { Returned::Unwanted }
    }

    fn on(&mut self, event: RoundEvent<'_>) -> bool {
        match event {
            RoundEvent::Opened { dead } => {
                if self.claims.open_next() {
                    self.refill();
                }
                dead.iter().for_each(|worker| self.leave(worker));
            }
            RoundEvent::Gone(worker) | RoundEvent::Dropped(worker) => self.leave(worker),
            RoundEvent::Back(_) => {}
            RoundEvent::Lost { worker, from, reopened } => self.lost(worker, from, reopened),
            RoundEvent::GivenUp(_) => self.claims.give_up(),
        }
        true
    }

    fn admits(&self, _: &WorkerSet) -> bool {
        self.claims.complete()
    }

    fn quality(&mut self) -> Report {
        UNCODED
    }

    fn outlook(&self, gone: &WorkerSet) -> Outlook {
        self.claims.blocked(|_| gone.len() == self.facts.workers)
    }

    fn close(&mut self, _: &WorkerSet, _: &[Option<f64>], decoded: &mut Vec<Job>) {
        self.claims.close(decoded);
        self.holders.fill(0);
    }

    fn settle(&mut self, what: Settle, out: &mut Vec<Fold>) -> Report {
        self.claims.settle(what, out)
    }

    fn restart(&mut self, jobs: Range<Job>) {
        self.claims.restart(jobs);
        self.refill();
    }

    fn fast_forward(&mut self) -> Option<&mut dyn FastForward> {
        Some(self)
    }
}

impl FastForward for Queue {
    fn runs(&mut self, worker: Worker, out: &mut Vec<Run>) {
        let task = self.pull(worker);
        out.extend(task.map(|task| self.claims.run(worker, task)));
    }
}
