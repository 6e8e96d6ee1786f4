//! What workers have spent on rounds, as they report it: also those that no round waited for.

use crate::ids::{OrderId, Part, Round, Task, Worker};
use crate::sums::TaskSpent;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, VecDeque};

/// Decimals of the times in a record: microseconds.
const DECIMALS: f64 = 1e6;

/// What a worker has done for a round, in a record as the list `[round, worker, computed, progress,
/// came, units]`; times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpentRecord {
    /// Which round.
    pub round: u64,
    /// Whose.
    pub worker: Worker,
    /// How long it computed, by its own clock.
    pub computed: f64,
    /// Fraction of the units that it was assigned in that round which it has finished.
    pub progress: f64,
    /// From the opening of that round to the worker's last word of it.
    pub came: f64,
    /// Units that it has finished; 0 in records that do not tell.
    pub units: u64,
}

impl Serialize for SpentRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { round, worker, computed, progress, came, units } = *self;
        let [computed, progress, came] =
            [computed, progress, came].map(|number| (number * DECIMALS).round() / DECIMALS);
        (round, worker, computed, progress, came, units).serialize(serializer)
    }
}

/// Such a list as it is read.
#[derive(Deserialize)]
#[serde(untagged)]
enum ReadSpent {
    Whole((u64, Worker, f64, f64, f64, u64)),
    /// Of a record that does not tell units.
    WithoutUnits((u64, Worker, f64, f64, f64)),
}

impl<'de> Deserialize<'de> for SpentRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (round, worker, computed, progress, came, units) =
            match ReadSpent::deserialize(deserializer)? {
                ReadSpent::Whole(list) => list,
                ReadSpent::WithoutUnits((round, worker, computed, progress, came)) => {
                    (round, worker, computed, progress, came, 0)
                }
            };
        Ok(Self { round, worker, computed, progress, came, units })
    }
}

/// What a worker was assigned in a round, and has reported of it.
#[derive(Debug)]
struct Account {
    round: Round,
    /// When its first tasks were given.
    since: f64,
    /// When the round opened; known once it is closed.
    opened: Option<f64>,
    /// How many tasks are not answered of each order.
    open: BTreeMap<OrderId, usize>,
    assigned: u64,
    finished: u64,
    computed: f64,
    /// When it last reported something.
    heard: Option<f64>,
}

impl Account {
    fn new(round: Round, since: f64) -> Self {
        Self {
            round,
            since,
            opened: None,
            open: BTreeMap::new(),
            assigned: 0,
            finished: 0,
            computed: 0.0,
            heard: None,
        }
    }

    /// Takes in a report; times that no clock tells are none.
    fn add(&mut self, spent: Option<TaskSpent>, now: f64) {
        let sound = |spent: &TaskSpent| spent.computed.is_finite() && spent.computed >= 0.0;
        let Some(TaskSpent { computed, units }) = spent.filter(sound) else { return };
        self.computed += computed;
        self.finished += u64::from(units);
        self.heard = Some(now);
    }

    /// Whether nothing more is to be expected of it.
    fn is_over(&self) -> bool {
        self.opened.is_some() && self.open.is_empty()
    }

    fn record(&self, worker: Worker) -> Option<SpentRecord> {
        let (opened, heard) = (self.opened?, self.heard?);
        let progress = self.finished as f64 / self.assigned.max(1) as f64;
        Some(SpentRecord {
            round: self.round.0,
            worker,
            computed: self.computed,
            progress: progress.min(1.0),
            came: (heard - opened).max(0.0),
            units: self.finished,
        })
    }
}

/// What workers have spent on rounds, from orders to the record.
///
/// An account is closed once its round is, and its worker has answered all orders of that round or
/// is lost.
#[derive(Debug)]
pub(super) struct Accounts {
    of_workers: Vec<VecDeque<Account>>,
    closed: Vec<SpentRecord>,
}

impl Accounts {
    pub(super) fn new(workers: usize) -> Self {
        Self { of_workers: (0..workers).map(|_| VecDeque::new()).collect(), closed: Vec::new() }
    }

    /// A worker is given tasks.
    pub(super) fn assigned(
        &mut self,
        worker: Worker,
        (order, round): (OrderId, Round),
        tasks: &[(Task, Vec<Part>)],
        now: f64,
    ) {
        let accounts = &mut self.of_workers[worker.index()];
        if accounts.back().is_none_or(|account| account.round != round) {
            accounts.push_back(Account::new(round, now));
        }
        let Some(account) = accounts.back_mut() else { return };
        let units = tasks.iter().flat_map(|(_, parts)| parts).map(|part| part.units);
        account.assigned += units.map(|units| u64::from(units.end - units.start)).sum::<u64>();
        account.open.insert(order, tasks.len());
    }

    /// Since when a worker has tasks that it has not answered.
    pub(super) fn since(&self, worker: Worker) -> Option<f64> {
        let open = |account: &&Account| !account.open.is_empty();
        self.of_workers[worker.index()].iter().find(open).map(|account| account.since)
    }

    /// A task of an order is done, or `all` that were left are dropped.
    pub(super) fn answered(
        &mut self,
        worker: Worker,
        (order, all): (OrderId, bool),
        spent: Option<TaskSpent>,
        now: f64,
    ) {
        let mut accounts = self.of_workers[worker.index()].iter_mut();
        let account = accounts.find(|account| account.open.contains_key(&order));
        // What is said of an order of a connection that is over is about none of these.
        let Some(account) = account else { return };
        if let Some(left) = account.open.get_mut(&order) {
            *left = if all { 0 } else { *left - 1 };
        }
        account.open.retain(|_, left| *left > 0);
        account.add(spent, now);
        self.settle(worker);
    }

    /// A worker is lost.
    pub(super) fn lost(&mut self, worker: Worker) {
        self.of_workers[worker.index()].iter_mut().for_each(|account| account.open.clear());
        self.settle(worker);
    }

    /// A round is closed. Those before it that never were have been begun again, and count for
    /// nothing.
    pub(super) fn closed(&mut self, round: Round, opened: f64) {
        for worker in Worker::all(self.of_workers.len()) {
            let accounts = &mut self.of_workers[worker.index()];
            accounts.retain_mut(|account| {
                if account.round == round {
                    account.opened = Some(opened);
                }
                account.round >= round || account.opened.is_some()
            });
            self.settle(worker);
        }
    }

    fn settle(&mut self, worker: Worker) {
        let accounts = &mut self.of_workers[worker.index()];
        while let Some(account) = accounts.front().filter(|account| account.is_over()) {
            self.closed.extend(account.record(worker));
            accounts.pop_front();
        }
    }

    /// All accounts that were closed since this was asked last.
    pub(super) fn take(&mut self) -> Vec<SpentRecord> {
        std::mem::take(&mut self.closed)
    }

    /// Accounts that are not closed.
    pub(super) fn len(&self) -> usize {
        self.of_workers.iter().map(VecDeque::len).sum()
    }
}

#[cfg(test)]
mod tests;
