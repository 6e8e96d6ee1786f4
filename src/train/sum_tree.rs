//! One summation tree over micro-batch numbers, the same within a worker and in the exchange.

use crate::gpu::{Vector, add_into};
use crate::transport::Link;
use std::ops::Range;

/// Sums vectors of consecutive units by the tree of [`crate::gpu::Combine`]: two partial sums are
/// added as soon as they are the two halves of an aligned block of `2^m` units, what is left at the
/// end is added from right to left. So a share that is an aligned block is a subtree of the whole
/// batch's sum.
#[derive(Debug)]
pub(super) struct SumTree<V = Vec<f32>> {
    /// Partial sums, each with its first unit and the number of units in it (a power of two).
    partial: Vec<(u32, u32, V)>,
    finite: bool,
    /// Numbers that are added up already with those of the last unit, before it is pushed.
    finished: Range<usize>,
}

impl<V: Vector> SumTree<V> {
    pub(super) fn new() -> Self {
        Self { partial: Vec::new(), finite: true, finished: 0..0 }
    }

    /// Adds the vector of one unit; units come in ascending order.
    pub(super) fn push(&mut self, unit: u32, vector: V, link: &mut dyn Link<V>) {
        self.partial.push((unit, 1, vector));
        while let [.., (left, left_size, _), (_, right_size, _)] = self.partial[..] {
            if left_size != right_size
                || left % (2 * left_size) != 0
                || left + left_size != self.partial[self.partial.len() - 1].0
            {
                break;
            }
            self.merge(link);
        }
    }

    /// Adds the vector of the last unit. Some of its numbers may be [finished](Self::finish_range).
    pub(super) fn push_last(&mut self, unit: u32, vector: V, link: &mut dyn Link<V>) {
        if self.finished.start == self.finished.end {
            self.push(unit, vector, link);
        } else {
            self.partial.push((unit, 1, vector));
        }
    }

    /// Adds up some numbers of everything and of the last unit, which is not pushed yet; gives
    /// them, none where they are not the host's. What is added up so is one range, which grows.
    ///
    /// All that is left to add is added from right to left, whole vectors or parts of them.
    pub(super) fn finish_range<'a>(
        &'a mut self,
        last: &'a mut V,
        range: Range<usize>,
    ) -> Option<&'a [f32]> {
        let Self { partial, finite, finished } = self;
        let mut right = &last.host_mut()?[range.clone()];
        for (_, _, left) in partial.iter_mut().rev() {
            let left = &mut left.host_mut()?[range.clone()];
            *finite &= add_into(left, 1.0, right);
            right = left;
        }
        *finished = match finished.start == finished.end {
            true => range,
            false => finished.start.min(range.start)..finished.end.max(range.end),
        };
        Some(right)
    }

    fn merge(&mut self, link: &mut dyn Link<V>) {
        if let (Some((_, size, mut right)), Some((_, left_size, left))) =
            (self.partial.pop(), self.partial.last_mut())
        {
            let Range { start, end } = self.finished;
            self.finite &= match (left.host_mut(), right.host_mut()) {
                (Some(left), Some(right)) if start < end => {
                    let before = add_into(&mut left[..start], 1.0, &right[..start]);
                    before & add_into(&mut left[end..], 1.0, &right[end..])
                }
                _ => left.add(1.0, &right),
            };
            *left_size += size;
            link.recycle(right);
        }
    }

    /// The sum of everything, and whether all entries are finite as far as additions have shown.
    pub(super) fn finish(mut self, link: &mut dyn Link<V>) -> (Option<V>, bool) {
        while self.partial.len() > 1 {
            self.merge(link);
        }
        (self.partial.pop().map(|(_, _, sum)| sum), self.finite)
    }

    /// Gives all memory back.
    pub(super) fn discard(&mut self, link: &mut dyn Link<V>) {
        for (_, _, buffer) in self.partial.drain(..) {
            link.recycle(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
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
}
