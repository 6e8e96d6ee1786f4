//! Sums of which workers hold different bytes: what each of them says of every chunk, and whom that
//! leaves to have lied.
//!
//! # Method
//! A chunk has one owner, who sends the same bytes to all, and connections see to it that these
//! arrive. So where two workers differ on a chunk, its owner has sent different bytes, or one
//! worker lies. Without the word of that one, all would be alike.

use crate::ids::Step;
use crate::sums::SumId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

/// How long it is waited for words.
const PATIENCE: Duration = Duration::from_secs(1);

/// A sum of which words are collected.
#[derive(Debug)]
struct Dispute {
    /// Who summed each chunk.
    owners: Vec<Option<u32>>,
    /// Who has not said anything yet.
    silent: BTreeSet<u32>,
    /// What each says of the chunks.
    words: BTreeMap<u32, Vec<Option<u64>>>,
    since: Instant,
}

/// A chunk of which the words differ, and who may have lied of it and of all other such chunks; one
/// has, if only one worker does at all.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    step: Step,
    chunk: usize,
    pub(super) workers: BTreeSet<u32>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, chunk, .. } = self;
        write!(f, "different bytes of the sum of {step} were sent, of chunk {chunk}")
    }
}

/// The sums that are in dispute, each from [`Disputes::begin`] until all have
/// [said](Disputes::said) what they have of it, are [lost](Disputes::forget), or are not waited for
/// any more ([`Disputes::overdue`]).
#[derive(Debug, Default)]
pub(super) struct Disputes(BTreeMap<SumId, Dispute>);

impl Disputes {
    /// Workers hold different bytes of a sum; these are asked for what they have. False if they
    /// are already.
    pub(super) fn begin(
        &mut self,
        id: SumId,
        owners: Vec<Option<u32>>,
        asked: BTreeSet<u32>,
        now: Instant,
    ) -> bool {
        let is_new = !self.0.contains_key(&id);
        let words = BTreeMap::new();
        let dispute = || Dispute { owners, silent: asked, words, since: now };
        self.0.entry(id).or_insert_with(dispute);
        is_new
    }

    /// A node says what it has of the chunks of a sum. Once all have, this gives what follows.
    pub(super) fn said(
        &mut self,
        id: SumId,
        node: u32,
        digests: Vec<Option<u64>>,
    ) -> Option<Verdict> {
        let dispute = self.0.get_mut(&id)?;
        // What is no word on the chunks of this sum is none.
        if dispute.silent.remove(&node) && digests.len() == dispute.owners.len() {
            dispute.words.insert(node, digests);
        }
        let ended = dispute.silent.is_empty();
        if ended { self.0.remove(&id)?.verdict(id.step) } else { None }
    }

    /// A worker is lost, and says nothing any more; gives what follows for sums of which all others
    /// have said what they have.
    pub(super) fn forget(&mut self, worker: u32) -> Vec<Verdict> {
        self.0.values_mut().for_each(|dispute| _ = dispute.silent.remove(&worker));
        self.end(|dispute| dispute.silent.is_empty())
    }

    /// The same for sums of which some have said nothing for too long.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<Verdict> {
        self.end(|dispute| now.saturating_duration_since(dispute.since) > PATIENCE)
    }

    fn end(&mut self, is_over: impl Fn(&Dispute) -> bool) -> Vec<Verdict> {
        let over = self.0.iter().filter(|(_, dispute)| is_over(dispute)).map(|(id, _)| *id);
        let over: Vec<SumId> = over.collect();
        let verdict = |id: SumId| self.0.remove(&id)?.verdict(id.step);
        over.into_iter().filter_map(verdict).collect()
    }
}

impl Dispute {
    /// The workers that may have lied of all chunks of which words differ; none where no single
    /// worker can have, so that several have.
    fn verdict(&self, step: Step) -> Option<Verdict> {
        let mut verdict: Option<Verdict> = None;
        for chunk in 0..self.owners.len() {
            let Some(workers) = self.liars(chunk) else { continue };
            verdict = Some(match verdict {
                Some(Verdict { chunk, workers: before, .. }) => {
                    let workers = before.intersection(&workers).copied().collect();
                    Verdict { step, chunk, workers }
                }
                None => Verdict { step, chunk, workers },
            });
        }
        verdict.filter(|verdict| !verdict.workers.is_empty())
    }

    /// The workers that may have lied of a chunk, if one has: its owner, or the one without whose
    /// word all are alike.
    fn liars(&self, chunk: usize) -> Option<BTreeSet<u32>> {
        let mut speakers: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for (node, digests) in &self.words {
            if let Some(digest) = digests[chunk] {
                speakers.entry(digest).or_default().push(*node);
            }
        }
        if speakers.len() < 2 {
            return None;
        }
        let mut liars: BTreeSet<u32> = self.owners[chunk].into_iter().collect();
        if speakers.len() == 2 {
            let alone = speakers.values().filter(|nodes| nodes.len() == 1);
            liars.extend(alone.flatten());
        }
        Some(liars)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any moment will do: only differences count")]
mod tests;
