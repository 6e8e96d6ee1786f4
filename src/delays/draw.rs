//! Random draws that are the same on every machine and in every version.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::f64::consts::TAU;

/// Draws from a portable generator. What each method consumes is fixed, so that the stream of a
/// seed never changes.
#[derive(Clone, Debug)]
pub(super) struct Draw(ChaCha8Rng);

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Uniform in [0, 1).
    pub(super) fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.uniform() < probability
    }

    pub(super) fn below(&mut self, count: usize) -> usize {
        ((self.uniform() * count as f64) as usize).min(count.saturating_sub(1))
    }

    /// Exponential with mean 1.
    pub(super) fn exponential(&mut self) -> f64 {
        -(1.0 - self.uniform()).ln()
    }

    /// Standard normal (Box and Muller 1958; one of the pair).
    pub(super) fn normal(&mut self) -> f64 {
        let radius = (2.0 * self.exponential()).sqrt();
        radius * (TAU * self.uniform()).cos()
    }

    /// Gamma with a whole shape and mean 1: the mean of `shape` exponentials.
    pub(super) fn erlang(&mut self, shape: u32) -> f64 {
        (0..shape).map(|_| self.exponential()).sum::<f64>() / f64::from(shape)
    }

    /// Beta, by rejection (Jöhnk 1964): quick where `alpha` is below 1.
    pub(super) fn beta(&mut self, alpha: f64, beta: f64) -> f64 {
        loop {
            let (x, y) = (self.uniform().powf(1.0 / alpha), self.uniform().powf(1.0 / beta));
            if x + y <= 1.0 && x + y > 0.0 {
                return x / (x + y);
            }
        }
    }
}

#[cfg(test)]
mod tests;
