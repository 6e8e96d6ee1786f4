//! AdamW over one flat parameter vector, the same on every replica.

use crate::gpu::{Rates, step as take_step};
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;
use xxhash_rust::xxh3::Xxh3;

/// Elements updated and digested while they are in cache.
const BLOCK: usize = 1 << 14;

/// Settings of [`AdamW`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamWConfig {
    /// Largest learning rate.
    pub learning_rate: f64,
    /// Steps over which it rises linearly from 0.
    pub warmup_steps: u64,
    /// Step at which it has fallen to a tenth, along a cosine.
    pub decay_steps: u64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the square root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Gradients of a larger global norm are scaled down to it.
    pub clip_norm: f64,
}

impl AdamWConfig {
    fn learning_rate_at(&self, step: u64) -> f64 {
        let Self { learning_rate, warmup_steps, decay_steps, .. } = *self;
        if step < warmup_steps {
            return learning_rate * (step + 1) as f64 / warmup_steps as f64;
        }
        let span = decay_steps.saturating_sub(warmup_steps).max(1) as f64;
        let progress = ((step - warmup_steps) as f64 / span).min(1.0);
        learning_rate * (0.1 + 0.45 * (1.0 + (PI * progress).cos()))
    }

    /// What the numbers of a step, counted from 0, are multiplied by, for a gradient of the given
    /// norm.
    pub(crate) fn rates(&self, step: u64, norm: f64) -> Rates {
        let Self { beta1, beta2, epsilon, weight_decay, clip_norm, .. } = *self;
        let rate = self.learning_rate_at(step);
        let exponent = (step + 1).min(i32::MAX as u64) as i32;
        Rates {
            betas: [beta1 as f32, beta2 as f32],
            scale: (clip_norm / norm.max(f64::MIN_POSITIVE)).min(1.0) as f32,
            first_scale: (rate / (1.0 - beta1.powi(exponent))) as f32,
            second_scale: (1.0 / (1.0 - beta2.powi(exponent))) as f32,
            keep: (1.0 - rate * weight_decay) as f32,
            epsilon: epsilon as f32,
        }
    }
}

/// Decoupled weight decay Adam with its whole state open, so that it can be saved and handed over.
///
/// # Formula
/// ```text
/// g' = g min(1, clip / |g|)     m = b1 m + (1-b1) g'     v = b2 v + (1-b2) g'^2
/// p -= lr ( (m / (1-b1^t)) / ( sqrt(v / (1-b2^t)) + eps ) + decay p )
/// ```
/// where `t` counts steps from 1. Source: Loshchilov, Hutter, ICLR 2019, Algorithm 2.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    config: AdamWConfig,
    first: Vec<f32>,
    second: Vec<f32>,
}

impl AdamW {
    /// Zero moments for `length` parameters.
    #[must_use]
    pub fn new(config: AdamWConfig, length: usize) -> Self {
        Self { config, first: vec![0.0; length], second: vec![0.0; length] }
    }

    /// Moments taken over from elsewhere.
    ///
    /// # Panics
    /// When they differ in length.
    #[must_use]
    pub fn with_moments(config: AdamWConfig, first: Vec<f32>, second: Vec<f32>) -> Self {
        assert_eq!(first.len(), second.len(), "one first and one second moment per parameter");
        Self { config, first, second }
    }

    /// First and second moments.
    #[must_use]
    pub fn moments(&self) -> (&[f32], &[f32]) {
        (&self.first, &self.second)
    }

    /// Learning rate of a step, counted from 0.
    #[must_use]
    pub fn learning_rate(&self, step: u64) -> f64 {
        self.config.learning_rate_at(step)
    }

    /// Applies one gradient and returns a digest of the parameters after it.
    ///
    /// # Panics
    /// When parameters, gradient and moments differ in length.
    pub fn update(&mut self, parameters: &mut [f32], gradient: &[f32], step: u64) -> u64 {
        assert!(
            parameters.len() == gradient.len() && gradient.len() == self.first.len(),
            "one number per parameter"
        );
        let rates = self.config.rates(step, norm(gradient));
        let mut digest = Xxh3::new();
        let moments = self.first.chunks_mut(BLOCK).zip(self.second.chunks_mut(BLOCK));
        for ((parameters, gradient), (first, second)) in
            parameters.chunks_mut(BLOCK).zip(gradient.chunks(BLOCK)).zip(moments)
        {
            take_step([&mut *parameters, first, second], gradient, rates);
            digest.update(bytemuck::cast_slice(parameters));
        }
        digest.digest()
    }
}

/// Euclidean norm, summed in f64 in a fixed order.
fn norm(x: &[f32]) -> f64 {
    let mut lanes = [0.0f64; 8];
    for block in x.chunks(8) {
        for (lane, x) in lanes.iter_mut().zip(block) {
            *lane += f64::from(*x) * f64::from(*x);
        }
    }
    lanes.iter().sum::<f64>().sqrt()
}

#[cfg(test)]
pub(super) const CONFIG: AdamWConfig = AdamWConfig {
    learning_rate: 0.1,
    warmup_steps: 2,
    decay_steps: 10,
    beta1: 0.9,
    beta2: 0.99,
    epsilon: 1e-8,
    weight_decay: 0.1,
    clip_norm: 1.0,
};

#[cfg(test)]
mod tests;
