//! Sums of which two differ.

#![cfg(test)]

use super::*;

const SUM: SumId = SumId { step: Step(4), attempt: 0 };

/// Four workers own a chunk each; gives who is left after these words.
fn left(words: &[(u32, [Option<u64>; 4])]) -> Option<Vec<u32>> {
    let mut disputes = Disputes::default();
    let owners = (0..4).map(Some).collect();
    let asked = words.iter().map(|word| word.0).collect();
    assert!(disputes.begin(SUM, owners, asked, Instant::now()));
    let mut verdict = None;
    for (worker, digests) in words {
        assert_eq!(verdict, None, "nothing is said before all words are there");
        verdict = disputes.said(SUM, *worker, digests.to_vec());
    }
    assert!(disputes.0.is_empty());
    verdict.map(|verdict| verdict.workers.into_iter().collect())
}

const RIGHT: [Option<u64>; 4] = [Some(1), Some(2), Some(3), Some(4)];

fn with(chunk: usize, digest: u64) -> [Option<u64>; 4] {
    let mut digests = RIGHT;
    digests[chunk] = Some(digest);
    digests
}

#[test]
fn who_sends_different_bytes_is_found() {
    let differ = [(0, with(3, 7)), (1, with(3, 8)), (2, with(3, 9)), (3, RIGHT)];
    assert_eq!(left(&differ), Some(vec![3]));
    let differ = [(0, with(3, 7)), (1, with(3, 8)), (2, with(3, 7)), (3, with(3, 7))];
    assert_eq!(left(&differ), Some(vec![1, 3]), "it may be 1 alone who lies");
}

#[test]
fn who_says_what_did_not_come_is_found() {
    let nothing = [Some(9); 4];
    let said = [(0, RIGHT), (1, RIGHT), (2, nothing), (3, RIGHT)];
    assert_eq!(left(&said), Some(vec![2]));
}

#[test]
fn what_lacks_says_nothing() {
    let none = [None; 4];
    assert_eq!(left(&[(0, RIGHT), (1, none), (2, none)]), None);
    let differ = [(0, with(1, 7)), (2, RIGHT), (3, none)];
    assert_eq!(left(&differ), Some(vec![0, 1, 2]));
}

#[test]
fn who_says_nothing_is_not_waited_for() {
    let mut disputes = Disputes::default();
    let now = Instant::now();
    let owners: Vec<_> = (0..4).map(Some).collect();
    let words = |disputes: &mut Disputes| {
        assert!(disputes.begin(SUM, owners.clone(), BTreeSet::from([0, 1, 2, 3]), now));
        assert!(!disputes.begin(SUM, owners.clone(), BTreeSet::from([0]), now));
        for (worker, digest) in [(0, 7), (1, 8), (2, 9)] {
            assert_eq!(disputes.said(SUM, worker, with(3, digest).to_vec()), None);
            assert_eq!(disputes.said(SUM, worker, RIGHT.to_vec()), None, "it has said it");
        }
    };
    words(&mut disputes);
    assert_eq!(disputes.overdue(now), []);
    let found = [Verdict { step: SUM.step, chunk: 3, workers: BTreeSet::from([3]) }];
    assert_eq!(disputes.overdue(now + 2 * PATIENCE), found);
    words(&mut disputes);
    assert_eq!(disputes.forget(3), found);
    assert_eq!(disputes.said(SUM, 3, vec![]), None, "it is over");
}
