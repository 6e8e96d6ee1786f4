//! Windows follow the definition.

#![cfg(test)]

use super::*;
use proptest::prelude::*;

proptest! {
    /// The same numbers, straight from the definition.
    #[test]
    fn windows_follow_the_definition(
        slow in
            prop::collection::vec(prop::collection::vec(prop::bool::weighted(0.3), 3), 1..20),
    ) {
        let mut windows = Windows::new(3);
        slow.iter().for_each(|row| windows.push(row));
        let summaries = windows.summaries();
        prop_assert_eq!(
            summaries.len(),
            (1..=3)
                .map(|burst: usize| (burst + 1..=8).filter(|w| *w <= slow.len()).count())
                .sum::<usize>()
        );
        for found in summaries {
            let all: Vec<&[Vec<bool>]> = slow.windows(found.window).collect();
            let straggles = |rows: &[Vec<bool>], worker: usize| -> Vec<usize> {
                (0..rows.len()).filter(|&r| rows[r][worker]).collect()
            };
            let distinct: Vec<usize> = all
                .iter()
                .map(|rows| (0..3).filter(|&i| !straggles(rows, i).is_empty()).count())
                .collect();
            let keeps = |rows: &&&[Vec<bool>]| {
                (0..3).all(|i| match straggles(rows, i)[..] {
                    [first, .., last] => last - first < found.burst,
                    _ => true,
                })
            };
            prop_assert_eq!(found.windows as usize, all.len());
            prop_assert_eq!(Some(&found.lambda_all), distinct.iter().max());
            let within = |lambda: usize| {
                distinct.iter().filter(|count| **count <= lambda).count() as f64
                    / all.len() as f64
            };
            prop_assert!(
                within(found.lambda_95) >= 0.95
                    && (found.lambda_95 == 0 || within(found.lambda_95 - 1) < 0.95)
            );
            prop_assert_eq!(
                found.temporal_share,
                all.iter().filter(keeps).count() as f64 / all.len() as f64
            );
        }
    }
}
