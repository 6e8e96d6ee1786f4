//! Who may still import is not blamed.

#![cfg(test)]

use super::*;

#[test]
fn who_may_still_import_is_not_blamed() {
    let mut joining = JoinProgress { told_after: Duration::ZERO, ..JoinProgress::of(2) };
    let said = joining.told("train.py", "codedgrad.loop.join").unwrap();
    assert!(said.contains("before it calls codedgrad.loop.join (imports, "), "{said}");
    assert!(!said.contains("has to"), "{said}");
    let mut joining = JoinProgress { told_after: Duration::ZERO, ..JoinProgress::of(2) };
    joining.joined(1);
    let said = joining.told("train.py", "codedgrad.loop.join").unwrap();
    assert_eq!(said, "worker 0 has not joined, after 0 s");
    joining.joined(0);
    assert_eq!(joining.told("train.py", "codedgrad.loop.join"), None);
}
