//! `examples/coded_kmeans.rs`: the bits of one thread whoever is late, and ids that are good for
//! something.

#[allow(dead_code, reason = "the example prints as well")]
#[path = "../../examples/coded_kmeans.rs"]
mod example;

use codedgrad::ids::Worker;
use example::{CODES, ITEMS, LEVELS, WORKERS, alone, coded, items};
use std::collections::BTreeSet;

/// Of coordinates up to 20.
const ROUNDING: f32 = 1e-5;

#[test]
fn each_straggler_and_a_death_leave_the_bits_of_one_thread() {
    let plain = alone(1, |_| ());
    for late in Worker::all(WORKERS) {
        let replicas = coded(1, late).unwrap();
        assert_eq!(replicas.len(), WORKERS - 1);
        for replica in replicas {
            assert_eq!(replica.codes, plain.codes, "{late} is late");
            assert!(replica == plain, "{late} is late: other centres");
        }
    }
}

#[test]
fn books_and_what_is_left_over_are_the_items_and_ids_tell_most_of_them_apart() {
    let mut collisions = 0.0;
    for seed in 1..=5 {
        let mut squares = Vec::new();
        let done = alone(seed, |level| squares.push(level.mean_square()));
        assert!(squares.windows(2).all(|pair| pair[1] < pair[0]), "seed {seed}: {squares:?}");
        for (item, x) in items(seed).iter().enumerate() {
            for (i, x) in x.iter().enumerate() {
                let books = (0..LEVELS).map(|level| done.books[level][done.codes[level][item]][i]);
                let apart = (books.sum::<f32>() + done.rest[item][i] - x).abs();
                assert!(apart <= ROUNDING, "seed {seed}, item {item}: off by {apart}");
            }
        }
        for codes in &done.codes {
            let mut counts = [0.0_f64; CODES];
            codes.iter().for_each(|code| counts[*code] += 1.0 / ITEMS as f64);
            assert!(counts.iter().filter(|count| **count > 0.0).count() >= CODES - 1);
            let some = counts.iter().filter(|count| **count > 0.0);
            let entropy: f64 = some.map(|count| -count * count.ln()).sum();
            assert!(entropy >= 0.7 * (CODES as f64).ln(), "seed {seed}: {entropy}");
        }
        let id = |item| done.codes.iter().map(move |codes| codes[item]).collect::<Vec<_>>();
        let ids: BTreeSet<_> = (0..ITEMS).map(id).collect();
        collisions += (1.0 - ids.len() as f64 / ITEMS as f64) / 5.0;
    }
    assert!(collisions <= 0.17, "{collisions}");
}
