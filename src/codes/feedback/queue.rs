//! A queue of micro-batches: workers pull, the last ones are duplicated.
//!
//! # Construction
//! A job is `n m` items. Every worker pulls the lowest number not yet handed out. When none is left
//! it duplicates an item that another worker still computes, at most two holders each. An item that
//! has cost two workers may cost the next one too: it is kept for one that comes back, as long as
//! it makes sense to wait for that.
//!
//! # Guarantee
//! Exact no matter who straggles, as long as one worker lives: the round ends when every item has
//! one finisher. Only where an item has cost two workers, and one that has come back is at it, is
//! that one waited for.
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
    FastForward, Horizon, Outlook, ResultUse, RoundEvent, Scheme, SchemeFacts, UNCODED,
};
use crate::codes::{ParameterError, Report};
use crate::ids::{Job, Part, Run, Task, WeightedResult, Worker, WorkerSet};
use std::collections::BTreeMap;
use std::ops::Range;

/// A queue of tasks.
pub(in crate::codes) const FAMILY: Family = Family {
    name: "queue",
    examples: &["queue:m=4"],
    summary: "m tasks per worker in one queue: fast workers do more, and idle workers repeat \
        unfinished tasks",
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

/// Workers that an item may cost before it is kept for those that come back.
const COST_MAX: u32 = 2;

/// Items that have cost workers, and workers that have been lost meanwhile.
///
/// What is wrong with an item may be so for the one that computes it first, as with a file that is read
/// for the first time, and be over in the next life of a process.
struct Losses {
    /// Workers that were lost at an item.
    costs: BTreeMap<(Job, u32), u32>,
    /// Who was lost while these items were open: one of them that asks for an item is back.
    lost: WorkerSet,
}

impl Losses {
    /// Jobs from this one on are open.
    fn open(&mut self, first: Job) {
        self.costs.retain(|(job, _), _| *job >= first);
        if self.costs.is_empty() {
            self.lost.clear();
        }
    }

    fn note(&mut self, worker: Worker, item: Option<(Job, u32)>) {
        self.lost.insert(worker);
        if let Some(item) = item {
            *self.costs.entry(item).or_default() += 1;
        }
    }

    /// Whether only workers that come back are given an item.
    fn are_too_many(&self, item: (Job, u32)) -> bool {
        self.costs.get(&item).is_some_and(|cost| *cost >= COST_MAX)
    }

    /// Whether there may be items that a worker is not given. Asked first, since of most jobs no
    /// item costs a worker.
    fn concern(&self, worker: Worker) -> bool {
        !self.costs.is_empty() && !self.lost.contains(worker)
    }
}

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
///     sequential::{Accept, Horizon, ResultUse, Scheme},
/// };
/// use codedgrad::ids::{Job, Worker, WorkerSet};
/// let horizon =
///     Horizon { workers: 2, units: None, jobs: Job(0)..Job(1), accept: Accept::Lookahead };
/// let mut queue = Queue::new(1, horizon)?;
/// let mut tasks = Vec::new();
/// queue.assign(Worker(0), &mut tasks);
/// queue.assign(Worker(1), &mut tasks);
/// assert_eq!(queue.returned(Worker(1), tasks[1]), ResultUse::Wanted);
/// queue.assign(Worker(1), &mut tasks);
/// assert_eq!(tasks[2], tasks[0], "nothing is left: the slow worker's item is duplicated");
/// assert_eq!(queue.returned(Worker(1), tasks[2]), ResultUse::Wanted);
/// assert!(queue.admits(&WorkerSet::of(2, [Worker(0)])));
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
pub struct Queue {
    facts: SchemeFacts,
    claims: Claims,
    /// First item not yet given out.
    next: usize,
    /// Items to be given out again.
    again: Vec<u32>,
    /// Workers at each item now.
    holders: Vec<u8>,
    losses: Losses,
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
            losses: Losses { costs: BTreeMap::new(), lost: WorkerSet::empty(workers) },
        })
    }

    fn refill(&mut self) {
        self.next = 0;
        self.again.clear();
        self.holders.fill(0);
        self.losses.open(self.claims.job());
    }

    /// Whether an item has cost so many workers that it is kept for those that come back.
    fn is_kept(&self, item: u32) -> bool {
        self.losses.are_too_many((self.claims.job(), item))
    }

    /// The first item not yet given out that this worker may take.
    fn take_next(&mut self, worker: Worker) -> Option<u32> {
        let concerned = self.losses.concern(worker);
        while self.next < self.holders.len() {
            let item = self.next as u32;
            self.next += 1;
            if !(concerned && self.is_kept(item)) {
                return Some(item);
            }
            self.again.push(item);
        }
        None
    }

    /// The lowest unfinished item that one worker holds and this one may take.
    fn duplicate(&self, worker: Worker) -> Option<u32> {
        let open = |item: &u32| {
            self.claims.winner[*item as usize].is_none()
                && self.holders[*item as usize] < HOLDERS_MAX
        };
        let open = self.claims.busy.iter().filter_map(|item| *item).filter(open);
        if self.losses.concern(worker) {
            open.filter(|item| !self.is_kept(*item)).min()
        } else {
            open.min()
        }
    }

    /// The next item of an idle worker, as long as there is one.
    fn pull(&mut self, worker: Worker) -> Option<Task> {
        if !self.claims.is_free(worker) {
            return None;
        }
        let concerned = self.losses.concern(worker);
        let again = self.again.iter().rposition(|item| !(concerned && self.is_kept(*item)));
        let piece = if let Some(place) = again {
            Some(self.again.remove(place))
        } else {
            self.take_next(worker).or_else(|| self.duplicate(worker))
        }?;
        self.holders[piece as usize] += 1;
        Some(self.claims.give(worker, piece))
    }

    /// Takes a worker off its item: another worker has to do it, unless it is done or two were at
    /// it.
    fn leave(&mut self, worker: Worker) {
        let Some(piece) = self.claims.busy[worker.index()].take() else { return };
        let holders = &mut self.holders[piece as usize];
        *holders -= 1;
        if *holders == 0 && self.claims.winner[piece as usize].is_none() {
            self.again.push(piece);
        }
    }

    fn lost(&mut self, worker: Worker, from: Option<Job>, reopened: &mut Vec<Task>) {
        let item = self.claims.busy[worker.index()];
        self.losses.note(worker, item.map(|item| (self.claims.job(), item)));
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

    fn returned(&mut self, worker: Worker, task: Task) -> ResultUse {
        let first = self.claims.returned(worker, task);
        if first.is_some() {
            self.holders[task.piece as usize] -= 1;
        }
        if first == Some(true) { ResultUse::Wanted } else { ResultUse::Unwanted }
    }

    fn on(&mut self, event: RoundEvent<'_>) -> bool {
        match event {
            RoundEvent::Opened { dead } => {
                if self.claims.open_next() {
                    self.refill();
                }
                dead.iter().for_each(|worker| self.leave(worker));
                self.losses.lost.unite(dead);
            }
            RoundEvent::Gone(worker) | RoundEvent::Dropped(worker) => self.leave(worker),
            RoundEvent::Back(_) => {}
            RoundEvent::Lost { worker, from, reopened } => self.lost(worker, from, reopened),
            RoundEvent::GivenUp(_) => self.claims.give_up(),
            RoundEvent::NoReturns => self.losses.costs.clear(),
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
        let all = gone.len() == self.facts.workers;
        let busy =
            (0..).zip(&self.claims.busy).filter(|(worker, _)| !gone.contains(Worker(*worker)));
        let none_returns = self.losses.lost.iter().all(|worker| gone.contains(worker));
        let stays = |item: u32| {
            none_returns && self.is_kept(item) && busy.clone().all(|(_, at)| *at != Some(item))
        };
        self.claims.blocked(|item| all || stays(item as u32))
    }

    fn close(&mut self, _: &WorkerSet, _: &[Option<f64>], decoded: &mut Vec<Job>) {
        self.claims.close(decoded);
        self.holders.fill(0);
    }

    fn settle(&mut self, job: Job, out: &mut Vec<WeightedResult>) -> Report {
        self.claims.settle(job, out)
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

#[cfg(test)]
mod tests;
