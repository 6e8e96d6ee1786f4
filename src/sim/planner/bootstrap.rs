//! How sure a mean over rounds is: a moving-block bootstrap of whole rounds.
//!
//! Rows stay whole, so workers that are slow together stay so; rounds are drawn in runs, so bursts
//! stay bursts (Künsch 1989; the runs go round the end of the trace, Politis and Romano 1992).

use crate::delays::StragglerStats;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::Serialize;

/// How often a trace is drawn again.
pub(super) const RESAMPLES: usize = 200;

/// Rounds of a run: the cube root of their number, twice the bursts that cover 95 % of the slow
/// rounds, and no more than a fifth of the trace.
pub(super) fn run_length(rows: &[Vec<f64>]) -> usize {
    let mut stats = StragglerStats::new(rows.first().map_or(0, Vec::len));
    rows.iter().for_each(|row| stats.push(row));
    let bursts = stats.summary().over_median.bursts;
    let slow: u64 = bursts.iter().map(|(length, count)| length * count).sum();
    let mut seen = 0;
    let long = bursts.iter().find(|(length, count)| {
        seen += *length * *count;
        seen as f64 >= 0.95 * slow as f64
    });
    let usual = (rows.len() as f64).cbrt().ceil() as usize;
    let bursts = long.map_or(0, |(length, _)| 2 * *length as usize);
    usual.max(bursts).min(rows.len() / 5).max(1)
}

/// Rows of [`RESAMPLES`] traces as long as the given one, drawn in runs.
pub(super) fn resamples(rows: usize, run: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut draw = || {
        let mut order = Vec::with_capacity(rows + run);
        while order.len() < rows {
            let start = (random.next_u64() % rows as u64) as usize;
            order.extend((start..start + run).map(|row| row % rows));
        }
        order.truncate(rows);
        order
    };
    (0..RESAMPLES).map(|_| draw()).collect()
}

/// Between what 95 % of the traces drawn again lie.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Bounds {
    /// 95 % of the traces drawn again take at least so long per job.
    pub low: f64,
    /// And at most so long.
    pub high: f64,
    /// The same for the gain, on the same traces: from here.
    pub gain_low: f64,
    /// To here.
    pub gain_high: f64,
}

impl Bounds {
    /// From the times per job on the traces drawn again, and the gains on the same.
    pub(super) fn of(times: Vec<f64>, gains: Vec<f64>) -> Self {
        let ((low, high), (gain_low, gain_high)) = (interval(times), interval(gains));
        Self { low, high, gain_low, gain_high }
    }
}

/// From 2.5 to 97.5 per cent of the values.
fn interval(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_unstable_by(f64::total_cmp);
    (super::super::percentile(&values, 0.025), super::super::percentile(&values, 0.975))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delays::Preset;

    #[test]
    fn runs_are_as_long_as_bursts() {
        let rows = |preset: Preset| {
            preset
                .rows(8, 200, 3)
                .into_iter()
                .map(|row| row.iter().map(|d| 1.0 + d).collect())
                .collect::<Vec<_>>()
        };
        assert_eq!(run_length(&rows(Preset::Calm)), 6);
        assert!(
            (10..=24).contains(&run_length(&rows(Preset::Bursts))),
            "{}",
            run_length(&rows(Preset::Bursts))
        );
        assert_eq!(run_length(&rows(Preset::Static)), 40, "a fifth of the trace");
        assert_eq!(run_length(&[vec![1.0]]), 1);
    }

    #[test]
    fn resamples_are_runs_of_the_trace() {
        let drawn = resamples(10, 4, 1);
        assert_eq!((drawn.len(), drawn[0].len()), (RESAMPLES, 10));
        for order in &drawn {
            assert!(
                order
                    .windows(2)
                    .enumerate()
                    .all(|(at, pair)| at % 4 == 3 || pair[1] == (pair[0] + 1) % 10),
                "{order:?}"
            );
        }
        assert_ne!(drawn[0], drawn[1]);
        assert_eq!(drawn, resamples(10, 4, 1));
    }

    /// The mean of 400 independent exponentials has a deviation of 1/20.
    #[test]
    fn intervals_are_as_wide_as_theory_says() {
        let rows = Preset::Proportional.rows(1, 400, 1);
        let order = resamples(400, 8, 2);
        let mean = |order: &Vec<usize>| order.iter().map(|row| rows[*row][0]).sum::<f64>() / 400.0;
        let (low, high) = interval(order.iter().map(mean).collect());
        // A gamma law of shape 3 and mean 0.317 deviates by 0.183.
        let expected = 2.0 * 1.96 * 0.317 / 3f64.sqrt() / 20.0;
        assert!(((high - low) / expected - 1.0).abs() < 0.3, "{} {expected}", high - low);
    }
}
