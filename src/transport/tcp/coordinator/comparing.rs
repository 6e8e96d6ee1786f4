//! What workers train that come before the run begins: they are compared with each other, for who
//! happens to come first need not be right.

use super::super::HANDSHAKE;
use super::super::door::{Door, brief};
use super::super::pipe::write_first;
use super::super::security::Stream;
use crate::ids::Worker;
use crate::transport::wire::ToWorker;
use crate::transport::{Disagreement, RunFacts};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

/// A worker that is not let in, and not yet told why.
pub(super) struct Outside {
    pub(super) stream: Stream,
    pub(super) from: SocketAddr,
    pub(super) door: Arc<Door>,
    pub(super) identity: String,
}

impl Outside {
    /// Tells it why it is not let in, for good.
    pub(super) async fn refuse(self, reason: String) {
        let Self { mut stream, from, door, identity } = self;
        door.refuse(from, &format!("{}: {reason}", brief(&identity)));
        let answer = ToWorker::Refused { reason, again: false, wait: 0 };
        let _ = tokio::time::timeout(HANDSHAKE, write_first(&mut stream, &answer)).await;
    }
}

/// What is known of what workers train that have come before the run begins.
pub(super) struct Comparison {
    /// What was told of the run, by which a worker is judged alone; none if the first is right.
    sure: Option<RunFacts>,
    told: BTreeMap<u32, RunFacts>,
    /// Workers that differ from what was learned of those before them, and their calls, where they
    /// are not let in.
    differ: BTreeSet<u32>,
    outside: BTreeMap<u32, Outside>,
    /// Why there is no run.
    verdict: Option<String>,
}

impl Comparison {
    pub(super) fn with(sure: Option<RunFacts>) -> Self {
        Self {
            sure,
            told: BTreeMap::new(),
            differ: BTreeSet::new(),
            outside: BTreeMap::new(),
            verdict: None,
        }
    }

    /// Why a worker is wrong that differs from those before it, if others cannot show that it is
    /// right.
    pub(super) fn judged(
        &self,
        facts: &RunFacts,
        difference: Disagreement,
    ) -> Option<Disagreement> {
        match &self.sure {
            Some(sure) => sure.clone().agree(facts).err(),
            None => Some(difference),
        }
    }

    /// What is known of the run without what this worker has said, given what was told of it.
    pub(super) fn without(&self, worker: u32, mut known: RunFacts) -> RunFacts {
        let counts = |other: &u32| *other != worker && !self.differ.contains(other);
        for (_, facts) in self.told.iter().filter(|(other, _)| counts(other)) {
            // They have agreed so far.
            let _ = known.agree(facts);
        }
        known
    }

    /// A worker says what it trains, all of it or what it did not say before.
    fn note(&mut self, worker: u32, facts: &RunFacts) {
        let told = self.told.entry(worker).or_default();
        // Another process in its place may train something else.
        if told.agree(facts).is_err() {
            *told = facts.clone();
        }
    }

    /// A worker trains what is known so far.
    pub(super) fn agrees(&mut self, worker: u32, facts: &RunFacts) {
        self.note(worker, facts);
        self.differ.remove(&worker);
        self.outside.remove(&worker);
    }

    /// A worker trains something else, and waits outside if it has just called.
    pub(super) fn differs(&mut self, worker: u32, facts: &RunFacts, outside: Option<Outside>) {
        self.note(worker, facts);
        self.differ.insert(worker);
        match outside {
            Some(outside) => drop(self.outside.insert(worker, outside)),
            None => drop(self.outside.remove(&worker)),
        }
    }

    /// What all say that they train, if some of them differ.
    pub(super) fn told(&self) -> Vec<(Worker, RunFacts)> {
        if self.differ.is_empty() {
            return Vec::new();
        }
        self.told.iter().map(|(worker, facts)| (Worker(*worker), facts.clone())).collect()
    }

    /// Why there is no run: the reason for all that wait outside.
    pub(super) fn fails(&mut self, reason: String) {
        self.verdict = Some(reason);
    }

    /// The run begins, or ends before that: who differs, with its facts and its call.
    pub(super) fn close(&mut self) -> Vec<(u32, RunFacts, Option<Outside>)> {
        let differ = std::mem::take(&mut self.differ);
        let mut take = |worker: u32| {
            let facts = self.told.get(&worker).cloned().unwrap_or_default();
            (worker, facts, self.outside.remove(&worker))
        };
        let differ = differ.into_iter().map(&mut take).collect();
        self.told.clear();
        differ
    }

    /// The run has ended: those that still wait outside are told why.
    pub(super) async fn end(mut self) {
        let ended = || "the run has ended before it began".to_owned();
        let reason = self.verdict.take().unwrap_or_else(ended);
        let told: Vec<_> = std::mem::take(&mut self.outside)
            .into_values()
            .map(|outside| tokio::spawn(outside.refuse(reason.clone())))
            .collect();
        for each in told {
            let _ = each.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trains(length: u64) -> RunFacts {
        RunFacts { length: Some(length as usize), ..RunFacts::default() }
    }

    #[test]
    fn what_a_worker_has_said_itself_is_nothing_to_differ_from() {
        let mut comparison = Comparison::with(None);
        comparison.agrees(0, &trains(3));
        let mut alone = comparison.without(0, RunFacts::default());
        assert!(alone.agree(&trains(4)).is_ok(), "another process has its place");
        comparison.agrees(1, &trains(3));
        comparison.differs(2, &trains(4), None);
        let mut others = comparison.without(0, RunFacts::default());
        assert!(others.agree(&trains(4)).is_err(), "worker 1 has said the same");
        let mut of_others = comparison.without(1, RunFacts::default());
        assert_eq!(of_others.length, trains(3).length, "who differs does not count");
        assert!(of_others.agree(&trains(3)).is_ok());
    }
}
