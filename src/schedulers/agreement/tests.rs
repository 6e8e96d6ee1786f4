//! Who is right, by what workers report.

#![cfg(test)]

use super::*;
use proptest::prelude::*;

const STEP: Step = Step(4);

fn agreement(workers: u32) -> Agreement {
    let mut agreement = Agreement::new(workers as usize);
    agreement.sent(STEP, &Worker::all(workers as usize).collect::<Vec<_>>());
    agreement
}

/// Who turns out to be wrong by a worker's report.
fn after(agreement: &mut Agreement, worker: u32, digest: u64) -> Vec<u32> {
    agreement.reported(Worker(worker), STEP, Some(digest));
    agreement.found().into_iter().map(|(worker, _)| worker.0).collect()
}

#[test]
fn nobody_vouches_for_itself() {
    let mut agreement = agreement(3);
    assert_eq!(after(&mut agreement, 0, 7), [0u32; 0]);
    assert_eq!(agreement.verdict(Worker(0), STEP), Verdict::Unknown);
    assert_eq!(after(&mut agreement, 1, 8), [0u32; 0]);
    assert_eq!(
        [0, 1].map(|worker| agreement.verdict(Worker(worker), STEP)),
        [Verdict::Disputed; 2]
    );
    assert_eq!(after(&mut agreement, 2, 8), [0]);
    assert_eq!(agreement.verdict(Worker(1), STEP), Verdict::Right);
    assert_eq!(agreement.verdict(Worker(0), STEP), Verdict::Wrong);
    assert_eq!(agreement.verdict(Worker(0), Step(3)), Verdict::Unknown);
}

#[test]
fn a_state_that_was_handed_over_is_no_proof_and_a_step_of_its_own_is() {
    let mut agreement = Agreement::new(3);
    let all = [0, 1, 2].map(Worker);
    let mut step_with = |step, digest, copies: bool| {
        agreement.sent(Step(step), &all);
        for worker in [0, 1] {
            agreement.reported(Worker(worker), Step(step), Some(7));
        }
        agreement.reported(Worker(2), Step(step), Some(digest));
        if copies {
            agreement.excuse(Worker(2), Some(Step(step + 1)));
            agreement.copied(Worker(2), Some(Worker(0)));
            agreement.reported(Worker(2), Step(step), Some(7));
        }
        agreement.wrong_running(Worker(2))
    };
    assert_eq!(step_with(0, 9, true), 1);
    assert_eq!(step_with(1, 9, true), 2);
    assert_eq!(step_with(2, 7, false), 0, "it has computed that itself");
    assert_eq!(step_with(3, 9, true), 1);
    agreement.excuse(Worker(2), None);
    assert_eq!(agreement.wrong_running(Worker(2)), 0, "it is another process then");
}

#[test]
fn who_comes_after_the_verdict_is_told_at_once() {
    let mut agreement = agreement(4);
    after(&mut agreement, 0, 7);
    after(&mut agreement, 1, 7);
    assert_eq!(after(&mut agreement, 3, 9), [3]);
    assert_eq!(after(&mut agreement, 3, 9), [3], "the same word again");
    assert_eq!(after(&mut agreement, 3, 7), [0u32; 0], "with the right state");
}

#[test]
fn the_drivers_own_digest_settles_it() {
    let mut agreement = agreement(2);
    after(&mut agreement, 0, 7);
    agreement.own(STEP, 8);
    assert_eq!(agreement.found(), [(Worker(0), STEP)]);
    assert_eq!(after(&mut agreement, 1, 8), [0u32; 0]);
    assert_eq!(agreement.verdict(Worker(1), STEP), Verdict::Right);
}

#[test]
fn a_copy_does_not_vouch_for_what_it_was_made_from() {
    let mut agreement = agreement(4);
    agreement.copied(Worker(1), Some(Worker(0)));
    assert_eq!(after(&mut agreement, 0, 9), [0u32; 0]);
    assert_eq!(after(&mut agreement, 1, 9), [0u32; 0]);
    assert_eq!(agreement.verdict(Worker(1), STEP), Verdict::Unknown);
    assert_eq!(after(&mut agreement, 2, 7), [0u32; 0]);
    assert_eq!(after(&mut agreement, 3, 7), [0, 1]);
}

/// All may begin with one worker's parameters, and one of them never report.
#[test]
fn a_state_that_all_begin_with_needs_nobody_who_vouches_for_it() {
    let mut agreement = Agreement::new(4);
    for worker in [1, 2, 3] {
        agreement.copied(Worker(worker), Some(Worker(0)));
    }
    agreement.sent(STEP, &Worker::all(4).collect::<Vec<_>>());
    after(&mut agreement, 0, 7);
    assert_eq!(after(&mut agreement, 2, 7), [0u32; 0]);
    assert_eq!(agreement.verdict(Worker(0), STEP), Verdict::Right);
    assert_eq!(after(&mut agreement, 1, 9), [1]);
}

