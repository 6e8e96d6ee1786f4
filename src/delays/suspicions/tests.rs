//! What looks wrong in a trace.

#![cfg(test)]

use super::*;
use crate::delays::{Delays, Preset, Unit};

fn table(columns: &[&dyn Fn(usize) -> f64], rows: usize) -> Vec<Vec<f64>> {
    (0..rows).map(|row| columns.iter().map(|column| column(row)).collect()).collect()
}

#[test]
fn indices_ranks_and_transposed_tables_are_told() {
    let plain = |row: usize| 0.1 + (row * row % 13) as f64;
    let index = |column, first| vec![Suspicion::Index { column, first }];
    let counts = |row: usize| row as f64;
    assert_eq!(suspicions(&table(&[&counts, &plain], 5)), index(1, [0.0, 1.0]));
    let in_seconds = |row: usize| (100 + 10 * row) as f64 / 1000.0;
    assert_eq!(suspicions(&table(&[&plain, &in_seconds], 300)), index(2, [0.1, 0.11]));
    let clock = |row: usize| 5.0 + (row * row) as f64 / 100.0;
    assert_eq!(suspicions(&table(&[&plain, &clock], 16)), index(2, [5.0, 5.01]));
    let (step, rank) = (|row: usize| (row / 4) as f64, |row: usize| (row % 4) as f64);
    assert_eq!(
        suspicions(&table(&[&step, &rank, &plain], 42)),
        [Suspicion::Index { column: 1, first: [0.0; 2] }, Suspicion::Rank { column: 2, last: 3 }]
    );
    let wide: Vec<Vec<f64>> = table(&[&plain], 300);
    let transposed = vec![wide.concat(); 10];
    assert_eq!(suspicions(&transposed), [Suspicion::Transposed { rounds: 10, workers: 300 }]);
    let slow = |row: usize| 1000.0 * plain(row);
    assert_eq!(suspicions(&table(&[&slow], 26)), [Suspicion::Milliseconds { median: 4100.0 }]);
}

#[test]
fn times_taken_after_the_exchange_are_told() {
    let noise = |row: usize, by: usize| (row * by % 17) as f64 / 17.0;
    let slowest = |row: usize| 1.5 + 0.05 * noise(row, 5);
    let after = |by: usize| move |row: usize| slowest(row) + 0.001 * noise(row, by);
    let [a, b, c] = [3, 7, 11].map(after);
    let found = suspicions(&table(&[&a, &b, &c], 60));
    assert!(matches!(found[..], [Suspicion::AfterExchange { .. }]), "{found:?}");
    let same = suspicions(&table(&[&slowest, &slowest], 60));
    assert_eq!(same, [Suspicion::AfterExchange { quotient: 0.0 }]);
    // One that is slow by itself is there to be seen, however closely the others agree.
    let slow = |row: usize| 1.5 * a(row);
    assert_eq!(suspicions(&table(&[&a, &b, &c, &slow], 60)), []);
    let before = |by: usize| move |row: usize| 1.0 + 0.05 * noise(row, by);
    let [a, b, c] = [3, 7, 11].map(before);
    assert_eq!(suspicions(&table(&[&a, &b, &c], 60)), []);
}

#[test]
fn a_thousand_rounds_of_many_workers_are_not_transposed() {
    let rows: Vec<Vec<f64>> = (0..1000usize)
        .map(|row| (0..4096usize).map(|at| (row * 7 + at * 13) as f64 % 11.0).collect())
        .collect();
    let transposed = |found: &Suspicion| matches!(found, Suspicion::Transposed { .. });
    assert!(!suspicions(&rows).iter().any(transposed));
}

#[test]
fn traces_are_not_suspected() {
    let calm = |_: usize| 1.0;
    let alternating = |row: usize| (row % 2) as f64;
    let drifting = |row: usize| 1.0 + row as f64 / 100.0 + (row % 3) as f64;
    assert!(suspicions(&table(&[&calm, &alternating, &drifting], 200)).is_empty());
    assert!(suspicions(&[]).is_empty() && suspicions(&[vec![0.5, 1.0, 1.5]]).is_empty());
    for name in Preset::names() {
        let delays = Delays::open(name, 8, 1).unwrap();
        let unit: Unit = delays.unit();
        let rows: Vec<Vec<f64>> = delays
            .rows(400)
            .into_iter()
            .map(|row| row.into_iter().map(|delay| unit.answer_time(delay)).collect())
            .collect();
        assert_eq!(suspicions(&rows), [], "{name}");
    }
}
