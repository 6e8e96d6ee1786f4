//! Named delay models, seeded and reproducible.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Lateness of a slow worker, in uncoded step times, where a preset has only one kind of slowness.
const SLOW_STEPS: f64 = 3.0;

/// A delay model by name.
///
/// ```
/// use codedgrad::delays::Preset;
/// let rows = Preset::Hotspot.rows(8, 50, 7);
/// assert!(rows.iter().all(|row| row.iter().filter(|d| **d > 1.0).count() == 1));
/// assert_eq!(rows, Preset::Hotspot.rows(8, 50, 7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// One worker at a time is late by 3 step times; the slowness stays with it for 2.5 steps on
    /// average, then moves on. Burst length as measured on the shared GPU jobs of Alibaba PAI 2020
    /// (cluster-trace-gpu-v2020, jobs 1 to 3: mean 2.3 to 3.3 steps).
    Hotspot,
    /// Every worker by itself falls into slow spells (Gilbert-Elliott): it enters one with probability
    /// 0.03 per step and stays with probability 0.6, late by 3 step times.
    Bursts,
    /// Every answer by itself is late by 3 step times with probability 0.08, the share of slow answers
    /// of the serverless recordings of Krishnan, Ebrahimi, Khisti, ICLR 2023.
    Iid,
    /// The last worker is always 1.35 step times late: the artificially slowed worker of job AR in
    /// ByteDance's straggler traces (OSDI 2025), 2.35 times slower than the others.
    Static,
    /// Nobody is late; answers jitter by 0.4 % of a step, as the healthy workers of that job do.
    Calm,
}

impl Preset {
    const ALL: [Self; 5] = [Self::Hotspot, Self::Bursts, Self::Iid, Self::Static, Self::Calm];

    /// The names of all presets.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        Self::ALL.into_iter().map(Self::name).collect()
    }

    /// The preset of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hotspot => "hotspot",
            Self::Bursts => "bursts",
            Self::Iid => "iid",
            Self::Static => "static",
            Self::Calm => "calm",
        }
    }

    /// What it does, in a few words.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::Hotspot => "one worker at a time is 3 step times late, for 2.5 steps on average",
            Self::Bursts => "each worker falls into slow spells of 2.5 steps, 3 step times late",
            Self::Iid => "each answer is 3 step times late with probability 0.08",
            Self::Static => "the last worker is always 1.35 step times late",
            Self::Calm => "nobody is late",
        }
    }

    /// The first `rounds` rows of delays for `workers` workers, in uncoded step times.
    #[must_use]
    pub fn rows(self, workers: usize, rounds: usize, seed: u64) -> Vec<Vec<f64>> {
        let mut draw = Draw(ChaCha8Rng::seed_from_u64(seed));
        let mut slow = vec![false; workers];
        let mut hot = draw.below(workers);
        (0..rounds)
            .map(|_| {
                match self {
                    Self::Hotspot => {
                        slow.fill(false);
                        slow[hot] = true;
                        if draw.chance(0.4) && workers > 1 {
                            hot = (hot + 1 + draw.below(workers - 1)) % workers;
                        }
                    }
                    Self::Bursts => slow.iter_mut().for_each(|slow| *slow = draw.chance(if *slow { 0.6 } else { 0.03 })),
                    Self::Iid => slow.iter_mut().for_each(|slow| *slow = draw.chance(0.08)),
                    Self::Static | Self::Calm => {}
                }
                let late = |i: usize| match self {
                    Self::Static if i + 1 == workers => 1.35,
                    Self::Calm | Self::Static => 0.0,
                    _ => f64::from(u8::from(slow[i])) * SLOW_STEPS,
                };
                (0..workers).map(|i| late(i) + 0.004 * draw.exponential()).collect()
            })
            .collect()
    }
}

/// Draws from a portable generator.
struct Draw(ChaCha8Rng);

impl Draw {
    /// Uniform in [0, 1).
    fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.uniform() < probability
    }

    fn below(&mut self, count: usize) -> usize {
        ((self.uniform() * count as f64) as usize).min(count.saturating_sub(1))
    }

    /// Exponential with mean 1.
    fn exponential(&mut self) -> f64 {
        -(1.0 - self.uniform()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow_share(preset: Preset) -> f64 {
        let rows = preset.rows(8, 4000, 11);
        rows.iter().flatten().filter(|d| **d > 1.0).count() as f64 / 32_000.0
    }

    #[test]
    fn presets_do_what_they_say() {
        assert!((slow_share(Preset::Hotspot) - 1.0 / 8.0).abs() < 1e-12);
        assert!((slow_share(Preset::Iid) - 0.08).abs() < 0.01);
        assert!((slow_share(Preset::Bursts) - 0.03 / 0.43).abs() < 0.01);
        assert!((slow_share(Preset::Static) - 1.0 / 8.0).abs() < 1e-12);
        assert_eq!(slow_share(Preset::Calm), 0.0);
    }

    #[test]
    fn bursts_last_as_long_as_stated() {
        for preset in [Preset::Hotspot, Preset::Bursts] {
            let rows = preset.rows(8, 4000, 5);
            let slow = |r: usize, i: usize| rows[r][i] > 1.0;
            let starts = (1..4000).flat_map(|r| (0..8).map(move |i| (r, i))).filter(|&(r, i)| slow(r, i) && !slow(r - 1, i)).count();
            let total = rows.iter().flatten().filter(|d| **d > 1.0).count();
            assert!((total as f64 / starts as f64 - 2.5).abs() < 0.25, "{preset:?}");
        }
    }

    #[test]
    fn rows_are_pinned_and_do_not_depend_on_the_horizon() {
        let long = Preset::Hotspot.rows(8, 30, 1);
        assert_eq!(Preset::Hotspot.rows(8, 10, 1)[..], long[..10]);
        assert_ne!(Preset::Hotspot.rows(8, 30, 2), long);
        let hot: Vec<usize> = long.iter().take(12).map(|row| row.iter().position(|d| *d > 1.0).unwrap()).collect();
        assert_eq!(hot, PINNED_HOT_SPOTS, "the stream of a seed must never change");
        assert_eq!(Preset::Hotspot.rows(1, 3, 1).len(), 3);
    }

    const PINNED_HOT_SPOTS: [usize; 12] = [3, 0, 0, 4, 4, 4, 6, 6, 1, 0, 7, 7];
}
