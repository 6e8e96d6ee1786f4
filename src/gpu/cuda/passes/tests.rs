//! Many terms are aligned subtrees, and more.

#![cfg(test)]

use super::*;

#[test]
fn many_terms_are_aligned_subtrees() {
    let sum = |terms, add, place| Pass::Sum { terms, format: NumberFormat::F32, add, place };
    assert_eq!(passes(&[]), []);
    assert_eq!(passes(&[NumberFormat::F32; 16]), [sum(0..16, false, 0)]);
    assert_eq!(passes(&[NumberFormat::F32; 17]), [sum(0..16, false, 0), sum(16..17, true, 0)]);
    let long = passes(&[NumberFormat::F32; 50]);
    assert_eq!(long[..2], [sum(0..16, false, 0), sum(16..32, true, 0)]);
    assert_eq!(long[2..], [sum(32..48, false, 1), sum(48..50, true, 1), Pass::Fold { scratch: 1 }]);
    assert_eq!(scratch(&long), 1);
}

#[test]
fn words_begin_where_all_arrays_are_aligned() {
    let f32s =
        |addresses: &[u64]| addresses.iter().map(|a| (*a, NumberFormat::F32)).collect::<Vec<_>>();
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
