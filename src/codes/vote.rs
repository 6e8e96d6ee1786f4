//! Groups whose results are accepted by vote: exact gradients although some workers answer wrongly.
//!
//! # Construction
//! The groups of [`Groups`], `l = floor(n / (s+2b+1))` of them. Members of a group compute the same
//! sum; a value is accepted as soon as `b+1` of them returned the same bytes, as told by their
//! digests.
//!
//! # Guarantee
//! Exact with any `s` stragglers and any `b` wrong workers among the members of every group: `b+1`
//! equal results are not all wrong. It needs workers that are bitwise deterministic. Digests are
//! not cryptographic: whoever can make a wrong result with the digest of a right one is not found.
//!
//! # Cost
//! Load `1/l`, at least `(s+2b+1)/n`; with honest workers `b+1` answers of each group suffice. A
//! vote is O(group).
//!
//! # Numerics
//! Weights 0 and 1, the bits of uncoded training where shares are aligned blocks of micro-batches.
//!
//! # Source
//! Majority over repetitions as in Chen et al., DRACO, ICML 2018 (arXiv 1803.09877); digests in
//! place of vectors are ours.

use super::family::{Family, Recipe, Traits};
use super::sequential::{Dispute, Fold, Horizon, Scheme, SchemeFacts, UNCODED};
use super::{GradientCode, Groups, ParameterError, Report};
use crate::ids::{Cut, Job, Part, Share, Task, Units, Worker, WorkerSet};
use std::ops::Range;

/// Groups that vote.
pub(super) const FAMILY: Family = Family {
    name: "vote",
    examples: &["vote:s=1,b=1"],
    summary: "exact although b workers of every group of s+2b+1 return wrong results: b+1 equal \
        ones are accepted; workers must be bitwise deterministic",
    traits: Traits { byzantine: true, ..Traits::NONE },
    ..Family::new(|fields| {
        let stragglers = fields.need("s")?;
        let wrong = fields.need("b")?;
        let recipe = Recipe::scheme(move |horizon| Vote::new(stragglers, wrong, horizon));
        Ok(recipe.byzantine(wrong).without_matrix(
            "accepts results by vote, which no weights tell: `codedgrad code groups:l=...` shows \
             its groups",
        ))
    })
};

/// Group replication with a vote on every group's result.
///
/// # Formula
/// ```text
/// l = floor(n / (s+2b+1))     a result of group j is accepted when b+1 members returned it
/// ```
/// where `n` is the number of workers, `s` of stragglers and `b` of wrong workers.
///
/// ```
/// use codedgrad::codes::{Vote, sequential::{Accept, Horizon, Scheme}};
/// use codedgrad::ids::{Job, Worker, WorkerSet};
/// let horizon = Horizon { workers: 4, units: None, jobs: Job(0)..Job(1), accept: Accept::Model };
/// let mut vote = Vote::new(1, 1, horizon)?;
/// for (worker, digest) in [(0, 5), (1, 77), (3, 5)] {
///     let mut tasks = Vec::new();
///     vote.assign(Worker(worker), &mut tasks);
///     vote.returned_as(Worker(worker), tasks[0], digest);
/// }
/// assert!(vote.admits(&WorkerSet::of(4, [Worker(2)])));
/// assert_eq!(vote.wrong(), [Worker(1)]);
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
#[derive(Debug)]
pub struct Vote {
    groups: Groups,
    facts: SchemeFacts,
    parts: Vec<Part>,
    job: Job,
    end: Job,
    /// What each worker returned.
    digests: Vec<Option<u128>>,
    /// What is accepted of each group.
    accepted: Vec<Option<u128>>,
    gone: WorkerSet,
    closed: bool,
}

