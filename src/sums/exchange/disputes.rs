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
mod tests {
    use super::*;

    const SUM: SumId = SumId { step: Step(4), attempt: 0 };

    /// Four workers own a chunk each; gives who is left after these words.
    fn left(words: &[(u32, [Option<u64>; 4])]) -> Option<Vec<u32>> {
        let mut disputes = Disputes::default();
        let owners = (0..4).map(Some).collect();
        let asked = words.iter().map(|word| word.0).collect();
        assert!(disputes.begin(SUM, owners, asked, Instant::now()));
        let mut verdict = None;
        for (worker, digests) in words {
            assert_eq!(verdict, None, "nothing is said before all words are there");
            verdict = disputes.said(SUM, *worker, digests.to_vec());
        }
        assert!(disputes.0.is_empty());
        verdict.map(|verdict| verdict.workers.into_iter().collect())
    }

    const RIGHT: [Option<u64>; 4] = [Some(1), Some(2), Some(3), Some(4)];

    fn with(chunk: usize, digest: u64) -> [Option<u64>; 4] {
        let mut digests = RIGHT;
        digests[chunk] = Some(digest);
        digests
    }

    #[test]
    fn who_sends_different_bytes_is_found() {
        let differ = [(0, with(3, 7)), (1, with(3, 8)), (2, with(3, 9)), (3, RIGHT)];
        assert_eq!(left(&differ), Some(vec![3]));
        let differ = [(0, with(3, 7)), (1, with(3, 8)), (2, with(3, 7)), (3, with(3, 7))];
        assert_eq!(left(&differ), Some(vec![1, 3]), "it may be 1 alone who lies");
    }

    #[test]
    fn who_says_what_did_not_come_is_found() {
        let nothing = [Some(9); 4];
        let said = [(0, RIGHT), (1, RIGHT), (2, nothing), (3, RIGHT)];
        assert_eq!(left(&said), Some(vec![2]));
    }

    #[test]
    fn what_lacks_says_nothing() {
        let none = [None; 4];
        assert_eq!(left(&[(0, RIGHT), (1, none), (2, none)]), None);
        let differ = [(0, with(1, 7)), (2, RIGHT), (3, none)];
        assert_eq!(left(&differ), Some(vec![0, 1, 2]));
    }

    #[test]
    fn who_says_nothing_is_not_waited_for() {
        let mut disputes = Disputes::default();
        let now = Instant::now();
        let owners: Vec<_> = (0..4).map(Some).collect();
        let words = |disputes: &mut Disputes| {
            assert!(disputes.begin(SUM, owners.clone(), BTreeSet::from([0, 1, 2, 3]), now));
            assert!(!disputes.begin(SUM, owners.clone(), BTreeSet::from([0]), now));
            for (worker, digest) in [(0, 7), (1, 8), (2, 9)] {
                assert_eq!(disputes.said(SUM, worker, with(3, digest).to_vec()), None);
                assert_eq!(disputes.said(SUM, worker, RIGHT.to_vec()), None, "it has said it");
            }
        };
        words(&mut disputes);
        assert_eq!(disputes.overdue(now), []);
        let found = [Verdict { step: SUM.step, chunk: 3, workers: BTreeSet::from([3]) }];
        assert_eq!(disputes.overdue(now + 2 * PATIENCE), found);
        words(&mut disputes);
        assert_eq!(disputes.forget(3), found);
        assert_eq!(disputes.said(SUM, 3, vec![]), None, "it is over");
    }
}
