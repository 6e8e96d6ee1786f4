//! The papers' locators: exact up to their full radius, and refusals beyond.

use crate::{received, workers};
use codedgrad::codes::berrut::*;
use codedgrad::ids::Worker;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal};

/// A draw of distinct workers, ascending.
pub(crate) fn draw(rng: &mut ChaCha8Rng, from: &[Worker], count: usize) -> Vec<Worker> {
    let mut all = from.to_vec();
    for i in 0..count {
        let other = i + (rng.next_u64() % (all.len() - i) as u64) as usize;
        all.swap(i, other);
    }
    all.truncate(count);
    all.sort_unstable();
    all
}

/// Outputs on the code of dimension `m`, `columns` coordinates, with `s` stragglers and `a` wrong
/// by Gaussian errors of the outputs' size; what is wrong.
fn polynomial_case(
    n: usize,
    m: usize,
    s: usize,
    a: usize,
    columns: usize,
    seed: u64,
) -> (ReceivedOutputs, Vec<Worker>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let code = BerrutCode::new(1, n, Points::FirstKind, Encoder::Lagrange).unwrap();
    let everybody: Vec<Worker> = Worker::all(n).collect();
    let missing = draw(&mut rng, &everybody, s);
    let survivors: Vec<Worker> = everybody.into_iter().filter(|w| !missing.contains(w)).collect();
    let wrong = draw(&mut rng, &survivors, a);
    let coefficients: Vec<Vec<f64>> =
        (0..m).map(|_| (0..columns).map(|_| StandardNormal.sample(&mut rng)).collect()).collect();
    let chebyshev = |k: usize, z: f64| (k as f64 * z.acos()).cos();
    let mut output = |w: &Worker| -> Vec<f64> {
        let z = code.worker_points()[w.index()];
        let honest = |c: usize| (0..m).map(|k| coefficients[k][c] * chebyshev(k, z)).sum::<f64>();
        let error = if wrong.contains(w) { (m as f64 / 2.0).sqrt() } else { 0.0 };
        (0..columns)
            .map(|c| honest(c) + error * Distribution::<f64>::sample(&StandardNormal, &mut rng))
            .collect()
    };
    let outputs: Vec<Vec<f64>> = survivors.iter().map(&mut output).collect();
    (received(&code, &survivors, &outputs), wrong)
}

/// How many of `runs` cases with six columns are located exactly.
fn exact(n: usize, m: usize, s: usize, a: usize, runs: u64) -> usize {
    let right = |seed: &u64| {
        let (received, wrong) = polynomial_case(n, m, s, a, 6, *seed);
        dct_locate(&received, m, a, Form::Polynomial).unwrap() == wrong
    };
    (0..runs).filter(right).count()
}

/// Every full radius 2A + s = N - m or one below, of N workers and up to 4 stragglers.
fn full_radius(counts: &[usize], runs: u64) {
    for n in counts {
        for s in 0..=4.min(n - 3) {
            for m in 1..=n - s - 2 {
                let a = (n - m - s) / 2;
                let found = exact(*n, m, s, a, runs);
                assert_eq!(
                    found as u64, runs,
                    "N={n} s={s} m={m} A={a}: {found} of {runs}, seeds 0..{runs}"
                );
            }
        }
    }
}

/// The radius floor((N - m - s) / 2) that the reflected syndromes give a DCT code: every case up to
/// N = 32, s = 4.
#[test]
fn polynomials_are_located_at_full_radius() {
    full_radius(&[5, 8, 11, 16], 2);
    full_radius(&[32], 1);
}

#[test]
#[ignore = "minutes: cargo test --release --features berrut --test berrut -- \
    --ignored"]
fn polynomials_are_located_at_full_radius_everywhere() {
    full_radius(&(3..=32).collect::<Vec<_>>(), 10);
}

/// 60 workers with up to 10 wrong, the rest of the radius taken by stragglers.
fn sixty(runs: u64) -> (usize, usize) {
    let (mut right, mut all) = (0, 0);
    for a in [1, 2, 4, 6, 8, 10] {
        for m in [8, 15, 22, 30] {
            right += exact(60, m, 60 - m - 2 * a, a, runs);
            all += runs as usize;
        }
    }
    (right, all)
}

#[test]
fn sixty_workers_are_located_in_99_per_cent() {
    let (right, all) = sixty(2);
    assert!(right * 100 >= 99 * all, "{right} of {all}");
}

#[test]
#[ignore = "minutes: cargo test --release --features berrut --test berrut -- \
    --ignored"]