impl Vote {
    /// Groups that take any `stragglers` and any `wrong` workers each.
    ///
    /// # Errors
    /// [`ParameterError::TooFewVoters`] when the workers do not make one group,
    /// [`ParameterError::Cut`] when the batch has fewer units than there are groups.
    pub fn new(stragglers: usize, wrong: usize, horizon: Horizon) -> Result<Self, ParameterError> {
        let Horizon { workers, units, jobs, .. } = horizon;
        let needed = stragglers.saturating_add(wrong.saturating_mul(2)).saturating_add(1);
        if workers < needed {
            return Err(ParameterError::TooFewVoters { stragglers, wrong, workers, needed });
        }
        let groups = Groups::new(workers, workers / needed)?;
        let shares = groups.facts().shares() as u32;
        let cut = Cut::new(units.unwrap_or(shares), shares)?;
        let part =
            |worker| Part { units: cut.share(Share(groups.group(worker))), coefficient: 1.0 };
        let parts: Vec<Part> = Worker::all(workers).map(part).collect();
        let facts = SchemeFacts {
            workers,
            units: cut.units(),
            delay: 0,
            load: f64::from(parts.iter().map(|part| part.units.count()).max().unwrap_or(0))
                / f64::from(cut.units()),
            tolerance: groups.facts().tolerance - 2 * wrong,
            error_max: 0.0,
            partial: false,
            pulls: false,
            plain: false,
            wrong,
            mixture: false,
        };
        Ok(Self {
            accepted: vec![None; shares as usize],
            digests: vec![None; workers],
            gone: WorkerSet::empty(workers),
            groups,
            facts,
            parts,
            job: jobs.start,
            end: jobs.end,
            closed: false,
        })
    }

    fn task(&self, worker: Worker) -> Task {
        Task { job: self.job, piece: worker.0, plan: 0 }
    }

    fn group(&self, worker: Worker) -> usize {
        self.groups.group(worker) as usize
    }

    fn members(&self, group: usize) -> impl Iterator<Item = Worker> + '_ {
        Worker::all(self.digests.len()).filter(move |worker| self.group(*worker) == group)
    }

    /// The results of a group and how many members returned each, most first.
    fn votes(&self, group: usize, without: Option<&WorkerSet>) -> Vec<(u128, usize)> {
        let mut votes: Vec<(u128, usize)> = Vec::new();
        for worker in self
            .members(group)
            .filter(|worker| without.is_none_or(|without| !without.contains(*worker)))
        {
            let Some(digest) = self.digests[worker.index()] else { continue };
            match votes.iter_mut().find(|(known, _)| *known == digest) {
                Some((_, count)) => *count += 1,
                None => votes.push((digest, 1)),
            }
        }
        votes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        votes
    }

    /// Whether a group's result is known once everybody but `missing` has answered alike.
    fn stands(&self, group: usize, missing: &WorkerSet) -> bool {
        let outstanding = self
            .members(group)
            .filter(|worker| self.digests[worker.index()].is_none() && !missing.contains(*worker))
            .count();
        let votes = self.votes(group, Some(missing));
        match self.accepted[group] {
            Some(digest) => outstanding > 0 || votes.iter().any(|(known, _)| *known == digest),
            None => votes.first().map_or(0, |(_, count)| *count) + outstanding > self.facts.wrong,
        }
    }

    /// Who holds the accepted result of a group.
    fn holder(&self, group: usize) -> Option<Worker> {
        let accepted = self.accepted[group];
        self.members(group)
            .find(|worker| accepted.is_some() && self.digests[worker.index()] == accepted)
    }

    fn open_next(&mut self) {
        self.job = self.job.next();
        self.digests.fill(None);
        self.accepted.fill(None);
        self.gone.clear();
        self.closed = false;
    }
}

impl Scheme for Vote {
    fn facts(&self) -> &SchemeFacts {
        &self.facts
    }

    fn open(&mut self) {
        if self.closed {
            self.open_next();
        }
    }

    fn assign(&mut self, worker: Worker, out: &mut Vec<Task>) {
        self.open();
        if self.job < self.end && self.digests[worker.index()].is_none() {
            out.push(self.task(worker));
        }
    }

