//! An owner is wrong if two say so, and more.

#![cfg(test)]

use super::*;

fn id(attempt: u32) -> SumId {
    SumId { step: Step(5), attempt }
}

/// Who is wrong after these have said of which owners that their sums are not finite.
fn wrong(said: &[(u32, &[u32])]) -> Option<Vec<u32>> {
    let mut doubts = Doubts::default();
    for (worker, owners) in said {
        let sums_of = owners.iter().copied().collect();
        let of = NotFinite { sums_of, ..NotFinite::default() };
        doubts.accuse(id(0), *worker, of);
    }
    let wrong = doubts.are_wrong(id(1));
    assert!(wrong.deny.is_empty());
    wrong.one_of.map(|workers| workers.into_iter().collect())
}

#[test]
fn an_owner_is_wrong_if_two_say_so() {
    assert_eq!(wrong(&[(0, &[3]), (1, &[3])]), Some(vec![3]));
    assert_eq!(wrong(&[(0, &[3])]), Some(vec![0, 3]));
    assert_eq!(wrong(&[(0, &[])]), Some(vec![0]), "it says that of no worker");
    assert_eq!(wrong(&[(0, &[1, 2])]), Some(vec![0]), "not both of them");
    assert_eq!(wrong(&[(0, &[]), (1, &[])]), None, "several lie");
    assert_eq!(wrong(&[(3, &[3])]), None, "its terms may have been larger");
}

#[test]
fn who_denies_what_was_seen_is_wrong() {
    let mut doubts = Doubts::default();
    doubts.accuse(id(1), 2, NotFinite::default());
    let deny = BTreeSet::from([2]);
    assert_eq!(doubts.are_wrong(id(1)), Culprits { deny, one_of: None });
    assert_eq!(doubts.are_wrong(id(1)), Culprits::default(), "once");
}
