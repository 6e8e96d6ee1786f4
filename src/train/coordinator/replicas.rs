//! How far each worker's replica is: what it was sent and has not applied, and whose state it takes
//! over.

use crate::ids::{Step, Worker, WorkerSet};
use std::collections::BTreeMap;

/// A worker that waits for another's state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resync {
    pub(super) needy: Worker,
    pub(super) from: Worker,
    /// First step that the other had not applied when it was asked.
    pub(super) applied: Step,
    /// When that was.
    pub(super) asked_at: f64,
}

/// A state that a worker was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentState {
    /// Whose it is; none = the observer's.
    pub(super) from: Option<Worker>,
    /// First step not applied in it.
    pub(super) next: Step,
}

/// What workers were sent, and have not said to have applied or taken over.
///
/// A state goes from [`Replicas::asked`] (one worker for another's) over [`Replicas::answered`] and
/// [`Replicas::sent_state`] to [`Replicas::taken`]; a worker that is [`Replicas::lost`] on the way
/// ends it.
#[derive(Debug)]
pub(super) struct Replicas {
    /// Steps sent to each worker and not yet reported as applied.
    unapplied: Vec<u32>,
    /// Who waits for whose state.
    resyncs: Vec<Resync>,
    /// Who was lost, or asked another, while it waited for whose state, which may still come.
    outdated: Vec<(Worker, Worker)>,
    /// The states that were sent to workers, until they say that they go on from them.
    sent_states: BTreeMap<Worker, SentState>,
}

impl Replicas {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            unapplied: vec![0; workers],
            resyncs: Vec::new(),
            outdated: Vec::new(),
            sent_states: BTreeMap::new(),
        }
    }

    /// States that are waited for.
    pub(super) fn open_entries(&self) -> usize {
        self.resyncs.len() + self.sent_states.len()
    }

    /// A worker is lost.
    pub(super) fn lost(&mut self, worker: Worker) {
        self.unapplied[worker.index()] = 0;
        let needy = self.resyncs.iter().filter(|resync| resync.needy == worker);
        self.outdated.extend(needy.map(|resync| (worker, resync.from)));
        self.outdated.retain(|(_, donor)| *donor != worker);
        self.resyncs.retain(|resync| ![resync.needy, resync.from].contains(&worker));
        self.sent_states.remove(&worker);
    }

    /// A worker is there again.
    pub(super) fn joined(&mut self, worker: Worker) {
        self.unapplied[worker.index()] = 0;
    }

    /// A worker is sent a step.
    pub(super) fn sent_step(&mut self, worker: Worker) {
        self.unapplied[worker.index()] += 1;
    }

    /// A worker has applied a step.
    pub(super) fn applied(&mut self, worker: Worker) {
        let unapplied = &mut self.unapplied[worker.index()];
        *unapplied = unapplied.saturating_sub(1);
    }

    /// A worker is asked for its state.
    pub(super) fn asked(&mut self, resync: Resync) {
        let others = self.resyncs.extract_if(.., |other| other.needy == resync.needy);
        self.outdated.extend(others.map(|other| (other.needy, other.from)));
        self.resyncs.push(resync);
    }

    /// The states that were asked for before a time, and have not come.
    pub(super) fn overdue(&self, asked_before: f64) -> impl Iterator<Item = (Worker, Worker)> {
        let overdue = self.resyncs.iter().filter(move |resync| resync.asked_at < asked_before);
        overdue.map(|resync| (resync.needy, resync.from))
    }

    /// A worker hands over its state for another: gives the first step that it had not applied when
    /// asked, or nothing where none waits.
    pub(super) fn answered(&mut self, needy: Worker, donor: Worker, next: Step) -> Option<Step> {
        // Who was lost and is there again may have been sent another one already, and tasks after
        // it.
        let asked = |resync: &&Resync| (resync.needy, resync.from) == (needy, donor);
        let applied = self.resyncs.iter().find(asked).map(|resync| resync.applied);
        // It answers what it was asked before the needy worker was lost and came back, or asked
        // another: if it was asked again, the other answer is on its way.
        let before = self.outdated.iter().position(|asked| *asked == (needy, donor));
        if applied.is_none_or(|applied| next < applied)
            && let Some(at) = before
        {
            self.outdated.remove(at);
            return None;
        }
        let applied = applied?;
        self.resyncs.retain(|resync| resync.needy != needy);
        Some(applied)
    }

    /// A worker is sent a state.
    pub(super) fn sent_state(&mut self, worker: Worker, state: SentState) {
        self.sent_states.insert(worker, state);
        // What was on its way to it before is void.
        self.unapplied[worker.index()] = 0;
    }

    /// Whether a worker has not yet gone on from the state that it was sent.
    pub(super) fn is_taking(&self, worker: Worker) -> bool {
        self.sent_states.contains_key(&worker)
    }

    /// A worker has taken over the state in which all before `next` is applied, or cannot: gives
    /// what it was sent, or nothing where a later state is on its way to it.
    pub(super) fn taken(&mut self, worker: Worker, next: Step) -> Option<SentState> {
        // Its digest would be compared with those of another step.
        if self.sent_states.get(&worker)?.next != next {
            return None;
        }
        self.sent_states.remove(&worker)
    }

    /// Who has not applied all it was sent, or is to hand over its state or to take over another's.
    pub(super) fn unsettled(&self) -> WorkerSet {
        let workers = self.unapplied.len();
        let behind = Worker::all(workers).filter(|worker| self.unapplied[worker.index()] > 0);
        let donors = self.resyncs.iter().map(|resync| resync.from);
        WorkerSet::of(workers, behind.chain(donors).chain(self.sent_states.keys().copied()))
    }
}

#[cfg(test)]
mod tests;
