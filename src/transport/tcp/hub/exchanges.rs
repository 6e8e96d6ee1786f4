//! The exchanges that nodes were told to make, and the steps that came of them.

use super::super::monitor::ExchangeMonitor;
use super::super::pipe::Frame;
use super::super::server::Listen;
use super::doubts::Doubts;
use crate::ids::{Step, Worker};
use crate::transport::Decoded;
use crate::transport::wire::Down;
use std::collections::BTreeMap;
use std::time::Duration;

/// Bytes per second of a gradient below which an exchange does not go on.
const SLOWEST: f64 = 1e7;
/// An exchange may last so many times as long as the last ones before somebody is given up for it.
const PATIENCE_FACTOR: u32 = 20;
/// What is taken for the time of exchanges before there was one.
const AT_FIRST: Duration = Duration::from_millis(250);

type Key = (Step, u32);

/// The exchanges of the last steps, by step and attempt, and how long one may take.
#[derive(Debug)]
pub(super) struct Exchanges {
    monitor: BTreeMap<Key, ExchangeMonitor>,
    /// How long the last ones took.
    usual: Duration,
    /// Whether a worker may be lost without harm.
    may_lose: bool,
    pub(super) doubts: Doubts,
}

impl Exchanges {
    pub(super) fn new() -> Self {
        Self {
            monitor: BTreeMap::new(),
            usual: AT_FIRST,
            may_lose: false,
            doubts: Doubts::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.monitor.len()
    }

    pub(super) fn get(&self, step: Step, attempt: u32) -> Option<&ExchangeMonitor> {
        self.monitor.get(&(step, attempt))
    }

    pub(super) fn get_mut(&mut self, step: Step, attempt: u32) -> Option<&mut ExchangeMonitor> {
        self.monitor.get_mut(&(step, attempt))
    }

    pub(super) fn get_or_begin(
        &mut self,
        step: Step,
        attempt: u32,
        begin: impl FnOnce() -> ExchangeMonitor,
    ) -> &mut ExchangeMonitor {
        self.monitor.entry((step, attempt)).or_insert_with(begin)
    }

    /// All of them, by step and attempt.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &ExchangeMonitor)> {
        self.monitor.iter().map(|(key, monitor)| (*key, monitor))
    }

    /// Those that a group makes.
    pub(super) fn of_group(
        &mut self,
        group: u64,
    ) -> impl Iterator<Item = (Key, &mut ExchangeMonitor)> {
        self.monitor
            .iter_mut()
            .filter(move |(_, monitor)| monitor.group == Some(group))
            .map(|(key, monitor)| (*key, monitor))
    }

    /// Those whose steps are not decided.
    pub(super) fn undecided(&self) -> impl Iterator<Item = (Key, &ExchangeMonitor)> {
        self.iter().filter(|(_, monitor)| !monitor.done)
    }

    /// Another exchange is begun; earlier attempts at its step are forgotten.
    pub(super) fn begin(&mut self, step: Step, attempt: u32, monitor: ExchangeMonitor) {
        self.monitor.retain(|key, _| key.0 != step || key.1 > attempt);
        self.monitor.insert((step, attempt), monitor);
    }

    /// A step is decided, and what was before `oldest` is not asked for any more.
    pub(super) fn release(&mut self, step: Step, oldest: Step) {
        self.monitor
            .iter_mut()
            .filter(|(key, _)| key.0 == step)
            .for_each(|(_, monitor)| monitor.done = true);
        self.monitor.retain(|key, _| key.0 >= oldest);
        self.doubts.release(step);
    }

    /// A worker is gone: names the exchanges that cannot go on without it and have come to nothing,
    /// once each.
    pub(super) fn forget(&mut self, worker: u32, is_whole: impl Fn(Key) -> bool) -> Vec<Key> {
        let mut unmade = Vec::new();
        for (&key, monitor) in &mut self.monitor {
            let lost = monitor.forget(worker) && !is_whole(key);
            if lost && !monitor.done && !std::mem::replace(&mut monitor.void, true) {
                unmade.push(key);
            }
        }
        unmade
    }

    /// Whether a worker may be lost without harm, from now on.
    pub(super) fn may_lose(&mut self, one: bool) {
        self.may_lose = one;
    }

    /// An exchange took so long.
    pub(super) fn took(&mut self, time: Duration) {
        self.usual = (self.usual + time) / 2;
    }

    /// How long somebody may wait in vain, and how long the whole may take.
    pub(super) fn patience(&self, listen: &Listen) -> [Duration; 2] {
        let usual = self.usual * PATIENCE_FACTOR;
        let patience =
            if self.may_lose { usual.max(listen.spare).min(listen.stall) } else { listen.stall };
        let bytes = listen.config.length * listen.config.format.bytes();
        [patience, patience.max(usual) + Duration::from_secs_f64(bytes as f64 / SLOWEST)]
    }
}

/// The attempts at the last steps that were decided, and the order to apply that was sent last.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    attempts: BTreeMap<Step, u32>,
    /// It is the same for all whose connection has the same number.
    apply: Option<((Step, u32, u32, Worker), Frame)>,
}

impl Decisions {
    pub(super) fn len(&self) -> usize {
        self.attempts.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Key> {
        self.attempts.iter().map(|(step, attempt)| (*step, *attempt))
    }

    /// Which attempt at a step was decided.
    pub(super) fn attempt(&self, step: Step) -> Option<u32> {
        self.attempts.get(&step).copied()
    }

    pub(super) fn decided(&mut self, step: Step, attempt: u32) {
        self.attempts.insert(step, attempt);
    }

    /// What was before this step is not asked for any more.
    pub(super) fn release(&mut self, oldest: Step) {
        self.attempts.retain(|step, _| *step >= oldest);
    }

    /// The order to apply a step, over connections of this number.
    pub(super) fn order(
        &mut self,
        (step, attempt): Key,
        epoch: u32,
        saver: Worker,
        decoded: &Decoded,
    ) -> Frame {
        let which = (step, attempt, epoch, saver);
        if let Some((_, frame)) = self.apply.as_ref().filter(|(of, _)| *of == which) {
            return frame.clone();
        }
        let Decoded { digest, tail, .. } = decoded;
        let (digest, tail, saver) = (*digest, tail.clone(), saver.0);
        let frame = Frame::control(&Down::Apply { epoch, step, attempt, digest, tail, saver });
        self.apply = Some((which, frame.clone()));
        frame
    }
}
