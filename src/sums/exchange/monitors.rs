//! The exchanges that nodes were told to make, and the attempts that were decided.

use super::monitor::{ExchangeMonitor, StalledSum, VoidReason};
use crate::ids::{Step, Task, Worker};
use crate::sums::SumId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Bytes per second of a gradient below which an exchange does not go on.
const SLOWEST: f64 = 1e7;
/// An exchange may last this many times as long as the last ones before it costs a worker.
const PATIENCE_FACTOR: u32 = 20;
/// What is taken for the time of exchanges before there was one.
const AT_FIRST: Duration = Duration::from_millis(250);

/// How long an exchange may stand still, and how long it may take as a whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadlines {
    pub(super) stall: Duration,
    pub(super) longest: Duration,
}

/// What is known of the sum of a step.
#[derive(Debug, Default)]
struct OfStep {
    /// The last exchange for it: an earlier one is void, and forgotten.
    last: Option<(SumId, ExchangeMonitor)>,
    /// By which sum it was decided.
    decided: Option<SumId>,
    /// Whether owners were [cut off](Monitors::cut_off) in it.
    cut_off: bool,
}

impl OfStep {
    fn last(&self) -> Option<(SumId, &ExchangeMonitor)> {
        self.last.as_ref().map(|(id, monitor)| (*id, monitor))
    }

    fn last_mut(&mut self) -> Option<(SumId, &mut ExchangeMonitor)> {
        self.last.as_mut().map(|(id, monitor)| (*id, monitor))
    }
}

/// The exchanges of the last steps, the last one of each, and how long one may take.
#[derive(Debug)]
pub(crate) struct Monitors {
    steps: BTreeMap<Step, OfStep>,
    /// How long the last ones took.
    usual: Duration,
    /// Whether a worker may be lost without harm.
    may_lose: bool,
}

impl Monitors {
    pub(super) fn new() -> Self {
        Self { steps: BTreeMap::new(), usual: AT_FIRST, may_lose: false }
    }

    /// Steps of which something is kept.
    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    /// All of them, by step.
    fn iter(&self) -> impl DoubleEndedIterator<Item = (SumId, &ExchangeMonitor)> {
        self.steps.values().filter_map(OfStep::last)
    }

    fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (SumId, &mut ExchangeMonitor)> {
        self.steps.values_mut().filter_map(OfStep::last_mut)
    }

    pub(super) fn get(&self, id: SumId) -> Option<&ExchangeMonitor> {
        let (last, monitor) = self.steps.get(&id.step)?.last()?;
        (last == id).then_some(monitor)
    }

    pub(super) fn get_mut(&mut self, id: SumId) -> Option<&mut ExchangeMonitor> {
        let (last, monitor) = self.steps.get_mut(&id.step)?.last_mut()?;
        (last == id).then_some(monitor)
    }

    /// Whether an exchange is under way, or a newer one of its step, which may carry it on.
    pub(super) fn has_from(&self, id: SumId) -> bool {
        let last = self.steps.get(&id.step).and_then(OfStep::last);
        last.is_some_and(|(last, _)| last >= id)
    }

    /// A result is not what was announced of it; gives the exchange that may be made of that.
    pub(super) fn withdraw(&mut self, result: (Worker, Task)) -> Option<(SumId, &ExchangeMonitor)> {
        let mut newest = self.iter_mut().rev();
        let (id, monitor) = newest.find(|(_, it)| it.parts.announced.contains(&result))?;
        monitor.parts.announced.remove(&result);
        Some((id, monitor))
    }

    /// Those whose steps are not decided.
    pub(super) fn undecided(&self) -> impl Iterator<Item = (SumId, &ExchangeMonitor)> {
        self.iter().filter(|(_, monitor)| !monitor.done)
    }

    /// The last exchange of a step.
    pub(super) fn last(&self, step: Step) -> Option<&ExchangeMonitor> {
        self.steps.get(&step)?.last().map(|(_, monitor)| monitor)
    }

    /// The last exchange of a step, if others can go on with it.
    pub(super) fn interrupted(&self, step: Step) -> Option<&ExchangeMonitor> {
        self.last(step)
            .filter(|monitor| monitor.void == Some(VoidReason::Interrupted) && !monitor.done)
    }

    /// Whether the coordinator makes a sum by itself, and sees what it is made of.
    pub(super) fn is_own(&self, id: SumId) -> bool {
        self.get(id).is_some_and(|monitor| monitor.own)
    }

    /// Who lacks the last sum before a step that others have.
    pub(super) fn lacking_before(&self, step: Step) -> Vec<u32> {
        let is_held = |monitor: &ExchangeMonitor| monitor.done || monitor.holders.len() > 1;
        let mut before = self.iter().filter(|(id, _)| id.step < step).rev();
        let last = before.find(|(_, monitor)| is_held(monitor));
        last.map(|(_, monitor)| monitor.lacking().collect()).unwrap_or_default()
    }

    /// Another exchange is begun.
    pub(super) fn begin(&mut self, id: SumId, monitor: ExchangeMonitor) {
        let of_step = self.steps.entry(id.step).or_default();
        debug_assert!(of_step.last().is_none_or(|(last, _)| last <= id), "sums are begun in order");
        of_step.last = Some((id, monitor));
    }

    /// These bytes of a step are to be applied; gives back who holds others.
    pub(super) fn decided(&mut self, id: SumId, digest: u64) -> Vec<u32> {
        self.steps.entry(id.step).or_default().decided = Some(id);
        self.get_mut(id).map(|monitor| monitor.decided(digest)).unwrap_or_default()
    }

    /// The sum by which a step was decided.
    pub(crate) fn decided_by(&self, step: Step) -> Option<SumId> {
        self.steps.get(&step)?.decided
    }

