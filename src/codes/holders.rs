//! The sets of stragglers that are the easiest to miss by chance: all holders of a share.

use super::GradientCode;
use crate::ids::Worker;
use rand::seq::index;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;

/// Sets of stragglers without which no worker holds one share, or two.
pub(super) struct HolderSets {
    /// Who holds a share, in ascending order; of shares with the same holders one.
    holders: Vec<Vec<usize>>,
    /// The shares that are tried, by their places in `holders`.
    singles: Vec<usize>,
    /// The pairs of shares that are.
    pairs: Vec<(usize, usize)>,
}

impl HolderSets {
    /// Those of at most `most` workers; where there are more than `sets` shares, or pairs, so many
    /// are drawn.
    pub(super) fn new(
        code: &dyn GradientCode,
        most: usize,
        sets: usize,
        random: &mut ChaCha8Rng,
    ) -> Self {
        let mut holders = vec![Vec::new(); code.facts().shares()];
        for worker in Worker::all(code.facts().workers) {
            for (share, coefficient) in code.row(worker) {
                if *coefficient != 0.0 {
                    holders[share.index()].push(worker.index());
                }
            }
        }
        holders.retain(|held_by| !held_by.is_empty() && held_by.len() <= most);
        let distinct: BTreeSet<Vec<usize>> = holders.into_iter().collect();
        let holders: Vec<Vec<usize>> = distinct.into_iter().collect();
        let count = holders.len();
        let singles = if count <= sets {
            (0..count).collect()
        } else {
            index::sample(random, count, sets).into_vec()
        };
        let mut pairs: Vec<(usize, usize)> = if count * count.saturating_sub(1) / 2 <= sets {
            let with_later = |first| (first + 1..count).map(move |other| (first, other));
            (0..count).flat_map(with_later).collect()
        } else {
            let drawn = (0..sets).map(|_| index::sample(random, count, 2));
            drawn.map(|two| (two.index(0), two.index(1))).collect()
        };
        pairs.retain(|(first, other)| union(&holders[*first], &holders[*other]).len() <= most);
        Self { holders, singles, pairs }
    }

    /// How many sets there are of single shares, and of pairs.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.singles.len(), self.pairs.len())
    }

    /// Every set, of single shares first.
    pub(super) fn iter(&self) -> impl Iterator<Item = Vec<usize>> + '_ {
        let single = |at: &usize| self.holders[*at].clone();
        let both =
            |(first, other): &(usize, usize)| union(&self.holders[*first], &self.holders[*other]);
        self.singles.iter().map(single).chain(self.pairs.iter().map(both))
    }
}

/// The numbers that are in either of two ascending lists.
fn union(one: &[usize], other: &[usize]) -> Vec<usize> {
    let (mut one, mut other) = (one.iter().copied().peekable(), other.iter().copied().peekable());
    std::iter::from_fn(|| {
        let next = match (one.peek(), other.peek()) {
            (Some(x), Some(y)) => *x.min(y),
            (Some(x), None) => *x,
            (None, y) => *y?,
        };
        one.next_if_eq(&next);
        other.next_if_eq(&next);
        Some(next)
    })
    .collect()
}

#[cfg(test)]
mod tests;
