//! The order of summation.

#![cfg(test)]

use super::*;
use crate::gpu::{Combine, Plain, Source, Term};
use crate::transport::local;
use proptest::prelude::*;

proptest! {
    /// A whole batch summed by one worker has the bits of its units combined all at once.
    #[test]
    fn the_tree_is_the_combine_tree(values in prop::collection::vec(-1e3f32..1e3, 1..40)) {
        let (_coordinator, mut links) = local::connect(1);
        let mut tree = SumTree::new();
        for (unit, value) in values.iter().enumerate() {
            tree.push(unit as u32, vec![*value], &mut links[0]);
        }
        let (sum, finite) = tree.finish(&mut links[0]);
        let singles: Vec<[f32; 1]> = values.iter().map(|value| [*value]).collect();
        let terms: Vec<Term<'_>> =
            singles.iter().map(|x| Term { weight: 1.0, source: Source::F32(x) }).collect();
        let mut expected = [f32::NAN];
        Plain.combine(&terms, &mut expected).unwrap();
        prop_assert_eq!(sum.unwrap(), expected);
        prop_assert!(finite);
    }

    /// However the last unit's vector comes, the sum has the same bits.
    #[test]
    fn parts_that_are_finished_before_have_the_same_bits(
        units in 1usize..41,
        seed in prop::collection::vec(-1e3f32..1e3, 41 * 7),
        cuts in prop::collection::vec(1usize..4, 0..4),
        backwards: bool,
    ) {
        const LENGTH: usize = 7;
        let (_coordinator, mut links) = local::connect(1);
        let unit = |unit: usize| seed[unit * LENGTH..(unit + 1) * LENGTH].to_vec();
        let (mut whole, mut cut) = (SumTree::new(), SumTree::new());
        for at in 0..units - 1 {
            whole.push(at as u32, unit(at), &mut links[0]);
            cut.push(at as u32, unit(at), &mut links[0]);
        }
        let mut last = unit(units - 1);
        let (mut known, mut parts) = (0, Vec::new());
        for count in cuts {
            let next = (known + count).min(LENGTH);
            let range = match backwards {
                true => LENGTH - next..LENGTH - known,
                false => known..next,
            };
            known = next;
            parts.push((range.clone(), cut.finish_range(&mut last, range).unwrap().to_vec()));
        }
        whole.push(units as u32 - 1, last.clone(), &mut links[0]);
        cut.push_last(units as u32 - 1, last, &mut links[0]);
        let expected = whole.finish(&mut links[0]).0.unwrap();
        for (range, numbers) in parts {
            prop_assert_eq!(&expected[range], &numbers[..]);
        }
        prop_assert_eq!(cut.finish(&mut links[0]).0.unwrap(), expected);
    }

    /// Aligned shares summed by their workers, then combined, give the bits of the whole batch.
    #[test]
    fn aligned_shares_are_subtrees(
        blocks in 1u32..9,
        power in 0u32..3,
        seed in prop::collection::vec(-1e3f32..1e3, 40),
    ) {
        let (width, units) = (1 << power, blocks << power);
        let (_coordinator, mut links) = local::connect(1);
        let sum = |from: u32, to: u32, link: &mut dyn Link| {
            let mut tree = SumTree::new();
            (from..to).for_each(|unit| tree.push(unit, vec![seed[unit as usize]], link));
            tree.finish(link).0.unwrap()
        };
        let whole = sum(0, units, &mut links[0]);
        let shares: Vec<Vec<f32>> =
            (0..blocks).map(|b| sum(b * width, (b + 1) * width, &mut links[0])).collect();
        let terms: Vec<Term<'_>> =
            shares.iter().map(|x| Term { weight: 1.0, source: Source::F32(x) }).collect();
        let mut decoded = [f32::NAN];
        Plain.combine(&terms, &mut decoded).unwrap();
        prop_assert_eq!(whole, decoded);
    }
}
