//! What was sent, and is not answered.

#![cfg(test)]

use super::*;

const AGAIN_BY_STATE: Miss = Miss::Answer { due: false };
const AGAIN_BY_SUM: Miss = Miss::Answer { due: true };

fn nothing() -> SentRecord {
    SentRecord::new(None, 1)
}

#[test]
fn only_what_was_sent_is_missed() {
    let (mut sent, now) = (nothing(), Instant::now());
    assert_eq!(sent.missed(Step(0), now), Miss::NeverSent);
    sent.step(Step(7));
    assert_eq!(
        [6, 7, 8, 1 << 60].map(|step| sent.missed(Step(step), now)),
        [AGAIN_BY_STATE, AGAIN_BY_SUM, Miss::NeverSent, Miss::NeverSent]
    );
    sent.state(1, Step(7));
    sent.step(Step(8));
    assert_eq!(
        [6, 8, 9].map(|step| sent.missed(Step(step), now)),
        [Miss::Wait, AGAIN_BY_SUM, Miss::NeverSent]
    );
}

#[test]
fn a_step_is_sent_again_once_a_second() {
    let (mut sent, begun) = (nothing(), Instant::now());
    sent.step(Step(7));
    let ask = |ms| sent.missed(Step(7), begun + Duration::from_millis(ms));
    let answers = (0..10_000).map(ask).filter(|miss| *miss == AGAIN_BY_SUM).count();
    assert_eq!(answers, 10);
}

#[test]
fn a_state_ends_it_and_if_it_does_not_the_connection_ends() {
    let (mut sent, begun) = (nothing(), Instant::now());
    sent.step(Step(7));
    for round in 0..=u64::from(STATES) {
        let now = begun + Duration::from_secs(2 * round);
        assert!(matches!(sent.missed(Step(7), now), Miss::Answer { .. }), "round {round}");
        sent.recall(Step(7));
        let meanwhile = if round < u64::from(STATES) { Miss::Wait } else { Miss::Endless };
        assert_eq!(sent.missed(Step(7), now + AGAIN), meanwhile, "round {round}");
        sent.state(round, Step(7));
    }
    assert_eq!(sent.missed(Step(7), begun + Duration::from_secs(60)), Miss::Endless);
}

#[test]
fn what_is_noted_stays_small() {
    let (mut sent, now) = (nothing(), Instant::now());
    sent.step(Step(1 << 40));
    let answered =
        (0..100_000).filter(|step| sent.missed(Step(*step), now) == AGAIN_BY_STATE).count();
    assert_eq!(answered, 100_000, "each of them for the first time");
    assert!(sent.steps.len() <= KNOWN + 1);
    assert_eq!(sent.applied(Step(1 << 40)), AckStatus::Now, "what is due is not forgotten");
}

#[test]
fn a_step_is_applied_once_and_not_before_a_state_that_is_on_its_way() {
    let mut sent = SentRecord::new(Some(Step(5)), 1);
    let before = [4, 3, 4].map(|step| sent.applied(Step(step)));
    assert_eq!(before, [AckStatus::Before, AckStatus::Before, AckStatus::NeverSent]);
    sent.step(Step(5));
    assert_eq!([5, 5].map(|step| sent.applied(Step(step))), [AckStatus::Now, AckStatus::NeverSent]);
    sent.step(Step(6));
    sent.state(1, Step(7));
    sent.state(2, Step(8));
    assert_eq!(sent.applied(Step(6)), AckStatus::Void);
    assert_eq!([1, 2, 2].map(|number| sent.loaded(number)), [None, Some(Step(8)), None]);
    assert_eq!(sent.applied(Step(6)), AckStatus::NeverSent, "it was in the state");
}
