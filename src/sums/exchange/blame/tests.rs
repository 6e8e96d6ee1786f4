//! Whose words do not fit together.

#![cfg(test)]

use super::*;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[test]
fn those_who_wait_for_nobody_are_blamed() {
    // Worked out independently of this code.
    let golden: [(&[&[usize]], &[usize]); 4] = [
        (&[&[1], &[2], &[], &[2]], &[2]),
        (&[&[1], &[2], &[0]], &[]),
        (&[&[3], &[3], &[4], &[], &[]], &[3, 4]),
        (&[&[1], &[], &[], &[2], &[2], &[4]], &[2, 1]),
    ];
    for (waits_for, nodes) in golden {
        let waits_for: Vec<Vec<usize>> = waits_for.iter().map(|on| on.to_vec()).collect();
        assert_eq!(blamed(&waits_for), nodes, "{waits_for:?}");
    }
}

const SIDE: usize = 4;
const RANKS: usize = SIDE * SIDE;

/// Who waits for whom when each rank of a square carries out the same collectives one after
/// the other, some of its row and some of its column, and the stopped ones begin no more.
fn drill(random: &mut ChaCha8Rng, stopped: &[usize]) -> Vec<Vec<usize>> {
    let collectives: Vec<bool> = (0..40).map(|_| random.random_bool(0.5)).collect();
    // Each stops before a collective of its own.
    let stops: Vec<usize> = stopped.iter().map(|_| random.random_range(0..30)).collect();
    let group = |rank: usize, by_row: bool| -> Vec<usize> {
        let same = |other: &usize| match by_row {
            true => other / SIDE == rank / SIDE,
            false => other % SIDE == rank % SIDE,
        };
        (0..RANKS).filter(same).collect()
    };
    let mut at = [0usize; RANKS];
    let is_stopped = |rank: usize, at: usize| {
        stopped.iter().zip(&stops).any(|(&who, &stop)| who == rank && at >= stop)
    };
    // In any order ranks complete what all of their group have reached.
    let mut order: Vec<usize> = (0..RANKS).collect();
    loop {
        order.shuffle(random);
        let goes_on = order.iter().copied().find(|&rank| {
            let Some(&by_row) = collectives.get(at[rank]) else { return false };
            let ready = |&other: &usize| {
                at[other] > at[rank] || (at[other] == at[rank] && !is_stopped(other, at[other]))
            };
            !is_stopped(rank, at[rank]) && group(rank, by_row).iter().all(ready)
        });
        match goes_on {
            Some(rank) => at[rank] += 1,
            None => break,
        }
    }
    let waits = |rank: usize| match collectives.get(at[rank]) {
        Some(&by_row) if !is_stopped(rank, at[rank]) => {
            let lacks = |other: &usize| {
                at[*other] < at[rank] || (at[*other] == at[rank] && is_stopped(*other, at[*other]))
            };
            group(rank, by_row).into_iter().filter(lacks).collect()
        }
        _ => Vec::new(),
    };
    (0..RANKS).map(waits).collect()
}

#[test]
fn who_stops_in_rows_and_columns_of_collectives_is_found() {
    let mut both_free = 0;
    for seed in 0..200 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let one = random.random_range(0..RANKS);
        let other = (one + random.random_range(1..RANKS)) % RANKS;
        for stopped in [&[one][..], &[one, other]] {
            let waits_for = drill(&mut random, stopped);
            let found = blamed(&waits_for);
            match stopped {
                [one] => assert_eq!(found, [*one]),
                _ => {
                    both_free += usize::from(found.iter().all(|it| stopped.contains(it)));
                }
            }
        }
    }
    assert_eq!(both_free, 200, "no other worker is blamed");
}
