//! What a step is expected to be made of, while it is computed.

use super::plan::without;
use super::store::NotFinite;
use crate::transport::Summand;
use crate::transport::wire::{Owner, Predecessor};
use std::collections::BTreeSet;

/// What a worker says of a sum of which it is not known yet whether the step is made of it.
#[derive(Clone, Debug)]
pub(super) enum Heard {
    Held(Option<u64>),
    NotFinite(NotFinite),
}

/// What is known of a sum while its step is computed: it keeps what is heard of it until the step
/// is known to be made of it.
#[derive(Debug)]
pub(super) struct Expected {
    terms: Vec<Summand>,
    /// Who sums which chunks, as workers were told.
    told: Predecessor,
    pub(super) heard: Vec<(u32, Heard)>,
}

impl Expected {
    /// A step is expected to be made of these terms, by what workers are told.
    pub(super) fn new(terms: Vec<Summand>, told: Predecessor) -> Self {
        Self { terms, told, heard: Vec::new() }
    }

    /// How long a stripe is, and who sums what of it, if those who are there go on with the sum of
    /// these terms: each what it did, and a share of what those did who are lost. None if the sum
    /// is of other terms, or nobody is left.
    pub(super) fn go_on(
        &self,
        terms: &[Summand],
        present: &BTreeSet<u32>,
    ) -> Option<(usize, Vec<Owner>)> {
        let of_these = |(before, now): (&Summand, &Summand)| {
            before.weight == now.weight
                && now.holders.iter().all(|piece| before.holders.contains(piece))
        };
        let as_many = self.terms.len() == terms.len();
        if !as_many || !self.terms.iter().zip(terms).all(of_these) {
            return None;
        }
        let Predecessor { mut stripe, mut owners, .. } = self.told.clone();
        let before: BTreeSet<u32> = owners.iter().map(|owner| owner.node).collect();
        for lost in before.difference(present) {
            (stripe, owners) = without(*lost, &owners, stripe)?;
        }
        Some((stripe, owners))
    }

    /// What workers were told.
    pub(super) fn told(&self) -> &Predecessor {
        &self.told
    }
}
