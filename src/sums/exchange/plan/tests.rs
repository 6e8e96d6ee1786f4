//! The others sum what a lost owner would have, and more.

#![cfg(test)]

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

proptest! {
    /// All keep what they have, and the chunks of who is lost are shared evenly.
    #[test]
    fn the_others_sum_what_a_lost_owner_would_have(
        shares in prop::collection::vec(1usize..4, 2..12),
        stripes in 1usize..6,
        lost in 0usize..12,
    ) {
        let lost = (lost % shares.len()) as u32;
        let mut owners = Vec::new();
        let mut stripe = 0;
        for (node, share) in (0..).zip(&shares) {
            owners.push(Owner { node, start: stripe, end: stripe + share });
            stripe += share;
        }
        let heirs = shares.len() - 1;
        let joined = heirs.min(STRIPES_JOINED);
        let count = stripe * joined * stripes;
        let (longer, shared) = without(lost, &owners, stripe).unwrap();
        let before = nodes_of(&of_all_stripes(&owners, stripe, count), count);
        let after = nodes_of(&of_all_stripes(&shared, longer, count), count);
        let mut moved: BTreeMap<u32, usize> = BTreeMap::new();
        for (before, after) in before.iter().zip(&after) {
            if *before == Some(lost) {
                *moved.entry(after.unwrap()).or_default() += 1;
            } else {
                prop_assert_eq!(before, after);
            }
        }
        prop_assert!(!moved.contains_key(&lost));
        let of_stripe = shares[lost as usize] * joined;
        let most = moved.values().max().unwrap();
        prop_assert!(*most <= of_stripe.div_ceil(heirs) * stripes, "{moved:?}");
    }
}

#[test]
fn nobody_sums_what_the_only_owner_would_have() {
    assert!(without(3, &[Owner { node: 3, start: 0, end: 4 }], 4).is_none());
}
