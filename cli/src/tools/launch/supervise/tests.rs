//! Processes that end, and are started again.

#![cfg(test)]

use super::*;

const CRASH: End = End::Signal(11);
const MINUTE: Duration = Duration::from_secs(60);

fn again(after: u64, time: u32) -> RestartDecision {
    RestartDecision::Again { after: Duration::from_secs(after), time }
}

#[test]
fn pauses_double_up_to_a_minute() {
    let mut policy = Policy::new(10);
    for (after, time) in [1, 2, 4, 8, 16, 32, 60, 60, 60, 60].into_iter().zip(1..) {
        assert_eq!(policy.ended(End::Status(1), MINUTE), again(after, time));
    }
    let enough = RestartDecision::GivenUp(StopReason::TooOften(10));
    assert_eq!(policy.ended(End::Status(1), MINUTE), enough);
    assert_eq!(policy.ended(End::Status(1), MINUTE), enough, "and that is that");
}

#[test]
fn pauses_of_who_is_waited_for_are_short() {
    let mut policy = Policy::new(10).pauses_up_to(QUICK);
    for (after, time) in [1, 2, 4, 8, 10, 10].into_iter().zip(1..) {
        assert_eq!(policy.ended(CRASH, MINUTE), again(after, time));
    }
    assert_eq!(policy.ended(CRASH, STEADY), again(1, 1));
    for (after, time) in [2, 4, 8, 10].into_iter().zip(2..) {
        assert_eq!(policy.ended(CRASH, MINUTE), again(after, time));
    }
}

#[test]
fn what_is_meant_is_left() {
    let meant = [0, 2, 4, 130, 143].map(End::Status);
    for end in meant.into_iter().chain([End::Signal(2), End::Signal(15)]) {
        assert_eq!(Policy::new(10).ended(end, MINUTE), RestartDecision::Over, "{end}");
    }
    for end in [End::Status(1), End::Status(3), End::Status(137), End::Signal(9), CRASH] {
        assert_eq!(Policy::new(10).ended(end, MINUTE), again(1, 1), "{end}");
        assert_eq!(
            Policy::new(0).ended(end, MINUTE),
            RestartDecision::GivenUp(StopReason::TooOften(0)),
            "{end}"
        );
    }
}

#[test]
fn who_ends_at_its_start_is_given_up() {
    let short = Duration::from_millis(9999);
    let mut policy = Policy::new(10);
    assert_eq!(policy.ended(CRASH, short), again(1, 1));
    assert_eq!(policy.ended(CRASH, short), again(2, 2));
    assert_eq!(policy.ended(CRASH, short), RestartDecision::GivenUp(StopReason::AtItsStart));
    let mut policy = Policy::new(10);
    for (up, after, time) in [(short, 1, 1), (short, 2, 2), (QUICK, 4, 3), (short, 8, 4)] {
        assert_eq!(policy.ended(CRASH, up), again(after, time), "not three in a row");
    }
    assert_eq!(policy.ended(CRASH, short), again(16, 5));
    assert_eq!(policy.ended(CRASH, short), RestartDecision::GivenUp(StopReason::AtItsStart));
}

#[test]
fn who_was_well_begins_anew() {
    let mut policy = Policy::new(2);
    assert_eq!(policy.ended(CRASH, MINUTE), again(1, 1));
    assert_eq!(policy.ended(CRASH, MINUTE), again(2, 2));
    assert_eq!(policy.ended(CRASH, STEADY), again(1, 1), "ten minutes are forgiven");
    assert_eq!(policy.ended(CRASH, MINUTE), again(2, 2));
    assert_eq!(policy.ended(CRASH, MINUTE), RestartDecision::GivenUp(StopReason::TooOften(2)));
}

#[test]
fn ends_are_told_in_words() {
    assert_eq!(End::Status(3).to_string(), "ended with status 3");
    assert_eq!(End::Signal(9).to_string(), "was killed (SIGKILL)");
    assert_eq!((End::Signal(9).status(), End::Status(9).status()), (137, 9));
    assert_eq!(StopReason::AtItsStart.to_string(), "3 times in a row within 10 s of its start");
}
