//! Who owns how much of a sum, by what is known of the workers.

#![cfg(test)]

use super::super::plan::share_out;
use super::*;
use crate::ids::{Job, Piece, Task};
use crate::sums::CHUNK;

fn terms(holders: &[&[u32]]) -> Vec<Summand> {
    let piece = |worker: &u32| Piece {
        worker: Worker(*worker),
        task: Task { job: Job(7), piece: *worker, plan: 0 },
    };
    let term = |held: &&[u32]| Summand { weight: 1.0, holders: held.iter().map(piece).collect() };
    holders.iter().map(term).collect()
}

fn counts(owners: &[Owner]) -> Vec<(u32, usize)> {
    owners.iter().map(|owner| (owner.node, owner.end - owner.start)).collect()
}

const LENGTH: usize = 100 * CHUNK;
const STEP: Step = Step(7);

/// Workers that are there from the beginning and answer, up to a number.
fn hosts(workers: u32) -> Hosts {
    let mut hosts = Hosts::new(Exchange::Sharded);
    (0..workers).for_each(|worker| hosts.comes(worker, true));
    hosts
}

fn has_vector(term: &Summand, worker: u32) -> bool {
    term.holders.iter().any(|piece| piece.worker.0 == worker)
}

/// The most that any worker sends or receives, in gradients, if holders take turns.
fn most(owners: &[Owner], terms: &[Summand], workers: u32) -> f64 {
    let share = |node: u32| {
        let own = owners.iter().filter(|owner| owner.node == node);
        own.map(|owner| (owner.end - owner.start) as f64).sum::<f64>() / 100.0
    };
    let traffic = |worker: u32| {
        let sums = f64::from(workers - 1) * share(worker);
        let sent = terms.iter().filter(|term| has_vector(term, worker)).map(|term| {
            let own: f64 = term.holders.iter().map(|piece| share(piece.worker.0)).sum();
            (1.0 - own) / term.holders.len() as f64
        });
        let held = terms.iter().filter(|term| has_vector(term, worker)).count();
        let received = 1.0 - share(worker) + share(worker) * (terms.len() - held) as f64;
        (sums + sent.sum::<f64>()).max(received)
    };
    (0..workers).map(traffic).fold(0.0, f64::max)
}

#[test]
fn all_who_answer_own_alike() {
    let mut hosts = hosts(4);
    let one_late = terms(&[&[0, 1], &[2]]);
    let owners = hosts.owners(STEP, &one_late, LENGTH);
    assert_eq!(counts(&owners), [(0, 25), (1, 25), (2, 25), (3, 25)]);
    hosts.lack([2, 3]);
    let owners = hosts.owners(STEP, &one_late, LENGTH);
    let of_those = [(0, 33), (1, 33), (2, 34)];
    assert_eq!(counts(&owners), of_those, "who holds a term has answered");
    hosts.holds(3);
    assert_eq!(hosts.owners(STEP, &one_late, LENGTH).len(), 4);
}

/// Also if it holds terms that no other has; if all are excluded, all own.
#[test]
fn who_is_excluded_owns_nothing() {
    let mut hosts = hosts(4);
    let each = terms(&[&[0], &[1], &[2], &[3]]);
    let nodes = |hosts: &Hosts, step: Step| -> Vec<u32> {
        let (stripe, owners) = hosts.of_stripes(step, &each, LENGTH);
        assert_eq!(owners.last().unwrap().end, stripe);
        let of_step: Vec<u32> = counts(&owners).iter().map(|(node, _)| *node).collect();
        let again = counts(&hosts.owners(step, &each, LENGTH));
        assert_eq!(again.iter().map(|(node, _)| *node).collect::<Vec<_>>(), of_step);
        of_step
    };
    assert_eq!(hosts.exclude(&[0, 2], STEP), None);
    assert_eq!(nodes(&hosts, STEP), [1, 3]);
    (0..4).for_each(|worker| hosts.holds(worker));
    assert_eq!(hosts.able_to_own(Step(8)), BTreeSet::from([1, 3]));
    assert_eq!(nodes(&hosts, Step(9)), [0, 1, 2, 3], "it may have been a moment");
    assert_eq!(hosts.exclude(&[0, 2], Step(9)), Some(Step(19)));
    (0..4).for_each(|worker| hosts.holds(worker));
    assert_eq!((nodes(&hosts, Step(18)), nodes(&hosts, Step(19)).len()), (vec![1, 3], 4));
    hosts.exclude_idle(1, Step(9));
    hosts.holds(1);
    assert_eq!(nodes(&hosts, Step(9)), [1, 3], "half of them are excluded");
    hosts.lack([1, 3]);
    assert_eq!(nodes(&hosts, Step(9)).len(), 4, "of the others no worker answers");
    (0..4).for_each(|worker| hosts.holds(worker));
    hosts.exclude(&[1, 3], Step(9));
    assert_eq!(nodes(&hosts, Step(9)).len(), 4, "a worker has to");
    hosts.forget(2);
    assert_eq!(nodes(&hosts, Step(9)), [0, 1, 3], "the others may have no connection to it alone");
}

