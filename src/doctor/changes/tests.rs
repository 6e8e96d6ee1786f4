//! When a worker's speed changes.

#![cfg(test)]

use super::*;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A rise is told of as long as the level before it is not reached again.
#[test]
fn a_rise_lasts_through_smaller_changes() {
    let found = |levels: &[f64]| {
        let series = levels.iter().flat_map(|level| [*level; 45]).collect::<Vec<f64>>();
        let Rise { at, times } = lasting_rise(&series)?;
        Some((at / 45, times))
    };
    assert_eq!(found(&[1.0, 2.0]), Some((1, 2.0)));
    assert_eq!(found(&[1.0, 2.0, 2.5]), Some((1, 2.5)), "it grew a little further");
    assert_eq!(found(&[1.0, 2.0, 1.5]), Some((1, 1.5)), "it is slow still");
    assert_eq!(found(&[1.0, 1.25, 2.5]), Some((2, 2.0)), "the larger one is the later");
    assert_eq!(found(&[1.0, 2.0, 1.0, 1.5]), Some((3, 1.5)), "the first one is over");
    assert_eq!(found(&[1.0, 1.3, 3.0, 1.5]), Some((1, 1.5)), "most of it is over");
    assert_eq!(found(&[1.0, 1.2, 1.45, 1.75, 2.0]), Some((1, 2.0)), "it grew step by step");
    assert_eq!(found(&[1.0, 2.0, 1.0]), None);
    assert_eq!(found(&[2.0, 2.0, 1.0, 2.0]), None, "it was quick for a while");
    assert_eq!(found(&[0.0, 0.0]), None);
    assert_eq!(found(&[2.0, 1.0]), None);
    assert_eq!(found(&[1.0]), None);
}

/// A worker that is four times as late now and then has bursts, and no level that rises.
#[test]
fn bursts_are_no_rise() {
    for seed in 0..40 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let late = |random: &mut ChaCha8Rng| if random.random_bool(0.25) { 4.0 } else { 1.0 };
        let series: Vec<f64> = (0..600).map(|_| late(&mut random)).collect();
        assert_eq!(lasting_rise(&series), None, "seed {seed}");
    }
}

proptest! {
    #[test]
    fn windows_have_the_medians_of_what_they_hold(
        series in prop::collection::vec(
            prop_oneof![4 => 0.0f64..9.0, 1 => Just(3.0), 1 => Just(f64::INFINITY)],
            40..130,
        ),
    ) {
        let mut windows = Windows::default();
        for length in 1..=series.len() {
            windows.slide(&series[..length]);
            for after in AFTER.into_iter().filter(|after| *after <= length) {
                let values = series[length - after..length].to_vec();
                prop_assert_eq!(windows.median(after), median(values));
            }
            if let Some(start) = length.checked_sub(BEFORE_MOST) {
                let level = windows.median(BEFORE_MOST);
                let values = series[start..length].iter();
                let naive = median(values.map(|value| (value - level).abs()).collect());
                prop_assert!(windows.deviation() == naive || !level.is_finite());
            }
        }
    }
}
