//! Shares tile the batch, and more.

#![cfg(test)]

use super::*;

#[test]
fn shares_tile_the_batch() {
    for units in 1..40 {
        for shares in 1..=units {
            let cut = Cut::new(units, shares).unwrap();
            let mut next = 0;
            for share in (0..shares).map(Share) {
                let part = cut.share(share);
                assert_eq!(part.start, next);
                assert!(part.count() == units / shares || part.count() == units.div_ceil(shares));
                next = part.end;
            }
            assert_eq!(next, units);
        }
    }
    assert_eq!(Cut::new(2, 3), Err(CutError::TooFewUnits { units: 2, shares: 3 }));
    assert!(Cut::new(2, 0).is_err());
}

#[test]
fn sets_count_and_print() {
    let mut set = WorkerSet::of(130, [0, 2, 5, 6, 7, 64, 65, 129].map(Worker));
    assert_eq!(set.to_string(), "0,2,5-7,64,65,129");
    assert_eq!((set.len(), set.complement().len()), (8, 122));
    assert!(!set.insert(Worker(64)) && set.remove(Worker(64)) && !set.remove(Worker(64)));
    assert!(!set.contains(Worker(999)));
    assert!(set.complement().complement() == set);
    assert_eq!(set.iter().map(|worker| worker.0).collect::<Vec<_>>(), [0, 2, 5, 6, 7, 65, 129]);
    let mut other = WorkerSet::of(130, [Worker(65)]);
    assert!(other.intersects(&set) && !set.complement().intersects(&set));
    other.unite(&set);
    assert_eq!(other, set);
    other.clear();
    assert!(other.is_empty());
}

#[test]
fn whoever_sums_takes_its_own_vector() {
    let task = Task { job: Job(0), piece: 0, plan: 0 };
    let piece = |worker| Piece { worker: Worker(worker), task };
    let term = Summand { weight: 1.0, holders: vec![piece(3), piece(5)] };
    assert_eq!(term.source(Worker(5), 0), Some(piece(5)));
    assert_eq!(
        (term.source(Worker(1), 1), term.source(Worker(1), 2)),
        (Some(piece(5)), Some(piece(3)))
    );
    assert_eq!(Summand { weight: 1.0, holders: vec![] }.source(Worker(0), 0), None);
}
