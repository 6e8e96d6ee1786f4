//! Bytes come back as they were, and more.

#![cfg(test)]

use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn bytes_come_back_as_they_were(
        bytes in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..5),
    ) {
        let state = State::of_bytes(Step(3), &bytes);
        prop_assert_eq!(state.bytes(), Ok(bytes));
    }
}

#[test]
fn numbers_are_no_bytes() {
    for numbers in [vec![], vec![1.0], vec![1.0; 9], vec![0.0, 0.0, 0.0]] {
        let length = numbers.len();
        let state = State { next: Step(0), vectors: vec![numbers_of(b"abc"), numbers] };
        assert_eq!(state.bytes(), Err(NotBytes { vector: 1, numbers: length }));
    }
    let mut dirty = numbers_of(b"abc");
    dirty[2] = f32::from_bits(dirty[2].to_bits() | 1 << 31);
    assert_eq!(bytes_of(&dirty), None, "what is beyond the bytes is zero");
}
