//! Holders of shares and of pairs, and more.

#![cfg(test)]

use super::*;
use crate::codes::{DenseCode, Graph};
use rand_chacha::rand_core::SeedableRng;

#[test]
fn holders_of_shares_and_of_pairs() {
    let rows = [
        vec![1.0, 0.0, 0.0],
        vec![1.0, 1.0, 0.0],
        vec![0.0, 1.0, 1.0],
        vec![0.0, 0.0, 1.0],
        vec![0.0, 0.0, 1.0],
    ];
    let code = DenseCode::new(&rows).unwrap();
    let sets = |most, sets| -> Vec<Vec<usize>> {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        HolderSets::new(&code, most, sets, &mut random).iter().collect()
    };
    assert_eq!(sets(1, 9), Vec::<Vec<usize>>::new());
    assert_eq!(sets(2, 9), [vec![0, 1], vec![1, 2]]);
    assert_eq!(
        sets(4, 9),
        [vec![0, 1], vec![1, 2], vec![2, 3, 4], vec![0, 1, 2], vec![1, 2, 3, 4]],
        "the pair of the first and the last share is five workers"
    );
}

#[test]
fn too_many_are_drawn() {
    let code = Graph::new(60, 3, 0.2, 7).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let sets = HolderSets::new(&code, 12, 50, &mut random);
    assert_eq!(sets.counts(), (40, 50), "40 shares, 780 pairs");
    assert!(sets.iter().all(|set| set.len() <= 6 && set.is_sorted()));
    assert_eq!(HolderSets::new(&code, 12, 30, &mut random).counts(), (30, 30));
}
