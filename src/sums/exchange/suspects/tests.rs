//! Who is in every contradiction has lied.

#![cfg(test)]

use super::*;

#[test]
fn who_is_in_every_contradiction_has_lied() {
    let mut suspects = Suspects::default();
    let mut one_of = |workers: &[u32]| suspects.one_of(&workers.iter().copied().collect());
    assert_eq!(one_of(&[]), None);
    assert_eq!(one_of(&[1, 3]), None);
    assert_eq!(one_of(&[1, 3]), None, "it says nothing new");
    assert_eq!(one_of(&[2, 3]), Some(3));
    assert_eq!(one_of(&[1, 2]), None, "it begins again");
    assert_eq!(one_of(&[3, 4]), None, "no one worker can have told both lies");
    assert_eq!(one_of(&[4]), Some(4));
}
