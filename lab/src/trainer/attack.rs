//! Workers that return wrong results on purpose.

use codedgrad::ids::Worker;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use serde::{Deserialize, Serialize};

/// How often the sign flip is as large as the truth, and noise as large as the message's rms.
const SIZE: f32 = 10.0;

/// What a wrong worker sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttackKind {
    /// Its message times -10.
    Flip,
    /// Zeros.
    Zeros,
    /// Its message and independent normal noise of 10 times its rms.
    Gauss,
}

/// Workers that return wrong results in every step.
#[derive(Clone, Debug, PartialEq)]
pub struct Attack {
    /// What they send.
    pub kind: AttackKind,
    /// Who they are.
    pub workers: Vec<Worker>,
    /// Seed of the noise.
    pub seed: u64,
}

impl Attack {
    /// Alters the message of a worker for a batch, if it is one of them.
    ///
    /// ```
    /// use codedgrad::ids::Worker;
    /// use codedgrad_lab::trainer::{Attack, AttackKind};
    /// let attack = Attack { kind: AttackKind::Flip, workers: vec![Worker(3)], seed: 0 };
    /// let mut message = [1.0, -2.0];
    /// attack.alter(Worker(0), 0, &mut message);
    /// attack.alter(Worker(3), 0, &mut message);
    /// assert_eq!(message, [-10.0, 20.0]);
    /// ```
    pub fn alter(&self, worker: Worker, batch: u64, message: &mut [f32]) {
        if !self.workers.contains(&worker) {
            return;
        }
        match self.kind {
            AttackKind::Flip => message.iter_mut().for_each(|x| *x *= -SIZE),
            AttackKind::Zeros => message.fill(0.0),
            AttackKind::Gauss => {
                let squares: f64 = message.iter().map(|x| f64::from(*x).powi(2)).sum();
                let rms = (squares / message.len().max(1) as f64).sqrt() as f32;
                let mut rng = ChaCha8Rng::seed_from_u64(
                    self.seed
                        ^ batch.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                        ^ u64::from(worker.0) << 48,
                );
                message.iter_mut().for_each(|x| {
                    let noise: f32 = StandardNormal.sample(&mut rng);
                    *x += SIZE * rms * noise;
                });
            }
        }
    }
}
