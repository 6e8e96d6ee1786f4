//! Who was almost there was not needed and who is silent misses rounds, and more.

#![cfg(test)]

use super::*;
use codedgrad::ids::Worker;

fn report(round: u64, computed: f64, progress: f64, came: f64) -> SpentRecord {
    SpentRecord { round, worker: Worker(2), computed, progress, came, units: 1 }
}

fn settled(
    doubtful: &mut DoubtfulRounds,
    reports: &[SpentRecord],
    newest: u64,
) -> Vec<(u64, bool)> {
    let found = doubtful.settle(reports.iter(), newest);
    found.into_iter().map(|verdict| (verdict.round, verdict.missed)).collect()
}

#[test]
fn who_was_almost_there_was_not_needed_and_who_is_silent_misses_rounds() {
    let mut doubtful = DoubtfulRounds::default();
    doubtful.push(1, 1.0);
    assert_eq!(settled(&mut doubtful, &[report(1, 0.5, 0.5, 0.6)], 2), [(1, false)]);
    doubtful.push(2, 1.0);
    assert_eq!(settled(&mut doubtful, &[report(2, 0.5, 0.125, 0.6)], 3), [(2, true)]);
    // Frozen: it says nothing, then that it gave up the first of these rounds.
    (3..8).for_each(|round| doubtful.push(round, 1.0));
    assert_eq!(settled(&mut doubtful, &[], 7), [(3, true), (4, true)]);
    assert_eq!(settled(&mut doubtful, &[report(3, 5.0, 0.0, 5.0)], 8), [(5, true)]);
    let again = [report(9, 0.9, 1.0, 1.0)];
    assert_eq!(settled(&mut doubtful, &again, 9), [(6, true), (7, true)]);
}

#[test]
fn where_nobody_reports_rounds_without_an_answer_are_not_held_against_it() {
    let mut doubtful = DoubtfulRounds::default();
    doubtful.push(0, 1.0);
    assert_eq!(settled(&mut doubtful, &[], 2), []);
    assert_eq!(settled(&mut doubtful, &[], 3), [(0, false)]);
}
