//! Schemes over recorded delays.

#![cfg(test)]

use super::*;
use crate::codes::SchemeSpec;
use crate::codes::sequential::{Accept, Horizon};
use std::convert::Infallible;

const USUAL: Rules = Rules { close: Close::Decodable, mu: 1.0, growth: None, dispatch: 0.0 };

fn run(
    scheme: &str,
    row: &[f64],
    rules: &Rules,
) -> Result<SimulationOutcome, SimError<Infallible>> {
    let jobs = Job(0)..Job(3);
    let horizon = Horizon { workers: 4, units: None, jobs, accept: Accept::Lookahead };
    let mut scheme = scheme.parse::<SchemeSpec>().unwrap().over(horizon).unwrap();
    let mut rows = || Ok(row.to_vec());
    simulate(&mut *scheme, 3, &mut rows, rules, &mut |_| ())
}

#[test]
fn what_is_no_delay_is_refused_under_every_scheme_and_rule() {
    for scheme in ["uncoded", "groups:s=1", "queue:m=2", "ring:reach=2", "defer:T=1,cap=1"] {
        for close in [Close::All, Close::Incremental, Close::Decodable] {
            let rules = Rules { close, ..USUAL };
            for wrong in [f64::NAN, f64::INFINITY, -1.0] {
                for rows in [[wrong; 4], [1.0, 1.0, 1.0, wrong]] {
                    let error = run(scheme, &rows, &rules).unwrap_err();
                    assert!(matches!(error, SimError::Delay { round: 1, .. }), "{error}");
                }
            }
            let short = run(scheme, &[1.0, 2.0], &rules).unwrap_err();
            assert!(matches!(short, SimError::Short { round: 1, found: 2, workers: 4 }));
            // Those of other workers are passed over.
            assert!(run(scheme, &[1.0, 1.0, 1.0, 2.0, f64::NAN], &rules).is_ok());
            // As large as a number can be: it ends all the same.
            let growth = Some(Growth::Proportional { base: 1e-3 });
            let endless = Rules { growth, ..rules };
            assert!(run(scheme, &[f64::MAX; 4], &endless).is_ok());
        }
    }
}

#[test]
fn rules_that_are_no_numbers_are_refused() {
    let refused = |rules: Rules| run("queue:m=2", &[1.0; 4], &rules).unwrap_err().to_string();
    for wrong in [f64::NAN, f64::INFINITY, -5.0] {
        assert!(refused(Rules { mu: wrong, ..USUAL }).starts_with("mu = "));
        assert!(refused(Rules { dispatch: wrong, ..USUAL }).starts_with("dispatch = "));
        let slope = Some(Growth::Additive { base: 0.25, slope: wrong });
        assert!(refused(Rules { growth: slope, ..USUAL }).starts_with("slope = "));
        let base = Some(Growth::Proportional { base: wrong });
        assert!(refused(Rules { growth: base, ..USUAL }).starts_with("base load = "));
    }
    let nothing = Some(Growth::Proportional { base: 0.0 });
    assert!(refused(Rules { growth: nothing, ..USUAL }).starts_with("base load = 0"));
}
