//! Which bursty straggler models a trace keeps to.

use serde::Serialize;

/// Longest window looked at.
pub(super) const WINDOW_MAX: usize = 8;
/// Longest burst looked at.
const BURST_MAX: usize = 3;

/// How well a trace keeps to the `(B, W, lambda)` straggler model: in every window of `W` rounds at
/// most `lambda` different workers straggle, and the first and the last time any of them does are
/// at most `B - 1` rounds apart (Krishnan, Ebrahimi and Khisti, ICLR 2023). Only windows of full
/// length count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WindowSummary {
    /// `B`, rounds that a worker may straggle over.
    pub burst: usize,
    /// `W`, rounds of a window.
    pub window: usize,
    /// Windows there are.
    pub windows: u64,
    /// Different stragglers of a window, on average.
    pub stragglers_mean: f64,
    /// The smallest `lambda` that 95 % of the windows keep to.
    pub lambda_95: usize,
    /// The smallest `lambda` that all windows keep to.
    pub lambda_all: usize,
    /// Share of the windows in which no worker's straggling spreads over more than `B` rounds.
    pub temporal_share: f64,
}

/// Counts over all windows of one length.
#[derive(Clone, Debug)]
struct Counts {
    /// Windows by their number of different stragglers.
    by_stragglers: Vec<u64>,
    /// Windows by the widest span of one worker's straggling, 0 where no worker straggles.
    by_span: [u64; WINDOW_MAX + 1],
}

/// Follows windows of all lengths at once, round by round.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    /// Of each worker, the last rounds in which it straggled: bit 0 is the latest.
    history: Vec<u8>,
    rounds: u64,
    /// For windows of 2 rounds and up.
    counts: Vec<Counts>,
}

impl Windows {
    pub(super) fn new(workers: usize) -> Self {
        let counts = Counts { by_stragglers: vec![0; workers + 1], by_span: [0; WINDOW_MAX + 1] };
        Self { history: vec![0; workers], rounds: 0, counts: vec![counts; WINDOW_MAX - 1] }
    }

    pub(super) fn push(&mut self, slow: &[bool]) {
        self.rounds += 1;
        for (history, slow) in self.history.iter_mut().zip(slow) {
            *history = *history << 1 | u8::from(*slow);
        }
        for (counts, window) in
            self.counts.iter_mut().zip(2..).filter(|(_, window)| *window <= self.rounds)
        {
            let (mut stragglers, mut widest) = (0, 0);
            for history in &self.history {
                let seen = history & (u8::MAX >> (WINDOW_MAX as u64 - window));
                if seen != 0 {
                    stragglers += 1;
                    widest = widest.max(u8::BITS - seen.leading_zeros() - seen.trailing_zeros());
                }
            }
            counts.by_stragglers[stragglers] += 1;
            counts.by_span[widest as usize] += 1;
        }
    }

    /// All models with `B` up to 3 and `W` from `B + 1` to 8 for which there are windows.
    pub(super) fn summaries(&self) -> Vec<WindowSummary> {
        let pairs = (1..=BURST_MAX)
            .flat_map(|burst| (burst + 1..=WINDOW_MAX).map(move |window| (burst, window)));
        pairs.filter_map(|(burst, window)| self.counts[window - 2].summary(burst, window)).collect()
    }
}

impl Counts {
    fn summary(&self, burst: usize, window: usize) -> Option<WindowSummary> {
        let windows: u64 = self.by_stragglers.iter().sum();
        let kept = |share: f64| {
            let needed = (share * windows as f64).ceil() as u64;
            let mut within = 0;
            self.by_stragglers.iter().position(|count| {
                within += count;
                within >= needed
            })
        };
        let stragglers: u64 =
            self.by_stragglers.iter().zip(0..).map(|(count, stragglers)| count * stragglers).sum();
        let temporal: u64 = self.by_span[..=burst].iter().sum();
        (windows > 0).then(|| WindowSummary {
            burst,
            window,
            windows,
            stragglers_mean: stragglers as f64 / windows as f64,
            lambda_95: kept(0.95).unwrap_or(0),
            lambda_all: kept(1.0).unwrap_or(0),
            temporal_share: temporal as f64 / windows as f64,
        })
    }
}

#[cfg(test)]
mod tests;