#[test]
fn who_cannot_sum_yet_or_at_all_owns_nothing() {
    let mut hosts = hosts(4);
    let one_late = terms(&[&[0, 1], &[2]]);
    let owners = |hosts: &Hosts| counts(&hosts.owners(STEP, &one_late, LENGTH)).len();
    hosts.comes(3, false);
    assert_eq!(owners(&hosts), 3, "no worker reaches it");
    hosts.holds(3);
    assert_eq!(owners(&hosts), 3);
    hosts.forget(3);
    hosts.begin([]);
    hosts.comes(3, true);
    assert_eq!(owners(&hosts), 3, "it may need a state first");
    hosts.holds(3);
    assert_eq!(owners(&hosts), 4);
    let short = hosts.owners(STEP, &terms(&[&[3], &[2]]), 5);
    assert_eq!(counts(&short), [(2, 1)], "a holder has the one chunk");
}

#[test]
fn shares_are_by_load_where_one_is_always_late() {
    let mut hosts = hosts(4);
    let one_late = terms(&[&[0, 1], &[2]]);
    for step in 1..=4 {
        assert_eq!(counts(&hosts.owners(STEP, &one_late, LENGTH))[3].1, 25, "step {step}");
        hosts.step_begins(&[0, 1, 2]);
    }
    let owners = hosts.owners(STEP, &one_late, LENGTH);
    assert_eq!(counts(&owners), [(0, 35), (1, 35), (2, 10), (3, 20)]);
    assert!((most(&owners, &one_late, 4) - 1.2).abs() < 0.02);
    let equal = share_out(&[0, 1, 2, 3], LENGTH);
    assert!((most(&equal, &one_late, 4) - 1.5).abs() < 0.02);
    let only_survivors = share_out(&[0, 2], LENGTH);
    assert!(most(&only_survivors, &terms(&[&[0], &[2]]), 4) > 1.9);
    // It answers in time once: equal shares again.
    hosts.step_begins(&[0, 1, 2, 3]);
    let calm = terms(&[&[0, 1], &[2, 3]]);
    assert_eq!(counts(&hosts.owners(STEP, &calm, LENGTH)).len(), 4);
}

#[test]
fn chunks_are_cut_without_gaps_whatever_the_shares() {
    for count in 1..40 {
        for workers in 2..7u32 {
            let mut hosts = hosts(workers);
            let holders: Vec<Vec<u32>> = (0..workers - 1).map(|worker| vec![worker]).collect();
            let held: Vec<&[u32]> = holders.iter().map(Vec::as_slice).collect();
            let had: Vec<u32> = (0..workers - 1).collect();
            (0..4).for_each(|_| hosts.step_begins(&had));
            let owners = hosts.owners(STEP, &terms(&held), count * CHUNK - 1);
            let edges = owners.windows(2).all(|pair| pair[0].end == pair[1].start);
            assert!(edges && owners[0].start == 0, "{owners:?}");
            assert_eq!(owners.last().unwrap().end, count, "{owners:?}");
        }
    }
}

/// Each worker has its share of every stripe, of its beginning too.
#[test]
fn owners_take_turns_in_stripes() {
    let held = terms(&[&[0, 1], &[2, 3]]);
    let mut hosts = hosts(4);
    let (stripe, owners) = hosts.of_stripes(STEP, &held, 256 * CHUNK);
    assert_eq!((stripe, counts(&owners)), (8, vec![(0, 2), (1, 2), (2, 2), (3, 2)]));
    (0..LATE_STEPS).for_each(|_| hosts.step_begins(&[0, 2, 3]));
    let (stripe, owners) = hosts.of_stripes(STEP, &held, 256 * CHUNK);
    assert_eq!(stripe, 64);
    let chunks = |node: u32, until: usize| -> usize {
        let own = owners.iter().filter(|owner| owner.node == node);
        own.map(|owner| owner.end.min(until).saturating_sub(owner.start)).sum()
    };
    // 0.1, 0.2, 0.35 and 0.35 of a gradient.
    for until in [16, 32, 64] {
        for (node, share) in [(0, 0.1), (1, 0.2), (2, 0.35), (3, 0.35)] {
            let off = chunks(node, until) as f64 - share * until as f64;
            assert!(off.abs() <= 1.2, "{node} has {} of {until}", chunks(node, until));
        }
    }
    let next = |at: usize, owner: &Owner| (owner.start == at).then_some(owner.end);
    assert_eq!(owners.iter().try_fold(0, next), Some(64), "without gaps");
    assert_eq!(hosts.of_stripes(STEP, &held, 5 * CHUNK).0, 5, "of a short vector");
}
