//! An infinity that the wire made is no worker's fault.

#![cfg(test)]

use super::*;

/// An infinity that a narrow format makes is no node's fault; a NaN is its sender's.
#[test]
fn an_infinity_of_the_wire_is_nobodys_fault() {
    let blocks = Blocks::new(1);
    let mut alone = blocks.take(1, NumberFormat::F32);
    for (format, value, bad) in [
        (NumberFormat::Bf16, f32::MAX, false),
        (NumberFormat::Bf16, f32::NAN, true),
        (NumberFormat::F32, f32::INFINITY, true),
        (NumberFormat::F32, f32::MAX, false),
    ] {
        let mut sent = blocks.take(1, format);
        sent.fill(&[value]);
        let term = Term { weight: 1.0, source: sent.source() };
        assert_eq!(is_bad(&term, format, &mut alone), bad, "{format:?} {value}");
    }
}
