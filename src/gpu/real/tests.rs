//! Formats of numbers.

#![cfg(test)]

use super::*;
use proptest::prelude::*;
use rand_distr::{Distribution, StandardNormal};

fn normal(count: usize, length: usize, seed: u64) -> Vec<Vec<f64>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| (0..length).map(|_| StandardNormal.sample(&mut rng)).collect()).collect()
}

fn slices<T>(messages: &[Vec<T>]) -> Vec<&[T]> {
    messages.iter().map(|x| &x[..]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn wide_sums_follow_the_tree(count in 0usize..20, length in 0usize..5000, seed: u64) {
        fn plain(weights: &[f64], messages: &[Vec<f64>], e: usize) -> f64 {
            match weights.len() {
                0 => 0.0,
                1 => weights[0] * messages[0][e],
                n => {
                    let half = n.next_power_of_two() / 2;
                    plain(&weights[..half], &messages[..half], e)
                        + plain(&weights[half..], &messages[half..], e)
                }
            }
        }
        let messages = normal(count, length, seed);
        let weights: Vec<f64> = (0..count).map(|i| 1.5 - i as f64).collect();
        let mut out = vec![f64::NAN; length];
        f64::combine(&weights, &slices(&messages), &mut out).unwrap();
        prop_assert!((0..length).all(|e| out[e] == plain(&weights, &messages, e)));
    }

    #[test]
    fn products_are_products(count in 1usize..9, length in 0usize..3000, seed: u64) {
        let messages = normal(count, length, seed);
        let found = gram(&slices(&messages));
        for i in 0..count {
            for j in 0..count {
                let expected: f64 =
                    messages[i].iter().zip(&messages[j]).map(|(x, y)| x * y).sum();
                prop_assert!((found[i * count + j] - expected).abs() < 1e-9);
            }
        }
    }
}

#[test]
fn long_messages_are_summed_in_chunks() {
    let messages = normal(3, 2 * CHUNK + 17, 5);
    let mut out = vec![f64::NAN; messages[0].len()];
    f64::combine(&[1.0, -1.0, 2.0], &slices(&messages), &mut out).unwrap();
    assert!(
        (0..out.len()).all(|e| out[e] == (messages[0][e] - messages[1][e]) + 2.0 * messages[2][e])
    );
    let narrow: Vec<Vec<f32>> =
        messages.iter().map(|x| x.iter().map(|x| *x as f32).collect()).collect();
    let (wide, narrow) = (gram(&slices(&messages)), gram(&slices(&narrow)));
    assert!(
        wide.iter()
            .zip(&narrow)
            .all(|(a, b)| (a - b).abs() < 1.0 && *b == narrow[0].max(*b).min(*b))
    );
    let error = f64::combine(&[1.0], &[&[1.0]], &mut out);
    assert_eq!(error, Err(CombineError::Length { term: 0, expected: out.len(), found: 1 }));
}

/// Norms of dense messages, of ten elements, and of pairs placed a block apart stay within 15
/// %.
#[test]
fn sketches_keep_norms() {
    let length = 40 * 4096 + 100;
    let mut messages = normal(2, length, 1);
    let mut sparse = vec![0.0; length];
    (0..10).for_each(|i| sparse[i * 15_013] = 1.0 + i as f64);
    messages.push(sparse);
    let mut pairs = vec![0.0; length];
    (0..2000).for_each(|i| (pairs[3 * i], pairs[3 * i + 4096]) = (1.0, -1.0));
    messages.push(pairs);
    for seed in 0..20 {
        for (x, y) in messages.iter().zip(signed_fold(&slices(&messages), 4096, seed)) {
            let squares = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>();
            let ratio = (squares(&y) / squares(x)).sqrt();
            assert!((ratio - 1.0).abs() < 0.15, "seed {seed}: {ratio}");
        }
    }
}

/// Who knows the seed hides an error of any size; a fresh seed shows it.
#[test]
fn a_known_seed_is_no_secret() {
    let mut error = vec![0.0f64; 3 * 64];
    error[0] = 1e6;
    let at = |error: &[f64], seed: u64| signed_fold(&[error], 64, seed)[0].clone();
    let known = at(&error, 5);
    for other in 64..128 {
        let mut unit = vec![0.0; 3 * 64];
        unit[other] = 1.0;
        let bucket = known.iter().position(|x| *x != 0.0).unwrap();
        let sign = at(&unit, 5)[bucket];
        if sign != 0.0 {
            error[other] = -known[bucket] * sign;
        }
    }
    assert!(at(&error, 5).iter().all(|x| *x == 0.0));
    assert!((6..20).any(|seed| at(&error, seed).iter().any(|x| *x != 0.0)));
}
