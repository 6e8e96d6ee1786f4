//! Which few outputs to leave out so that the rest fits best: exhaustive where sets are few, else
//! greedy with exchanges.
//!
//! Locators see inner products of outputs only (`G = Y Y^T`), so they are small and pure; long
//! outputs are first folded with secret signs. Residuals are computed again for the outputs that
//! are kept, since updating them downwards loses every digit beside a large attack. Only where the
//! search is exhaustive is the harm bounded.

use crate::codes::verify::{binomial, next_combination};
use nalgebra::DMatrix;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Sets up to which all are tried.
const SETS_MAX: u64 = 200_000;
/// Starts from random sets where not all are tried.
const RESTARTS: usize = 20;
/// Seed of these starts.
const RESTART_SEED: u64 = 7;
/// Pivots below this part of their diagonal entry make a set that cannot be left out.
const SINGULAR: f64 = 1e-13;

/// Residuals after leaving out a set `E`, from two small matrices.
///
/// # Formula
/// ```text
/// J(E) = tr(W G) - tr( W_EE^-1 C_EE ),  C = W G W
/// ```
/// where `W` is an inverse covariance, or the projection on the parity of a code, and `G` the Gram
/// matrix.
pub(super) struct Trim {
    weight: DMatrix<f64>,
    /// `W G W`
    cross: DMatrix<f64>,
    total: f64,
}

/// Outputs that are left out, beside those that are kept.
pub(super) struct OmittedOutputs {
    /// `J(E)`
    pub(super) residual: f64,
    /// `ln det W_EE`
    pub(super) log_determinant: f64,
    /// `|y_j - E[y_j | kept]|^2` of each.
    pub(super) errors: Vec<f64>,
}

/// A set that grows and shrinks at its end, with the factors that make one more element cheap.
struct Path<'a> {
    trim: &'a Trim,
    chosen: Vec<usize>,
    /// Rows of the Cholesky factor of `W_EE`, `most` numbers each.
    factor: Vec<f64>,
    /// `R^-1 C_EE R^-T`, symmetric.
    whitened: Vec<f64>,
    gains: Vec<f64>,
    most: usize,
    row: Vec<f64>,
    across: Vec<f64>,
}

impl Trim {
    /// For a projection `W` and `C = W G W` made of projected outputs, which keep digits that `G`
    /// has lost.
    pub(super) fn projected(weight: DMatrix<f64>, cross: DMatrix<f64>) -> Self {
        let total = cross.trace();
        Self { weight, cross, total }
    }

    /// For an inverse covariance `W` and a Gram matrix `G`.
    pub(super) fn of_gram(weight: DMatrix<f64>, gram: &DMatrix<f64>) -> Self {
        let half = &weight * gram;
        let total = half.trace();
        Self { cross: half * &weight, weight, total }
    }

    /// Number of outputs.
    pub(super) fn count(&self) -> usize {
        self.weight.nrows()
    }

    /// `J` with no output left out.
    pub(super) fn total(&self) -> f64 {
        self.total
    }

    /// What leaving out a set does; none if it cannot be left out.
    pub(super) fn left_out(&self, set: &[usize]) -> Option<OmittedOutputs> {
        let of = |matrix: &DMatrix<f64>| matrix.select_rows(set).select_columns(set);
        let factor = of(&self.weight).cholesky()?;
        let cross = factor.solve(&of(&self.cross));
        let errors = factor.solve(&cross.transpose()).diagonal().as_slice().to_vec();
        Some(OmittedOutputs {
            residual: self.total - cross.trace(),
            log_determinant: factor.ln_determinant(),
            errors,
        })
    }