    /// The sums by which the last steps were decided.
    pub(crate) fn last_decided(&self) -> Vec<SumId> {
        self.steps.values().filter_map(|step| step.decided).collect()
    }

    /// A step is decided, and what was before `oldest` is not asked for any more.
    pub(super) fn release(&mut self, step: Step, oldest: Step) {
        if let Some((_, monitor)) = self.steps.get_mut(&step).and_then(OfStep::last_mut) {
            monitor.done = true;
        }
        self.steps.retain(|step, _| *step >= oldest);
    }

    /// A worker is lost: names the exchanges that cannot go on without it and have come to nothing,
    /// once each.
    pub(super) fn forget(&mut self, worker: u32, is_whole: impl Fn(SumId) -> bool) -> Vec<SumId> {
        let mut failed = Vec::new();
        for (id, monitor) in self.iter_mut() {
            let lost = monitor.forget(worker) && !is_whole(id);
            if lost && !monitor.done && monitor.end(VoidReason::Interrupted) {
                failed.push(id);
            }
        }
        failed
    }

    /// A sum is to be made from its beginning; gives a worker of which that can be said, if it is
    /// news.
    pub(super) fn refuse(&mut self, id: SumId) -> Option<u32> {
        let monitor = self.get_mut(id)?;
        monitor.end(VoidReason::Refused).then(|| monitor.some_worker())
    }

    /// Gives up a group. Gives its sums under way that no node has, each with a worker to report it
    /// of, and those that a node has.
    pub(super) fn leave_group(&mut self, group: u64) -> (Vec<(SumId, u32)>, Vec<SumId>) {
        let (mut failed, mut begun) = (Vec::new(), Vec::new());
        let of_group = self.iter_mut().filter(|(_, it)| it.group == Some(group));
        for (id, monitor) in of_group {
            monitor.group = None;
            if monitor.done {
                continue;
            }
            if !monitor.holders.is_empty() {
                begun.push(id);
            } else if monitor.end(VoidReason::Refused) {
                failed.push((id, monitor.some_worker()));
            }
        }
        (failed, begun)
    }

    /// The oldest sum for which nodes wait in vain for so long.
    pub(crate) fn stalled(&self, now: Instant, patience: Duration) -> Option<StalledSum> {
        self.undecided().find_map(|(id, monitor)| monitor.stalled(id.step, now, patience))
    }

    /// Ends a sum that a worker holds up without which those who are able can make it; gives both.
    pub(super) fn do_without_idle(
        &mut self,
        now: Instant,
        able: &BTreeSet<u32>,
    ) -> Option<(SumId, u32)> {
        let found = self.undecided().find_map(|(id, monitor)| {
            let waits = monitor.lacks_holders() && monitor.group.is_none();
            let idle = waits.then(|| monitor.idle(now))??;
            monitor.can_do_without(idle, |other| able.contains(&other)).then_some((id, idle))
        });
        if let Some((id, _)) = found
            && let Some(monitor) = self.get_mut(id)
        {
            monitor.end(VoidReason::Interrupted);
        }
        found
    }

    /// Ends a sum that takes twice as long as usual, or half of `stall`, and whose owners cannot
    /// send each other something, though others could own it all; gives the sum and these owners.
    /// Once per step: if it does not help, one who holds the others up is to be found in time.
    pub(super) fn cut_off(
        &mut self,
        now: Instant,
        able: &BTreeSet<u32>,
        stall: Duration,
    ) -> Option<(SumId, Vec<u32>)> {
        let most = (self.usual * 2).min(stall / 2);
        self.steps.values_mut().filter(|step| !step.cut_off).find_map(|step| {
            let (id, monitor) = step.last.as_mut()?;
            let may_be = !monitor.done
                && monitor.lacks_holders()
                && monitor.group.is_none()
                && now.duration_since(monitor.begun) > most;
            let owners = may_be.then(|| monitor.owners_cut_off(now, able))??;
            monitor.end(VoidReason::Interrupted);
            step.cut_off = true;
            Some((*id, owners))
        })
    }

    /// The worker that holds up an exchange, and why it is given up: for whose chunks others wait
    /// while nothing else comes to them, or who is left when it has taken much longer than
    /// exchanges take.
    pub(super) fn holds_up(
        &self,
        now: Instant,
        Deadlines { stall, longest }: Deadlines,
    ) -> Option<(u32, String)> {
        let all = self.iter().map(|(_, monitor)| monitor);
        let stuck = all.filter(|it| it.is_waited_for() && it.is_stuck(now, stall, longest));
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
        let (id, monitor) = self.undecided().find(|(_, monitor)| {
            let waits =
                monitor.group.is_some() && monitor.void.is_none() && monitor.lacks_holders();
            // Where one worker makes the sum alone, the next to hold it has it by its connection.
            let most =
                if monitor.parts.term_holders.len() < monitor.needed() { longest } else { stall };
            waits && !monitor.overflowed && now.duration_since(monitor.begun) > most
        })?;
        let waited = now.duration_since(monitor.begun).as_secs_f64();
        Some(format!("the sum of {} was not made in {waited:.1} s", id.step))
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

    /// How long an exchange of vectors of `bytes` may take: `stall` where no worker can be spared,
    /// else as exchanges take, at least `spare`.
    pub(super) fn deadlines(&self, stall: Duration, spare: Duration, bytes: usize) -> Deadlines {
        let usual = self.usual * PATIENCE_FACTOR;
        // Losing one that is only slow costs nothing then, and waiting for it does.
        let stall = if self.may_lose { usual.max(spare).min(stall) } else { stall };
        let longest = stall.max(usual) + Duration::from_secs_f64(bytes as f64 / SLOWEST);
        Deadlines { stall, longest }
    }
}
