//! The exchanges that nodes were told to make, and the attempts that were decided.

use super::Key;
use super::monitor::{ExchangeMonitor, StalledSum, Void};
use crate::ids::{Step, Task, Worker};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

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
pub(crate) struct Monitors {
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
    fn iter(&self) -> impl Iterator<Item = (Key, &ExchangeMonitor)> {
        self.monitors.iter().map(|(key, monitor)| (*key, monitor))
    }

    /// Those whose steps are not decided.
    pub(super) fn undecided(&self) -> impl Iterator<Item = (Key, &ExchangeMonitor)> {
        self.iter().filter(|(_, monitor)| !monitor.done)
    }

    /// The last exchange of a step.
    pub(super) fn last(&self, step: Step) -> Option<&ExchangeMonitor> {
        self.monitors.range((step, 0)..=(step, u32::MAX)).next_back().map(|(_, monitor)| monitor)
    }

    /// The last exchange of a step, if others can go on with it.
    pub(super) fn interrupted(&self, step: Step) -> Option<&ExchangeMonitor> {
        self.last(step).filter(|monitor| monitor.void == Some(Void::Interrupted) && !monitor.done)
    }

    /// Whether the coordinator makes a sum by itself, and sees what it is made of.
    pub(super) fn is_own(&self, key: Key) -> bool {
        self.get(key).is_some_and(|monitor| monitor.own)
    }

    /// Who lacks the last sum before a step that others have.
    pub(super) fn lacking_before(&self, step: Step) -> Vec<u32> {
        let is_held = |monitor: &ExchangeMonitor| monitor.done || monitor.holders.len() > 1;
        let before = self.iter().filter(|(key, _)| key.0 < step);
        let last = before.filter(|(_, monitor)| is_held(monitor)).last();
        last.map(|(_, monitor)| monitor.lacking().collect()).unwrap_or_default()
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
    pub(crate) fn attempt(&self, step: Step) -> Option<u32> {
        self.decided.get(&step).copied()
    }

    /// The attempts at the last steps that were decided.
    pub(crate) fn last_decided(&self) -> Vec<Key> {
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

    /// A sum is to be made from its beginning; gives a worker of which that can be said, if it is
    /// news.
    pub(super) fn refuse(&mut self, key: Key) -> Option<u32> {
        let monitor = self.get_mut(key)?;
        monitor.end(Void::Refused).then(|| monitor.some_worker())
    }

    /// A group is given up. Gives its sums under way that nobody has, with a worker of which that
    /// can be said, and those that somebody has.
    pub(super) fn leave_group(&mut self, group: u64) -> (Vec<(Key, u32)>, Vec<Key>) {
        let (mut failed, mut begun) = (Vec::new(), Vec::new());
        let of_group = self.monitors.iter_mut().filter(|(_, it)| it.group == Some(group));
        for (key, monitor) in of_group {
            monitor.group = None;
            if monitor.done {
                continue;
            }
            if !monitor.holders.is_empty() {
                begun.push(*key);
            } else if monitor.end(Void::Refused) {
                failed.push((*key, monitor.some_worker()));
            }
        }
        (failed, begun)
    }

    /// The oldest sum for which nodes wait in vain for so long.
    pub(crate) fn stalled(&self, now: Instant, patience: Duration) -> Option<StalledSum> {
        self.undecided().find_map(|(key, monitor)| monitor.stalled(key.0, now, patience))
    }

    /// Ends a sum that a worker holds up without which those who are able can make it; gives both.
    pub(super) fn do_without_idle(
        &mut self,
        now: Instant,
        able: &BTreeSet<u32>,
    ) -> Option<(Key, u32)> {
        let found = self.undecided().find_map(|(key, monitor)| {
            let waits = monitor.lacks_holders() && monitor.group.is_none();
            let idle = waits.then(|| monitor.idle(now))??;
            monitor.can_do_without(idle, |other| able.contains(&other)).then_some((key, idle))
        });
        if let Some((key, _)) = found
            && let Some(monitor) = self.get_mut(key)
        {
            monitor.end(Void::Interrupted);
        }
        found
    }

    /// The worker that holds up an exchange, and why it is given up: for whose chunks others wait
    /// while nothing else comes to them, or who is left when it has taken much longer than
    /// exchanges take.
    pub(super) fn holds_up(
        &self,
        now: Instant,
        Deadlines { stall, longest }: Deadlines,
    ) -> Option<(u32, String)> {
        let stuck = self
            .monitors
            .values()
            .filter(|monitor| monitor.is_waited_for() && monitor.is_stuck(now, stall, longest));
        stuck.filter_map(|monitor| Some((monitor.culprit(now)?, monitor.begun))).next().map(
            |(worker, begun)| {
                let waited = now.duration_since(begun).as_secs_f64();
                (worker, format!("its vectors did not come for {waited:.1} s"))
            },
        )
    }

    /// Why a group is given up whose sum is not made in time: who holds it up is found by
    /// connections.
    pub(super) fn group_is_late(
        &self,
        now: Instant,
        Deadlines { stall, longest }: Deadlines,
    ) -> Option<String> {
        let ((step, _), monitor) = self.undecided().find(|(_, monitor)| {
            let waits =
                monitor.group.is_some() && monitor.void.is_none() && monitor.lacks_holders();
            // Where one worker makes the sum alone, the next to hold it has it by its connection.
            let most = if monitor.sources.len() < monitor.needed() { longest } else { stall };
            waits && !monitor.overflowed && now.duration_since(monitor.begun) > most
        })?;
        let waited = now.duration_since(monitor.begun).as_secs_f64();
        Some(format!("the sum of {step} was not made in {waited:.1} s"))
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
