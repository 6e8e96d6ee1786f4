//! Sums of vectors on the host.

#![cfg(test)]

use super::*;
use crate::gpu::conformance::{conforms, messages};
use proptest::prelude::*;

#[test]
fn fast_equals_plain() {
    let cpu = Cpu::new();
    for count in 0..=17 {
        for len in [0, 1, 15, TILE - 1, TILE + 1, 3 * TILE] {
            conforms(&cpu, count, len, 7);
        }
    }
    conforms(&cpu, 5, PARALLEL_MIN + CHUNK + 3, 8);
}

#[test]
fn a_pass_of_many_threads_does_what_one_does() {
    let cpu = Cpu::of(4);
    let length = 3 * CHUNK + 17;
    let [x, y] = [&messages(2, length, 9)[0], &messages(2, length, 9)[1]].map(Clone::clone);
    let (mut together, mut alone) = (x.clone(), x.clone());
    assert!(cpu.add_into(&mut together, 0.5, &y) && add_piece(&mut alone, 0.5, &y));
    assert_eq!(together, alone);
    assert_eq!(cpu.nonfinite_mask(&x), 0.0);
    cpu.piecewise(&x, &mut together, |from, to| to.copy_from_slice(from));
    assert_eq!(together, x);
    for bad in [0, CHUNK, length - 1] {
        let mut faulty = y.clone();
        faulty[bad] = f32::NAN;
        assert!(cpu.nonfinite_mask(&faulty).is_nan());
        let mut sum = x.clone();
        assert!(!cpu.add_into(&mut sum, 0.5, &faulty));
        sum[bad] = alone[bad];
        assert_eq!(sum, alone, "all others are added");
    }
}

proptest! {
    #[test]
    fn fast_equals_plain_anywhere(count in 0usize..40, len in 0usize..5000, seed: u64) {
        conforms(shared(), count, len, seed);
    }

    #[test]
    fn aligned_blocks_give_the_bits_of_their_units(
        blocks in 1usize..20,
        power in 0u32..4,
        seed: u64,
    ) {
        let width = 1usize << power;
        let units = messages(blocks * width, 9, seed);
        let term = |x: &Vec<f32>| -> Vec<f32> { x.clone() };
        let sum = |vectors: &[Vec<f32>]| {
            let terms: Vec<Term<'_>> =
                vectors.iter().map(|x| Term { weight: 1.0, source: Source::F32(x) }).collect();
            let mut out = vec![f32::NAN; 9];
            shared().combine(&terms, &mut out).unwrap();
            out
        };
        let inner: Vec<Vec<f32>> = units.chunks(width).map(sum).collect();
        let outer: Vec<Vec<f32>> = units.iter().map(term).collect();
        prop_assert_eq!(sum(&inner), sum(&outer));
    }

    #[test]
    fn poison_finds_every_bad_value(
        len in 1usize..200,
        at in 0usize..200,
        bad in prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
    ) {
        let mut x = vec![f32::MAX; len];
        prop_assert_eq!(nonfinite_mask(&x), 0.0);
        x[at % len] = bad;
        prop_assert!(nonfinite_mask(&x).is_nan());
        let mut out = vec![1.0; len];
        prop_assert!(!add_into(&mut out, 1.0, &x));
    }
}

#[test]
fn wrong_lengths_are_refused() {
    let x = [1.0f32; 3];
    let mut out = [5.0f32; 4];
    let error = Cpu::new().combine(&[Term { weight: 1.0, source: Source::F32(&x) }], &mut out);
    assert_eq!(error, Err(CombineError::Length { term: 0, expected: 4, found: 3 }));
    assert_eq!(out, [5.0; 4]);
}

#[test]
fn digests_from_the_fold_are_digests_of_the_result() {
    for len in [0, 1, CHUNK, CHUNK + 1, PARALLEL_MIN + 5] {
        let x = &messages(1, len, 3)[0];
        let mut out = vec![f32::NAN; len];
        let fused = shared()
            .combine_and_digest(&[Term { weight: 1.0, source: Source::F32(x) }], &mut out)
            .unwrap();
        assert_eq!(fused, SumCheck { digest: digest(x), finite: true });
    }
}

#[test]
fn every_f16_is_widened_exactly() {
    for bits in 0..=u16::MAX {
        let x = f16::from_bits(bits);
        assert!(
            x.widen().to_bits() == x.to_f32().to_bits() || x.is_nan() && x.widen().is_nan(),
            "{bits:#06x}"
        );
    }
}

#[test]
fn one_bad_element_anywhere_makes_the_result_not_finite() {
    let len = PARALLEL_MIN + CHUNK + 3;
    let mut x = vec![1.0f32; len];
    let mut out = vec![0.0; len];
    let mut finite = |x: &[f32], count: usize| {
        let terms = vec![Term { weight: 1.0, source: Source::F32(x) }; count];
        shared().combine_and_digest(&terms, &mut out).unwrap().finite
    };
    for at in [0, CHUNK - 1, CHUNK, len - 1] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            x[at] = bad;
            assert!(!finite(&x, 1), "{bad} at {at}");
        }
        x[at] = f32::MAX;
        assert!(finite(&x, 1));
        assert!(!finite(&x, 2), "a sum that overflows at {at}");
        x[at] = 1.0;
    }
    assert!(finite(&x, 3) && finite(&x, 0));
}
