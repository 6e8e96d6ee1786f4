//! Jobs need the last step of their model.

#![cfg(test)]

use super::*;

#[test]
fn jobs_need_the_last_step_of_their_model() {
    let before =
        |models, micro_steps, jobs: Range<u64>| Jobs { models, micro_steps }.before(jobs.map(Job));
    assert_eq!(before(1, 1, 0..1), []);
    assert_eq!(before(1, 1, 7..8), [Step(6)]);
    assert_eq!(before(1, 4, 4..8), [Step(0)]);
    assert_eq!(before(3, 1, 1..6), [Step(0), Step(1), Step(2)], "one of each model");
}
