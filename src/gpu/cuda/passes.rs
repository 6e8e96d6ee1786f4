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
mod tests;