fn sixty_workers_are_located_in_99_per_cent_of_many() {
    let (right, all) = sixty(100);
    println!("N=60, A <= 10, 2A + s = N - m: {right} of {all}");
    assert!(right * 100 >= 99 * all, "{right} of {all}");
}

/// The subspace form and trimming agree with the polynomial one on polynomials.
#[test]
fn all_reference_locators_agree_on_polynomials() {
    for seed in 0..10 {
        let (received, wrong) = polynomial_case(20, 7, 3, 3, 4, seed);
        assert_eq!(dct_locate(&received, 7, 3, Form::Subspace).unwrap(), wrong, "seed {seed}");
        assert_eq!(trimmed_locate(&received.gram(), 7, 3).unwrap().workers, wrong, "seed {seed}");
        let honest = dct_locate(&received, 7, 5, Form::Polynomial).unwrap();
        assert!(
            wrong.iter().all(|w| honest.contains(w)) && honest.len() == 5,
            "the number is taken as known"
        );
    }
}

/// Greedy search where sets are too many for all.
#[test]
fn many_wrong_workers_are_found_without_trying_all_sets() {
    for seed in 0..4 {
        let (received, wrong) = polynomial_case(40, 12, 4, 8, 8, seed);
        assert_eq!(trimmed_locate(&received.gram(), 12, 8).unwrap().workers, wrong, "seed {seed}");
    }
}

#[test]
fn too_many_are_refused_with_the_numbers() {
    let (received, _) = polynomial_case(16, 7, 3, 3, 2, 1);
    let error = dct_locate(&received, 7, 4, Form::Polynomial).unwrap_err();
    assert_eq!(error, BerrutError::Radius { wrong: 4, stragglers: 3, workers: 16, dimension: 7 });
    assert!(
        error.to_string().contains("2A + s = 11 is more than N - m = 9; at most A=3"),
        "{error}"
    );
    assert!(dct_locate(&received, 0, 1, Form::Subspace).is_err());
    assert!(
        trimmed_locate(&received.gram(), 7, 6).unwrap_err().to_string().contains("at most A=5")
    );
    let code = BerrutCode::new(4, 16, Points::FirstKind, Encoder::Spline).unwrap();
    let robust =
        |byzantine, force| ByzantineDefence { byzantine, force, ..ByzantineDefence::default() };
    let error = robust(4, false).capacity(&code, 13).unwrap_err();
    assert_eq!(error, BerrutError::Redundancy { wrong: 4, survivors: 13, blocks: 4, needed: 6 });
    assert!(error.to_string().contains("at most A=3"), "{error}");
    assert_eq!(robust(3, false).capacity(&code, 13), Ok(3));
    assert_eq!(robust(4, true).capacity(&code, 13), Ok(3));
    assert!(robust(13, true).capacity(&code, 13).is_err());
    let second = BerrutCode::new(4, 16, Points::SecondKind, Encoder::Spline).unwrap();
    assert_eq!(robust(1, true).capacity(&second, 16), Err(BerrutError::NotACodeword));
    assert_eq!(
        ReceivedOutputs::new(&second, &workers(&[0]), &[&[1.0]]).unwrap_err(),
        BerrutError::NotACodeword
    );
}

/// A code of fixed dimension notices one wrong worker more than it was told of, and none where
/// there is none.
#[test]
fn one_more_than_told_is_suspicious() {
    let code = BerrutCode::new(3, 20, Points::FirstKind, Encoder::Lagrange).unwrap();
    for seed in 0..5 {
        let (received, wrong) = polynomial_case(20, 5, 2, 2, 4, seed);
        for locator in [
            Locator::Trimmed { dimension: 5 },
            Locator::Dct { dimension: 5, form: Form::Polynomial },
            Locator::Dct { dimension: 5, form: Form::Subspace },
        ] {
            let judge = |count| {
                ByzantineDefence { byzantine: count, locator, force: false }
                    .judge(&code, &Evidence::Outputs(received.clone()))
                    .unwrap()
            };
            assert!(judge(1).suspect, "seed {seed} {locator:?}");
            let verdict = judge(2);
            assert!(
                !verdict.suspect && verdict.trimmed.workers == wrong,
                "seed {seed} {locator:?}"
            );
            assert!(
                verdict.trimmed.sizes.iter().all(|size| (0.2..5.0).contains(size)),
                "{:?}",
                verdict.trimmed.sizes
            );
        }
    }
}
