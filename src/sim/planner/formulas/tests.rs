//! Formulas of the planner against replays.

#![cfg(test)]

use super::*;

/// A law by its quantiles; the heaviest tails lose half a per cent.
fn law(quantile: impl Fn(f64) -> f64) -> Pool {
    let count = 400_000;
    Pool::new((0..count).map(|at| quantile((f64::from(at) + 0.5) / f64::from(count))))
}

fn near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 5e-3, "{found} instead of {expected}");
}

fn harmonic(n: u32) -> f64 {
    (1..=n).map(|k| 1.0 / f64::from(k)).sum()
}

/// The table of round times of the literature (Lee et al. 2018, Tandon et al. 2017, Li et al.
/// 2018): n = 64 workers, an uncoded share takes 1.
#[test]
fn integrals_are_the_closed_forms_of_the_usual_laws() {
    let exponential = law(|u| -(1.0 - u).ln());
    let uncoded = exponential.groups(64, 64, &|x| 1.0 + x);
    near(uncoded, 5.743_890_903_705_767);
    near(exponential.all_but(64, 0, &|x| 1.0 + x), uncoded);
    // Additive delays of mean 5: c + (m/c) H_l, and (s+1) + m (H_n - H_s).
    near(exponential.groups(64, 32, &|x| 2.0 + 5.0 * x), 12.146_237_988_591_3);
    near(exponential.all_but(64, 5, &|x| 6.0 + 5.0 * x), 18.302_787_851_862_17);
    // Multiplicative slowness of mean 1 + m: c + m H_l.
    near(exponential.groups(64, 16, &|x| 4.0 * (1.0 + 0.2 * x)), 4.0 + 0.2 * harmonic(16));
    // Pareto of exponent 2: the maximum of 64, and groups of 4 at exponent 1.2.
    near(law(|u| (1.0 - u).powf(-0.5)).groups(64, 64, &|x| x), 14.207_352_179_527_032);
    near(law(|u| (1.0 - u).powf(-1.0 / 1.2)).groups(64, 16, &|x| 4.0 * x), 8.408_313_580_398_27);
    // Two points: slow with probability p by a factor k.
    let two = law(|u| if u < 0.94 { 1.0 } else { 5.0 });
    near(two.groups(64, 32, &|x| 2.0 * x), 2.0 * (1.0 + 4.0 * 0.108_997_333_678_731_78));
}

#[test]
fn order_statistics_end_with_the_fastest() {
    let pool = Pool::new([1.0, 2.0]);
    assert_eq!(pool.all_but(1, 0, &|x| x), 1.5);
    assert_eq!(pool.all_but(2, 1, &|x| x), 1.25);
    assert_eq!(pool.groups(2, 1, &|x| x), 1.25);
    assert_eq!(pool.all_but(2, 2, &|x| x), 0.0);
    // Groups of 2, 2 and 1 of five workers: 1 - (1 - 1/4)^2 (1 - 1/2).
    assert_eq!(pool.groups(5, 3, &|x| x), 1.0 + 1.0 - 0.75 * 0.75 * 0.5);
}
