//! What workers train that come before the run begins: they are compared with each other, for who
//! happens to come first need not be right.

use super::super::callers::Caller;
use crate::ids::Worker;
use crate::transport::wire::ToWorker;
use crate::transport::{Disagreement, ExitReason, RunFacts};
use std::collections::BTreeMap;

/// What a worker says that it trains.
#[derive(Default)]
struct StatedFacts {
    facts: RunFacts,
    /// Whether it differs from what was learned of those before it.
    differs: bool,
    /// Its call, if it is not let in and not yet told why.
    outside: Option<Caller>,
}

/// What is known of what workers train that have come before the run begins.
pub(super) struct Comparison {
    /// What was told of the run, by which a worker is judged alone; none if the first is right.
    sure: Option<RunFacts>,
    told: BTreeMap<u32, StatedFacts>,
    /// A worker whose script is wrong, and its last word.
    pub(super) misuse: Option<(Worker, ExitReason)>,
    /// Why there is no run.
    verdict: Option<String>,
}

impl Comparison {
    pub(super) fn with(sure: Option<RunFacts>) -> Self {
        Self { sure, told: BTreeMap::new(), misuse: None, verdict: None }
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
        for (_, told) in self.told.iter().filter(|(other, told)| **other != worker && !told.differs)
        {
            // They have agreed so far.
            let _ = known.agree(&told.facts);
        }
        known
    }

    /// A worker says what it trains, all of it or what it did not say before.
    fn note(&mut self, worker: u32, facts: &RunFacts) -> &mut StatedFacts {
        let told = self.told.entry(worker).or_default();
        // Another process in its place may train something else.
        if told.facts.agree(facts).is_err() {
            told.facts = facts.clone();
        }
        told
    }

    /// A worker trains what is known so far.
    pub(super) fn agrees(&mut self, worker: u32, facts: &RunFacts) {
        let told = self.note(worker, facts);
        (told.differs, told.outside) = (false, None);
    }

    /// A worker trains something else, and waits outside if it has just called.
    pub(super) fn differs(&mut self, worker: u32, facts: &RunFacts, outside: Option<Caller>) {
        let told = self.note(worker, facts);
        (told.differs, told.outside) = (true, outside);
    }

    /// What all say that they train, if some of them differ.
    pub(super) fn told(&self) -> Vec<(Worker, RunFacts)> {
        if !self.told.values().any(|told| told.differs) {
            return Vec::new();
        }
        self.told.iter().map(|(worker, told)| (Worker(*worker), told.facts.clone())).collect()
    }

    /// Why there is no run: the reason for all that wait outside.
    pub(super) fn fails(&mut self, reason: String) {
        self.verdict = Some(reason);
    }

    /// The run begins, or ends before that: who differs, with its facts and its call.
    pub(super) fn close(
        &mut self,
    ) -> impl Iterator<Item = (u32, RunFacts, Option<Caller>)> + use<> {
        let told = std::mem::take(&mut self.told).into_iter();
        told.filter(|(_, told)| told.differs)
            .map(|(worker, told)| (worker, told.facts, told.outside))
    }

    /// The run has ended: those that still wait outside are told why.
    pub(super) async fn end(mut self) {
        let ended = || "the run has ended before it began".to_owned();
        let reason = self.verdict.take().unwrap_or_else(ended);
        let outside = self.told.into_values().filter_map(|told| told.outside);
        let refused: Vec<_> = outside
            .map(|caller| tokio::spawn(caller.refuse(ToWorker::refused(reason.clone()))))
            .collect();
        for each in refused {
            let _ = each.await;
        }
    }
}

#[cfg(test)]
mod tests;
