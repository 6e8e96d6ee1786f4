//! What a worker was sent over the connection it has, and what it says of that: which steps it has
//! applied, which state it has taken over, and which step does not come.
//!
//! # How to drive it
//! One per connection, made of what the worker offered ([`SentRecord::new`]). [`SentRecord::step`]
//! with every step that the worker is told to apply or to skip, [`SentRecord::state`] with every
//! state. What it says is judged by [`SentRecord::applied`], [`SentRecord::loaded`] and
//! [`SentRecord::missed`]; where the sum of a step that it misses is nowhere any more,
//! [`SentRecord::recall`] has it take over a state.

use crate::ids::Step;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// A step that is asked for again sooner is on its way.
const AGAIN: Duration = Duration::from_secs(1);
/// A state is taken over so many times for one step that does not come.
const STATES: u32 = 3;
/// Steps that are not due for which it is known when they were asked for.
const KNOWN: usize = 64;

/// What is to be done about a step that a worker says it misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    /// Have its sum sent again if it is `due` over this connection. Else a state has to come: it
    /// was not sent over this one, is applied, or was sent before the last state.
    Answer { due: bool },
    /// Nothing: it comes, or is in a state that comes.
    Wait,
    /// The worker was never sent it.
    NeverSent,
    /// It has taken over states for this step before, and misses it again.
    Endless,
}

/// What a word that a step is applied is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AckStatus {
    /// It was sent that step over this connection.
    Now,
    /// It says again what may have been lost with its last connection.
    Before,
    /// It was said before it had taken over the state that it was sent.
    Void,
    /// It was not sent it.
    NeverSent,
}

/// A step that the worker was sent, or has asked for.
#[derive(Debug, Default)]
struct SentStep {
    /// It was sent, and is not applied.
    due: bool,
    asked: Option<Instant>,
    /// How many states the worker was to take over for it.
    states: u32,
}

/// What a worker was sent over a connection.
#[derive(Debug)]
pub(super) struct SentRecord {
    steps: BTreeMap<Step, SentStep>,
    /// The last step that it was sent.
    last: Option<Step>,
    /// First step that was not applied in what it offered, and how many digests of steps before
    /// that it may still say: two per model, one that may have been lost with its last connection
    /// and one that its trainer was at then.
    offered: (Step, u64),
    /// What is below is in the state that it was sent last.
    next: Option<Step>,
    /// The number of that state's transfer, while nothing was said of it.
    taking: Option<u64>,
    /// Whether it is to take over a state.
    recalled: bool,
}

impl SentRecord {
    /// Nothing yet, to a worker of a run of so many models that offered a state, if it did.
    pub(super) fn new(offered: Option<Step>, models: u64) -> Self {
        Self {
            steps: BTreeMap::new(),
            last: None,
            offered: offered.map_or((Step(0), 0), |next| (next, 2 * models)),
            next: None,
            taking: None,
            recalled: false,
        }
    }

    /// The worker is sent a step.
    pub(super) fn step(&mut self, step: Step) {
        self.steps.entry(step).or_default().due = true;
        self.last = self.last.max(Some(step));
    }

    /// The last step that it was sent and does not say to have applied.
    pub(super) fn due(&self) -> Option<Step> {
        self.steps.iter().rev().find(|(_, noted)| noted.due).map(|(step, _)| *step)
    }

    /// The transfer of the state that it was sent, or 0 where it has said what came of that.
    pub(super) fn taking(&self) -> u64 {
        self.taking.unwrap_or(0)
    }

    /// The worker is sent a state, in which all below `next` is applied.
    pub(super) fn state(&mut self, transfer: u64, next: Step) {
        // What it was sent before is part of the state, and will not be applied.
        self.steps.values_mut().for_each(|noted| noted.due = false);
        self.steps.retain(|_, noted| noted.asked.is_some());
        self.next = Some(next);
        self.taking = Some(transfer);
        self.recalled = false;
    }

    /// The worker says that it has applied a step.
    pub(super) fn applied(&mut self, step: Step) -> AckStatus {
        // It crossed the state, which is of another time.
        if self.taking.is_some() {
            return AckStatus::Void;
        }
        if self.steps.get(&step).is_some_and(|noted| noted.due) {
            self.steps.remove(&step);
            return AckStatus::Now;
        }
        // Of each model the last that it has said may be lost, and the one that its trainer was at
        // when the last connection broke comes over this one.
        let (next, words) = &mut self.offered;
        if step < *next && *words > 0 {
            *words -= 1;
            return AckStatus::Before;
        }
        AckStatus::NeverSent
    }

    /// The worker says something of the state of a transfer; gives the state's `next` if that is
    /// the last that it was sent: a later one may be on its way.
    pub(super) fn loaded(&mut self, transfer: u64) -> Option<Step> {
        self.taking.take_if(|taking| *taking == transfer)?;
        self.next
    }

    /// The worker says that a step does not come.
    pub(super) fn missed(&mut self, step: Step, now: Instant) -> Miss {
        if self.last.is_none_or(|last| step > last) {
            return Miss::NeverSent;
        }
        let noted = self.steps.get(&step);
        // A trainer whose state never fits would ask for ever.
        if noted.is_some_and(|noted| noted.states > STATES) {
            return Miss::Endless;
        }
        // What is in a state on its way, or was sent a moment ago, would only be sent twice.
        let asked = noted.and_then(|noted| noted.asked);
        if Some(step) < self.next
            || self.recalled
            || asked.is_some_and(|at| now.saturating_duration_since(at) < AGAIN)
        {
            return Miss::Wait;
        }
        let noted = self.steps.entry(step).or_default();
        noted.asked = Some(now);
        let due = noted.due;
        // The oldest steps first: they are not asked for any more.
        let others = self.steps.iter().filter(|(other, noted)| !noted.due && **other != step);
        if others.clone().count() >= KNOWN
            && let Some(oldest) = others.map(|(oldest, _)| *oldest).next()
        {
            self.steps.remove(&oldest);
        }
        Miss::Answer { due }
    }

    /// No worker has what this one misses: it is to take over a state.
    pub(super) fn recall(&mut self, step: Step) {
        self.recalled = true;
        self.steps.get_mut(&step).into_iter().for_each(|noted| noted.states += 1);
    }
}

#[cfg(test)]
mod tests;
