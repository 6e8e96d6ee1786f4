//! Statistics of traces.

#![cfg(test)]

use super::*;
use proptest::prelude::*;

fn summary<const N: usize>(rows: &[[f64; N]]) -> StragglerSummary {
    let mut stats = StragglerStats::new(N);
    rows.iter().for_each(|row| stats.push(row));
    stats.summary()
}

fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-12, "{found} {expected}");
}

/// Four rounds of three workers, worked out by hand.
#[test]
fn a_hand_made_trace_has_the_numbers_worked_out_by_hand() {
    let found = summary(&[[1.0, 1.0, 4.0], [1.0, 1.0, 4.0], [1.0, 2.5, 1.0], [1.0, 1.0, 1.3]]);
    assert_eq!((found.rounds, found.workers), (4, 3));
    near(found.mean, 19.8 / 12.0);
    near(found.median, 1.0);
    near(found.fastest_mean, 1.0);
    near(found.round_median_mean, 1.0);
    near(found.slowest_mean, 11.8 / 4.0);
    near(found.bound_by_mean, (11.8 / 4.0) / (19.8 / 12.0));
    near(found.bound_by_median, 11.8 / 4.0);
    // Deviations of {1,1,4}, {1,2.5,1} and {1,1,1.3} are sqrt(2)/3 of 3, 1.5 and 0.3; means 2,
    // 1.5, 1.1.
    let third = 2f64.sqrt() / 3.0;
    near(found.variation_within_round, third * (1.5 + 1.5 + 1.0 + 0.3 / 1.1) / 4.0);
    let shares: Vec<(f64, f64, f64)> =
        found.over.iter().map(|over| (over.factor, over.rounds, over.answers)).collect();
    assert_eq!(shares, [(1.2, 1.0, 4.0 / 12.0), (1.5, 0.75, 0.25), (2.0, 0.75, 0.25)]);
    // Means of the workers are 1, 1.375 and 2.575, around 1.65.
    let between = (0.65f64.powi(2) + 0.275f64.powi(2) + 0.925f64.powi(2)) / 3.0;
    let total =
        (8.0 * 0.65f64.powi(2) + 2.0 * 2.35f64.powi(2) + 0.85f64.powi(2) + 0.35f64.powi(2)) / 12.0;
    near(found.static_share, between / total);
    for slow in [&found.over_median, &found.over_fastest] {
        assert_eq!(
            (slow.answers, slow.per_round_least, slow.per_round_most, slow.workers_ever),
            (3, 0, 1, 2)
        );
        assert_eq!(slow.bursts, BTreeMap::from([(1, 1), (2, 1)]));
        near(slow.share, 0.25);
        near(slow.worst_worker, 0.5);
        // Slow before the last round: 3 times, once again slow. Not slow before it: 6 times,
        // once then slow.
        near(slow.stay.unwrap(), 1.0 / 3.0);
        near(slow.enter.unwrap(), 1.0 / 6.0);
        // Slow answers 1, 1, 1, 0: mean 3/4, variance 3/16; the binomial's is 3 x 1/4 x 3/4.
        near(slow.variance_over_mean.unwrap(), 0.25);
        near(slow.dispersion.unwrap(), 1.0 / 3.0);
        let pairs =
            slow.windows.iter().find(|found| (found.burst, found.window) == (1, 2)).unwrap();
        assert_eq!((pairs.windows, pairs.lambda_95, pairs.lambda_all), (3, 2, 2));
        near(pairs.stragglers_mean, 4.0 / 3.0);
        near(pairs.temporal_share, 2.0 / 3.0);
        assert_eq!(slow.windows.len(), 6, "B = 1 with W = 2, 3, 4; B = 2 with 3, 4; B = 3 with 4");
    }
}

#[test]
fn nothing_and_nobody_are_fine() {
    for found in
        [StragglerStats::new(3).summary(), summary::<0>(&[[]]), summary(&[[0.0, 0.0], [0.0, 0.0]])]
    {
        assert_eq!((found.mean, found.bound_by_mean, found.over_fastest.answers), (0.0, 0.0, 0));
        assert!(found.over_fastest.stay.is_none() && found.over_fastest.dispersion.is_none());
        assert!(serde_json::to_string(&found).unwrap().len() > 100);
    }
}

#[test]
fn what_was_not_received_is_slow_and_counts_with_the_largest_time() {
    let found = summary(&[[1.0, f64::INFINITY, 1.0, 1.25], [1.0, 1.0, 1.0, 1.0]]);
    assert_eq!((found.rounds, found.not_received, found.slowest_mean), (2, 1, 1.125));
    assert_eq!((found.over_median.answers, found.over_fastest.answers), (1, 1));
    assert_eq!(found.over[2].answers, 0.125);
    near(found.mean, 8.5 / 8.0);
}

#[test]
fn an_answer_at_the_limit_is_in_time() {
    let found = summary(&[[1.0, 1.0, 1.5, 2.0]]);
    assert_eq!(found.over_fastest.answers, 0);
    assert_eq!(found.over_median.answers, 1, "1.5 x 1.25 = 1.875");
}

proptest! {
    #[test]
    fn bursts_hold_all_slow_answers_and_scale_does_not_matter(
        rows in prop::collection::vec(
            prop::array::uniform4(prop::sample::select(vec![1.0, 1.25, 2.0, 4.0])),
            1..30,
        ),
    ) {
        let (found, doubled) = (
            summary(&rows),
            summary(&rows.iter().map(|row| row.map(|d| 2.0 * d)).collect::<Vec<_>>()),
        );
        for (slow, same) in [
            (&found.over_median, &doubled.over_median),
            (&found.over_fastest, &doubled.over_fastest),
        ] {
            prop_assert_eq!(
                slow.bursts.iter().map(|(length, count)| length * count).sum::<u64>(),
                slow.answers
            );
            prop_assert_eq!(slow, same);
        }
        prop_assert!((doubled.slowest_mean - 2.0 * found.slowest_mean).abs() < 1e-9);
        prop_assert!(found.static_share <= 1.0 + 1e-9 && found.bound_by_mean >= 1.0 - 1e-12);
    }
}
