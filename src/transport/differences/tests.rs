//! In what two workers differ.

#![cfg(test)]

use super::*;
use crate::ids::Step;
use crate::transport::Start;

fn words(told: &[(u32, u64)]) -> String {
    let told: Vec<(Worker, RunFacts)> = told
        .iter()
        .map(|(worker, digest)| {
            let start = Some(Start { step: Step(0), digest: *digest });
            (Worker(*worker), RunFacts { start, ..RunFacts::default() })
        })
        .collect();
    Differences::between(&told).map_or_else(String::new, |differ| differ.to_string())
}

#[test]
fn the_larger_group_is_right_and_not_the_first() {
    for told in [[(0, 1), (1, 1), (2, 9), (3, 1)], [(0, 1), (2, 9), (1, 1), (3, 1)]] {
        let found = words(&told);
        assert_eq!(
            found,
            "worker 2 differs in parameters to begin with (0000000000000009 before step 0, not \
             0000000000000001 before step 0); workers 0, 1, 3 agree"
        );
    }
    let found = words(&[(0, 9), (1, 1), (2, 1)]);
    assert!(found.starts_with("worker 0 differs in"), "{found}");
    assert!(found.ends_with("workers 1, 2 agree"), "{found}");
    let found = words(&[(0, 7), (1, 7), (2, 1), (3, 1), (4, 1)]);
    assert!(found.starts_with("workers 0, 1 differ in"), "{found}");
}

#[test]
fn of_equal_groups_all_are_named() {
    let found = words(&[(0, 1), (1, 9), (2, 9), (3, 1)]);
    assert_eq!(
        found,
        "workers 0, 3 and workers 1, 2 differ in parameters to begin with (0000000000000001 \
         before step 0 and 0000000000000009 before step 0)"
    );
    let many: Vec<(u32, u64)> = (0..7).map(|worker| (worker, u64::from(worker))).collect();
    let found = words(&many);
    assert!(found.contains("worker 0 and worker 4 differ in"), "{found}");
    assert!(found.ends_with("; 2 more groups differ"), "{found}");
}

#[test]
fn what_is_not_known_is_no_difference() {
    assert_eq!(words(&[(0, 1), (1, 1)]), "");
    let knows = |length, units| RunFacts { length, units, ..RunFacts::default() };
    let told = [(Worker(0), knows(Some(3), None)), (Worker(1), knows(None, Some(4)))];
    assert_eq!(Differences::between(&told), None);
    let more = [told[0].clone(), told[1].clone(), (Worker(2), knows(None, Some(8)))];
    let found = Differences::between(&more).unwrap().to_string();
    assert_eq!(found, "worker 2 differs in units of a batch (8, not 4); workers 0, 1 agree");
}
