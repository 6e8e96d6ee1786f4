//! How workers straggle, measured in one pass over their delays.

use super::quantile::Quantiles;
use super::trace::at_least;
use super::windows::{WindowSummary, Windows};
use serde::Serialize;
use std::collections::BTreeMap;

/// Multiples of a round's median that are counted.
const FACTORS: [f64; 3] = [1.2, 1.5, 2.0];

/// When an answer is slow.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Slow {
    /// Later than so many times the median of its round.
    OverMedian(f64),
    /// Later than so many times the fastest of its round; 2 is the rule `mu = 1` of sequential
    /// codes.
    OverFastest(f64),
}

impl Slow {
    /// The time up to which answers of a round are in time; `sorted` holds the round's, fastest
    /// first.
    fn limit(self, sorted: &[f64]) -> f64 {
        match self {
            Self::OverMedian(factor) => factor * middle(sorted),
            Self::OverFastest(factor) => factor * sorted.first().copied().unwrap_or(0.0),
        }
    }
}

/// Share of the rounds and answers that are late by more than a multiple of the round's median.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OverShare {
    /// The multiple.
    pub factor: f64,
    /// Share of the rounds in which a worker is.
    pub rounds: f64,
    /// Share of all answers that are.
    pub answers: f64,
}

/// Slow answers by one rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SlowSummary {
    /// Slow answers.
    pub answers: u64,
    /// Their share of all answers.
    pub share: f64,
    /// Slow answers of a round: on average.
    pub per_round_mean: f64,
    /// The fewest in a round.
    pub per_round_least: u64,
    /// The most in a round.
    pub per_round_most: u64,
    /// Workers that are ever slow.
    pub workers_ever: usize,
    /// Share of its rounds in which the worst worker is slow.
    pub worst_worker: f64,
    /// Runs of rounds in which a worker is slow, by their length; those cut off by an end of the
    /// trace count with what is seen of them.
    pub bursts: BTreeMap<u64, u64>,
    /// Probability that a slow worker is slow in the next round; null if no worker is slow before
    /// the last.
    pub stay: Option<f64>,
    /// Probability that a worker that is not slow is so in the next round. Rounds and workers that
    /// are alike would have `stay` = `enter`.
    pub enter: Option<f64>,
    /// Variance of the number of slow answers in a round over the mean.
    pub variance_over_mean: Option<f64>,
    /// That variance over the binomial's, `n p (1 - p)`: 1 where answers are slow independently of
    /// one another, more where they are slow together.
    pub dispersion: Option<f64>,
    /// How well the bursty straggler models hold.
    pub windows: Vec<WindowSummary>,
}

/// What a trace comes to. Times are in the unit of what was pushed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StragglerSummary {
    /// Rounds seen.
    pub rounds: u64,
    /// Workers in each.
    pub workers: usize,
    /// Answers that were not received: they count as slow, with the round's largest time.
    pub not_received: u64,
    /// Mean of all answers.
    pub mean: f64,
    /// Median of all answers, within 0.1 %.
    pub median: f64,
    /// Fastest answer of a round, on average.
    pub fastest_mean: f64,
    /// Median of a round, on average.
    pub round_median_mean: f64,
    /// Slowest answer of a round, on average: what a round takes that waits for all workers.
    pub slowest_mean: f64,
    /// Deviation of a round's answers over their mean, on average.
    pub variation_within_round: f64,
    /// Who is over multiples of the median.
    pub over: Vec<OverShare>,
    /// Variance of the workers' means over the variance of all answers: 0 where workers are alike,
    /// 1 where each always takes the same time. Chance alone gives about one over the number of
    /// rounds.
    pub static_share: f64,
    /// `slowest_mean / mean`: what rounds would gain if each took its workers' mean time, as if all
    /// of an answer's time were work and could be shared out again. No scheme that loses no work
    /// gains more.
    pub bound_by_mean: f64,
    /// `slowest_mean / round_median_mean`: what rounds would gain if half of the workers were never
    /// waited for, at no cost in work. Codes that wait for more than half of the workers gain less.
    pub bound_by_median: f64,
    /// Slow by 1.5 times the median.
    pub over_median: SlowSummary,
    /// Slow by twice the fastest (`mu = 1`).
    pub over_fastest: SlowSummary,
}

