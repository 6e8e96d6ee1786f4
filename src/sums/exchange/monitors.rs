//! The exchanges that nodes were told to make, and the attempts that were decided.

use super::Key;
use super::monitor::{ExchangeMonitor, Void};
use crate::ids::{Step, Task, Worker};
use std::collections::BTreeMap;
use std::time::Duration;

/// Bytes per second of a gradient below which an exchange does not go on.
const SLOWEST: f64 = 1e7;
/// An exchange may last so many times as long as the last ones before somebody is given up for it.
const PATIENCE_FACTOR: u32 = 20;
/// What is taken for the time of exchanges before there was one.
const AT_FIRST: Duration = Duration::from_millis(250);

/// How long an exchange may stand still, and how long it may take as a whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadlines {
    pub(super) stall: Duration,
    pub(super) longest: Duration,
}

/// The exchanges of the last steps, by step and attempt, and how long one may take.
#[derive(Debug)]
pub(super) struct Monitors {
    monitors: BTreeMap<Key, ExchangeMonitor>,
    /// Which attempts at the last steps were decided.
    decided: BTreeMap<Step, u32>,
    /// How long the last ones took.
    usual: Duration,
    /// Whether a worker may be lost without harm.
    may_lose: bool,
}

impl Monitors {
    pub(super) fn new() -> Self {
        Self {
            monitors: BTreeMap::new(),
            decided: BTreeMap::new(),
            usual: AT_FIRST,
            may_lose: false,
        }
    }

    /// Entries that are kept.
    pub(super) fn len(&self) -> usize {
        self.monitors.len() + self.decided.len()
    }

    pub(super) fn get(&self, key: Key) -> Option<&ExchangeMonitor> {
        self.monitors.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut ExchangeMonitor> {
        self.monitors.get_mut(&key)
    }

    /// Whether an exchange is under way, or a newer one of its step, which may carry it on.
    pub(super) fn has_from(&self, key: Key) -> bool {
        self.monitors.range(key..=(key.0, u32::MAX)).next().is_some()
    }

    pub(super) fn get_or_begin(
        &mut self,
        key: Key,
        begin: impl FnOnce() -> ExchangeMonitor,
    ) -> &mut ExchangeMonitor {
        self.monitors.entry(key).or_insert_with(begin)
    }

    /// A result is not what was announced of it; gives the exchange that may be made of that.
    pub(super) fn withdraw(&mut self, result: (Worker, Task)) -> Option<(Key, &ExchangeMonitor)> {
        let mut newest = self.monitors.iter_mut().rev();
        let (key, monitor) = newest.find(|(_, it)| it.parts.announced.contains(&result))?;
        monitor.parts.announced.remove(&result);
        Some((*key, monitor))
    }

    /// All of them, by step and attempt.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &ExchangeMonitor)> {
        self.monitors.iter().map(|(key, monitor)| (*key, monitor))
    }

    /// Those that a group makes.
    pub(super) fn of_group(
        &mut self,
        group: u64,
    ) -> impl Iterator<Item = (Key, &mut ExchangeMonitor)> {
        self.monitors
            .iter_mut()
            .filter(move |(_, monitor)| monitor.group == Some(group))
            .map(|(key, monitor)| (*key, monitor))
    }

    /// Those whose steps are not decided.
    pub(super) fn undecided(&self) -> impl Iterator<Item = (Key, &ExchangeMonitor)> {
        self.iter().filter(|(_, monitor)| !monitor.done)
    }

    /// The last exchange of a step.
    pub(super) fn last(&self, step: Step) -> Option<&ExchangeMonitor> {
        self.monitors.range((step, 0)..=(step, u32::MAX)).next_back().map(|(_, monitor)| monitor)
    }

    /// Another exchange is begun; earlier attempts at its step are forgotten.
    pub(super) fn begin(&mut self, key: Key, monitor: ExchangeMonitor) {
        self.monitors.retain(|other, _| other.0 != key.0 || other.1 > key.1);
        self.monitors.insert(key, monitor);
    }

    /// These bytes of a step are to be applied; gives back who holds others.
    pub(super) fn decided(&mut self, key: Key, digest: u64) -> Vec<u32> {
        self.decided.insert(key.0, key.1);
        self.get_mut(key).map(|monitor| monitor.decided(digest)).unwrap_or_default()
    }

    /// Which attempt at a step was decided.
    pub(super) fn attempt(&self, step: Step) -> Option<u32> {
        self.decided.get(&step).copied()
    }

    /// The attempts at the last steps that were decided.
    pub(super) fn last_decided(&self) -> Vec<Key> {
        self.decided.iter().map(|(step, attempt)| (*step, *attempt)).collect()
    }

    /// A step is decided, and what was before `oldest` is not asked for any more.
    pub(super) fn release(&mut self, step: Step, oldest: Step) {
        let of_step = self.monitors.iter_mut().filter(|(key, _)| key.0 == step);
        of_step.for_each(|(_, monitor)| monitor.done = true);
        self.monitors.retain(|key, _| key.0 >= oldest);
        self.decided.retain(|step, _| *step >= oldest);
    }

    /// A worker is lost: names the exchanges that cannot go on without it and have come to nothing,
    /// once each.
    pub(super) fn forget(&mut self, worker: u32, is_whole: impl Fn(Key) -> bool) -> Vec<Key> {
        let mut failed = Vec::new();
        for (&key, monitor) in &mut self.monitors {
            let lost = monitor.forget(worker) && !is_whole(key);
            if lost && !monitor.done && monitor.end(Void::Interrupted) {
                failed.push(key);
            }
        }
        failed
    }

    /// Whether a worker may be lost without harm, from now on.
    pub(super) fn may_lose(&mut self, one: bool) {
        self.may_lose = one;
    }

    /// An exchange took so long.
    pub(super) fn took(&mut self, time: Duration) {
        // Half of it is the last one: the network may have changed.
        self.usual = (self.usual + time) / 2;
    }

    /// How long an exchange of vectors of so many bytes may take: `stall` where nobody can be
    /// spared, else as exchanges take, at least `spare`.
    pub(super) fn deadlines(&self, stall: Duration, spare: Duration, bytes: usize) -> Deadlines {
        let usual = self.usual * PATIENCE_FACTOR;
        // Losing one that is only slow costs nothing then, and waiting for it does.
        let stall = if self.may_lose { usual.max(spare).min(stall) } else { stall };
        let longest = stall.max(usual) + Duration::from_secs_f64(bytes as f64 / SLOWEST);
        Deadlines { stall, longest }
    }
}