    fn path(&self, most: usize) -> Path<'_> {
        let zeros = || vec![0.0; most * most];
        Path {
            trim: self,
            chosen: Vec::with_capacity(most),
            factor: zeros(),
            whitened: zeros(),
            gains: vec![0.0],
            most,
            row: vec![0.0; most],
            across: vec![0.0; most],
        }
    }

    /// `J(E)`; infinite for sets that cannot be left out.
    #[cfg(test)]
    fn residual(&self, set: &[usize]) -> f64 {
        self.total - self.path(set.len().max(1)).along(set)
    }

    /// The set of `size` with the smallest residual: the best of all where they are few, else the
    /// best of greedy growth and random starts, each improved by single exchanges.
    pub(super) fn best(&self, size: usize) -> Vec<usize> {
        if size == 0 {
            return Vec::new();
        }
        if binomial(self.count(), size) <= SETS_MAX {
            return self.exhaustive(size);
        }
        let mut best = self.swapped(self.greedy(size), usize::MAX, f64::NEG_INFINITY);
        let mut rng = ChaCha8Rng::seed_from_u64(RESTART_SEED);
        let gain = |set: &[usize]| self.path(size).along(set);
        for _ in 0..RESTARTS {
            let mut all: Vec<usize> = (0..self.count()).collect();
            for i in 0..size {
                let other = i + (rng.next_u64() % (all.len() - i) as u64) as usize;
                all.swap(i, other);
            }
            all.truncate(size);
            let found = self.swapped(all, usize::MAX, f64::NEG_INFINITY);
            if gain(&found) > gain(&best) {
                best = found;
            }
        }
        best
    }

    fn exhaustive(&self, size: usize) -> Vec<usize> {
        let mut path = self.path(size);
        let (mut best, mut most) = ((0..size).collect::<Vec<_>>(), f64::NEG_INFINITY);
        let mut prefix: Vec<usize> = (0..size - 1).collect();
        loop {
            path.restart(&prefix);
            for last in prefix.last().map_or(0, |last| last + 1)..self.count() {
                let gain = path.gain(last);
                if gain > most {
                    most = gain;
                    best.clear();
                    best.extend(&prefix);
                    best.push(last);
                }
            }
            if prefix.is_empty() || !next_combination(&mut prefix, self.count() - 1) {
                return best;
            }
        }
    }

    fn greedy(&self, size: usize) -> Vec<usize> {
        let mut path = self.path(size);
        for _ in 0..size {
            let mut best: Option<(usize, f64)> = None;
            for candidate in
                (0..self.count()).filter(|i| !path.chosen.contains(i)).collect::<Vec<_>>()
            {
                let gain = path.gain(candidate);
                if best.is_none_or(|(_, most)| gain > most) {
                    best = Some((candidate, gain));
                }
            }
            let Some((next, _)) = best else { break };
            path.push(next);
        }
        path.chosen
    }

    /// Exchanges single elements, the best exchange first, until none helps, `rounds` are over, or
    /// the residual is at most `enough`.
    pub(super) fn swapped(&self, mut set: Vec<usize>, rounds: usize, enough: f64) -> Vec<usize> {
        set.sort_unstable();
        let mut path = self.path(set.len());
        let mut gain = path.along(&set);
        for _ in 0..rounds {
            if self.total - gain <= enough {
                break;
            }
            let mut better: Option<(usize, usize, f64)> = None;
            for out in 0..set.len() {
                let rest: Vec<usize> =
                    set.iter().enumerate().filter(|(i, _)| *i != out).map(|(_, x)| *x).collect();
                path.restart(&rest);
                for candidate in (0..self.count()).filter(|i| !set.contains(i)) {
                    let found = path.gain(candidate);
                    if found > better.map_or(gain, |(.., most)| most) {
                        better = Some((out, candidate, found));
                    }
                }
            }
            let Some((out, candidate, found)) = better.filter(|(.., found)| *found > gain) else {
                break;
            };
            set[out] = candidate;
            set.sort_unstable();
            gain = found;
        }
        set
    }
}

impl Path<'_> {
    /// What leaving out this set takes off the residual.
    fn along(&mut self, set: &[usize]) -> f64 {
        self.restart(set);
        let gain = self.gains[set.len()];
        if gain.is_nan() { f64::NEG_INFINITY } else { gain }
    }

    /// Goes to another set, keeping what both begin with.
    fn restart(&mut self, set: &[usize]) {
        let common = self.chosen.iter().zip(set).take_while(|(a, b)| a == b).count();
        self.chosen.truncate(common);
        self.gains.truncate(common + 1);
        for element in &set[common..] {
            self.push(*element);
        }
    }

    /// What the set with `element` takes off the residual; minus infinity if it cannot be left out.
    fn gain(&mut self, element: usize) -> f64 {
        let size = self.chosen.len();
        self.prepare(element);
        let (row, across) = (&self.row[..size], &self.across[..size]);
        let pivot = self.trim.weight[(element, element)] - row.iter().map(|r| r * r).sum::<f64>();
        if pivot <= SINGULAR * self.trim.weight[(element, element)] {
            return f64::NEG_INFINITY;
        }
        let mut inner = self.trim.cross[(element, element)];
        for (i, r) in row.iter().enumerate() {
            let whitened = &self.whitened[i * self.most..];
            inner +=
                r * (whitened.iter().zip(row).map(|(x, r)| x * r).sum::<f64>() - 2.0 * across[i]);
        }
        self.gains[size] + inner / pivot
    }

    /// `row = R^-1 W_{E,j}` and `across = R^-1 C_{E,j}`.
    fn prepare(&mut self, element: usize) {
        let (weight, cross) = (self.trim.weight.column(element), self.trim.cross.column(element));
        for (i, chosen) in self.chosen.iter().enumerate() {
            let factor = &self.factor[i * self.most..=i * self.most + i];
            let (mut r, mut y) = (weight[*chosen], cross[*chosen]);
            for ((f, row), across) in factor.iter().zip(&self.row[..i]).zip(&self.across[..i]) {
                r -= f * row;
                y -= f * across;
            }
            self.row[i] = r / factor[i];
            self.across[i] = y / factor[i];
        }
    }

    fn push(&mut self, element: usize) {
        let (size, most) = (self.chosen.len(), self.most);
        let gain = self.gain(element);
        let pivot = self.trim.weight[(element, element)]
            - self.row[..size].iter().map(|r| r * r).sum::<f64>();
        let pivot = pivot.max(f64::MIN_POSITIVE).sqrt();
        for i in 0..size {
            let image: f64 = (0..size).map(|j| self.whitened[i * most + j] * self.row[j]).sum();
            let x = (self.across[i] - image) / pivot;
            self.whitened[i * most + size] = x;
            self.whitened[size * most + i] = x;
            self.factor[size * most + i] = self.row[i];
        }
        self.factor[size * most + size] = pivot;
        self.whitened[size * most + size] = gain - self.gains[size];
        self.chosen.push(element);
        self.gains.push(gain);
    }
}

#[cfg(test)]
mod tests;