#[test]
fn a_replica_that_is_like_nobodys_is_not_the_measure() {
    let mut agreement = agreement(3);
    agreement.own(STEP, 8);
    assert_eq!(after(&mut agreement, 0, 7), [0]);
    assert_eq!(after(&mut agreement, 1, 7), [0u32; 0]);
    assert_eq!([0, 1].map(|worker| agreement.verdict(Worker(worker), STEP)), [Verdict::Right; 2]);
    agreement.own(Step(5), 9);
    agreement.reported(Worker(0), Step(5), Some(1));
    assert_eq!(agreement.found(), [], "nor later");
}

/// Two replicas that differ, one of which was started again: no report can say which is right, and
/// the other goes on.
#[test]
fn in_a_tie_who_has_taken_over_a_state_gives_way() {
    for (restarted, other) in [(0, 1), (1, 0)] {
        let mut agreement = agreement(2);
        agreement.copied(Worker(restarted), Some(Worker(other)));
        after(&mut agreement, restarted, 6);
        assert_eq!(after(&mut agreement, other, 7), [restarted]);
        assert_eq!(agreement.verdict(Worker(other), STEP), Verdict::Unknown);
        assert_eq!(agreement.verdict(Worker(restarted), STEP), Verdict::Wrong);
        // It takes over the other's state, which proves nothing of the step before; what both
        // make of the next step does.
        agreement.excuse(Worker(restarted), Some(Step(5)));
        agreement.copied(Worker(restarted), Some(Worker(other)));
        assert_eq!(after(&mut agreement, restarted, 7), [0u32; 0]);
        assert_eq!(agreement.verdict(Worker(other), STEP), Verdict::Unknown);
        agreement.sent(Step(5), &[0, 1].map(Worker));
        for worker in [restarted, other] {
            agreement.reported(Worker(worker), Step(5), Some(5));
        }
        for worker in [restarted, other] {
            assert_eq!(agreement.verdict(Worker(worker), Step(5)), Verdict::Right);
        }
        assert_eq!(agreement.found(), []);
    }
}

/// The sides of a tie, and the last step before it after which all had the same.
fn tie(agreement: &Agreement) -> Option<(u64, Vec<Vec<u32>>, Option<u64>)> {
    let Tie { step, sides, agreed } = agreement.tie()?;
    let of = |side: &WorkerSet| side.iter().map(|worker| worker.0).collect();
    Some((step.0, sides.iter().map(of).collect(), agreed.map(|step| step.0)))
}

#[test]
fn the_word_of_one_that_has_missed_the_step_and_applies_it_ends_a_dispute() {
    let mut agreement = agreement(3);
    agreement.excuse(Worker(2), None);
    after(&mut agreement, 0, 6);
    // It is there again, with a state to which the step is applied.
    agreement.sent(STEP, &[Worker(2)]);
    assert_eq!(after(&mut agreement, 1, 7), [0u32; 0]);
    assert!(agreement.is_open() && agreement.tie().is_none(), "it is waited for");
    assert_eq!(after(&mut agreement, 2, 7), [0]);
    assert_eq!(agreement.verdict(Worker(1), STEP), Verdict::Right);
    assert!(!agreement.is_open() && agreement.tie().is_none());
}

#[test]
fn the_word_of_one_that_has_taken_over_a_state_ends_none() {
    let mut agreement = agreement(3);
    agreement.excuse(Worker(2), Some(Step(5)));
    after(&mut agreement, 0, 6);
    agreement.copied(Worker(2), Some(Worker(0)));
    after(&mut agreement, 2, 6);
    assert_eq!(after(&mut agreement, 1, 7), [0u32; 0]);
    assert_eq!(tie(&agreement), Some((4, vec![vec![0], vec![1]], None)));
}

/// Who is lost cannot settle a dispute of two, and neither does which of the two is lost first.
#[test]
fn a_dispute_is_a_tie_when_no_other_can_come() {
    let mut agreement = Agreement::new(3);
    for step in [2, 3] {
        agreement.sent(Step(step), &[0, 1, 2].map(Worker));
        (0..3).for_each(|worker| agreement.reported(Worker(worker), Step(step), Some(step)));
    }
    agreement.sent(STEP, &[0, 1, 2].map(Worker));
    after(&mut agreement, 0, 7);
    after(&mut agreement, 1, 6);
    assert_eq!(tie(&agreement), None);
    agreement.excuse(Worker(2), None);
    for lost in [None, Some(0), Some(1)] {
        lost.into_iter().for_each(|lost| agreement.excuse(Worker(lost), None));
        assert_eq!(agreement.found(), []);
        assert_eq!(tie(&agreement), Some((4, vec![vec![0], vec![1]], Some(3))), "{lost:?}");
    }
}

