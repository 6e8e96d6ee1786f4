//! What is not finite is one NaN in every sum, and more.

#![cfg(test)]

use super::*;

#[test]
fn what_is_not_finite_is_one_nan_in_every_sum() {
    let bits = |scalars: &[f64]| scalars.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let nan = f64::NAN.to_bits();
    let other_nan = f64::from_bits(nan | 1 << 63 | 7);
    let mine = handed_in(vec![f64::INFINITY, -f64::NAN, other_nan, 1e308]);
    assert_eq!(bits(&mine), [nan, nan, nan, 1e308f64.to_bits()]);
    let other = handed_in(vec![f64::NEG_INFINITY, 2.0, 2.0, 1e308]);
    for order in [[&mine, &other], [&other, &mine]] {
        let mut sum = Vec::new();
        order.into_iter().for_each(|scalars| add(&mut sum, -1.0, scalars));
        assert_eq!(bits(&sum), [nan; 4], "1e308 twice is beyond what is finite");
    }
}

#[test]
fn scalars_that_are_not_used_do_no_harm() {
    let mut sum = vec![1.0];
    add(&mut sum, 0.0, &[f64::NAN, f64::NAN]);
    assert_eq!(sum, [1.0, 0.0]);
}

#[test]
fn json_has_null_where_there_is_no_number() {
    let mut text = Vec::new();
    serialize(&[1.5, f64::NAN, f64::INFINITY], &mut serde_json::Serializer::new(&mut text))
        .unwrap();
    assert_eq!(text, b"[1.5,null,null]");
    let read = deserialize(&mut serde_json::Deserializer::from_slice(&text)).unwrap();
    assert!(read[0] == 1.5 && read[1].is_nan() && read[2].is_nan() && read.len() == 3);
}
