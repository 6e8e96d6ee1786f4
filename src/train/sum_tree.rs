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
mod tests;