    fn parts(&self, worker: Worker, _: Task) -> &[Part] {
        std::slice::from_ref(&self.parts[worker.index()])
    }

    /// As of an honest worker.
    fn returned(&mut self, worker: Worker, task: Task) -> bool {
        self.returned_as(worker, task, 0)
    }

    fn returned_as(&mut self, worker: Worker, task: Task, digest: u128) -> bool {
        if self.closed || task != self.task(worker) || self.digests[worker.index()].is_some() {
            return false;
        }
        self.digests[worker.index()] = Some(digest);
        let group = self.group(worker);
        if self.accepted[group].is_none() {
            let most = self.votes(group, None).first().copied();
            self.accepted[group] =
                most.filter(|(_, count)| *count > self.facts.wrong).map(|(digest, _)| digest);
        }
        true
    }

    fn wrong(&self) -> Vec<Worker> {
        let differs = |worker: &Worker| {
            let accepted = self.accepted[self.group(*worker)];
            self.digests[worker.index()]
                .zip(accepted)
                .is_some_and(|(digest, accepted)| digest != accepted)
        };
        Worker::all(self.digests.len()).filter(differs).collect()
    }

    fn dispute(&self) -> Option<Dispute> {
        let disputed = |group: &usize| {
            let votes = self.votes(*group, None);
            votes.len() > 1 && !self.stands(*group, &self.gone)
        };
        let group = (0..self.accepted.len()).find(disputed)?;
        let votes = self.votes(group, None).into_iter().map(|(_, count)| count).collect();
        let members = WorkerSet::of(self.digests.len(), self.members(group));
        Some(Dispute { group, members, votes, needed: self.facts.wrong + 1 })
    }

    fn gone(&mut self, worker: Worker) {
        self.gone.insert(worker);
    }

    fn back(&mut self, worker: Worker) -> bool {
        self.gone.remove(worker);
        true
    }

    fn admits(&self, missing: &WorkerSet) -> bool {
        (0..self.accepted.len()).all(|group| self.stands(group, missing))
    }

    fn quality(&mut self) -> Report {
        UNCODED
    }

    fn close(&mut self, missing: &WorkerSet, decoded: &mut Vec<Job>) {
        assert!(!self.closed && self.job < self.end, "a round is open");
        assert!(
            missing.iter().all(|worker| self.digests[worker.index()].is_none()),
            "the missing have not answered"
        );
        self.closed = true;
        decoded.push(self.job);
    }

    fn settle(&mut self, _: Job, folds: &mut Vec<Fold>) -> Report {
        assert!(self.closed, "weights are final when the round is closed");
        let holders = (0..self.accepted.len()).filter_map(|group| self.holder(group));
        folds.extend(holders.map(|worker| Fold { worker, task: self.task(worker), weight: 1.0 }));
        UNCODED
    }

    fn lost(&mut self, worker: Worker, from: Option<Job>, reopened: &mut Vec<Task>) {
        let safe = self.closed && from.is_none_or(|from| self.job < from);
        if safe || self.digests[worker.index()].take().is_none() {
            return;
        }
        if !self.closed || self.holder(self.group(worker)).is_none() {
            self.closed = false;
            reopened.push(self.task(worker));
        }
    }

    fn blocked(&self, _: &WorkerSet) -> Vec<Job> {
        vec![self.job]
    }

    fn give_up(&mut self, _: Job) {}

    fn restart(&mut self, jobs: Range<Job>) {
        self.open_next();
        (self.job, self.end) = (jobs.start, jobs.end);
    }

