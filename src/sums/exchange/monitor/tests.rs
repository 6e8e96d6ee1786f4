//! What a monitor finds of its peers.

#![cfg(test)]

use super::super::TICK;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn who_gets_chunks_does_not_wait_in_vain() {
    let begun = Instant::now();
    let at = |seconds: f64| begun + Duration::from_secs_f64(seconds);
    let mut monitor = ExchangeMonitor::new(vec![0, 1, 2], begun);
    let longest = 60 * SECOND;
    // Nothing comes to worker 0 from worker 2 for a while, then something does.
    (10..=20).for_each(|tenths| {
        assert_eq!(monitor.waits.says(0, vec![2], at(f64::from(tenths) / 10.0)), tenths == 10);
    });
    assert!(!monitor.is_stuck(at(2.0), 3 * SECOND, longest));
    assert!(!monitor.is_stuck(at(4.5), 3 * SECOND, longest), "it does not say so any more");
    monitor.waits.says(0, vec![2], at(6.0));
    assert!(!monitor.is_stuck(at(6.5), 3 * SECOND, longest), "it had got something in between");
    (61..90).for_each(|tenths| {
        assert!(!monitor.waits.says(0, vec![2], at(f64::from(tenths) / 10.0)));
    });
    assert!(monitor.is_stuck(at(8.9), 3 * SECOND, longest));
    assert!(monitor.is_stuck(at(61.0), 3 * SECOND, longest), "and there is an end to everything");
    monitor.done = true;
    assert!(!monitor.is_stuck(at(8.9), 3 * SECOND, longest));
}

#[test]
fn nobody_is_blamed_for_a_sum_that_is_to_be_made_anew() {
    let begun = Instant::now();
    let stuck = |holder: Option<u32>, lost: u32| {
        let mut monitor = ExchangeMonitor::new(vec![0, 1, 2, 3], begun);
        monitor.parts.term_holders = BTreeSet::from([0, 1, 2]);
        holder.into_iter().for_each(|holder| assert!(monitor.holds(holder, None)));
        (0..=20).for_each(|tenths| {
            monitor.waits.says(1, vec![0, 2], begun + SECOND * tenths / 10);
        });
        monitor.void = monitor.forget(lost).then_some(VoidReason::Interrupted);
        monitor.is_stuck(begun + 2 * SECOND, SECOND, 60 * SECOND)
    };
    assert!(!stuck(None, 0) && !stuck(Some(0), 0), "its result, or the only sum, went with it");
    assert!(stuck(Some(2), 0) && stuck(None, 3), "the sum is held, or nothing of it is lost");
}

/// Who says nothing is idle, and who waits itself only if several wait for it.
#[test]
fn who_is_waited_for_most_is_done_without() {
    let begun = Instant::now();
    let idle = |waiting: &[(u32, &[u32])]| {
        let mut monitor = ExchangeMonitor::new(vec![0, 1, 2, 3], begun);
        for tick in 0..2 {
            for (node, on) in waiting {
                monitor.waits.says(*node, on.to_vec(), begun + TICK * tick);
            }
        }
        monitor.idle(begun + TICK)
    };
    assert_eq!(idle(&[(0, &[2])]), Some(2));
    assert_eq!(idle(&[(0, &[2]), (1, &[0])]), Some(2), "worker 0 waits too");
    assert_eq!(idle(&[(0, &[2]), (2, &[0])]), None, "either may be to blame");
    let cut_off: [(u32, &[u32]); 4] = [(0, &[2]), (1, &[2]), (3, &[2]), (2, &[0, 1, 3])];
    assert_eq!(idle(&cut_off), Some(2), "all wait for one, and it for all");
    assert_eq!(idle(&[(0, &[1, 2]), (1, &[2, 3]), (2, &[0]), (3, &[0])]), None);
    assert_eq!(idle(&[(0, &[7])]), None, "it is no receiver");
}

#[test]
fn a_sum_comes_from_somebody_who_gets_through() {
    let now = Instant::now();
    let mut monitor = ExchangeMonitor::new(vec![0, 1, 2], now);
    assert_eq!(monitor.giver(2, |_| true), None);
    assert!([0, 1].into_iter().all(|node| monitor.holds(node, None)));
    assert_eq!(monitor.giver(2, |_| true), Some(0));
    assert_eq!(monitor.giver(0, |_| true), Some(1));
    monitor.waits.says(2, vec![0], now);
    assert_eq!(monitor.giver(2, |_| true), Some(1));
    assert_eq!(monitor.giver(2, |node| node == 0), Some(0));
}

#[test]
fn who_holds_other_bytes_gives_them_to_nobody() {
    let mut monitor = ExchangeMonitor::new(vec![0, 1, 2, 3], Instant::now());
    assert!(monitor.holds(0, Some(8)) && monitor.holds(1, Some(9)) && monitor.holds(2, None));
    assert_eq!(monitor.decided(9), [0]);
    assert!(monitor.decided(9).is_empty(), "that is known");
    assert_eq!(monitor.giver(0, |node| node != 2), Some(1));
    assert!(!monitor.holds(3, Some(8)) && monitor.holds(0, Some(9)), "it has got them again");
    assert_eq!(monitor.giver(1, |node| node == 3), None);
}

#[test]
fn it_is_told_for_whom_a_sum_waits() {
    let now = Instant::now();
    let mut monitor = ExchangeMonitor::new(vec![0, 1, 2], now);
    let stalled = |monitor: &ExchangeMonitor| {
        monitor.stalled(Step(9), now + SECOND / 5, SECOND / 5).map(|stalled| stalled.to_string())
    };
    monitor.waits.says(0, vec![1], now);
    monitor.waits.says(1, vec![2], now);
    assert_eq!(
        stalled(&monitor).unwrap(),
        "the sum of step 9 stands still, begun 0.2 s ago: workers 0, 1 held up by worker 2"
    );
    monitor.waits.says(2, vec![0], now);
    assert!(stalled(&monitor).unwrap().ends_with("workers 0, 1, 2 wait for each other"));
    monitor.done = true;
    assert_eq!(stalled(&monitor), None);
}

#[test]
fn who_waits_is_a_victim() {
    let now = Instant::now();
    let mut monitor = ExchangeMonitor::new(vec![0, 1, 2], now);
    monitor.waits.says(0, vec![1, 2], now);
    monitor.waits.says(1, vec![2, COORDINATOR], now);
    assert_eq!(monitor.culprit(now), Some(2));
    monitor.waits.says(2, vec![0], now);
    monitor.waits.says(COORDINATOR, vec![0], now);
    assert!(monitor.culprit(now).is_some(), "when all wait, one of them is it");
    monitor.forget(2);
    monitor.holds(0, None);
    assert_eq!(monitor.culprit(now), Some(0), "as the coordinator says");
}
