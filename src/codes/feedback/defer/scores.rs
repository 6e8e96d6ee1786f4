//! Who is likely to be fast.

use crate::ids::Worker;

/// Weight of the past in a worker's score.
const MEMORY: f64 = 0.7;
/// Score of a round that a worker did not finish in time.
const LATE: f64 = 2.0;

/// How late every worker was, the last rounds most: the lower the faster.
pub(super) struct Scores {
    scores: Vec<f64>,
    /// Scores and workers, for ranking.
    ranked: Vec<u128>,
}

impl Scores {
    pub(super) fn new(workers: usize) -> Self {
        Self { scores: vec![0.0; workers], ranked: Vec::new() }
    }

    /// A worker finished at this part of a round, or not in time.
    pub(super) fn observe(&mut self, worker: Worker, ratio: Option<f64>) {
        let score = &mut self.scores[worker.index()];
        *score = MEMORY * *score + (1.0 - MEMORY) * ratio.unwrap_or(LATE);
    }

    /// The `first` workers with the lowest scores, lowest first, ties by number. Scores are not
    /// negative, so their bits are ordered as they are.
    pub(super) fn best(&mut self, first: usize) -> impl Iterator<Item = Worker> + use<'_> {
        let ranked = &mut self.ranked;
        ranked.clear();
        let bits = self.scores.iter().zip(0..);
        ranked.extend(bits.map(|(score, worker)| u128::from(score.to_bits()) << 32 | worker));
        let first = first.min(ranked.len());
        if first > ranked.len() / 2 {
            ranked.sort_unstable();
        } else if first > 0 {
            ranked.select_nth_unstable(first - 1).0.sort_unstable();
        }
        ranked[..first].iter().map(|ranked| Worker(*ranked as u32))
    }
}
