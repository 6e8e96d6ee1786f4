//! Optimizers beside their formulas.

#![cfg(test)]

use super::*;

/// The formula of the docs in f64, one parameter at a time.
fn oracle(p: &mut f64, m: &mut f64, v: &mut f64, g: f64, step: u64, rate: f64) {
    let t = (step + 1) as i32;
    *m = 0.9 * *m + 0.1 * g;
    *v = 0.99 * *v + 0.01 * g * g;
    let (m_hat, v_hat) = (*m / (1.0 - 0.9f64.powi(t)), *v / (1.0 - 0.99f64.powi(t)));
    *p -= rate * (m_hat / (v_hat.sqrt() + 1e-8) + 0.1 * *p);
}

#[test]
fn follows_its_formula() {
    let mut adam = AdamW::new(CONFIG, 2);
    let mut parameters = [1.0f32, -2.0];
    let mut p = [1.0f64, -2.0];
    let mut m = [0.0f64; 2];
    let mut v = [0.0f64; 2];
    for step in 0..20 {
        let gradient = [3.0 * (step as f32).cos(), 0.3];
        let clip = (1.0 / f64::from(gradient[0]).hypot(f64::from(gradient[1]))).min(1.0);
        adam.update(&mut parameters, &gradient, step);
        for i in 0..2 {
            oracle(
                &mut p[i],
                &mut m[i],
                &mut v[i],
                clip * f64::from(gradient[i]),
                step,
                adam.learning_rate(step),
            );
            assert!((p[i] - f64::from(parameters[i])).abs() < 1e-5, "step {step}");
        }
    }
}

#[test]
fn the_rate_rises_and_falls() {
    let adam = AdamW::new(CONFIG, 0);
    assert_eq!(adam.learning_rate(0), 0.05);
    assert_eq!(adam.learning_rate(2), 0.1);
    assert!((adam.learning_rate(10) - 0.01).abs() < 1e-12);
    assert!((adam.learning_rate(1000) - 0.01).abs() < 1e-12);
}

#[test]
fn moments_taken_over_go_on_alike() {
    let gradient: Vec<f32> = (0..40_000).map(|i| (i as f32).sin()).collect();
    let (mut a, mut left) = (AdamW::new(CONFIG, 40_000), vec![0.5f32; 40_000]);
    a.update(&mut left, &gradient, 0);
    let mut right = left.clone();
    let mut b = AdamW::with_moments(CONFIG, a.moments().0.to_vec(), a.moments().1.to_vec());
    assert_eq!(a.update(&mut left, &gradient, 1), b.update(&mut right, &gradient, 1));
    assert_ne!(
        a.update(&mut left, &gradient, 2),
        b.update(&mut right, &gradient, 1),
        "another step, other bytes"
    );
}