/// Measures how workers straggle, one round after the other; it keeps a few numbers per worker.
///
/// # Formula
/// ```text
/// static share = var_i(mean_r d_ir) / var_ir(d_ir)
/// dispersion   = var_r(K_r) / (n p (1 - p)),   p = mean_r(K_r) / n
/// ```
/// where `d_ir` is the answer of worker `i` in round `r`, `K_r` the number of slow ones of `n`, and
/// all variances are those of the whole population.
///
/// ```
/// use codedgrad::delays::StragglerStats;
/// let mut stats = StragglerStats::new(4);
/// for row in [[1.0, 1.0, 1.0, 4.0], [1.0, 1.0, 1.0, 4.0], [1.0, 1.0, 1.0, 1.0]] {
///     stats.push(&row);
/// }
/// let found = stats.summary();
/// assert_eq!((found.slowest_mean, found.round_median_mean, found.median), (3.0, 1.0, 1.0));
/// assert_eq!(found.over_median.bursts.into_iter().collect::<Vec<_>>(), [(2, 1)]);
/// assert_eq!((found.over_median.stay, found.over_median.enter), (Some(0.5), Some(0.0)));
/// ```
#[derive(Clone, Debug)]
pub struct StragglerStats {
    rounds: u64,
    not_received: u64,
    all: Spread,
    answers: Quantiles,
    worker_sums: Vec<f64>,
    fastest: f64,
    medians: f64,
    slowest: f64,
    variations: f64,
    over_rounds: [u64; FACTORS.len()],
    over_answers: [u64; FACTORS.len()],
    over_median: Tally,
    over_fastest: Tally,
    sorted: Vec<f64>,
}

impl StragglerStats {
    /// Nothing measured yet of so many workers.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self {
            rounds: 0,
            not_received: 0,
            all: Spread::default(),
            answers: Quantiles::default(),
            worker_sums: vec![0.0; workers],
            fastest: 0.0,
            medians: 0.0,
            slowest: 0.0,
            variations: 0.0,
            over_rounds: [0; FACTORS.len()],
            over_answers: [0; FACTORS.len()],
            over_median: Tally::new(Slow::OverMedian(1.5), workers),
            over_fastest: Tally::new(Slow::OverFastest(2.0), workers),
            sorted: Vec::with_capacity(workers),
        }
    }

    /// Takes in the answer times of one round, numbers of 0 or more. An answer that was not
    /// received, which is infinite, is slow, and counts with the round's largest time.
    ///
    /// # Panics
    /// If the row has not one number per worker.
    pub fn push(&mut self, row: &[f64]) {
        assert_eq!(row.len(), self.worker_sums.len(), "one number per worker");
        let (Some(_), mut round) = (row.first(), Spread::default()) else { return };
        self.sorted.clear();
        self.sorted.extend_from_slice(row);
        let Some(not_received) = at_least(&mut self.sorted) else { return };
        self.rounds += 1;
        self.not_received += not_received as u64;
        for (delay, sum) in self.sorted.iter().zip(&mut self.worker_sums) {
            self.all.push(*delay);
            round.push(*delay);
            self.answers.push(*delay);
            *sum += delay;
        }
        self.sorted.sort_by(f64::total_cmp);
        let median = middle(&self.sorted);
        self.fastest += self.sorted[0];
        self.medians += median;
        self.slowest += self.sorted[row.len() - 1];
        self.variations += ratio(round.variance().sqrt(), round.mean);
        for (at, factor) in FACTORS.iter().enumerate() {
            let within = |delay: &f64| *delay <= factor * median;
            // One that was not received stands at the end of those that were.
            let over = (row.len() - self.sorted.partition_point(within)).max(not_received);
            self.over_answers[at] += over as u64;
            self.over_rounds[at] += u64::from(over > 0);
        }
        self.over_median.push(row, &self.sorted);
        self.over_fastest.push(row, &self.sorted);
    }

    /// What there is to say about all rounds so far; zeros if there were none.
    #[must_use]
    pub fn summary(&self) -> StragglerSummary {
        let rounds = self.rounds as f64;
        let mut means = Spread::default();
        self.worker_sums.iter().for_each(|sum| means.push(ratio(*sum, rounds)));
        let over = |(at, factor): (usize, &f64)| OverShare {
            factor: *factor,
            rounds: ratio(self.over_rounds[at] as f64, rounds),
            answers: ratio(self.over_answers[at] as f64, self.all.count),
        };
        StragglerSummary {
            rounds: self.rounds,
            workers: self.worker_sums.len(),
            not_received: self.not_received,
            mean: self.all.mean,
            median: self.answers.median(),
            fastest_mean: ratio(self.fastest, rounds),
            round_median_mean: ratio(self.medians, rounds),
            slowest_mean: ratio(self.slowest, rounds),
            variation_within_round: ratio(self.variations, rounds),
            over: FACTORS.iter().enumerate().map(over).collect(),
            static_share: ratio(means.variance(), self.all.variance()),
            bound_by_mean: ratio(self.slowest, rounds * self.all.mean),
            bound_by_median: ratio(self.slowest, self.medians),
            over_median: self.over_median.summary(self.rounds),
            over_fastest: self.over_fastest.summary(self.rounds),
        }
    }
}

