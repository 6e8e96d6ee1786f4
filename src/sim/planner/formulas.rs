//! Round times of workers that are slow independently of one another: closed forms over their law.
//!
//! # Formula
//! ```text
//! groups of c_g workers:  E max_g min_i T = integral of 1 - prod_g (1 - (1 - F(t))^c_g) dt
//! all but s of n:         E T_(n-s)       = integral of P(more than s of n are later than t) dt
//! ```
//! where `F` is the law of one answer's time, here that of all answers of a trace taken together. A
//! replay that differs from it shows that workers are slow together, or always the same ones.

use crate::codes::SchemeSpec;
use crate::codes::registry::{ClosedForm, WaitsFor};
use crate::delays::Growth;

/// Time per job, load and coverage of a scheme that has a closed form; for `min-load` the time of
/// codes that need any `n - s` answers, which it never exceeds.
pub(super) fn of(
    scheme: &SchemeSpec,
    workers: usize,
    pool: &Pool,
    growth: Growth,
) -> Option<(f64, f64, f64)> {
    let ClosedForm { waits_for, load, coverage } = scheme.closed_form(workers)?;
    let at = move |delay: f64| growth.time(delay, load);
    let time = match waits_for {
        WaitsFor::OneOfEach { groups } => pool.groups(workers, groups, &at),
        WaitsFor::AllBut { stragglers } => pool.all_but(workers, stragglers, &at),
    };
    Some((time, load, coverage))
}

/// The answer times of a trace, of all workers.
pub(super) struct Pool(Vec<f64>);

impl Pool {
    pub(super) fn new(times: impl IntoIterator<Item = f64>) -> Self {
        let mut times: Vec<f64> = times.into_iter().collect();
        times.sort_unstable_by(f64::total_cmp);
        Self(times)
    }

    /// `integral of later(P(T > t)) dt` over answers whose time `of` makes from that in the pool.
    fn integral(&self, of: &dyn Fn(f64) -> f64, later: &dyn Fn(f64) -> f64) -> f64 {
        let count = self.0.len() as f64;
        let mut before = 0.0;
        let steps = self.0.iter().enumerate().map(|(faster, time)| {
            let time = of(*time);
            let step = time - before;
            before = time;
            if step > 0.0 { step * later(1.0 - faster as f64 / count) } else { 0.0 }
        });
        steps.sum()
    }

    /// Mean time until each group has an answer, for groups of equal or almost equal size.
    pub(super) fn groups(&self, workers: usize, groups: usize, of: &dyn Fn(f64) -> f64) -> f64 {
        let (size, larger) = ((workers / groups) as i32, (workers % groups) as i32);
        let smaller = groups as i32 - larger;
        self.integral(of, &|late| {
            1.0 - (1.0 - late.powi(size)).powi(smaller) * (1.0 - late.powi(size + 1)).powi(larger)
        })
    }

    /// Mean time until all but `stragglers` of the workers have answered.
    pub(super) fn all_but(
        &self,
        workers: usize,
        stragglers: usize,
        of: &dyn Fn(f64) -> f64,
    ) -> f64 {
        self.integral(of, &|late| more_than(workers, stragglers, late))
    }
}

/// `P(more than s of n)` where each is with probability `p`.
fn more_than(n: usize, s: usize, p: f64) -> f64 {
    if p >= 1.0 {
        return f64::from(u8::from(s < n));
    }
    let odds = (p / (1.0 - p)).ln();
    let mut log = n as f64 * (-p).ln_1p();
    let mut at_most = log.exp();
    for count in 1..=s {
        log += ((n - count + 1) as f64 / count as f64).ln() + odds;
        at_most += log.exp();
    }
    (1.0 - at_most).max(0.0)
}

#[cfg(test)]
mod tests;
