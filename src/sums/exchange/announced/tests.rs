//! Parts grow from either end.

#![cfg(test)]

use super::*;
use crate::sums::CHUNK;

const TASK: Task = Task { job: Job(3), piece: 0, plan: 0 };

#[test]
fn parts_grow_from_either_end() {
    let length = 3 * CHUNK + 5;
    let mut announced = Announcements::default();
    assert!(announced.chunk(TASK, 3, length).is_none());
    assert_eq!(announced.add(TASK, 3..4, Arc::new(vec![3.0; 5])), 3..4);
    assert_eq!(announced.add(TASK, 0..1, Arc::new(vec![0.0; CHUNK])), 3..4, "2 lacks");
    assert_eq!(announced.add(TASK, 1..3, Arc::new(vec![1.0; 2 * CHUNK])), 1..4);
    let first = |chunk| match announced.chunk(TASK, chunk, length) {
        Some(Body::Slice(numbers, range)) => Some((numbers[range.start], range)),
        _ => None,
    };
    assert_eq!(first(0), None);
    assert_eq!(first(2), Some((1.0, CHUNK..2 * CHUNK)));
    assert_eq!(first(3), Some((3.0, 0..5)));
    assert_eq!(announced.add(TASK, 0..4, Arc::new(vec![7.0; length])), 0..4);
    announced.release(Job(4));
    assert!(announced.final_chunks(TASK).is_empty());
}
