//! Who straggles again too late or beside too many does not conform.

#![cfg(test)]

use super::*;
use crate::ids::Worker;

#[test]
fn who_straggles_again_too_late_or_beside_too_many_does_not_conform() {
    let model = Bursty { burst: 1, window: 2, distinct: 1 };
    let set = |worker: u32| WorkerSet::of(4, [Worker(worker)]);
    assert!(model.admits(&[], &set(0)));
    assert!(!model.admits(&[set(0)], &set(0)), "no worker twice within 2 rounds");
    assert!(!model.admits(&[set(0)], &set(1)), "one distinct straggler per 2 rounds");
    assert!(model.admits(&[set(0), WorkerSet::empty(4)], &set(0)), "but in the third");
}
