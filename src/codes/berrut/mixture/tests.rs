//! Linear decodes of tolerated sets.

#![cfg(test)]

use super::*;
use crate::codes::{Gate, decode};
use crate::run::NumberFormat;

/// All sets of as few answers as suffice by default pass the gate of their linear decode, or
/// wait for more.
#[test]
fn linear_decodes_of_tolerated_sets() {
    for (points, byzantine) in [(Points::FirstKind, 2), (Points::SecondKind, 0)] {
        let mixture =
            Mixture::new(12, MixtureParameters { blocks: 4, stragglers: None, byzantine, points })
                .unwrap();
        let gate = Gate::new(NumberFormat::F32, mixture.facts());
        let mut sets = 0;
        let mut passed = 0;
        let mut amplified = 0.0f64;
        for bits in 0u32..1 << 12 {
            if bits.count_ones() as usize != 12 - mixture.facts().tolerance {
                continue;
            }
            let survivors =
                WorkerSet::of(12, Worker::all(12).filter(|worker| bits >> worker.0 & 1 == 1));
            let (_, report) = decode(&mixture, &survivors, Choice::Fewest);
            assert!(report.decodable);
            sets += 1;
            if gate.check(&report).is_ok() {
                passed += 1;
                amplified = amplified.max(report.amplification);
            }
        }
        assert!(passed as f64 > 0.9 * f64::from(sets), "{points:?}: {passed} of {sets}");
        assert!(amplified < 5.0, "{amplified}");
    }
}
