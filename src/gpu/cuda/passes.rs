//! What is launched for a sum, as values: which terms in which pass, and which elements go by
//! 16-byte words.

use crate::run::NumberFormat;
use std::ops::Range;

/// Most terms of one pass.
pub(super) const MOST: usize = 16;

/// One launch. Place 0 is the result, the others are scratch vectors of its length.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Pass {
    /// Sets a place to the sum of some terms, or adds that sum to it.
    Sum { terms: Range<usize>, format: NumberFormat, add: bool, place: usize },
    /// Adds a scratch vector to the place before it.
    Fold { scratch: usize },
}

/// The passes whose result is the tree of [`crate::gpu::Combine`]: a subtree of one format and at
/// most sixteen terms is one pass; any other node is its left half, with the right half added to
/// it.
pub(super) fn passes(formats: &[NumberFormat]) -> Vec<Pass> {
    let mut passes = Vec::new();
    if !formats.is_empty() {
        node(formats, 0..formats.len(), false, 0, &mut passes);
    }
    passes
}

fn node(
    formats: &[NumberFormat],
    terms: Range<usize>,
    add: bool,
    place: usize,
    passes: &mut Vec<Pass>,
) {
    let format = formats[terms.start];
    if terms.len() <= MOST && formats[terms.clone()].iter().all(|other| *other == format) {
        passes.push(Pass::Sum { terms, format, add, place });
    } else if add {
        node(formats, terms, false, place + 1, passes);
        passes.push(Pass::Fold { scratch: place + 1 });
    } else {
        let middle = terms.start + terms.len().next_power_of_two() / 2;
        node(formats, terms.start..middle, false, place, passes);
        node(formats, middle..terms.end, true, place, passes);
    }
}

/// Scratch vectors that some passes need.
pub(super) fn scratch(passes: &[Pass]) -> usize {
    passes
        .iter()
        .map(|pass| if let Pass::Fold { scratch } = pass { *scratch } else { 0 })
        .max()
        .unwrap_or(0)
}

/// Which elements go by 16-byte words: `groups` groups from `head` on; the others go one by one. A
/// kernel's argument.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) length: u64,
    pub(super) head: u64,
    pub(super) groups: u64,
}

impl Split {
    /// For arrays of `length` elements at such addresses. A group is as many elements as make whole
    /// words of every array; arrays that are not aligned at any common element have no groups.
    pub(super) fn of(length: usize, arrays: &[(u64, NumberFormat)]) -> Self {
        let length = length as u64;
        let group = Self::group(arrays.iter().map(|(_, format)| *format));
        let aligned = |head: &u64| {
            arrays.iter().all(|(address, format)| {
                (address + head * format.bytes() as u64).is_multiple_of(16)
            })
        };
        match (0..group.min(length)).find(aligned) {
            Some(head) => Self { length, head, groups: (length - head) / group },
            None => Self { length, head: length, groups: 0 },
        }
    }

    /// Elements of a group.
    pub(super) fn group(formats: impl Iterator<Item = NumberFormat>) -> u64 {
        formats.map(|format| 16 / format.bytes() as u64).max().unwrap_or(4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_terms_are_aligned_subtrees() {
        let sum = |terms, add, place| Pass::Sum { terms, format: NumberFormat::F32, add, place };
        assert_eq!(passes(&[]), []);
        assert_eq!(passes(&[NumberFormat::F32; 16]), [sum(0..16, false, 0)]);
        assert_eq!(passes(&[NumberFormat::F32; 17]), [sum(0..16, false, 0), sum(16..17, true, 0)]);
        let long = passes(&[NumberFormat::F32; 50]);
        assert_eq!(long[..2], [sum(0..16, false, 0), sum(16..32, true, 0)]);
        assert_eq!(
            long[2..],
            [sum(32..48, false, 1), sum(48..50, true, 1), Pass::Fold { scratch: 1 }]
        );
        assert_eq!(scratch(&long), 1);
    }

    #[test]
    fn words_begin_where_all_arrays_are_aligned() {
        let f32s = |addresses: &[u64]| {
            addresses.iter().map(|a| (*a, NumberFormat::F32)).collect::<Vec<_>>()
        };
        assert_eq!(Split::of(9, &f32s(&[0, 16])), Split { length: 9, head: 0, groups: 2 });
        assert_eq!(Split::of(9, &f32s(&[4, 20])), Split { length: 9, head: 3, groups: 1 });
        assert_eq!(Split::of(9, &f32s(&[4, 16])), Split { length: 9, head: 9, groups: 0 });
        assert_eq!(Split::of(2, &f32s(&[4])), Split { length: 2, head: 2, groups: 0 });
        // A half-precision term seven elements short of a word, an f32 result three elements short
        // of one.
        assert_eq!(
            Split::of(40, &[(2, NumberFormat::Bf16), (4, NumberFormat::F32)]),
            Split { length: 40, head: 7, groups: 4 }
        );
        assert_eq!(Split::of(0, &f32s(&[4])), Split { length: 0, head: 0, groups: 0 });
    }
}
