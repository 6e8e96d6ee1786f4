//! A policy that changes the scheme without a reason.

use codedgrad::train::{Policy, SchemeChoice, StepRecord};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Chooses another scheme by a seed, after 1 to 39 steps.
pub(super) struct Whims {
    pub(super) random: ChaCha8Rng,
    pub(super) next: u64,
}

impl Policy for Whims {
    fn decided(&mut self, record: &StepRecord) -> Option<SchemeChoice> {
        if record.step < self.next {
            return None;
        }
        self.next = record.step + self.random.random_range(1..40);
        let schemes = ["uncoded", "groups:s=1", "groups:l=1", "queue:m=1"];
        let text = schemes[self.random.random_range(0..schemes.len())];
        Some(SchemeChoice { scheme: text.parse().ok()?, predicted: None, why: None })
    }
}
