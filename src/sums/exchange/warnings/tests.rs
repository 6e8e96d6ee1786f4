//! Every kind is told once.

#![cfg(test)]

use super::*;

#[test]
fn every_kind_is_told_once() {
    let mut warnings = Warnings::default();
    assert!(warnings.is_new(1, "term 7 is not to come from 1"));
    assert!(!warnings.is_new(1, "term 12 is not to come from 1"));
    assert!(warnings.is_new(2, "term 7 is not to come from 2"));
    let letters = ('a'..='z').filter(|letter| warnings.is_new(1, &letter.to_string()));
    assert_eq!(letters.count(), KINDS - 1, "however many kinds a worker invents");
}
