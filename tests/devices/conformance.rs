//! One body of tests for every backend of the combine.

use super::{Combine, Plain, Source, Term};
use half::{bf16, f16};

pub(super) fn messages(count: usize, len: usize, seed: u64) -> Vec<Vec<f32>> {
    use rand_chacha::{
        ChaCha8Rng,
        rand_core::{Rng, SeedableRng},
    };
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count)
        .map(|_| (0..len).map(|_| (rng.next_u32() as f32 / 2f32.powi(31) - 1.0) * 3.0).collect())
        .collect()
}

/// Every element type, and types mixed: compared with the plain reference bit for bit, into a
/// poisoned buffer, from an unaligned start.
pub(super) fn conforms(backend: &dyn Combine, count: usize, len: usize, seed: u64) {
    let full = messages(count, len + 1, seed);
    let narrow: Vec<Vec<bf16>> =
        full.iter().map(|x| x.iter().map(|x| bf16::from_f32(*x)).collect()).collect();
    let half: Vec<Vec<f16>> =
        full.iter().map(|x| x.iter().map(|x| f16::from_f32(*x)).collect()).collect();
    for kind in 0..4usize {
        let source = |i: usize| match (kind, (kind + i) % 3) {
            (0, _) | (3, 0) => Source::F32(&full[i][1..]),
            (1, _) | (3, 1) => Source::Bf16(&narrow[i][1..]),
            _ => Source::F16(&half[i][1..]),
        };
        let terms: Vec<Term<'_>> =
            (0..count).map(|i| Term { weight: 1.5 - i as f32, source: source(i) }).collect();
        let (mut expected, mut found) = (vec![f32::NAN; len], vec![f32::NAN; len]);
        Plain.combine(&terms, &mut expected).expect("terms of one length");
        backend.combine(&terms, &mut found).expect("terms of one length");
        assert!(
            expected.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits()),
            "{count} terms of {len}, kind {kind}"
        );
    }
}