    fn uncovered(&self, missing: &WorkerSet) -> Vec<Units> {
        let units = |group: usize| {
            self.members(group).next().map(|worker| self.parts[worker.index()].units)
        };
        (0..self.accepted.len())
            .filter(|group| !self.stands(*group, missing))
            .filter_map(units)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::sequential::Accept;

    fn vote(stragglers: usize, wrong: usize, workers: usize) -> Vote {
        let jobs = Job(0)..Job(3);
        Vote::new(stragglers, wrong, Horizon { workers, units: None, jobs, accept: Accept::Model })
            .unwrap()
    }

    fn answer(vote: &mut Vote, worker: u32, digest: u128) -> bool {
        let mut tasks = Vec::new();
        vote.assign(Worker(worker), &mut tasks);
        tasks.pop().is_some_and(|task| vote.returned_as(Worker(worker), task, digest))
    }

    /// Any `b` liars who agree among themselves and any `s` stragglers, in every order of arrival
    /// of a small group.
    #[test]
    fn no_lie_is_ever_accepted_and_no_tolerated_set_blocks() {
        let (s, b, n) = (1, 1, 4);
        for order in 0..24u32 {
            let mut left: Vec<u32> = (0..n).collect();
            let order: Vec<u32> = (1..=n)
                .rev()
                .scan(order, |code, k| {
                    let at = (*code % k) as usize;
                    *code /= k;
                    Some(left.remove(at))
                })
                .collect();
            for liar in 0..n {
                for straggler in (0..n).filter(|worker| *worker != liar) {
                    let mut vote = vote(s, b, n as usize);
                    let mut missing = WorkerSet::full(n as usize);
                    for &worker in order.iter().filter(|worker| **worker != straggler) {
                        assert!(answer(&mut vote, worker, if worker == liar { 666 } else { 1 }));
                        missing.remove(Worker(worker));
                        assert_ne!(vote.accepted[0], Some(666));
                    }
                    assert!(vote.admits(&missing) && vote.dispute().is_none());
                    assert_eq!(vote.wrong(), [Worker(liar)]);
                }
            }
        }
    }

    #[test]
    fn too_many_lies_are_told_of() {
        let mut vote = vote(0, 1, 6);
        assert_eq!((vote.facts.tolerance, vote.accepted.len()), (0, 2));
        for (worker, digest) in [(0, 1), (3, 9), (4, 8)] {
            assert!(answer(&mut vote, worker, digest) && vote.dispute().is_none());
        }
        assert!(answer(&mut vote, 5, 7));
        let dispute = vote.dispute().unwrap();
        assert_eq!((dispute.group, &dispute.votes[..], dispute.needed), (1, &[1, 1, 1][..], 2));
        assert!(dispute.to_string().contains("workers 3-5"), "{dispute}");
        assert!(!vote.hopes(&WorkerSet::empty(6)));
    }

    #[test]
    fn what_was_voted_on_stays_accepted_when_a_holder_is_lost() {
        let mut vote = vote(1, 1, 4);
        for (worker, digest) in [(0, 1), (1, 1), (2, 4)] {
            answer(&mut vote, worker, digest);
        }
        vote.close(&WorkerSet::of(4, [Worker(3)]), &mut Vec::new());
        let (mut folds, mut reopened) = (Vec::new(), Vec::new());
        vote.lost(Worker(0), Some(Job(0)), &mut reopened);
        vote.settle(Job(0), &mut folds);
        assert!(reopened.is_empty() && folds.len() == 1 && folds[0].worker == Worker(1));
        vote.lost(Worker(1), Some(Job(0)), &mut reopened);
        assert_eq!(reopened, [Task { job: Job(0), piece: 1, plan: 0 }]);
        assert!(
            !vote.admits(&WorkerSet::of(4, [0, 1, 3].map(Worker))),
            "the liar's result is not taken"
        );
        assert!(answer(&mut vote, 3, 1) && vote.admits(&WorkerSet::of(4, [0, 1].map(Worker))));
    }

    #[test]
    fn groups_are_large_enough_or_refused() {
        assert_eq!(vote(1, 1, 8).facts.load, 0.5);
        let horizon =
            Horizon { workers: 4, units: None, jobs: Job(0)..Job(1), accept: Accept::Model };
        assert!(Vote::new(2, 1, horizon).unwrap_err().to_string().contains("at least 5"));
    }
}
