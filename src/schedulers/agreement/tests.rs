//! Who is right, by what workers report.

#![cfg(test)]

use super::*;

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

/// Two replicas that differ, one of which was started again: nobody can say who is right, and
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

#[test]
fn a_second_word_ends_a_tie() {
    let mut agreement = agreement(3);
    agreement.excuse(Worker(2), None);
    after(&mut agreement, 0, 6);
    assert_eq!(after(&mut agreement, 1, 7), [1]);
    agreement.sent(STEP, &[Worker(2)]);
    assert_eq!(after(&mut agreement, 2, 7), [0]);
    assert_eq!(agreement.verdict(Worker(1), STEP), Verdict::Right);
}

/// Who is lost cannot settle a dispute of two; the smaller digest is taken then, whoever
/// reported first.
#[test]
fn a_dispute_ends_when_nobody_else_can_come() {
    let mut agreement = agreement(3);
    after(&mut agreement, 0, 7);
    after(&mut agreement, 1, 6);
    agreement.excuse(Worker(2), None);
    assert_eq!(agreement.found(), [(Worker(0), STEP)]);
    agreement.reported(Worker(1), STEP, None);
    assert_eq!(agreement.found(), [], "who takes no digest");
}
