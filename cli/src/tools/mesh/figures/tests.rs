//! Pictures of layouts.

#![cfg(test)]

use super::*;

fn mesh(world: u32, [tp, cp, pp, etp, ep]: [u32; 5]) -> Mesh {
    Mesh::new(Layout { world, tp, cp, pp, etp: Some(etp), ep, ..Layout::default() }).unwrap()
}

#[test]
fn the_exchange_is_counted_by_pairs() {
    let folded = mesh(64, [2, 4, 1, 1, 8]);
    assert_eq!((exchange_off_node(&folded, 8), folded.workers()), (0.0, 8));
    let wider = mesh(64, [2, 4, 1, 2, 8]);
    assert_eq!((exchange_off_node(&wider, 8), wider.workers()), (4.0 / 7.0, 4));
    // Without folding, the ranks of an expert group are tp cp = 8 apart.
    let strided: Vec<Vec<Rank>> =
        (0..8).map(|first| (first..64).step_by(8).map(Rank).collect()).collect();
    assert_eq!(off_node(&strided, 8), 1.0);
    assert_eq!(exchange_off_node(&mesh(64, [2, 4, 1, 1, 1]), 8), 0.0);
    assert_eq!(exchange_off_node(&folded, 1), 1.0);
}

/// The chances by trying every set of late cells.
fn tried(workers: usize, stragglers: usize, cell: f64) -> f64 {
    let code = codedgrad::codes::Groups::tolerating(workers, stragglers).unwrap();
    let mut late = 0.0;
    for set in 0..1u32 << workers {
        let is_late = |worker: &codedgrad::ids::Worker| set >> worker.0 & 1 == 1;
        let on_time = codedgrad::ids::Worker::all(workers).filter(|worker| !is_late(worker));
        let survivors = codedgrad::ids::WorkerSet::of(workers, on_time);
        let choice = codedgrad::codes::Choice::Fewest;
        if !codedgrad::codes::decode(&code, &survivors, choice).1.decodable {
            let missing = set.count_ones();
            let there = workers as i32 - missing as i32;
            late += cell.powi(missing as i32) * (1.0 - cell).powi(there);
        }
    }
    late
}

#[test]
fn redundancy_is_late_as_often_as_its_code() {
    for workers in 2..=10 {
        for (stragglers, cell) in [(1, 0.1), (1, 0.7), (2, 0.3), (3, 0.9)] {
            if stragglers >= workers {
                continue;
            }
            let late = LateShares { rank: 0.0, cell, any: any(cell, workers) };
            let found = redundancy(workers, stragglers, &late);
            let expected = tried(workers, stragglers, cell);
            assert!((found.late - expected).abs() < 1e-12, "{workers} {stragglers}: {found:?}");
            let load = workers / (stragglers + 1);
            assert_eq!(found.work, workers as f64 / load as f64);
            let even = found.break_even.unwrap();
            // By then, what redundancy costs is what it saves.
            assert!((found.work + expected * even - (1.0 + late.any * even)).abs() < 1e-9);
        }
    }
}

#[test]
fn the_most_stragglers_of_equal_groups_are_listed() {
    let listed = |workers| -> Vec<String> {
        let late = LateShares { rank: 0.0, cell: 0.1, any: any(0.1, workers) };
        redundancies(workers, &late).into_iter().map(|found| found.scheme).collect()
    };
    let none: [&str; 0] = [];
    assert_eq!(listed(1), none);
    assert_eq!(listed(2), ["groups:s=1"]);
    assert_eq!(listed(3), ["groups:s=2"]);
    assert_eq!(listed(4), ["groups:s=1", "groups:s=3"]);
    assert_eq!(listed(5), ["groups:s=1", "groups:s=3"]);
    assert_eq!(listed(6), ["groups:s=1", "groups:s=2", "groups:s=3"]);
}

#[test]
fn chances_keep_their_digits() {
    assert_eq!((any(0.0, 9), any(1.0, 9), any(0.5, 0)), (0.0, 1.0, 0.0));
    assert!(any(0.0, 9).is_sign_positive());
    assert!((any(1e-18, 1000) / 1e-15 - 1.0).abs() < 1e-12);
    // Where no rank is ever late, or all are always, redundancy saves nothing.
    for rank in [0.0, 1.0] {
        let late = LateShares::of(&mesh(8, [1, 1, 1, 1, 1]), rank);
        assert!(redundancies(8, &late).iter().all(|found| found.break_even.is_none()));
    }
}

#[test]
fn foldings_are_sorted_and_each_is_there_once() {
    let base = mesh(64, [2, 2, 2, 1, 4]);
    let pairs = |experts| -> Vec<(u32, u32, usize)> {
        let found = foldings(&base, experts, 8, 0.001);
        found.iter().map(|folding| (folding.etp, folding.ep, folding.workers)).collect()
    };
    let kept = [(1, 4, 8), (1, 2, 8), (2, 2, 8), (1, 1, 8), (2, 1, 8)];
    let lost = [(1, 8, 4), (2, 4, 4), (1, 16, 2), (2, 8, 2), (1, 32, 1), (2, 16, 1)];
    assert_eq!(pairs(None), [&kept[..], &lost[..]].concat());
    // ep divides the experts, and etp ep the ranks of a stage.
    assert_eq!(pairs(Some(12)), [&kept[..], &[(2, 4, 4)]].concat());
    let flat = foldings(&mesh(6, [1; 5]), Some(6), 8, 0.001);
    let flat: Vec<(u32, u32)> = flat.iter().map(|folding| (folding.etp, folding.ep)).collect();
    assert_eq!(flat, [(1, 1), (1, 2), (1, 3), (1, 6)]);
}
