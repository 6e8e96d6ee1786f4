//! Votes: what they find, and what they cost.

#![cfg(test)]

use super::*;
use crate::codes::sequential::{Accept, ResultUse, Scheme};
use crate::ids::{Job, WeightedResult};

/// A scheme and the vote on what it is told of.
struct Voted {
    scheme: OneRound,
    verifier: Verifier,
}

fn horizon(workers: usize) -> Horizon {
    Horizon { workers, units: None, jobs: Job(0)..Job(3), accept: Accept::Model }
}

fn voted(stragglers: usize, wrong: usize, workers: usize) -> Voted {
    let scheme = voting_groups(stragglers, wrong, horizon(workers)).unwrap();
    let verifier = Verifier::of(scheme.facts()).unwrap();
    Voted { scheme, verifier }
}

impl Voted {
    /// Whether a worker could be given its task, which it then answers.
    fn answer(&mut self, worker: u32, digest: u128) -> bool {
        let worker = Worker(worker);
        let mut tasks = Vec::new();
        let mut right = Vec::new();
        self.scheme.assign(worker, &mut tasks);
        self.verifier.given(worker, &mut tasks);
        let Some(task) = tasks.pop() else { return false };
        assert!(self.verifier.heard(worker, task, digest, &mut right));
        assert!(!self.verifier.heard(worker, task, digest, &mut right), "once");
        for (worker, task) in right {
            assert_eq!(self.scheme.returned(worker, task), ResultUse::Wanted);
        }
        true
    }

    fn admits(&self, missing: &WorkerSet) -> bool {
        self.scheme.admits(&self.verifier.lacking(missing))
    }

    fn lose(&mut self, worker: u32, from: Option<Job>) -> Vec<Task> {
        let (worker, mut reopened) = (Worker(worker), Vec::new());
        let event = RoundEvent::Lost { worker, from, reopened: &mut reopened };
        self.verifier.on(&event);
        self.scheme.on(event);
        reopened
    }
}

/// Any `b` liars who agree among themselves and any `s` stragglers, in every order of arrival
/// of a small group.
#[test]
fn no_lie_is_ever_accepted_and_no_tolerated_set_blocks() {
    let s = 1;
    let b = 1;
    let n = 4;
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
                let mut voted = voted(s, b, n as usize);
                let mut missing = WorkerSet::full(n as usize);
                for &worker in order.iter().filter(|worker| **worker != straggler) {
                    assert!(voted.answer(worker, if worker == liar { 666 } else { 1 }));
                    missing.remove(Worker(worker));
                    assert_ne!(voted.verifier.accepted[0], Some(666));
                }
                assert!(voted.admits(&missing) && voted.verifier.dispute().is_none());
                assert_eq!(voted.verifier.wrong(), [Worker(liar)]);
                assert!(!voted.answer(liar, 666), "asked once");
            }
        }
    }
}

#[test]
fn too_many_lies_are_told_of() {
    let mut voted = voted(0, 1, 6);
    assert_eq!((voted.scheme.facts().tolerance, voted.verifier.members.len()), (0, 2));
    for (worker, digest) in [(0, 1), (3, 9), (4, 8)] {
        assert!(voted.answer(worker, digest) && voted.verifier.dispute().is_none());
    }
    assert!(voted.answer(5, 7));
    let dispute = voted.verifier.dispute().unwrap();
    assert_eq!((dispute.group, &dispute.votes[..], dispute.needed), (1, &[1, 1, 1][..], 2));
    assert!(dispute.to_string().contains("workers 3-5"), "{dispute}");
    assert!(!voted.admits(&WorkerSet::empty(6)));
}

#[test]
fn a_vote_needs_one_more_answer_than_may_be_wrong() {
    let voted = voted(1, 1, 4);
    assert!(voted.admits(&WorkerSet::of(4, [0, 1].map(Worker))));
    assert!(!voted.admits(&WorkerSet::of(4, [0, 1, 2].map(Worker))));
}

#[test]
fn what_was_voted_on_stays_accepted_when_a_holder_is_lost() {
    let mut voted = voted(1, 1, 4);
    for (worker, digest) in [(0, 1), (1, 1), (2, 4)] {
        voted.answer(worker, digest);
    }
    voted.scheme.close(&WorkerSet::of(4, [Worker(3)]), &[None; 4], &mut Vec::new());
    assert_eq!(voted.lose(0, Some(Job(0))), []);
    let mut results: Vec<WeightedResult> = Vec::new();
    voted.scheme.settle(Job(0), &mut results);
    assert_eq!(results.iter().map(|result| result.worker).collect::<Vec<_>>(), [Worker(1)]);
    assert_eq!(voted.lose(1, Some(Job(0))), [Task { job: Job(0), piece: 1, plan: 0 }]);
    assert!(
        !voted.admits(&WorkerSet::of(4, [0, 1, 3].map(Worker))),
        "the liar's result is not taken"
    );
    assert!(voted.answer(3, 1) && voted.admits(&WorkerSet::of(4, [0, 1].map(Worker))));
    let task = Task { job: Job(0), piece: 3, plan: 0 };
    assert_eq!(voted.verifier.holder(Worker(0)), Some((Worker(3), task)));
}

#[test]
fn a_decoded_job_is_held_by_whoever_is_left_of_those_who_were_right() {
    let mut voted = voted(1, 1, 4);
    for worker in 0..3 {
        voted.answer(worker, 1);
    }
    voted.scheme.close(&WorkerSet::of(4, [Worker(3)]), &[None; 4], &mut Vec::new());
    let mut results = Vec::new();
    let mut holder = |voted: &mut Voted| {
        results.clear();
        voted.scheme.settle(Job(0), &mut results);
        assert_eq!(results.len(), 1);
        voted.verifier.holder(results[0].worker).map(|(worker, task)| (worker, task.piece))
    };
    assert_eq!(holder(&mut voted), Some((Worker(0), 0)));
    for (lost, left) in [(0, Some((Worker(1), 1))), (1, Some((Worker(2), 2))), (2, None)] {
        assert_eq!(voted.lose(lost, None), [], "the scheme keeps it");
        assert_eq!(holder(&mut voted), left);
        assert!(!voted.answer(lost, 1), "and wants it from no worker");
    }
}

#[test]
fn groups_are_large_enough_or_refused() {
    assert_eq!(voted(1, 1, 8).scheme.facts().load, 0.5);
    let error = voting_groups(2, 1, horizon(4)).err().unwrap();
    assert!(error.to_string().contains("at least 5"));
}