#[test]
fn what_is_never_reported_is_waited_for_until_it_is_given_up() {
    let mut agreement = agreement(6);
    for (worker, digest) in [(0, 7), (1, 7), (2, 6), (3, 6)] {
        after(&mut agreement, worker, digest);
    }
    assert!(agreement.is_open() && tie(&agreement).is_none());
    assert_eq!(agreement.verdict(Worker(0), STEP), Verdict::Disputed);
    agreement.close();
    assert_eq!(tie(&agreement), Some((4, vec![vec![0, 1], vec![2, 3]], None)));
    // It comes after all.
    assert_eq!(after(&mut agreement, 4, 6), [0, 1]);
    assert_eq!((tie(&agreement), agreement.is_open()), (None, false));
}

/// Workers of a coordinator that was started again say once more what they had last.
#[test]
fn of_a_step_from_before_any_worker_may_still_report() {
    let mut agreement = Agreement::new(3);
    after(&mut agreement, 0, 7);
    assert_eq!(after(&mut agreement, 1, 9), [0u32; 0]);
    assert!(agreement.is_open() && tie(&agreement).is_none());
    assert_eq!(after(&mut agreement, 2, 9), [0]);
}

/// The second pair is late: one of them had been found to be wrong, and has taken over a state.
#[test]
fn two_that_are_alike_are_right_until_as_many_have_something_else() {
    let mut agreement = agreement(4);
    after(&mut agreement, 0, 7);
    after(&mut agreement, 1, 7);
    assert_eq!(agreement.verdict(Worker(0), STEP), Verdict::Right);
    assert_eq!(after(&mut agreement, 2, 6), [2]);
    agreement.excuse(Worker(2), Some(Step(5)));
    agreement.copied(Worker(2), Some(Worker(0)));
    assert_eq!(after(&mut agreement, 2, 7), [0u32; 0]);
    assert_eq!(after(&mut agreement, 3, 6), [0u32; 0]);
    assert_eq!(tie(&agreement), Some((4, vec![vec![0, 1], vec![2, 3]], None)));
}

/// What is found out once all have reported, of each worker.
fn settled(words: &[(u32, u64)], takeovers: &[(u32, u32)]) -> (Vec<Verdict>, bool) {
    let workers = words.len() as u32;
    let mut agreement = agreement(workers);
    for (needy, from) in takeovers {
        agreement.copied(Worker(*needy), Some(Worker(*from)));
    }
    words.iter().for_each(|(worker, digest)| {
        agreement.reported(Worker(*worker), STEP, Some(*digest));
    });
    let verdicts = (0..workers).map(|worker| agreement.verdict(Worker(worker), STEP)).collect();
    (verdicts, agreement.tie().is_some())
}

proptest! {
    /// What is right depends neither on who reports first nor on the digests' values.
    #[test]
    fn no_order_and_no_digest_wins(
        digests in prop::collection::vec(0u64..4, 1..8),
        takeovers in prop::collection::vec((0u32..8, 0u32..8), 0..4),
        order in any::<prop::sample::Index>(),
        others in Just([11u64, 5, 90, 2]).prop_shuffle(),
    ) {
        let workers = digests.len() as u32;
        let takeovers: Vec<(u32, u32)> = takeovers
            .into_iter()
            .map(|(needy, from)| (needy % workers, from % workers))
            .filter(|(needy, from)| needy != from)
            .collect();
        let words: Vec<(u32, u64)> = (0..).zip(digests.iter().copied()).collect();
        let expected = settled(&words, &takeovers);
        // Any turn of the list, forwards and back.
        let mut turned: Vec<(u32, u64)> =
            words.iter().map(|(worker, digest)| (*worker, others[*digest as usize])).collect();
        turned.rotate_left(order.index(digests.len()));
        prop_assert_eq!(&settled(&turned, &takeovers), &expected);
        turned.reverse();
        prop_assert_eq!(&settled(&turned, &takeovers), &expected);
        // Without takeovers it is a tie exactly where two digests have the most workers each.
        if takeovers.is_empty() {
            let mut counts = [0; 4];
            digests.iter().for_each(|digest| counts[*digest as usize] += 1);
            counts.sort_unstable();
            prop_assert_eq!(expected.1, counts[3] == counts[2]);
            let right = expected.0.iter().filter(|verdict| **verdict == Verdict::Right).count();
            let is_told = !expected.1 && workers > 1;
            prop_assert_eq!(right, if is_told { counts[3] } else { 0 });
        }
    }
}
