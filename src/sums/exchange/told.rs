//! What workers were told of a sum, and how others go on with it where some cannot.

use super::plan::without;
use crate::ids::Summand;
use crate::sums::{Owner, Predecessor, SumPlan};
use std::collections::BTreeSet;

/// What workers were told of a sum that they make over connections.
#[derive(Debug)]
pub(super) struct SumAssignment {
    terms: Vec<Summand>,
    plan: Predecessor,
}

impl SumAssignment {
    /// Workers are told of a sum of `count` chunks.
    pub(super) fn of(plan: &SumPlan, count: usize) -> Self {
        // Owners of no stripe are those of one that is the whole vector.
        let (owners, stripe) = (plan.owners.clone(), plan.stripe.unwrap_or(count));
        let before = Predecessor { attempt: plan.sum.attempt, owners, stripe };
        Self { terms: plan.terms.clone(), plan: before }
    }

    /// How long a stripe is, and which worker sums what of it, if the able ones go on with the sum
    /// of these terms. Each sums what it did, and a share of what the others did. None if the sum
    /// is of other terms, or no worker is left.
    pub(super) fn carry_on(
        &self,
        terms: &[Summand],
        able: &BTreeSet<u32>,
    ) -> Option<(usize, Vec<Owner>)> {
        let of_these = |(before, now): (&Summand, &Summand)| {
            before.weight == now.weight
                && now.holders.iter().all(|piece| before.holders.contains(piece))
        };
        let as_many = self.terms.len() == terms.len();
        if !as_many || !self.terms.iter().zip(terms).all(of_these) {
            return None;
        }
        let Predecessor { mut stripe, mut owners, .. } = self.plan.clone();
        let before: BTreeSet<u32> = owners.iter().map(|owner| owner.node).collect();
        for lost in before.difference(able) {
            (stripe, owners) = without(*lost, &owners, stripe)?;
        }
        Some((stripe, owners))
    }

    /// By which attempt the sum is made, and who sums what.
    pub(super) fn plan(&self) -> &Predecessor {
        &self.plan
    }
}
