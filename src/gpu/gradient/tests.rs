//! Formats round to nearest even, and more.

#![cfg(test)]

use super::*;

#[test]
fn formats_round_to_nearest_even() {
    let x =
        [1.0 + 2f32.powi(-8), 1.0 + 3.0 * 2f32.powi(-8), -1e30, 65520.0, 2f32.powi(-25), f32::NAN];
    let mut wide = [f32::NAN; 6];
    let (mut narrow, mut half) = ([bf16::ONE; 6], [f16::ONE; 6]);
    x[..].read(0, 1.0, WireBuffer::Bf16(&mut narrow)).unwrap();
    x[..].read(0, 1.0, WireBuffer::F16(&mut half)).unwrap();
    x[..].read(0, -2.0, WireBuffer::F32(&mut wide)).unwrap();
    assert_eq!(narrow[..2], [bf16::from_f32(1.0), bf16::from_f32(1.0 + 2f32.powi(-6))]);
    assert_eq!((half[2], half[3], half[4]), (f16::NEG_INFINITY, f16::INFINITY, f16::ZERO));
    assert!(narrow[5].is_nan() && half[5].is_nan() && wide[5].is_nan() && wide[2] == 2e30);
}

#[test]
fn no_element_beyond_the_end() {
    let mut gradient = vec![0.0f32; 4];
    let beyond = |start, end| GradientError::Range { start, end, length: 4 };
    assert_eq!(gradient.write(3, &[1.0, 2.0]), Err(beyond(3, 5)));
    assert_eq!(gradient.read(5, 1.0, WireBuffer::F32(&mut [])), Err(beyond(5, 5)));
    assert_eq!(
        gradient.read(usize::MAX, 1.0, WireBuffer::F32(&mut [0.0])),
        Err(beyond(usize::MAX, usize::MAX))
    );
    assert_eq!((Gradient::length(&gradient), &gradient[..]), (4, &[0.0; 4][..]));
    assert_eq!(largest(&[]), 0.0);
}