/// Counts of slow answers by one rule.
#[derive(Clone, Debug)]
struct Tally {
    rule: Slow,
    slow: Vec<bool>,
    /// Rounds each worker has been slow for now, and in all.
    running: Vec<u64>,
    totals: Vec<u64>,
    /// Bursts that are over.
    bursts: BTreeMap<u64, u64>,
    per_round: Spread,
    least: u64,
    most: u64,
    stayed: u64,
    entered: u64,
    /// Slow answers before the last round.
    earlier: u64,
    windows: Windows,
}

impl Tally {
    fn new(rule: Slow, workers: usize) -> Self {
        Self {
            rule,
            slow: vec![false; workers],
            running: vec![0; workers],
            totals: vec![0; workers],
            bursts: BTreeMap::new(),
            per_round: Spread::default(),
            least: u64::MAX,
            most: 0,
            stayed: 0,
            entered: 0,
            earlier: 0,
            windows: Windows::new(workers),
        }
    }

    fn push(&mut self, row: &[f64], sorted: &[f64]) {
        let limit = self.rule.limit(sorted);
        let first = self.per_round.count == 0.0;
        let mut count = 0;
        for (worker, delay) in row.iter().enumerate() {
            let (slow, running) = (*delay > limit, &mut self.running[worker]);
            self.earlier += u64::from(*running > 0);
            if slow {
                count += 1;
                self.stayed += u64::from(*running > 0);
                self.entered += u64::from(*running == 0 && !first);
                *running += 1;
                self.totals[worker] += 1;
            } else if *running > 0 {
                *self.bursts.entry(*running).or_insert(0) += 1;
                *running = 0;
            }
            self.slow[worker] = slow;
        }
        self.per_round.push(count as f64);
        (self.least, self.most) = (self.least.min(count), self.most.max(count));
        self.windows.push(&self.slow);
    }

    fn summary(&self, rounds: u64) -> SlowSummary {
        let mut bursts = self.bursts.clone();
        for running in self.running.iter().filter(|running| **running > 0) {
            *bursts.entry(*running).or_insert(0) += 1;
        }
        let workers = self.slow.len() as f64;
        let answers: u64 = self.totals.iter().sum();
        let Spread { mean, .. } = self.per_round;
        let variance = self.per_round.variance();
        let some = |part: f64, whole: f64| (whole > 0.0).then(|| part / whole);
        let healthy = rounds.saturating_sub(1) as f64 * workers - self.earlier as f64;
        SlowSummary {
            answers,
            share: ratio(mean, workers),
            per_round_mean: mean,
            per_round_least: if rounds == 0 { 0 } else { self.least },
            per_round_most: self.most,
            workers_ever: self.totals.iter().filter(|total| **total > 0).count(),
            worst_worker: ratio(
                self.totals.iter().copied().max().unwrap_or(0) as f64,
                rounds as f64,
            ),
            bursts,
            stay: some(self.stayed as f64, self.earlier as f64),
            enter: some(self.entered as f64, healthy),
            variance_over_mean: some(variance, mean),
            dispersion: some(variance, mean * (1.0 - ratio(mean, workers))),
            windows: self.windows.summaries(),
        }
    }
}

/// Mean and variance of a stream (Welford 1962).
#[derive(Clone, Copy, Debug, Default)]
struct Spread {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Spread {
    fn push(&mut self, value: f64) {
        self.count += 1.0;
        let before = value - self.mean;
        self.mean += before / self.count;
        self.squares += before * (value - self.mean);
    }

    /// Of the population: divided by the count.
    fn variance(&self) -> f64 {
        ratio(self.squares, self.count)
    }
}

/// The middle of sorted numbers, or of the two in the middle; 0 if there are none.
fn middle(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        count => f64::midpoint(sorted[(count - 1) / 2], sorted[count / 2]),
    }
}

/// A quotient; 0 where there is nothing to divide by.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests;
